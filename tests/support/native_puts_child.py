"""Puts by put.c beside those of the Python method, and while each object that put.c asks for fails in its turn.

    python native_puts_child.py MODULE SEED

MODULE is built with native_faults.h. Random calls, right and wrong ones, have the same outcome and leave the same state
in both ways. A put that fails for lack of memory changes nothing, and no reference is lost or left. Prints "clean".

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
from standfast.store.buffer import WriteBuffer
from standfast.store.memory import MemoryEngine
from standfast.store.rows import RowLimits, StoreRows
from standfast.store.specs import KeyValueStore
from standfast.store.timestamps import TIMESTAMP_MAX_MS
from standfast.store.types.keyvalue import KeyValueState
from support.native_faults_child import load

OBJECT = 512
TURNS = 1_500
Store = KeyValueState[Any, Any]


class Odd(bytes):
    """Bytes whose own methods do not work."""

    def __hash__(self) -> int:
        raise AssertionError

    __eq__ = __len__ = __hash__  # type: ignore[assignment]


class Stamp(int):
    """A number of a class of its own."""


PARTS = [b"", b"a", b"b", b"a" * 40, bytearray(b"c"), memoryview(b"d"), Odd(b"e"), None, "text", "\ud800", 5, object()]
WRONG = [b"stop", b"fail", b"none", b"text", b"array"]
MEANWHILE = [b"stop", b"fail", b"collect", b"again", b"clear", b"close", b"begin"]
VALUES = [*PARTS, b"v" * 3_000, b"w" * 1_100_000]
STAMPS = [0, 1, 5, TIMESTAMP_MAX_MS, TIMESTAMP_MAX_MS + 1, 2**63 - 1, 2**63, 1 << 70, -1, -(1 << 70), True, 1.5, "1"]
STAMPS += [None, Stamp(4)]


def strange(stores: list[Store]) -> serde.Serde[Any]:
    """A serde with every kind of mistake, which also uses the first of `stores` meanwhile."""

    def serialize(given: Any) -> Any:
        rows = stores[0].rows
        match given:
            case b"stop":
                raise KeyboardInterrupt
            case b"fail":
                raise ValueError(given)
            case b"none":
                return None
            case b"text":
                return "text"
            case b"array":
                return bytearray(given)
            case b"collect":
                gc.collect()
            case b"again":
                stores[0].put(b"inner", b"1", 3)
            case b"clear":
                rows.buffer.clear()
            case b"close":
                rows.close()
            case b"begin":
                rows.buffer.begin()
        return given

    return serde.Serde("strange", serialize, bytes)


def opened(kind: str, rows: StoreRows) -> Store:
    """A store with serdes of this kind."""
    stores: list[Store] = []
    one = strange(stores) if kind == "strange" else serde.by_name(kind)
    assert one is not None
    stores.append(KeyValueState(KeyValueStore("s", key=one, value=one), rows))
    return stores[0]


def rows_of(room: int) -> StoreRows:
    return StoreRows("s", MemoryEngine(), WriteBuffer(room), now_ms=lambda: 7, limits=RowLimits())


def outcome(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """The result of a call, or its error and the cause."""
    try:
        return call(*given, **named)
    except BaseException as error:
        return type(error), str(error), repr(error.__cause__)


def state(rows: StoreRows) -> Any:
    """All that a put may change."""
    buffer = rows.buffer
    size = getattr(buffer, "size_bytes", None)
    changes = {name: list(found) for name, found in buffer.take_changes().items()}
    return [list(found.items()) for found in buffer.rows.values()], size, repr(rows.counters), changes


def act(step: str, rows: StoreRows, number: int) -> Any:
    """A step beside the puts; a hard one leaves a store that takes no more, or is broken."""
    match step:
        case "begin" | "rollback" | "release" | "settle" | "clear":
            return outcome(getattr(rows.buffer, step))
        case "room":
            rows.buffer.refuse_bytes = number
        case "limit":
            rows.limits.limit_keys(number % 50)
        case "least":
            rows.limits.least_timestamp_ms = number % 3
        case "close":
            rows.close()
        case "fence":
            rows.fence("another instance")
        case "no clock":
            rows.now_ms = "no function"  # type: ignore[assignment]
        case "text":
            rows.counters.put = "text"  # type: ignore[assignment]
        case "large":
            rows.limits.any_bytes = 1 << 80
        case _:
            of: Any = rows.buffer if hasattr(rows.buffer, step) else rows
            return outcome(delattr, of, step)
    return None


MILD = ["begin", "rollback", "release", "settle", "clear", "room", "limit", "least"]
HARD = ["close", "fence", "no clock", "text", "large", "closed", "hot", "now_ms", "size_bytes", "stop_bytes"]


def call_of(chance: random.Random, kind: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a put, of which some are wrong."""
    keys = PARTS if kind in ("bytes", "strange", "string") else [*PARTS, 3, [1], 1 << 70]
    given: list[Any] = [chance.choice(keys), chance.choice(VALUES)]
    if kind == "strange":
        # Not both at once: a put whose serde returns no bytes runs both serdes again.
        some = WRONG + PARTS if chance.random() < 0.5 else MEANWHILE + PARTS[:4]
        given = [chance.choice(some), chance.choice(some)]
    elif kind != "bytes" and chance.random() < 0.4:
        given = [f"key {chance.randrange(9)}", "value"] if kind == "string" else [chance.randrange(9), 5]
    if chance.random() < 0.6:
        given.append(chance.choice(STAMPS) if chance.random() < 0.5 else chance.randrange(10**9))
    names = ["key", "value", "timestamp"]
    if chance.random() < 0.85:
        return given, {}
    start = chance.randrange(4)
    named = dict(zip(names[start:], given[start:], strict=False)) | chance.choice([{}, {}, {"other": 1}, {"key": b"k"}])
    return given[:start] + chance.choice([[], [], [1, 2]]), named


