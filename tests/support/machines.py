"""The base of the state machines of the four store types: the side-by-side run, apart from any store type.

    one task    rc  RocksDB, cached     mc  memory, cached          every write goes to all of them,
                ru  RocksDB, uncached   mu  memory, uncached        every read must equal the oracle's answer

Rules of this file: no store type and no layout. An oracle is plain dicts and lists that state the semantics by
definition; `copy` gives the state that a commit keeps, `changes` the records logged since. Recorded changelogs feed
restores. Between the taking of a commit and its end, or its refusal, writes and reads go on.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path
from typing import Any, ClassVar, Protocol

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from standfast.replication.log import Record
from standfast.restore.fold import Fold
from standfast.store.buffer.rows import StoreIterator
from standfast.store.errors import Closed
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import Position
from standfast.store.task.task_stores import TaskStores

NOW_MS = 1_000_000
PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]  # explaining a failure would take minutes more
# Prefixes of each other, with the lowest and the highest byte inside, at the end, and alone.
AWKWARD_KEYS = [
    *(b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"a\x00\x00", b"a\x00\xff", b"aa", b"a\xff", b"a\xff\xff", b"b"),
    *(bytes(8), b"a" + bytes(7), b"a\x00\x00\x00\x00\x00\x01\x24\xf8", b"\xff", b"\xff\x00", b"\xff\xff"),
]
keys = st.sampled_from(AWKWARD_KEYS) | st.sampled_from(AWKWARD_KEYS) | st.binary(max_size=3)
# A key to read: an existing one (by number, see `pick`), or any.
read_keys = st.integers(0, 30) | st.integers(0, 30) | keys
bounds = st.none() | read_keys
values = st.binary(max_size=3)
maybe_values = st.one_of(st.none(), values, values, values)
timestamps = st.integers(0, 1_000)
batch_sizes = st.lists(st.integers(1, 30), min_size=1, max_size=3)
# A time as (anchor, how many steps away, how many ms off): machines resolve it against the oracle's observed time.
moments = st.tuples(
    st.sampled_from(["zero", "observed", "observed", "expiry", "segment"]),
    st.sampled_from([0, 0, 0, 1, 2, -1]),
    st.sampled_from([-1, 0, 1, 1, 500]),
)
TURNS = ["commit", "commit", "take", "take", "refuse", "flush", "discard", "restart", "fail over"]
OPENS_MAX = 6

Change = tuple[bytes, bytes | None, int]


class Oracle(Protocol):
    """The state of one store by definition."""

    changes: list[Change]

    def copy(self) -> Oracle: ...


def machine_settings(max_examples: int, steps: int) -> settings:
    """Few examples with many steps: opening RocksDB is costly. The thorough profile multiplies the examples."""
    current = settings.get_current_profile_name()
    factor = 1 if current == "default" else 60
    return settings(max_examples=max_examples * factor, stateful_step_count=steps, phases=PHASES)


def pick(drawn: bytes | int | None, known: Iterable[bytes]) -> bytes | None:
    """The drawn key: itself, or a number among the existing keys."""
    if not isinstance(drawn, int):
        return drawn
    there = sorted(set(known))
    return there[drawn % len(there)] if there else b"a"


def moment_ms(moment: tuple[str, int, int], observed_ms: int, retention_ms: int, interval_ms: int) -> int:
    """The time that a drawn moment means, never below 0."""
    anchor, steps, off = moment
    base = {
        "zero": 0,
        "observed": max(observed_ms, 0),
        "expiry": observed_ms - retention_ms,
        "segment": max(observed_ms, 0) // interval_ms * interval_ms,
    }[anchor]
    return max(base + steps * interval_ms + off, 0)


class StoreMachine(RuleBasedStateMachine):
    """One task with several stores of one type, driven in step with the oracle of each group of stores."""

    specs: ClassVar[Sequence[StoreSpec]]
    groups: ClassVar[dict[str, list[str]]]  # stores of one group get the same writes and must give the same reads
    compactable = True
    shared: ClassVar[RocksShared | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="standfast-machine-"))
        self.numbers = count()
        self.caching = {spec.name: spec.caching for spec in self.specs}
        self.logs: dict[str, list[Record]] = {spec.name: [] for spec in self.specs}
        self.held: list[tuple[Iterator[Any], list[Any]]] = []
        self.opens = 0
        self.stores = self.open()
        self.oracles: dict[str, Any] = {group: self.new_oracle(group) for group in self.groups}
        self.kept: dict[str, Any] = {group: oracle.copy() for group, oracle in self.oracles.items()}
        self.taken: dict[str, tuple[Any, list[Change]]] | None = None  # of a commit under way, with its changes

    def new_oracle(self, group: str) -> Oracle:
        raise AssertionError("each machine has its own")

    def new_fold(self, name: str) -> Fold:
        raise AssertionError("each machine has its own")

    def check_all(self) -> None:
        """Compare whole contents with the oracles."""
        raise AssertionError("each machine has its own")

    def open(self, directory: Path | None = None) -> TaskStores:
        if StoreMachine.shared is None:
            StoreMachine.shared = RocksShared(16 << 20)
        self.opens += 1
        place = directory or self.root / str(next(self.numbers))
        return TaskStores(place, "app", "0_0", self.specs, StoreMachine.shared, now_ms=lambda: NOW_MS)

    def teardown(self) -> None:
        self.stores.close()
        shutil.rmtree(self.root)

    def each(self, group: str) -> Iterator[Any]:
        """The stores of a group."""
        for name in self.groups[group]:
            yield self.stores.store(name)

    def same(self, group: str, expected: Any, method: str, *arguments: Any, **options: Any) -> None:
        """Every store of the group answers a call with `expected`; results of iterators in equal order."""
        for store in self.each(group):
            found = getattr(store, method)(*arguments, **options)
            if isinstance(found, StoreIterator):
                found = list(found)
            assert found == expected, f"{store.name} answers {found}, by definition it is {expected}"

    def same_both_ways(self, group: str, expected: list[Any], method: str, *arguments: Any) -> None:
        """As `same`, forwards and in reverse."""
        self.same(group, expected, method, *arguments)
        self.same(group, expected[::-1], method, *arguments, reverse=True)

    def same_time(self, group: str, observed_ms: int) -> None:
        """Every store of the group has observed the same stream time."""
        assert [store.rows.observed_ms for store in self.each(group)] == [observed_ms] * len(self.groups[group])

    def hold(self, group: str, expected: list[Any], method: str, *arguments: Any, **options: Any) -> None:
        """Begin an iterator on each store; later writes must not show in it."""
        for store in self.each(group):
            iterator = getattr(store, method)(*arguments, **options)
            if expected:
                assert next(iterator) == expected[0]
            self.held.append((iterator, expected[1:]))

    @precondition(lambda self: self.held)
    @rule()
    def finish_held_iterators(self) -> None:
        for iterator, expected in self.held:
            assert list(iterator) == expected
        self.held = []

    @rule(turn=st.sampled_from(TURNS), sizes=batch_sizes, compacted=st.booleans())
    def turn(self, turn: str, sizes: list[int], compacted: bool) -> None:
        """A task's life between writes; opening RocksDB is costly, so no more often than it must."""
        if turn in ("commit", "flush"):
            self.commit()
        if turn == "take" and self.taken is None:
            self.take()
        if turn == "refuse" and self.taken is not None:
            self.refuse()
        if turn == "flush":
            self.stores.flush()
            self.finish_held_iterators()
        if turn == "discard":
            self.stores.discard()
            left = self.kept if self.taken is None else {group: oracle for group, (oracle, _) in self.taken.items()}
            self.oracles = {group: oracle.copy() for group, oracle in left.items()}
        if turn == "restart" and self.opens < OPENS_MAX:
            self.restart(sizes)
        if turn == "fail over" and self.opens < OPENS_MAX:
            self.fail_over(sizes, compacted=compacted and self.compactable)
        self.check_all()
        self.check_folds()

    def take(self) -> None:
        """Take the cut of a commit, after comparing its changes with the expected ones."""
        logged = {name: [change[:3] for change in changes] for name, changes in self.stores.take().logged().items()}
        self.taken = {}
        for group, names in self.groups.items():
            every = self.oracles[group].changes
            for name in names:
                expected = latest_of_each(every) if self.caching[name] else every
                assert logged.get(name, []) == expected, f"{name} logged {logged.get(name)}, not {expected}"
            self.taken[group] = self.oracles[group].copy(), every
            self.oracles[group].changes = []

    def refuse(self) -> None:
        """The log takes nothing of the commit under way: the next one has it, under the writes since."""
        assert self.taken is not None
        self.stores.buffer.put_back()
        for group, (_, changes) in self.taken.items():
            self.oracles[group].changes = changes + self.oracles[group].changes
        self.taken = None

    def commit(self) -> None:
        """Take the cut, unless a commit is under way; record its changes and commit."""
        if self.taken is None:
            self.take()
        assert self.taken is not None
        for group, names in self.groups.items():
            every = self.taken[group][1]
            for name in names:
                self.record(name, latest_of_each(every) if self.caching[name] else every)
        positions = {name: Position(next_offset(log)) for name, log in self.logs.items()}
        self.stores.commit(replace(self.stores.cut, positions=positions))
        self.kept = {group: oracle for group, (oracle, _) in self.taken.items()}
        self.taken = None

    def restart(self, sizes: list[int]) -> None:
        """Close without a commit and reopen; memory stores come back from their changelogs."""
        directory, iterators = self.stores.directory, self.held
        self.held, self.taken = [], None
        self.stores.close()
        for iterator, _ in iterators:
            try:
                next(iterator)
            except Closed:
                continue
            raise AssertionError("an iterator outlived its store")
        self.stores = self.open(directory)
        volatile = [spec.name for spec in self.specs if spec.engine == "memory"]
        assert not set(volatile) & set(self.stores.cut.positions)
        self.replay(self.stores, volatile, sizes, compacted=False)
        self.oracles = {group: oracle.copy() for group, oracle in self.kept.items()}

    def fail_over(self, sizes: list[int], *, compacted: bool) -> None:
        """Restore all stores from the changelogs into a fresh directory, and go on there."""
        self.held, self.taken = [], None
        self.stores.close()
        self.stores = self.open()
        self.replay(self.stores, list(self.logs), sizes, compacted=compacted)
        self.oracles = {group: oracle.copy() for group, oracle in self.kept.items()}

    def check_folds(self) -> None:
        """The committed rows equal the fold of the changelog."""
        for spec in self.specs:
            fold = self.new_fold(spec.name)
            fold.add(self.logs[spec.name])
            store = self.stores.store(spec.name)
            committed = self.stores.committed_view(spec.name)
            assert sorted(committed.logical_rows()) == sorted(fold.rows()), f"{store.name} is not its changelog"

    def record(self, name: str, changes: Sequence[Change]) -> None:
        """Append to a recorded changelog; offsets have gaps, as in a log with transaction markers."""
        log = self.logs[name]
        for key, value, timestamp in changes:
            offset = next_offset(log)
            log.append(Record(offset + (offset % 7 == 3), timestamp, key, value))

    def replay(self, stores: TaskStores, names: list[str], sizes: list[int], *, compacted: bool) -> None:
        """Apply recorded changelogs in batches, several stores in one cut."""
        rest = {name: compact(self.logs[name]) if compacted else self.logs[name] for name in names}
        for size in cycle(sizes):
            batch = {name: records[:size] for name, records in rest.items() if records}
            if not batch:
                return
            rest = {name: records[size:] for name, records in rest.items()}
            positions = {name: Position(next_offset(records)) for name, records in batch.items()}
            stores.apply(batch, replace(stores.cut, positions={**stores.cut.positions, **positions}))


def latest_of_each(changes: list[Change]) -> list[Change]:
    """The last change per key, in the order in which the keys were first written."""
    return list({key: (key, value, timestamp) for key, value, timestamp in changes}.values())


def next_offset(log: Sequence[Record]) -> int:
    return log[-1].offset + 1 if log else 0


def compact(log: list[Record]) -> list[Record]:
    """The records that a compaction may leave: the last record per key, tombstones included."""
    latest = {record.key: record.offset for record in log}
    return [record for record in log if latest[record.key] == record.offset]
