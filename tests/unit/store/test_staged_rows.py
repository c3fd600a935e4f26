"""Changelog records that are staged piece by piece and written at once: the same rows as in one piece, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from standfast.replication.log import Record
from standfast.store import session_key, window_key
from standfast.store.errors import Corruption
from standfast.store.rocks.sst import write_sorted
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import StoreTimes
from standfast.store.task.task_stores import TaskStores
from support.stores import MINUTE_MS, Open, at, keyvalue, session, versioned, window

RECORDS = 400
# The key by which a store's changelog names a row of this key at this time.
KEYS: dict[str, Callable[[bytes, int], bytes]] = {
    "kv": lambda key, time_ms: key,
    "win": lambda key, time_ms: window_key.pack(key, time_ms, 0),
    "ses": lambda key, time_ms: session_key.pack(key, time_ms - 5, time_ms),
    "ver": lambda key, time_ms: key,
}
SPECS: list[StoreSpec] = [keyvalue(), window(), session(), versioned()]


def changelog(name: str, seed: int) -> list[Record]:
    """Few keys, deletes among them, and times that go on for more than the retention, and back now and then."""
    rng = Random(seed)
    records = []
    for offset in range(RECORDS):
        time_ms = max(10, offset * MINUTE_MS // 50 - rng.randrange(2 * MINUTE_MS))
        key = KEYS[name](b"key-%d" % rng.randrange(8), time_ms)
        value = None if rng.random() < 0.15 else b"value-%d" % offset
        records.append(Record(offset, time_ms, key, value))
    return records


def pieces(records: Sequence[Record], seed: int) -> list[Sequence[Record]]:
    rng = Random(seed)
    cuts = sorted({0, len(records), *(rng.randrange(len(records)) for _ in range(20))})
    return [records[first:last] for first, last in pairwise(cuts)]


def content(task: TaskStores, name: str) -> dict[Any, Any]:
    rows = {(key, stamp): value for key, stamp, value in task.store(name).logical_rows()}
    return {"rows": rows, "observed": task.store(name).rows.observed_ms, "cut": task.cut.stores[name]}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_pieces_that_are_written_at_once_are_the_rows_of_the_whole(
    open_task: Open, tmp_path: Path, spec: StoreSpec, seed: int
) -> None:
    records = changelog(spec.name, seed)
    whole, staged = open_task(spec, directory=tmp_path / "whole"), open_task(spec, directory=tmp_path / "staged")
    for number, batch in enumerate(pieces(records, seed)):
        whole.apply({spec.name: batch}, at(number))
    for half in (records[: RECORDS // 2], records[RECORDS // 2 :]):
        for piece in pieces(half, seed):
            staged.stage(spec.name, piece)
        staged.apply({}, at(RECORDS))
    assert content(staged, spec.name) == content(whole, spec.name)
    assert content(staged, spec.name)["rows"]


def test_what_is_staged_is_seen_by_nobody_until_it_is_written(open_task: Open) -> None:
    task = open_task(keyvalue())
    assert task.stage("kv", [Record(0, 1, b"a", b"1"), Record(1, 2, b"b", b"2")]) == 2
    assert task.stage("kv", [Record(2, 3, b"a", b"3")]) == 2
    assert task.committed_view("kv").get("a") is None
    assert task.apply({"kv": [Record(3, 4, b"c", b"4")]}, at(4)) == 3
    assert [task.store("kv").get(key) for key in "abc"] == ["3", "2", "4"]


def test_error_lets_go_of_what_was_staged_and_of_the_time_it_was_observed_at(open_task: Open) -> None:
    task = open_task(window(), keyvalue())
    early = Record(0, 10, window_key.pack(b"a", 1_000, 0), b"1")
    task.apply({"win": [early]}, at(1))
    task.stage("kv", [Record(0, 1, b"a", b"1")])
    task.stage("win", [Record(1, 10, window_key.pack(b"a", 10 * MINUTE_MS, 0), b"2")])
    assert task.store("win").rows.observed_ms == 10 * MINUTE_MS
    with pytest.raises(Corruption, match="not a key of a window store"):
        task.stage("win", [Record(2, 10, b"short", b"3")])
    assert task.store("win").rows.observed_ms == 1_000
    assert task.apply({}, at(1)) == 0
    assert [value for _, _, value in task.store("win").logical_rows()] == [b"1"]
    assert task.store("kv").get("a") is None


def test_rows_of_a_segment_that_expires_in_a_later_piece_make_no_family(open_task: Open) -> None:
    task = open_task(window())
    task.stage("win", [Record(0, 10, window_key.pack(b"a", 1_000, 0), b"1")])
    task.stage("win", [Record(1, 10, window_key.pack(b"a", 60 * MINUTE_MS, 0), b"2")])
    assert task.apply({}, at(2)) == 1
    assert len(task.store("win").families()) == 1
    assert [value for _, _, value in task.store("win").logical_rows()] == [b"2"]


def test_files_that_come_in_beside_rows_that_wait_leave_their_times_out_of_the_cut(
    open_task: Open, tmp_path: Path
) -> None:
    task = open_task(window(), keyvalue())
    before = task.cut.stores.get("win", StoreTimes())
    task.stage("win", [Record(0, 10, window_key.pack(b"a", MINUTE_MS, 0), b"1")])
    file = write_sorted(tmp_path / "0.sst", {b"k": bytes(8) + b"v"}).path
    task.ingest("kv", [("kv", file)], StoreTimes(77, 0), at(1))
    assert task.cut.stores == {"win": before, "kv": StoreTimes(77, 0)}
    task.unstage()
    assert [task.store(name).rows.observed_ms for name in ("win", "kv")] == [before.observed_ms, 77]
    assert task.store("kv").get("k") == "v"


@pytest.mark.parametrize("spec", [window(), session(), versioned()], ids=lambda spec: spec.name)
def test_files_that_come_in_beside_rows_that_wait_remove_no_row_that_lives_without_these(
    open_task: Open, tmp_path: Path, spec: StoreSpec
) -> None:
    task = open_task(spec, keyvalue())
    early, late = KEYS[spec.name](b"a", MINUTE_MS), KEYS[spec.name](b"a", 600 * MINUTE_MS)
    ended = KEYS[spec.name](b"a", 2 * MINUTE_MS)
    task.apply({spec.name: [Record(0, MINUTE_MS, early, b"1"), Record(1, 2 * MINUTE_MS, ended, b"2")]}, at(2))
    before = content(task, spec.name)
    task.stage(spec.name, [Record(2, 600 * MINUTE_MS, late, b"3")])
    task.ingest("kv", [("kv", write_sorted(tmp_path / "0.sst", {b"k": b"v"}).path)], StoreTimes(), at(2))
    task.unstage()
    assert content(task, spec.name)["rows"] == before["rows"]
    assert len(before["rows"]) == 2
