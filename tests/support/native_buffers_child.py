"""The compiled write buffer beside that in Python, and while each object that buffer.c asks for fails in its turn.

    python native_buffers_child.py MODULE SEED

MODULE is built with native_faults.h. Random programs have the same outcome and leave the same state in both. A write
that fails for lack of memory changes nothing, and no reference is lost or left. Prints "clean".

Rules of this file: started by path.
"""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started by path

from standfast.store import serde
from standfast.store.buffer.buffer import HEADED, Buffer
from standfast.store.buffer.rows import StoreRows
from standfast.store.buffer.twins import compiled_buffer
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.memory import MemoryEngine
from standfast.store.specs import KeyValueStore
from standfast.store.types.keyvalue import KeyValueState
from standfast.store.value_timestamp import TIMESTAMP
from support.buffer_twins import compare, outcome
from support.native_faults_child import load

OBJECT = 512
PROGRAMS = 400
Store = KeyValueState[Any, Any]
MODES: list[dict[str, Any]] = [{}, {"caching": False}, {"logging": False}]


def opened(make: type[Buffer], room: int = 1 << 30, **modes: Any) -> Store:
    rows = StoreRows("s", MemoryEngine(), make(room), now_ms=lambda: 7, **modes)
    return KeyValueState(KeyValueStore("s", key=serde.bytes, value=serde.bytes), rows)


def state(store: Store) -> Any:
    """All that a put may change."""
    buffer, writer = store.rows.buffer, store.rows.writer
    changes = {name: list(found) for name, found in buffer.take_changes().items()}
    rows = [list(found.items()) for found in buffer.rows.values()]
    return rows, buffer.size_bytes, changes, writer.puts, writer.deletes


def references(objects: list[Any]) -> list[int]:
    gc.collect()
    return [sys.getrefcount(one) for one in objects]


def calls_of(store: Store, key: bytes, value: bytes, stamp: int) -> list[Callable[[], Any]]:
    """Calls of every way through buffer.c."""
    writer = store.rows.writer
    rows: dict[bytes, bytes | None] = {key: TIMESTAMP.pack(stamp) + value}
    if writer.mode != HEADED:  # else a row is its change
        rows[b"other"] = None
    return [
        lambda: store.bind(None),
        lambda: store.put(key, value, stamp),
        lambda: store.put(key, value, stamp),
        lambda: store.put(bytearray(b"array"), value, stamp),
        lambda: store.put(b"first", None, stamp),
        lambda: writer.put("s", b"put", value, stamp),
        lambda: writer.enter("s", rows, key, value, stamp),
        lambda: writer.put("s", b"put", None, stamp),
    ]


def call_all(store: Store, calls: list[Callable[[], Any]]) -> int:
    """Do each call, again if it fails; how many failed."""
    failed = 0
    for call in calls:
        kept = state(store)
        try:
            call()
        except MemoryError:
            failed += 1
            assert state(store) == kept, "a write that raised changed something"
            call()
    return failed


def attack(native: Any, faults: dict[str, ctypes.c_int], at: int, savepoint: bool, modes: dict[str, Any]) -> bool:
    """The call number `at` for an object fails; whether there are so many."""
    key, value, stamp = b"key %d" % at, b"value %d" % at, 1_700_000_000_000 + at
    held = [key, value, stamp]
    before = references(held)
    store = opened(compiled_buffer(native), **modes)
    store.put(b"first", b"1", 1)
    if savepoint:
        store.rows.buffer.begin()
    faults["fault_seen"].value, faults["fault_at"].value, faults["fault_mask"].value = 0, at, OBJECT
    failed = call_all(store, calls_of(store, key, value, stamp))
    faults["fault_mask"].value = 0
    there = faults["fault_seen"].value >= at
    assert failed == there, f"object {at}: {failed} errors"
    plain = opened(WriteBuffer, **modes)
    plain.put(b"first", b"1", 1)
    call_all(plain, calls_of(plain, key, value, stamp))
    assert state(store) == state(plain)
    if savepoint:
        store.rows.buffer.rollback()
        assert list(store.rows.buffer.rows["s"]) == [b"first"]
    seen = weakref.ref(store)
    store.rows.buffer.clear()
    del store, plain
    assert references(held) == before, f"object {at}: a reference is lost or left"
    assert seen() is None
    return there


def run_threads(native: Any) -> None:
    """Threads that all put, beside savepoints and commits: each row is there once."""
    store = opened(compiled_buffer(native))
    store.put(b"first", b"", 1)
    buffer, taken = store.rows.buffer, 1
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def put_all(thread: int) -> None:
        for number in range(2_000):
            store.put(b"%d %d" % (thread, number), b"value", 5)

    threads = [threading.Thread(target=put_all, args=(thread,)) for thread in range(4)]
    for one in threads:
        one.start()
    found: set[bytes] = set()
    while any(one.is_alive() for one in threads):
        with buffer.latch:
            buffer.begin()
            store.put(b"undone", b"1", 1)
            buffer.rollback()
        part = buffer.take()
        rows = part.rows.get("s", {})
        assert part.size_bytes == sum(store.rows.cost(key, row[8:] if row else None) for key, row in rows.items())
        found |= rows.keys()
        taken = len(found)
        buffer.settle()
    sys.setswitchinterval(before)
    assert taken + len(buffer.rows.get("s", {})) == 8_001
    assert store.rows.writer.puts >= 8_001


def recurse(native: Any) -> None:
    """A serde that puts into its own store without end ends with an error, and soon."""
    for make in (WriteBuffer, compiled_buffer(native)):
        stores: list[Store] = []

        def serialize(given: Any) -> Any:
            stores[0].put(given, b"v", 1)  # noqa: B023 - called within the turn
            return given

        spec = KeyValueStore("s", key=serde.pair("endless", serialize, bytes), value=serde.bytes)
        stores.append(KeyValueState(spec, StoreRows("s", MemoryEngine(), make(1 << 20), now_ms=lambda: 7)))
        found = outcome(stores[0].put, b"k", b"v", 1)
        assert found[0].__name__ in ("InvalidRequest", "RecursionError"), found[0]
        assert not stores[0].rows.buffer.rows


def main() -> None:
    native, faults = load(sys.argv[1])
    chance = random.Random(int(sys.argv[2]))
    for _ in range(PROGRAMS):
        compare([WriteBuffer, compiled_buffer(native)], chance)
    gc.collect()
    gc.freeze()  # each attack collects, which need not walk through the modules
    for modes in MODES:
        for savepoint in (False, True):
            at = 1
            while attack(native, faults, at, savepoint, modes):
                at += 1
            assert at > 20, at
    run_threads(native)
    recurse(native)
    print("clean")


if __name__ == "__main__":
    main()
