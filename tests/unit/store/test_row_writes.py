"""Writers, in Python and in C, leave what a plain buffer holds; `put` of a store is the write of its row."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store import serde
from standfast.store.buffer.buffer import Buffer
from standfast.store.buffer.rows import RowLimits, StoreRows
from standfast.store.buffer.twins import buffer_type
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.errors import Backpressure, InvalidRequest, TooLarge
from standfast.store.memory import MemoryEngine
from standfast.store.specs import KeyValueStore
from standfast.store.types.keyvalue import KeyValueState
from standfast.store.value_timestamp import TIMESTAMP, changes_bytes
from support.buffers import PlainBuffer

KEYS = st.sampled_from([b"", b"a", b"b", b"ab"])
VALUES = st.one_of(st.none(), st.binary(max_size=5))
KINDS = st.sampled_from(["write", "begin", "rollback", "release"])
STEPS = st.lists(st.tuples(KINDS, KEYS, VALUES), max_size=20)


BUFFERS = pytest.mark.parametrize("make", [WriteBuffer, buffer_type()], ids=["python", "compiled"])


@BUFFERS
@given(
    steps=STEPS,
    mode=st.sampled_from(["headed", "latest", "each"]),
    families=st.sampled_from([("s", "s"), ("s@0", "s@5")]),
)
def test_put_of_a_writer_leaves_the_rows_changes_order_and_size_of_a_plain_buffer(
    make: type[Buffer], steps: list[tuple[str, bytes, bytes | None]], mode: str, families: tuple[str, str]
) -> None:
    one, other = make(), PlainBuffer()
    rows = StoreRows("s", MemoryEngine(), one, now_ms=lambda: 0, caching=mode != "each")
    if mode == "headed":
        rows.head()
    open_marks = 0
    for number, (step, key, value) in enumerate(steps):
        if step == "write":
            family = families[key.startswith(b"a")]
            rows.writer.put(family, key, value, number)
            row = value if value is None or mode != "headed" else TIMESTAMP.pack(number) + value
            other.write(family, key, row, "s", value, number, each=mode == "each")
        elif step == "begin" or open_marks:
            open_marks += 1 if step == "begin" else -1
            for buffer in (one, other):
                getattr(buffer, step)()
        assert [(name, list(found.items())) for name, found in one.rows.items()] == [
            (name, list(found.items())) for name, found in other.rows.items()
        ]
        assert one.size_bytes == other.size_bytes
        taken = one.take_changes()
        assert {name: list(found) for name, found in taken.items()} == {
            name: list(found.values()) for name, found in other.changes.items()
        }
        assert sum(map(changes_bytes, taken.values())) == sum(
            len(change[0]) + len(change[1] or b"") for found in other.changes.values() for change in found.values()
        )
    writes = [value for step, _, value in steps if step == "write"]
    assert (rows.writer.puts, rows.writer.deletes) == (len(writes) - writes.count(None), writes.count(None))


PUTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "begin", "rollback", "release", "commit"]),
        KEYS,
        VALUES,
        st.one_of(st.none(), st.integers(0, 1 << 40)),
    ),
    max_size=20,
)


@BUFFERS
@given(steps=PUTS, room=st.integers(300, 2_000))
def test_a_put_of_a_store_is_the_write_of_its_row(
    make: type[Buffer], steps: list[tuple[str, bytes, bytes | None, int | None]], room: int
) -> None:
    """The store's own path for most puts, beside the path by way of its rows; errors and sizes, too."""
    spec = KeyValueStore("s", key=serde.bytes, value=serde.bytes)
    buffers = [make(room), make(room)]
    rows = [StoreRows("s", MemoryEngine(), buffer, now_ms=lambda: 7) for buffer in buffers]
    one, other = (KeyValueState(spec, each) for each in rows)
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
        assert (rows[0].writer.puts, rows[0].writer.deletes) == (rows[1].writer.puts, rows[1].writer.deletes)


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
        rows.writer.put("f", key, value, 1)
        assert rows.buffer.rows == {"f": {key: value}}
        return
    for call in (rows.check, lambda *given: rows.writer.put("f", key, value, 1)):
        with pytest.raises(TooLarge, match="over the limit"):
            call(key, value, 1)
    assert (rows.buffer.rows, rows.buffer.changes, rows.buffer.size_bytes) == ({}, {}, 0)


@BUFFERS
@given(
    key=st.one_of(st.none(), st.binary(max_size=5), st.binary(max_size=5).map(bytearray), st.just("k")),
    value=st.one_of(st.none(), st.binary(max_size=5), st.binary(max_size=5).map(memoryview), st.just(7)),
)
def test_quick_serdes_of_a_put_take_and_refuse_what_the_serdes_do(make: type[Buffer], key: Any, value: Any) -> None:
    spec = KeyValueStore("s", key=serde.bytes, value=serde.bytes)
    one, other = (KeyValueState(spec, StoreRows("s", MemoryEngine(), make(), now_ms=lambda: 7)) for _ in "ab")
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


class SlowSet(WeakSet[Any]):
    """A set of stores, during whose reading another thread opens a store."""

    limits: RowLimits

    def __iter__(self) -> Iterator[Any]:
        for number, one in enumerate(super().__iter__()):
            if not number and not hasattr(self, "opens"):
                self.opens = threading.Thread(target=self.open)
                self.opens.start()
                self.opens.join(0.5)  # it must wait for the end of the reading, or the set grows now
            yield one

    def open(self) -> None:
        self.late = StoreRows("late", MemoryEngine(), WriteBuffer(), now_ms=lambda: 7, limits=self.limits)


def test_limits_are_set_while_another_thread_opens_a_store_under_them() -> None:
    limits = RowLimits(value_bytes=20)
    limits.stores = stores = SlowSet()
    stores.limits = limits
    first = [StoreRows(name, MemoryEngine(), WriteBuffer(), now_ms=lambda: 7, limits=limits) for name in "ab"]
    limits.limit_keys(10)
    stores.opens.join()
    assert {one.name for one in limits.stores} == {"a", "b", "late"}, first
