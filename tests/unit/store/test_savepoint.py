"""Savepoints: a rollback leaves the earlier content, to the order of its entries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store.buffer.buffer import Buffer
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.errors import InternalError
from standfast.store.specs import WindowStore
from standfast.store.task.task_stores import TaskStores
from support.buffers import log, put, write
from support.stores import TEXT, Open, at, keyvalue, session, versioned, window

FAMILIES = st.sampled_from(["kv", "win@0"])
STORES = st.sampled_from(["kv", "win"])
KEYS = st.binary(max_size=2)
VALUES = st.none() | st.binary(max_size=4)
STEPS = st.lists(
    st.tuples(st.just("put"), FAMILIES, KEYS, VALUES)
    | st.tuples(st.just("log"), STORES, KEYS, VALUES, st.booleans())
    | st.tuples(st.just("write"), FAMILIES, KEYS, VALUES, VALUES)
    | st.tuples(st.just("scan"), FAMILIES)
    | st.tuples(st.just("outside"), KEYS, VALUES),
    max_size=25,
)


def carry_out(buffer: WriteBuffer, outside: dict[bytes, Any], steps: list[tuple[Any, ...]]) -> None:
    for number, step in enumerate(steps):
        match step:
            case ("put", family, key, row):
                put(buffer, family, key, row)
            case ("log", store, key, value, latest_only):
                # A store is cached or it is not: its changes have slots of one kind.
                log(buffer, store + ("" if latest_only else "-each"), key, value, number, latest_only=latest_only)
            case ("write", family, key, row, value):
                row, value = (None, None) if row is None or value is None else (row, value)
                write(buffer, family + "-both", key, row, family + "-both", value, number)
            case ("scan", family):
                for name in (family, family + "-both"):
                    buffer.pending(name, None, None, reverse=False)
            case ("outside", key, value):
                buffer.remember(outside, key)
                if value is None:
                    outside.pop(key, None)
                else:
                    outside[key] = value


def content(buffer: Buffer) -> Any:
    """The whole content for a commit or a read, in order."""
    rows = [(family, list(found.items())) for family, found in buffer.rows.items()]
    scans = [buffer.pending(family, None, None, reverse=False) for family in buffer.rows]
    return rows, scans, [(name, list(found.items())) for name, found in buffer.changes.items()], buffer.size_bytes


@pytest.mark.slow
@given(STEPS, STEPS, STEPS)
def test_rollback_gives_what_was_there_before_and_writing_goes_on(
    first: list[tuple[Any, ...]], undone: list[tuple[Any, ...]], then: list[tuple[Any, ...]]
) -> None:
    buffer, plain = WriteBuffer(), WriteBuffer()
    outside: dict[bytes, Any] = {}
    outside_plain: dict[bytes, Any] = {}
    carry_out(buffer, outside, first)
    carry_out(plain, outside_plain, first)
    buffer.begin()
    carry_out(buffer, outside, undone)
    buffer.rollback()
    assert content(buffer) == content(plain)
    assert outside == outside_plain
    carry_out(buffer, outside, then)
    carry_out(plain, outside_plain, then)
    assert content(buffer) == content(plain)
    assert buffer.take_changes() == plain.take_changes()


@given(STEPS, STEPS)
def test_release_keeps_everything(first: list[tuple[Any, ...]], kept: list[tuple[Any, ...]]) -> None:
    buffer, plain = WriteBuffer(), WriteBuffer()
    for one, inside in ((buffer, True), (plain, False)):
        carry_out(one, {}, first)
        if inside:
            one.begin()
        carry_out(one, {}, kept)
        if inside:
            one.release()
    assert content(buffer) == content(plain)


def test_undo_functions_run_from_the_latest_to_the_first_and_only_once() -> None:
    buffer, undone = WriteBuffer(), list[int]()
    buffer.on_rollback(lambda: undone.append(0))  # no savepoint: never called
    buffer.begin()
    for number in (1, 2, 3):
        buffer.on_rollback(lambda number=number: undone.append(number))  # type: ignore[misc]
    buffer.rollback()
    assert undone == [3, 2, 1]
    buffer.begin()
    buffer.rollback()
    assert undone == [3, 2, 1]


@given(STEPS, STEPS, STEPS, STEPS, st.booleans(), st.booleans())
def test_inner_savepoint_ends_by_itself_and_the_outer_one_undoes_all_of_it(
    first: list[Any], before: list[Any], inner: list[Any], after: list[Any], keep_inner: bool, keep_outer: bool
) -> None:
    """Kept changes stand as if the others had never been written."""
    buffer, outside = WriteBuffer(), dict[bytes, Any]()
    other, others = WriteBuffer(), dict[bytes, Any]()
    for steps, kept in ((first, True), (before, keep_outer), (inner, keep_inner and keep_outer), (after, keep_outer)):
        if steps is before:
            buffer.begin()
        if steps is inner:
            buffer.begin()
        carry_out(buffer, outside, steps)
        if steps is inner:
            (buffer.release if keep_inner else buffer.rollback)()
            assert buffer.in_savepoint
        if kept:
            carry_out(other, others, steps)
    (buffer.release if keep_outer else buffer.rollback)()
    assert not buffer.in_savepoint
    assert (content(buffer), outside) == (content(other), others)


def test_undo_functions_of_savepoints_that_were_kept_run_with_the_outer_one() -> None:
    buffer, undone = WriteBuffer(), list[int]()
    buffer.begin()
    buffer.on_rollback(lambda: undone.append(1))
    buffer.begin()
    buffer.on_rollback(lambda: undone.append(2))
    buffer.release()
    buffer.begin()
    buffer.on_rollback(lambda: undone.append(3))
    buffer.rollback()
    assert undone == [3]
    buffer.rollback()
    assert undone == [3, 2, 1]


def test_savepoint_that_is_not_open_cannot_end_and_a_discard_ends_all() -> None:
    buffer = WriteBuffer()
    for end in (buffer.rollback, buffer.release):
        with pytest.raises(InternalError, match="no savepoint"):
            end()
    buffer.begin()
    buffer.begin()
    put(buffer, "kv", b"a", b"1")
    buffer.clear()  # a discard ends it
    assert not buffer.in_savepoint
    buffer.begin()
    buffer.rollback()
    assert content(buffer) == ([], [], [], 0)


def test_rollback_of_a_task_takes_back_rows_and_observed_times_of_every_store(open_task: Open) -> None:
    duplicates = WindowStore("dup", TEXT, TEXT, window_size_ms=1_000, retention_ms=120_000, retain_duplicates=True)
    task: TaskStores = open_task(keyvalue(), window(), session(), versioned(), duplicates)
    for each in (_write_early, _write_late):
        task.savepoint()
        each(task)
        task.rollback()
        assert (task.buffer.rows, task.buffer.changes, task.buffer.size_bytes) == ({}, {}, 0)
        assert task._times() == dict.fromkeys(("kv", "win", "ses", "ver", "dup"), (-1, 0))
    task.savepoint()
    _write_early(task)
    task.release()
    kept, times = content(task.buffer), task._times()
    reads = _reads(task)
    task.savepoint()
    _write_late(task)
    assert _reads(task) != reads
    task.rollback()
    assert (content(task.buffer), task._times(), _reads(task)) == (kept, times, reads)
    task.commit(at(1, "kv", "win", "ses", "ver", "dup"))
    task.savepoint()
    _write_late(task)
    task.rollback()
    assert (task._times(), _reads(task)) == (times, reads)


def _write_early(task: TaskStores) -> None:
    task.store("kv").put("a", "1", 1)
    task.store("win").put("a", "1", 1_000, 1)
    task.store("ses").put("a", 1, 2, "1")
    task.store("ver").put("a", "1", 1)
    task.store("dup").put("a", "1", 5)


def _write_late(task: TaskStores) -> None:
    task.store("kv").delete("a")
    task.store("kv").put("b", "2", 2)
    task.store("win").put("a", "2", 10_000_000, 1)  # hides all earlier rows
    task.store("ses").remove("a", 1, 2)
    task.store("ses").put("a", 1, 10_000_000, "2")
    task.store("ver").put("a", "2", 10_000_000)
    task.store("dup").put("a", "2", 5)


def _reads(task: TaskStores) -> list[Any]:
    names = ("kv", "win", "ses", "dup")
    return [list(task.store(name).all()) for name in names] + [task.store("ver").get("a")]
