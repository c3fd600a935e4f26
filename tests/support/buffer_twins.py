"""Random programs for the write buffers in Python and in C: each step has one outcome, and leaves one state.

    Twins            stores of each kind over a buffer of each class; `run` takes a step in both and compares them
    program(chance)  the steps of a random program

Stores are cached and logged, or one of these or neither, with rows of one family and of several, of one row a write
and of several. Values are of every kind, right and wrong ones; serdes fail, and use the store meanwhile. Savepoints
nest, the buffer is full and over-full, commits fail in their middle, and another thread writes.

Rules of this file: a program has the same steps for each buffer, and no step depends on time.
"""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from standfast.store import serde
from standfast.store.buffer.buffer import Buffer
from standfast.store.buffer.rows import RowLimits, StoreRows
from standfast.store.memory import MemoryEngine
from standfast.store.specs import KeyValueStore, SessionStore, VersionedStore, WindowStore
from standfast.store.timestamps import TIMESTAMP_MAX_MS
from standfast.store.types.kinds import open_store

Step = tuple[Any, ...]


class Odd(bytes):
    """Bytes whose own methods do not work."""

    def __hash__(self) -> int:
        raise AssertionError

    __eq__ = __len__ = __bytes__ = __hash__  # type: ignore[assignment]


class Stamp(int):
    """A number of a class of its own."""


PARTS = [b"", b"a", b"b", b"a" * 40, bytearray(b"c"), memoryview(b"d"), Odd(b"e"), None, "text", "\ud800", 5, object()]
MEANWHILE = [b"stop", b"fail", b"none", b"text", b"array", b"collect", b"again", b"clear", b"take", b"close", b"begin"]
VALUES = [*PARTS, b"v" * 3_000, b"w" * 1_100_000]
STAMPS = [0, 1, 5, TIMESTAMP_MAX_MS, TIMESTAMP_MAX_MS + 1, 2**63 - 1, 2**63, 1 << 70, -1, -(1 << 70), True, 1.5, "1"]
STAMPS += [None, Stamp(4)]
# Of each kind of store: whether it is cached, and logged.
MODES = {"kv": (True, True), "each": (False, True), "bare": (True, False), "neither": (False, False)}
NAMES = ["kv", "kv", *MODES, "plain", "text", "number", "strange", "window", "duplicates", "session", "versions"]
OTHERS = ["begin", "begin", "rollback", "release", "take", "settle", "put_back", "discard", "clear", "room", "limit"]
OTHERS += ["close", "fence", "drop", "thread", "call", "forget_recent"]
ROOMS = (700, 3_000, 1 << 20)


def strange(twin: Twin) -> serde.Serde[Any]:
    """A serde with every kind of mistake, which also uses the store meanwhile."""

    def serialize(given: Any) -> Any:
        rows = twin.stores["strange"].rows
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
                twin.stores["strange"].put(b"inner", b"1", 3)
            case b"clear":
                rows.buffer.clear()
            case b"take" if not rows.buffer.in_savepoint:
                outcome(rows.buffer.take)
            case b"close":
                rows.close()
            case b"begin":
                rows.buffer.begin()
        return given

    return serde.Serde("strange", serialize, bytes)


class Twin:
    """Stores over one buffer."""

    def __init__(self, make: type[Buffer], room: int) -> None:
        self.buffer = make(room)
        self.buffer.keep_bytes = 10_000
        self.limits = RowLimits()
        self.stores: dict[str, Any] = {}
        raw: Any = {"key": serde.bytes, "value": serde.bytes}
        for name, (caching, logging) in MODES.items():
            self.open(KeyValueStore(name, **raw), caching=caching, logging=logging)
        self.open(KeyValueStore("plain", **raw, timestamped=False))
        self.open(KeyValueStore("text", key=serde.string, value=serde.json))
        self.open(KeyValueStore("number", key=serde.int64, value=serde.float64))
        odd = strange(self)
        self.open(KeyValueStore("strange", key=odd, value=odd))
        times: Any = {"window_size_ms": 1_000, "retention_ms": 120_000}
        self.open(WindowStore("window", **raw, **times))
        self.open(WindowStore("duplicates", **raw, **times, retain_duplicates=True))
        self.open(SessionStore("session", **raw, retention_ms=120_000))
        self.open(VersionedStore("versions", **raw, history_retention_ms=120_000))

    def open(self, spec: Any, **modes: Any) -> None:
        rows = StoreRows(spec.name, MemoryEngine(), self.buffer, now_ms=lambda: 7, limits=self.limits, **modes)
        self.stores[spec.name] = open_store(spec, rows)

    def take_step(self, step: Step) -> Any:
        kind, *given = step
        match kind:
            case "call":
                name, method, arguments, named = given
                result = outcome(getattr(self.stores[name], method), *arguments, **named)
                return list(result) if isinstance(result, Iterator) else result
            case "thread":  # it waits for the end of a savepoint
                thread = threading.Thread(target=outcome, args=(self.stores["kv"].put, *given), daemon=True)
                thread.start()
                while self.buffer.in_savepoint:
                    self.buffer.rollback()
                self.release()
                thread.join(60)
                assert not thread.is_alive()
            case "room":
                self.buffer.refuse_bytes = given[0]
            case "limit":
                self.limits.limit_keys(given[0])
            case "close":
                self.stores[given[0]].rows.close()
            case "fence":
                self.stores[given[0]].rows.fence("another instance")
            case "begin":
                self.buffer.latch.acquire()
                self.buffer.begin()
            case "rollback" | "release":
                if self.buffer.in_savepoint:
                    getattr(self.buffer, kind)()
                self.release()
            case "drop":
                self.buffer.drop_family(given[0])
            case _:
                result = outcome(getattr(self.buffer, kind), *given)
                self.release()
                return None if kind == "take" and not isinstance(result, tuple) else result
        return None

    def release(self) -> None:
        """Let other threads write, once no savepoint is open."""
        while not self.buffer.in_savepoint and self.buffer.latch._is_owned():  # type: ignore[attr-defined]
            self.buffer.latch.release()

    def state(self) -> Any:
        """All that a step may change."""
        buffer = self.buffer
        taken = buffer.taken
        logged = {} if taken is None else {name: list(found) for name, found in taken.logged().items()}
        return (
            [(family, list(found.items())) for family, found in buffer.rows.items()],
            [(name, list(found)) for name, found in buffer.take_changes().items()],
            None if taken is None else (taken.rows, logged, taken.size_bytes, taken.refused),
            buffer.recent,
            {name: (one.rows.writer.puts, one.rows.writer.deletes) for name, one in self.stores.items()},
            {name: (one.rows.observed_ms, one.rows.sequence, one.rows.counters) for name, one in self.stores.items()},
            (buffer.size_bytes, buffer.stop_bytes, buffer.in_savepoint, buffer.full, buffer.empty),
            {family: buffer.pending(family, None, None, reverse=False) for family in buffer.rows},
        )


