"""`StoreRows.write`, one step for most puts: its outcome is that of the two steps `put` and `log`."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store import serde
from standfast.store.buffer import WriteBuffer
from standfast.store.errors import Backpressure, InvalidRequest, TooLarge
from standfast.store.memory import MemoryEngine
from standfast.store.native.library import compiled
from standfast.store.rows import RowLimits, StoreRows
from standfast.store.specs import KeyValueStore
from standfast.store.types.keyvalue import KeyValueState
from standfast.store.value_timestamp import TIMESTAMP, changes_bytes

KEYS = st.sampled_from([b"", b"a", b"b", b"ab"])
VALUES = st.one_of(st.none(), st.binary(max_size=5))
KINDS = st.sampled_from(["write", "begin", "rollback", "release", "settle"])
STEPS = st.lists(st.tuples(KINDS, KEYS, VALUES), max_size=20)


@given(steps=STEPS, prefix=st.sampled_from([b"", b"12345678"]), caching=st.booleans())
def test_write_leaves_the_rows_changes_order_and_size_of_put_and_log(
    steps: list[tuple[str, bytes, bytes | None]], prefix: bytes, caching: bool
) -> None:
    one, other = WriteBuffer(), WriteBuffer()
    rows = StoreRows("s", MemoryEngine(), one, now_ms=lambda: 0, caching=caching)
    open_marks = 0
    for number, (step, key, value) in enumerate(steps):
        row = None if value is None else prefix + value
        if step == "write":
            rows.write("f", key, row, value, number)
            other.put("f", key, row)
            other.log("s", key, value, number, latest_only=caching)
        else:
            open_marks = mark((one, other), step, open_marks)
        assert one.rows == other.rows
        assert one.size_bytes == other.size_bytes
        assert {name: list(found.items()) for name, found in one.changes.items()} == {
            name: list(found.items()) for name, found in other.changes.items()
        }
    writes = [value for step, _, value in steps if step == "write"]
    assert (rows.counters.put, rows.counters.delete) == (len(writes) - writes.count(None), writes.count(None))


def mark(buffers: tuple[WriteBuffer, WriteBuffer], step: str, open_marks: int) -> int:
    """Take a step about savepoints in both buffers; a release or rollback without an open one is left out."""
    if step not in ("begin", "settle") and not open_marks:
        return 0
    for buffer in buffers:
        getattr(buffer, step)()
    return 0 if step == "settle" else open_marks + (1 if step == "begin" else -1)


@given(steps=STEPS, keeps=st.booleans(), families=st.sampled_from([("s", "s"), ("s@0", "s@5")]))
def test_write_of_a_headed_store_leaves_the_rows_changes_and_size_of_put_and_log(
    steps: list[tuple[str, bytes, bytes | None]], keeps: bool, families: tuple[str, str]
) -> None:
    one, other = WriteBuffer(), WriteBuffer()
    rows = StoreRows("s", MemoryEngine(), one, now_ms=lambda: 0)
    rows.head()
    for buffer in (one, other):
        buffer.keep_bytes = 10_000 * keeps
        buffer.read_families.update(families)
    open_marks = 0
    for number, (step, key, value) in enumerate(steps):
        row = None if value is None else TIMESTAMP.pack(number) + value
        family = families[key.startswith(b"a")]
        if step == "write":
            rows.write(family, key, row, value, number)
            other.put(family, key, row)
            other.log("s", key, value, number, latest_only=True)
        else:
            open_marks = mark((one, other), step, open_marks)
        assert (one.rows, one.recent, one.size_bytes) == (other.rows, other.recent, other.size_bytes)
        taken, logged = one.take_changes(), other.take_changes()
        assert taken == logged
        assert sum(map(changes_bytes, taken.values())) == sum(map(changes_bytes, logged.values()))
        assert sum(map(len, taken.values())) == sum(map(len, one.changes.values()))
    writes = [value for step, _, value in steps if step == "write"]
    assert (rows.counters.put, rows.counters.delete) == (len(writes) - writes.count(None), writes.count(None))


PUTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "begin", "rollback", "release", "commit"]),
        KEYS,
        VALUES,
        st.one_of(st.none(), st.integers(0, 1 << 40)),
    ),
    max_size=20,
)


COMPILED = pytest.mark.parametrize("quickened", [False, True], ids=["python", "compiled"])


@COMPILED
@given(steps=PUTS, room=st.integers(300, 2_000))
def test_a_put_of_a_store_is_the_write_of_its_row(
    quickened: bool, steps: list[tuple[str, bytes, bytes | None, int | None]], room: int
) -> None:
    """The store's own path for most puts, beside the path by way of its rows; errors and sizes, too."""
    spec = KeyValueStore("s", key=serde.bytes, value=serde.bytes)
    buffers = [WriteBuffer(room), WriteBuffer(room)]
    rows = [StoreRows("s", MemoryEngine(), buffer, now_ms=lambda: 7) for buffer in buffers]
    one, other = (KeyValueState(spec, each) for each in rows)
    if quickened:
        one.quicken(compiled().module)
    open_marks = 0
    for step, key, value, timestamp in steps:
        if step == "put":
            refused = ""
            try:
                one.put(key, value, timestamp)
            except Backpressure as error:
                refused = str(error)
            with pytest.raises(Backpressure, match=re.escape(refused)) if refused else nullcontext():
                other.put_raw(key, value, 7 if timestamp is None else timestamp)
        elif step == "begin" or step == "commit":
            open_marks = 0 if step == "commit" else open_marks + 1
            for buffer in buffers:
                if step == "begin":
                    buffer.begin()
                else:
                    buffer.take()
                    buffer.settle()
        elif open_marks:
            open_marks -= 1
            for buffer in buffers:
                getattr(buffer, step)()
        assert (buffers[0].rows, buffers[0].size_bytes) == (buffers[1].rows, buffers[1].size_bytes)
        assert buffers[0].take_changes() == buffers[1].take_changes()
        assert rows[0].counters == rows[1].counters