class Pair:
    """A store with the compiled put and one without, of which the same calls have the same outcome and state."""

    def __init__(self, native: Any, kind: str, room: int) -> None:
        self.kind = kind
        self.both = [rows_of(room) for _ in range(2)]
        self.stores = [opened(kind, rows) for rows in self.both]
        self.stores[0].quicken(native)

    def put(self, *given: Any, **named: Any) -> None:
        found = [outcome(store.put, *given, **named) for store in self.stores]
        assert found[0] == found[1], (self.kind, given, named, found)
        held = [outcome(state, rows) for rows in self.both]
        assert held[0] == held[1], (self.kind, given, named, held)

    def act(self, step: str, number: int = 0) -> None:
        assert act(step, self.both[0], number) == act(step, self.both[1], number), step


def compare(native: Any, chance: random.Random) -> None:
    """Random calls, and steps between them."""
    kind = chance.choice(["bytes", "bytes", "string", "int64", "json", "strange"])
    pair = Pair(native, kind, chance.choice([1_000, 1 << 20]))
    for turn in range(chance.randrange(2, 25)):
        if turn and chance.random() < 0.2:
            pair.act(chance.choice(MILD), chance.randrange(3_000))
        given, named = call_of(chance, kind)
        pair.put(*given, **named)


def break_stores(native: Any) -> None:
    """Puts into stores that are closed, or broken as no store should be."""
    for step in HARD:
        for given in ((b"k", b"v"), (b"k", b"v", 5), (b"first", b"v"), (b"k", None), (b"k", b"v", -1)):
            pair = Pair(native, "bytes", 1 << 20)
            pair.put(b"first", b"1", 1)
            pair.act(step)
            pair.put(*given)


def references(objects: list[Any]) -> list[int]:
    gc.collect()
    return [sys.getrefcount(one) for one in objects]


def calls_of(native: Any, store: Store, key: bytes, value: bytes, stamp: int) -> list[Callable[[], None]]:
    """Calls of every way through put.c."""
    return [
        lambda: store.quicken(native),
        lambda: store.put(key, value, stamp),
        lambda: store.put(key, value, stamp),
        lambda: store.put(b"now", value),
        lambda: store.put(bytearray(b"array"), value, stamp),
        lambda: store.put(b"named", value=value, timestamp=stamp),
        lambda: store.put(b"named", None, stamp),
    ]