class Twins:
    """Buffers of two classes, or more."""

    def __init__(self, classes: list[type[Buffer]], room: int) -> None:
        self.all = [Twin(one, room) for one in classes]

    def run(self, step: Step) -> None:
        """Take a step in each, and compare."""
        found = [twin.take_step(step) for twin in self.all]
        assert all(one == found[0] for one in found), (step, found)
        states = [twin.state() for twin in self.all]
        for number, parts in enumerate(zip(*states, strict=True)):
            assert all(one == parts[0] for one in parts), (step, number, parts)
        for twin in self.all:
            assert {type(cell) for rows in twin.buffer.rows.values() for row in rows.items() for cell in row} <= {
                bytes,
                type(None),
            }


def outcome(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """The result of a call, or its error and the cause."""
    try:
        return call(*given, **named)
    except BaseException as error:
        return type(error), str(error), repr(error.__cause__)


def program(chance: random.Random, length: int = 25) -> list[Step]:
    """Steps, of which most are writes."""
    return [_write(chance) if chance.random() < 0.7 else _other(chance) for _ in range(chance.randrange(2, length))]


def _stamp(chance: random.Random) -> Any:
    return chance.choice(STAMPS) if chance.random() < 0.3 else chance.randrange(400_000)


def _write(chance: random.Random) -> Step:
    name = chance.choice(NAMES)
    some = [b"a", b"b", b"c"]
    value = chance.choice(VALUES if chance.random() < 0.3 else [b"1", b"", b"22", None])
    key = chance.choice(PARTS if chance.random() < 0.3 else some)
    if name == "strange":
        key, value = (chance.choice([*MEANWHILE, *some]) for _ in "kv")
    elif name == "text":
        key, value = chance.choice(["k", "l", key]), chance.choice([{"a": 1}, 5, None, value])
    elif name == "number":
        key, value = chance.choice([1, 2, 1 << 70, key]), chance.choice([1.5, None, value])
    if name in ("window", "duplicates"):
        return ("call", name, "put", (key, value, _stamp(chance), _stamp(chance)), {})
    if name == "session":
        start = chance.randrange(400_000)
        return ("call", name, "put", (key, start, start + chance.randrange(3), value), {})
    if name == "versions":
        return ("call", name, "put", (key, value, _stamp(chance)), {})
    match chance.randrange(8):
        case 0:
            pairs = [(chance.choice(some), chance.choice([b"1", b"22", None, key])) for _ in range(chance.randrange(5))]
            return ("call", name, "put_all", (pairs, _stamp(chance)), {})
        case 1:
            return ("call", name, "delete", (key,), {})
        case 2:
            return ("call", name, "put_raw_all", ([(chance.choice(some), b"raw") for _ in range(3)], 5), {})
        case 3:
            return ("call", name, "put", (key,), chance.choice([{"value": value}, {"value": value, "other": 1}, {}]))
        case 4:
            return ("call", name, "put_if_absent", (key, value, _stamp(chance)), {})
        case _:
            return ("call", name, "put", (key, value, *([_stamp(chance)] if chance.random() < 0.7 else [])), {})


def _other(chance: random.Random) -> Step:
    kind = chance.choice(OTHERS)
    match kind:
        case "room":
            return kind, chance.randrange(3_000)
        case "limit":
            return kind, chance.choice([1, 40, 64 << 10])
        case "close" | "fence":
            return kind, chance.choice(list(MODES))
        case "drop":
            return kind, chance.choice(["kv", "each", "window@0", "window@60000"])
        case "thread":
            return kind, chance.choice([b"a", b"z"]), b"of another thread", chance.randrange(100)
        case "call":
            return kind, chance.choice([*MODES, "plain"]), "get", (chance.choice([b"a", b"b"]),), {}
    return (kind,)


def compare(classes: list[type[Buffer]], chance: random.Random) -> None:
    """One random program on all."""
    twins = Twins(classes, chance.choice(ROOMS))
    for step in program(chance):
        twins.run(step)