@given(
    key=st.binary(max_size=12),
    value=st.one_of(st.none(), st.binary(max_size=12)),
    key_bytes=st.integers(0, 12),
    value_bytes=st.integers(0, 12),
)
def test_write_refuses_exactly_what_the_limits_refuse(
    key: bytes, value: bytes | None, key_bytes: int, value_bytes: int
) -> None:
    limits = RowLimits(value_bytes=value_bytes)
    limits.limit_keys(key_bytes)
    rows = StoreRows("s", MemoryEngine(), WriteBuffer(), now_ms=lambda: 0, limits=limits)
    if len(key) <= key_bytes and len(value or b"") <= value_bytes:
        rows.write("f", key, value, value, 1)
        assert rows.buffer.rows == {"f": {key: value}}
        return
    for call in (rows.check, lambda *given: rows.write("f", key, value, value, 1)):
        with pytest.raises(TooLarge, match="over the limit"):
            call(key, value, 1)
    assert (rows.buffer.rows, rows.buffer.changes, rows.buffer.size_bytes) == ({}, {}, 0)


@COMPILED
@given(
    key=st.one_of(st.none(), st.binary(max_size=5), st.binary(max_size=5).map(bytearray), st.just("k")),
    value=st.one_of(st.none(), st.binary(max_size=5), st.binary(max_size=5).map(memoryview), st.just(7)),
)
def test_quick_serdes_of_a_put_take_and_refuse_what_the_serdes_do(quickened: bool, key: Any, value: Any) -> None:
    spec = KeyValueStore("s", key=serde.bytes, value=serde.bytes)
    one, other = (KeyValueState(spec, StoreRows("s", MemoryEngine(), WriteBuffer(), now_ms=lambda: 7)) for _ in "ab")
    if quickened:
        one.quicken(compiled().module)
    for state in (one, other):
        state.put(b"first", b"", 1)
    refused = ""
    try:
        other.put_all([(key, value)], 5)
    except InvalidRequest as error:
        refused = str(error)
    with pytest.raises(InvalidRequest, match=re.escape(refused)) if refused else nullcontext():
        one.put(key, value, 5)
    assert one.rows.buffer.take_changes() == other.rows.buffer.take_changes()
    assert all(type(cell) in (bytes, type(None)) for pair in one.rows.buffer.rows["s"].items() for cell in pair)
