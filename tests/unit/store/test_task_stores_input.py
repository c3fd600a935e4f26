"""Iterators of a task's stores, committed views, and bad input: a clear error, and nothing changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from standfast.store import serde
from standfast.store.buffer.rows import RowLimits
from standfast.store.errors import BadConfig, Closed, InvalidRequest, TooLarge, UnknownStore
from standfast.store.specs import KeyValueStore, WindowStore
from standfast.store.task.task_stores import TaskStores
from support.stores import MINUTE_MS, TEXT, Open, at, keyvalue, session, versioned, window

# Iterators


def iterators(task: TaskStores) -> list[Iterator[Any]]:
    return [
        *(task.store("kv").all(), task.store("kv").range("a", "z", reverse=True), task.store("kv").prefix_scan("a")),
        *(task.store("win").all(), task.store("win").fetch_range("a", 0, MINUTE_MS)),
        *(task.store("ses").all(), task.store("ses").fetch("a"), task.store("ver").range("a", 0, MINUTE_MS)),
    ]


def filled(task: TaskStores) -> TaskStores:
    for key in ("a", "a1"):
        task.store("kv").put(key, "1")
        task.store("win").put(key, "1", 30_000)
        task.store("ses").put(key, 1, 2, "1")
        task.store("ver").put(key, "1", 1)
    task.commit(at(1))
    task.store("kv").put("a2", "buffered")
    return task


@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
def test_iterators_close_with_the_store_and_then_raise_closed(open_task: Open, engine: Any) -> None:
    specs = [keyvalue(engine=engine), window(engine=engine), session(engine=engine), versioned(engine=engine)]
    task = filled(open_task(*specs))
    begun, drained = iterators(task), iterators(task)
    assert None not in [next(one) for one in begun]
    assert [] not in [list(one) for one in drained]
    closed = iterators(task)[0]
    with closed:  # type: ignore[attr-defined]
        next(closed)
    view = task.committed_view("kv").all()
    next(view)
    with pytest.raises(Closed, match="iterator of store 'kv' is closed"):
        next(closed)
    task.close()
    for one in [*begun, *drained, closed, view]:
        with pytest.raises(Closed):
            next(one)
    for name, read in (("kv", "all"), ("win", "all"), ("ses", "all"), ("kv", "get"), ("ver", "get")):
        with pytest.raises(Closed, match="its task was revoked"):
            getattr(task.store(name), read)(*(["a"] if read == "get" else []))
    with pytest.raises(Closed):
        task.store("kv").put("a", "1")
    with pytest.raises(Closed):
        task.commit(at(2))


@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
def test_an_iterator_shows_the_store_as_it_was_when_it_began(open_task: Open, engine: Any) -> None:
    task = open_task(keyvalue(engine=engine), window(engine=engine))
    kv, win = task.store("kv"), task.store("win")
    for number in range(600):  # more than one chunk of a scan
        kv.put(f"{number:03}", "1")
        win.put(f"{number:03}", "1", number * 100)
    task.commit(at(1))
    kv.put("buffered", "1")
    scans: Sequence[Any] = (kv.all(), win.all())
    for scan in scans:
        next(scan)
    for number in range(600):
        kv.delete(f"{number:03}")
    kv.put("buffered", "2")
    win.put("later", "1", 10 * MINUTE_MS)  # the segment that the scan reads is dropped
    task.commit(at(2))
    assert [len(list(scan)) for scan in scans] == [600, 599]
    assert (list(kv.all()), len(list(win.all()))) == ([("buffered", "2")], 1)


def test_an_iterator_that_is_let_go_is_not_kept_open(open_task: Open) -> None:
    task = filled(open_task(keyvalue(), window(), session(), versioned()))
    assert None not in [next(one) for one in iterators(task)]
    assert [len(store.rows.iterators) for store in task.stores.values()] == [0, 0, 0, 0]


def test_a_committed_view_shows_no_buffered_row_and_takes_no_write(open_task: Open) -> None:
    task = filled(open_task(keyvalue(), window(), session(), versioned()))
    view = task.committed_view("kv")
    assert (view.get("a2"), task.store("kv").get("a2")) == (None, "buffered")
    with pytest.raises(InvalidRequest, match="open for reading only"):
        view.put("a", "1")
    with pytest.raises(UnknownStore):
        task.committed_view("absent")


# Bad input


@pytest.fixture
def four(open_task: Open) -> TaskStores:
    return open_task(keyvalue(), window(), session(), versioned(), limits=RowLimits(key_bytes=100, value_bytes=50))


def test_a_null_key_is_refused_by_every_call(four: TaskStores) -> None:
    kv, win, ses, ver = (four.store(name) for name in ("kv", "win", "ses", "ver"))
    for call in (
        *(
            lambda: kv.get(None),
            lambda: kv.put(None, "x"),
            lambda: kv.delete(None),
            lambda: kv.put_if_absent(None, "x"),
        ),
        *(lambda: kv.put_all([("a", "b"), (None, "x")]), lambda: kv.prefix_scan(None)),
        *(lambda: win.put(None, "x", 1), lambda: win.fetch(None, 1), lambda: win.fetch_range(None, 0, 1)),
        *(lambda: ses.put(None, 0, 1, "x"), lambda: ses.fetch(None), lambda: ses.remove(None, 0, 1)),
        *(lambda: ver.put(None, "x", 1), lambda: ver.get(None), lambda: ver.delete(None, 1)),
    ):
        with pytest.raises(InvalidRequest, match="the key is None"):
            call()
    assert four.buffer.size_bytes == 0


def test_keys_and_values_over_the_limit_are_refused(four: TaskStores) -> None:
    kv, win, ses, ver = (four.store(name) for name in ("kv", "win", "ses", "ver"))
    big, long = "v" * 51, "k" * 101
    for call, told in (
        (lambda: kv.put("a", big), "value of 51 bytes is over the limit of 50"),
        (lambda: kv.put_all([("a", "b"), ("c", big)]), "value of 51 bytes"),
        (lambda: kv.put(long, "x"), "key of 101 bytes is over the limit of 100"),
        (lambda: win.put("a", big, 1), "value of 51 bytes"),
        (lambda: ses.put("a", 0, 1, big), "value of 51 bytes"),
        (lambda: ver.put("a", big, 1), "value of 51 bytes"),
        (lambda: ver.put(long, "x", 1), "key of 101 bytes"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            call()
    kv.put("k" * 100, "v" * 50)
    assert len(four.buffer.take_changes()) == 1
    assert {store.rows.observed_ms for store in four.stores.values()} == {-1}


@pytest.mark.parametrize("caching", [True, False])
def test_record_that_no_log_takes_at_its_defaults_is_refused_though_key_and_value_are_within_theirs(
    open_task: Open, caching: bool
) -> None:
    task = open_task(keyvalue(caching=caching), window(), session(), versioned())
    kv, win, ses, ver = (task.store(name) for name in ("kv", "win", "ses", "ver"))
    long, big = "k" * 60_000, "v" * 1_000_000
    for call in (
        lambda: kv.put(long, big),
        lambda: kv.put_all([("a", "b"), (long, big)]),
        lambda: win.put(long, big, 1),
        lambda: ses.put(long, 0, 1, big),
        lambda: ver.put(long, big, 1),
    ):
        with pytest.raises(TooLarge, match=r"of 10600\d\d bytes is over the limit of 1048000 bytes for key and value"):
            call()
    kv.put("k" * 48_000, big)
    assert len(task.buffer.take_changes()) == 1
    assert {store.rows.observed_ms for store in task.stores.values()} == {-1}


@pytest.mark.parametrize("wrong", [-1, 2**63, 1.5, "7", True])
def test_wrong_times_are_refused_and_change_nothing(four: TaskStores, wrong: Any) -> None:
    kv, win, ses, ver = (four.store(name) for name in ("kv", "win", "ses", "ver"))
    for call in (
        lambda: kv.put("a", "x", wrong),
        *(lambda: win.put("a", "x", wrong), lambda: win.put("a", "x", 1, wrong), lambda: win.fetch("a", wrong)),
        *(
            lambda: ses.put("a", 0, wrong, "x"),
            lambda: ses.put("a", wrong, 5, "x"),
            lambda: ses.put("a", 0, 1, "x", wrong),
        ),
        *(lambda: ver.put("a", "x", wrong), lambda: ver.get("a", as_of=wrong), lambda: ver.delete("a", wrong)),
    ):
        with pytest.raises(InvalidRequest, match="milliseconds since the epoch"):
            call()
    no_number = "KeyValueState.put_all: timestamp must be a whole number"
    says = "milliseconds since the epoch" if type(wrong) is int else no_number
    with pytest.raises(InvalidRequest, match=says):
        kv.put_all([("a", "x")], wrong)
    assert (four.buffer.size_bytes, four.buffer.rows) == (0, {})
    assert {store.rows.observed_ms for store in four.stores.values()} == {-1}


def test_a_session_that_ends_before_it_starts_is_refused(four: TaskStores) -> None:
    with pytest.raises(InvalidRequest, match="start at 5 and end earlier, at 4"):
        four.store("ses").put("a", 5, 4, "x")


def test_calls_that_do_not_fit_the_definition_are_refused(open_task: Open) -> None:
    task = open_task(keyvalue(timestamped=False), window(timestamped=False), window("dup", retain_duplicates=True))
    for call, told in (
        (lambda: task.store("kv").get_with_timestamp("a"), "keeps no timestamps"),
        (lambda: task.store("win").fetch_with_timestamp("a", 1), "keeps no timestamps"),
        (lambda: task.store("dup").fetch("a", 1), "use fetch_range"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            call()


def test_a_value_that_the_serde_refuses_changes_nothing(open_task: Open) -> None:
    task = open_task(KeyValueStore("kv", serde.int64, serde.json))
    with pytest.raises(InvalidRequest, match="key serde 'int64' cannot serialize"):
        task.store("kv").put("text", 1)
    with pytest.raises(InvalidRequest, match="value serde 'json' cannot serialize"):
        task.store("kv").put_all([(1, 1), (2, {1, 2})])
    assert task.buffer.size_bytes == 0


@pytest.mark.parametrize("name", ["default", "../x", "a/b", "", ".hidden", "a" * 129])
def test_names_that_no_store_may_have_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        keyvalue(name)


def test_a_definition_tells_all_its_problems_at_once() -> None:
    with pytest.raises(BadConfig) as refused:
        WindowStore("default", TEXT, "text", window_size_ms=0, retention_ms=-1, engine="disk")  # type: ignore[arg-type]
    assert len(refused.value.problems) == 5
