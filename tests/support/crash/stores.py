"""The stores of a run of the crash harness, drawn at random, and the effect of its operations on each of them.

    draw           names of stores: some or all of the logged ones, now and then some in memory, some unlogged
    operations     effect of the record at one offset of the source; depends on the seed and the offset only
    Unlogged       content of stores without a changelog: the operations of every local batch of one directory

A store without a changelog can be compared only with the batches that were committed beside it. A child prints `try`
before a commit and `ack` after it, so that at most one batch of each life is in doubt: the one that the kill met, or
that was refused as the process lost its task. The source offset in the task's own record, from the same batch, decides
about it: the child reads it in the next opening, or the look at the directory after its end.

Rules of this file: pure. Expected rows come as records of a changelog that was never written, for `crash_oracle`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from standfast.replication.log import Record
from standfast.store import serde
from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, VersionedStore, WindowStore

TEXT = serde.string
COUNTS = "counts"
KEPT: tuple[StoreSpec, ...] = (
    KeyValueStore(COUNTS, TEXT, serde.int64),
    KeyValueStore("cached", TEXT, TEXT),
    KeyValueStore("uncached", TEXT, TEXT, caching=False),
    KeyValueStore("plain", TEXT, TEXT, timestamped=False),
    WindowStore("window", TEXT, TEXT, window_size_ms=60_000, retention_ms=180_000),
    WindowStore("duplicates", TEXT, TEXT, window_size_ms=60_000, retention_ms=180_000, retain_duplicates=True),
    SessionStore("session", TEXT, TEXT, retention_ms=150_000),
    VersionedStore("versioned", TEXT, TEXT, history_retention_ms=60_000),
)
VOLATILE: tuple[StoreSpec, ...] = (
    KeyValueStore("memory", TEXT, TEXT, engine="memory"),
    WindowStore("memory-window", TEXT, TEXT, window_size_ms=60_000, retention_ms=180_000, engine="memory"),
)
UNLOGGED: tuple[StoreSpec, ...] = (
    KeyValueStore("scratch", TEXT, TEXT, logging=False),
    KeyValueStore("scratch-uncached", TEXT, TEXT, caching=False, logging=False),
    WindowStore("scratch-window", TEXT, TEXT, window_size_ms=60_000, retention_ms=180_000, logging=False),
    SessionStore("scratch-session", TEXT, TEXT, retention_ms=150_000, logging=False),
    VersionedStore("scratch-versioned", TEXT, TEXT, history_retention_ms=60_000, logging=False),
)
SPECS = {spec.name: spec for spec in (*KEPT, *VOLATILE, *UNLOGGED)}
SEGMENTED = ("window", "duplicates", "session")
TIME_GRID_MS = 60_000


def draw(random: Random, *, mixed: bool) -> list[str]:
    """Names of the stores of a run; `mixed`: perhaps not all of the logged ones, two at least, and unlogged ones."""
    # Stores in memory come back from their changelog only, so not every run has them beside the others.
    volatile = [spec.name for spec in VOLATILE] if random.random() < 0.3 else []
    names = [spec.name for spec in KEPT]
    unlogged: list[str] = []
    if mixed and random.random() < 0.6:
        chosen = {COUNTS, random.choice(SEGMENTED), *random.sample(names, random.randrange(3))}
        names = [name for name in names if name in chosen]
    if mixed and random.random() < 0.7:
        every = [spec.name for spec in UNLOGGED]
        unlogged = sorted(random.sample(every, random.randint(1, 3)), key=every.index)
    return names + volatile + unlogged


# -- operations --------------------------------------------------------------------------------------------------------


class Operation(NamedTuple):
    """A put (`value` None: a delete) into one store. `start` and `end` are those of a window or a session."""

    store: str
    key: str
    value: str | None
    timestamp: int
    start: int = -1
    end: int = -1


def event_time(seed: Any, partition: int, offset: int, start_ms: int) -> tuple[Random, int]:
    """The random choices of one record, and its timestamp."""
    random = Random(f"{seed}/{partition}/{offset}")
    return random, start_ms + offset * 4_000 + random.randrange(4_000)


def operations(seed: Any, partition: int, offset: int, start_ms: int, names: Sequence[str]) -> Iterator[Operation]:
    """All effects of the record at one offset of the source but the counter."""
    random, now_ms = event_time(seed, partition, offset, start_ms)
    others = [name for name in names if name != COUNTS]
    for _ in range(random.randrange(1, 9)):
        yield operation(random, now_ms, others)


def operation(random: Random, now_ms: int, names: Sequence[str]) -> Operation:
    """One random operation."""
    key = f"k{random.randrange(30)}"
    value = None if random.random() < 0.2 else f"{random.randrange(10**6)}" * random.choice((1, 1, 1, 40))
    late_ms = random.choice((0, 0, random.randrange(60_000), random.randrange(250_000)))
    at_ms = now_ms - late_ms
    name = random.choice(names)
    spec = SPECS[name]
    if isinstance(spec, SessionStore):
        # Bounds on a grid, so that a session is met again and removed.
        start, end = (at_ms - random.randrange(20_000)) // 10_000 * 10_000, at_ms // 10_000 * 10_000
        return Operation(name, key, value, at_ms, start, end)
    if isinstance(spec, VersionedStore):
        return Operation(name, key, value, at_ms // 1_000 * 1_000)
    if isinstance(spec, WindowStore):
        return Operation(name, key, value, now_ms, at_ms // TIME_GRID_MS * TIME_GRID_MS)
    return Operation(name, key, value, at_ms)


def carry_out(store: Any, one: Operation) -> None:
    spec = SPECS[one.store]
    if isinstance(spec, SessionStore):
        store.put(one.key, one.start, one.end, one.value, one.timestamp)
    elif isinstance(spec, WindowStore):
        store.put(one.key, one.value, one.start, one.timestamp)
    else:
        store.put(one.key, one.value, one.timestamp)


def as_record(one: Operation, number: int) -> Record:
    """The operation as a record of the store's changelog."""
    spec, key = SPECS[one.store], one.key.encode()
    if isinstance(spec, SessionStore):
        key += one.end.to_bytes(8, "big") + one.start.to_bytes(8, "big")
    elif isinstance(spec, WindowStore):
        key += one.start.to_bytes(8, "big") + bytes(4)
    return Record(number, one.timestamp, key, None if one.value is None else one.value.encode())