def call_all(rows: StoreRows, calls: list[Callable[[], None]]) -> int:
    """Do each call, again if it fails; how many failed."""
    failed = 0
    for call in calls:
        kept = state(rows)
        try:
            call()
        except MemoryError:
            failed += 1
            assert state(rows) == kept, "a put that raised changed something"
            call()
    return failed


def attack(native: Any, faults: dict[str, ctypes.c_int], at: int) -> bool:
    """The call number `at` for an object fails; whether there are so many."""
    key, value, stamp = b"key %d" % at, b"value %d" % at, 1_700_000_000_000 + at
    rows = rows_of(1 << 20)
    held = [key, value, stamp, rows, rows.buffer, rows.limits, rows.counters]
    before = references(held)
    store = opened("bytes", rows)
    store.put(b"first", b"1", 1)
    faults["fault_seen"].value, faults["fault_at"].value, faults["fault_mask"].value = 0, at, OBJECT
    failed = call_all(rows, calls_of(native, store, key, value, stamp))
    faults["fault_mask"].value = 0
    assert "put" in vars(store)
    assert list(rows.buffer.rows["s"]) == [b"first", key, b"now", b"array", b"named"]
    assert rows.counters.put == 6 and rows.counters.delete == 1
    there = faults["fault_seen"].value >= at
    assert failed == there, f"object {at}: {failed} errors"
    seen = weakref.ref(store)
    rows.buffer.clear()
    del store
    assert references(held) == before, f"object {at}: a reference is lost or left"
    assert seen() is None
    return there


def run_threads(native: Any) -> None:
    """Threads that all put, which is not allowed: each row is there, since no put lets another thread in between."""
    rows = rows_of(1 << 30)
    store = opened("bytes", rows)
    store.quicken(native)
    store.put(b"first", b"", 1)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def put_all(thread: int) -> None:
        for number in range(2_000):
            store.put(b"%d %d" % (thread, number), b"value", 5)

    threads = [threading.Thread(target=put_all, args=(thread,)) for thread in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    sys.setswitchinterval(before)
    found = rows.buffer.rows["s"]
    assert len(found) == rows.counters.put == 8_001
    assert rows.buffer.size_bytes == sum(rows.cost(key, row[8:] if row else None) for key, row in found.items())


def recurse(native: Any) -> None:
    """A serde that puts into its own store without end ends with an error, and soon."""
    for quick in (False, True):
        stores: list[Store] = []

        def serialize(given: Any) -> Any:
            stores[0].put(given, b"v", 1)  # noqa: B023 - called within the turn
            return given

        spec = KeyValueStore("s", key=serde.pair("endless", serialize, bytes), value=serde.bytes)
        stores.append(KeyValueState(spec, rows_of(1 << 20)))
        if quick:
            stores[0].quicken(native)
        found = outcome(stores[0].put, b"k", b"v", 1)
        assert found[0].__name__ in ("InvalidRequest", "RecursionError"), found[0]
        assert not stores[0].rows.buffer.rows


def refuse_putters(native: Any) -> None:
    """Arguments of no store."""
    rows: Any = rows_of(1_000)

    class Plain:
        """The names of a store's rows, without slots."""

        buffer, limits, counters, closed, now_ms = rows.buffer, rows.limits, rows.counters, False, None

    class Bare:
        buffer = limits = counters = rows.limits

    rest = ("s", *[print] * 3, 208, TIMESTAMP_MAX_MS)
    for given in ((), *((*[print] * 3, one, *rest) for one in (object(), Plain(), Bare()))):
        assert outcome(native.putter, *given)[0] in (TypeError, AttributeError)
    assert outcome(native.putter, *[print] * 3, rows, b"s", *rest[1:])[0] is TypeError
    put = native.putter(*[print] * 3, rows, *rest)
    assert outcome(type(put.__self__))[0] is TypeError, "no caller makes one without parts"


def main() -> None:
    native, faults = load(sys.argv[1])
    chance = random.Random(int(sys.argv[2]))
    refuse_putters(native)
    break_stores(native)
    for _ in range(TURNS):
        compare(native, chance)
    at = 1
    while attack(native, faults, at):
        at += 1
    assert at > 20, at
    run_threads(native)
    recurse(native)
    print("clean")


if __name__ == "__main__":
    main()
