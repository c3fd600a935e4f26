"""Rows of the last commits are read without the database, and are those that it has."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.store.rocks.opening import RocksShared
from standfast.store.task.task_stores import TaskStores
from support.stores import MINUTE_MS, Open, at, keyvalue, session, versioned, window

KEYS = st.sampled_from(["a", "b"])
VALUES = st.sampled_from(["x", "yy", None])
TIMES = st.sampled_from([0, 1, 6, 7, 12]).map(lambda half: half * MINUTE_MS // 2)
WRITES = st.tuples(st.sampled_from(["kv", "win", "ses", "ver"]), KEYS, VALUES, TIMES)
BETWEEN = st.sampled_from(["commit", "discard", "begin", "rollback", "release"]).map(lambda name: (name,))
# Rounds of a few writes that are committed, and what else may happen to the rows between.
ROUNDS = st.lists(
    st.tuples(
        st.lists(WRITES, max_size=3),
        st.lists(BETWEEN | st.tuples(st.just("apply"), KEYS, VALUES, TIMES), max_size=2),
        st.just([("release",), ("release",), ("commit",)]),
    ),
    min_size=3,
    max_size=12,
)


def carry_out(stores: TaskStores, step: tuple[Any, ...], number: int) -> None:
    kv, win, ses, ver = (stores.store(name) for name in ("kv", "win", "ses", "ver"))
    match step:
        case ("kv", key, value, time):
            kv.put(key, value, time)
        case ("win", key, value, time):
            win.put(key, value, time, time)
        case ("ses", key, value, time):
            ses.put(key, time, time + 1, value)
        case ("ver", key, value, time):
            ver.put(key, value, time)
        case ("apply", key, value, time):
            raw = None if value is None else value.encode()
            stores.apply({"kv": [(number, time, key.encode(), raw, ())]}, at(number))
        case ("commit",):
            if not stores.buffer.in_savepoint:
                stores.commit(at(number))
        case ("discard",):
            stores.discard()
        case ("begin",):
            stores.savepoint()
        case ("rollback",) if stores.buffer.in_savepoint:
            stores.rollback()
        case ("release",) if stores.buffer.in_savepoint:
            stores.release()


def reads(stores: TaskStores) -> list[Any]:
    kv, win, ses, ver = (stores.store(name) for name in ("kv", "win", "ses", "ver"))
    found: list[Any] = []
    for key in ("a", "b", "c"):
        found += [kv.get_with_timestamp(key), ver.get(key)]
        for half in range(13):
            time = half * MINUTE_MS // 2
            found += [win.fetch(key, time), ses.fetch_session(key, time, time + 1), ver.get(key, time)]
    return [*found, list(kv.all()), list(win.all())]


@settings(max_examples=25, deadline=None)
@given(rounds=ROUNDS, keep=st.sampled_from([2_000, 1 << 20]))
def test_reads_are_those_of_the_database_whatever_comes_between(rounds: list[Any], keep: int) -> None:
    play(rounds, keep)


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(rounds=ROUNDS, keep=st.sampled_from([2_000, 1 << 20]))
def test_reads_of_two_hundred_histories_are_those_of_the_database(rounds: list[Any], keep: int) -> None:
    play(rounds, keep)


def play(rounds: list[Any], keep: int) -> None:
    """The same history with recent rows kept, and without: every read is the same."""
    specs = [make(engine="memory") for make in (keyvalue, window, session, versioned)]
    shared = RocksShared(1 << 20)  # not used by stores in memory
    kept, plain = (TaskStores(Path("/absent"), "app", "0_0", specs, shared, now_ms=lambda: 77) for _ in "ab")
    for stores in (kept, plain):
        stores.buffer.refuse_bytes = 1 << 30
        stores.buffer.keep_bytes = keep
    for number, step in enumerate(chain.from_iterable(chain.from_iterable(rounds))):
        for stores in (kept, plain):
            carry_out(stores, step, number)
        plain.buffer.forget_recent()
        assert reads(kept) == reads(plain)
    kept.close()
    plain.close()


def test_row_of_the_last_commit_is_read_without_the_database(open_task: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = open_task(keyvalue())
    stores.buffer.keep_bytes = 10_000
    kv = stores.store("kv")
    assert kv.get("a") is None  # a family that is never read keeps no rows
    kv.put("a", "x", 1)
    stores.commit(at(1))
    kv.put("b", "y", 1)
    stores.commit(at(2))
    monkeypatch.setattr(stores.engine, "get", lambda family, key: pytest.fail(f"{key!r} was read from the database"))
    assert (kv.get("a"), kv.get("b")) == ("x", "y")


def test_rows_of_a_store_that_is_only_written_are_not_kept(open_task: Open) -> None:
    stores = open_task(keyvalue())
    stores.buffer.keep_bytes = 10_000
    stores.store("kv").put("a", "x", 1)
    stores.commit(at(1))
    assert not stores.buffer.recent


def test_recent_rows_stay_within_their_bound(open_task: Open) -> None:
    stores = open_task(keyvalue())
    stores.buffer.keep_bytes = 10_000
    kv = stores.store("kv")
    assert kv.get("0") is None
    for number in range(200):
        kv.put(str(number), "x" * 100, 1)
        if number % 10 == 9:
            stores.commit(at(number))
            held = sum(len(key) + len(row or b"") for key, row in stores.buffer.recent["kv"].items())
            assert 0 < held <= 10_000
    assert kv.get("0") == kv.get("199") == "x" * 100


def test_commit_beyond_the_bound_keeps_no_rows(open_task: Open) -> None:
    stores = open_task(keyvalue())
    stores.buffer.keep_bytes = 1_000
    kv = stores.store("kv")
    assert kv.get("a") is None
    kv.put("a", "x" * 1_500, 1)
    stores.commit(at(1))
    assert not stores.buffer.recent and kv.get("a") == "x" * 1_500