# -- stores without a changelog ----------------------------------------------------------------------------------------

Batch = tuple[int, int]  # source offsets: the first one of the batch, and the one that it commits


@dataclass
class Unlogged:
    """The local batches of each task of one state directory, in order."""

    seed: Any
    start_ms: int
    names: Sequence[str]
    applied: dict[int, list[Batch]] = field(default_factory=dict)  # by partition
    doubtful: dict[int, list[Batch]] = field(default_factory=dict)
    given_up: set[tuple[str, int]] = field(default_factory=set)  # an operator accepted that rows of these are gone
    clockless: set[int] = field(
        default_factory=set
    )  # tasks whose record is lost: the next batch brings the times again
    _done: dict[int, list[list[Operation]]] = field(default_factory=dict, repr=False)
    _times: dict[tuple[str, int], list[int]] = field(default_factory=dict, repr=False)

    @property
    def stores(self) -> list[StoreSpec]:
        """The stores without a changelog."""
        return [SPECS[name] for name in self.names if not SPECS[name].logging]

    def listen(self, lines: Sequence[str]) -> None:
        """Note a child's report of a commit."""
        open_: dict[int, Batch] = {}
        for line in lines:
            word, *rest = line.split()
            if word == "try":
                partition, first, to = map(int, rest)
                if partition in open_:
                    self.doubtful.setdefault(partition, []).append(open_[partition])
                open_[partition] = (first, to)
            elif word == "dropped":
                open_.pop(int(rest[0]), None)
            elif word == "ack":
                partition = int(rest[0])
                self.applied.setdefault(partition, []).append(open_.pop(partition))
                self.clockless.discard(partition)
        for partition, batch in open_.items():
            self.doubtful.setdefault(partition, []).append(batch)

    def settle(self, partition: int, local_offset: int) -> None:
        """Decide about batches that were tried, by the source offset that is of the same local batch.

        Two batches that end at the same offset have the same records, so either one serves.
        """
        done = self.applied.setdefault(partition, [])
        for batch in reversed(self.doubtful.pop(partition, [])):
            if batch[1] == local_offset and (not done or done[-1][1] != local_offset):
                done.append(batch)
                self.clockless.discard(partition)
                return

    def give_up(self, store: str, partition: int) -> None:
        """An operator accepted that rows of a store ("": of every store without a changelog) of a task are gone."""
        self.given_up |= {(spec.name, partition) for spec in self.stores if store in ("", spec.name)}

    def expected(self, name: str, partition: int, observed_ms: int = -1) -> list[Record]:
        """The records that the store's changelog would hold.

        The largest time of a store also comes with the source offset at which a task is taken over, from its owner
        before; here it is a record without a key. `observed_ms` is one more of these, at the end.
        """
        found: list[Record] = []
        for first, to in self.applied.get(partition, []):
            found.append(clock(self.times(name, partition, first)))
            for offset in range(first, to):
                found += [as_record(one, len(found)) for one in self.done_at(partition, offset) if one.store == name]
        return [*found, clock(observed_ms)]

    def times(self, name: str, partition: int, to: int) -> int:
        """The largest time of a store that all records below an offset bring (-1: none)."""
        found = self._times.setdefault((name, partition), [-1])
        while len(found) <= to:
            done = self.done_at(partition, len(found) - 1)
            found.append(max([found[-1], *(time_of(one) for one in done if one.store == name)]))
        return found[to]

    def done_at(self, partition: int, offset: int) -> list[Operation]:
        """The operations of one record."""
        found = self._done.setdefault(partition, [])
        while len(found) <= offset:
            found.append(list(operations(self.seed, partition, len(found), self.start_ms, self.names)))
        return found[offset]


def clock(observed_ms: int) -> Record:
    return Record(-1, observed_ms, None, None)


def time_of(one: Operation) -> int:
    """The time that an operation brings to the largest time of its store."""
    spec = SPECS[one.store]
    if isinstance(spec, SessionStore):
        return one.end
    if isinstance(spec, WindowStore):
        return one.start
    return one.timestamp if isinstance(spec, VersionedStore) else -1


def of_names(names: Sequence[str]) -> tuple[StoreSpec, ...]:
    return tuple(SPECS[name] for name in names)


def unlogged_of(names: Sequence[str]) -> list[str]:
    return [name for name in names if not SPECS[name].logging]
