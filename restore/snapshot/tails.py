"""The tails of changelogs behind snapshots: read for proof that nothing is missing, and applied up to a point.

    snapshot ──> its positions against the log ──> tail read to the point, or to the end ──> Candidate (points.py)
    scratch directory of a snapshot ──> tail applied, proved again ──> positions and rows in one batch ──> at the point

Rules of this file: reads of the log, and writes into a scratch directory that no other process knows. The proof is made
again by the reads whose records are applied: compaction may have run since the point was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from standfast.replication.log import Fetched, Log, LogReader, Record, TopicInfo
from standfast.replication.offsets import TopicPartition
from standfast.replication.source_records import as_logged
from standfast.restore.log_states import diverged, log_state
from standfast.restore.plan import LogState
from standfast.restore.snapshot.manifest import CutPosition, Snapshot
from standfast.restore.snapshot.planning import fits
from standfast.restore.snapshot.points import Candidate, TailSeen
from standfast.restore.verify.at_rest import view
from standfast.store.clock import Clock
from standfast.store.engine import DEFAULT_FAMILY, Engine
from standfast.store.errors import InvalidRequest, StateLost, Unavailable
from standfast.store.rocks.open_engine import open_engine
from standfast.store.rocks.opening import RocksShared
from standfast.store.serde import by_name
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import CUT_KEY, CommitRecord, StoreTimes, read_record
from standfast.store.types.kinds import definition_spec

FETCH_RECORDS = 5_000
FETCH_MS = 1_000
PATIENCE_MS = 30_000  # a log that gives nothing below its own end for so long has lost its connection


def logged(snapshot: Snapshot) -> dict[str, CutPosition]:
    """The changelogs whose rows are in the files of a snapshot, by store."""
    return {name: at for name, at in snapshot.cut.positions.items() if name not in snapshot.memory_stores}


def source_of(at: CutPosition) -> TopicPartition:
    """The changelog's partition."""
    return TopicPartition(at.topic, at.partition)


@dataclass(frozen=True, slots=True)
class SnapshotChangelog:
    """A changelog of a snapshot as the log has it now."""

    at: CutPosition
    state: LogState

    @property
    def base(self) -> int:
        """The first offset that may hold a record which the snapshot lacks."""
        return self.at.offset + self.at.marker

    @property
    def compacted(self) -> bool:
        """Whether a cleaner may have removed records behind the head."""
        return "compact" in self.state.cleanup


class Tails:
    """The changelogs of one application in a log. One thread at a time uses it."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._reader: LogReader = log.reader()
        self._topics: dict[str, TopicInfo | None] = {}

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()

    def changelogs(self, snapshot: Snapshot) -> dict[str, SnapshotChangelog] | str:
        """The changelogs of a snapshot by store, or why the snapshot does not fit the log."""
        kept = logged(snapshot)
        where, infos = {name: source_of(at) for name, at in kept.items()}, {}
        for name, at in where.items():
            info = self._topic(at.topic)
            if info is None or info.partitions <= at.partition:
                return f"changelog {at} does not exist"
            infos[name] = info
        bounds = self._reader.bounds(where.values())
        states = {name: log_state(at, infos[name], bounds[at]) for name, at in where.items()}
        states = diverged(states, {name: at.tag for name, at in kept.items()}, self._reader)
        now_ms = self._clock.wall_ms()
        for name, state in states.items():
            judged = fits(kept[name], state, now_ms)
            if judged.reason:
                return judged.reason
        return {name: SnapshotChangelog(kept[name], state) for name, state in states.items()}

    def topic_ids(self, snapshots: Sequence[Snapshot]) -> set[str]:
        """The ids that the changelogs of these snapshots have now; an absent topic has none."""
        topics = {at.topic for snapshot in snapshots for at in snapshot.cut.positions.values()}
        return {info.topic_id for topic in sorted(topics) if (info := self._topic(topic)) is not None}

    def first_offsets(self, snapshot: Snapshot, time_ms: int) -> dict[str, int]:
        """The first offset of each changelog whose record has this timestamp or a later one, by store."""
        wanted = {source_of(at): time_ms for at in logged(snapshot).values()}
        found = self._log.admin.first_offsets(wanted)
        return {name: found[source_of(at)] for name, at in logged(snapshot).items()}

    def candidate(self, snapshot: Snapshot, point: Mapping[str, int], *, beyond: bool = False) -> Candidate:
        """The points that can be reached from a snapshot: up to the point, or with `beyond` up to the log's end."""
        own = {name: at.offset for name, at in logged(snapshot).items()}
        found = self.changelogs(snapshot)
        if isinstance(found, str):
            return Candidate(snapshot.name, own, reason=found)
        if point.keys() != own.keys() or any(own[name] > offset for name, offset in point.items()):
            return Candidate(snapshot.name, own)  # its own point alone, on the other side
        for name, offset in point.items():
            if offset > found[name].state.end:
                where, end = found[name].state.topic_partition, found[name].state.end
                raise InvalidRequest(f"offset {offset} of {where} is beyond its end {end}: give at most {end}")
        spans = {}
        for name, changelog in found.items():
            # One more than the point: a key that is repeated there proves it.
            stop = changelog.state.end if beyond else min(point[name] + 1, changelog.state.end)
            try:
                spans[name] = self.seen(changelog, stop).spans
            except StateLost as error:
                return Candidate(snapshot.name, own, reason=f"its tail went from the log meanwhile ({error})")
        return Candidate(snapshot.name, own, spans)

    def seen(
        self,
        changelog: SnapshotChangelog,
        stop: int,
        apply: Callable[[Sequence[Record], int], None] = lambda records, at: None,
    ) -> TailSeen:
        """Read the tail of a changelog up to `stop`; `apply` gets its records with the next offset.

        Raises StateLost if the records that prove it are gone after the read.
        """
        where = changelog.state.topic_partition
        seen = TailSeen(changelog.base, compacted=changelog.compacted)
        for records, next_offset in self._records(where, changelog.base, stop):
            seen.add(((record.offset, record.key) for record in records), next_offset)
            apply(records, next_offset)
        # After the last read: a cleaner, or retention, may have come between the reads.
        begin, end = self._reader.bounds([where])[where]
        seen.at_end = seen.position >= end
        if begin > changelog.base:
            raise StateLost(
                f"{where}: its head was removed beyond {changelog.base} during the read", reason="truncated"
            )
        if seen.gap is not None and seen.witness is not None and not self._has(where, seen.witness.anchor):
            raise StateLost(f"{where}: compaction removed records during the read", reason="compacted")
        return seen

    def _records(self, where: TopicPartition, begin: int, stop: int) -> Iterator[tuple[list[Record], int]]:
        if begin >= stop:
            return
        position, progress_ms = begin, self._clock.monotonic_ms()
        # Alone, so that a fetch brings no records of the tail that was read before.
        self._reader.assign({where: begin})
        while position < stop:
            fetched: list[Fetched] = self._reader.fetch(FETCH_RECORDS, FETCH_MS)
            for batch in fetched:
                if batch.next_offset > position:
                    progress_ms = self._clock.monotonic_ms()
                position = min(batch.next_offset, stop)
                yield [record for record in batch.records if record.offset < stop], position
                if position >= stop:
                    break
            if self._clock.monotonic_ms() - progress_ms > PATIENCE_MS:
                raise Unavailable(
                    f"{where} gives no record from offset {position} on, though it has some below {stop}: check the log"
                )
        self._reader.assign({})

    def _has(self, where: TopicPartition, offset: int) -> bool:
        return any(
            record.offset == offset for records, _ in self._records(where, offset, offset + 1) for record in records
        )

    def _topic(self, name: str) -> TopicInfo | None:
        if name not in self._topics:
            self._topics[name] = self._log.admin.describe_topic(name)
        return self._topics[name]


def advance(tails: Tails, snapshot: Snapshot, directory: Path, point: Mapping[str, int], shared: RocksShared) -> int:
    """Apply the tails of a snapshot to its restored directory, up to the point; returns the number of records.

    Raises Unavailable if the point cannot be proved any more. The source offsets go from the record of a state that
    moved: which records of the sources it has is known at a commit alone.
    """
    found = tails.changelogs(snapshot)
    if isinstance(found, str):
        raise Unavailable(f"snapshot {snapshot.name}: {found}: choose the point again")
    applied = 0
    with closing(open_engine(directory, shared=shared)) as engine:
        record = read_record(engine, str(directory))
        for name, changelog in sorted(found.items()):
            target = point[name]
            if target <= changelog.at.offset:
                continue
            spec = _spec(snapshot, name)
            writer = _Applier(engine, spec, replace(record, sources={}, source_tags={}), target)
            try:
                seen = tails.seen(changelog, min(target + 1, changelog.state.end), writer.apply)
            except StateLost as error:
                raise Unavailable(f"snapshot {snapshot.name}: {error}: choose the point again") from error
            if not seen.reaches(target):
                raise Unavailable(
                    f"compaction ran behind snapshot {snapshot.name} since the point {target} of "
                    f"{changelog.state.topic_partition} was chosen: choose again"
                )
            # The next store's rows carry the positions of this one: each batch has all of the record.
            record = writer.moved()
            applied += writer.records
        engine.flush()
    return applied


def _spec(snapshot: Snapshot, name: str) -> StoreSpec:
    definition = snapshot.stores[name]
    spec = definition_spec(name, definition)
    own = [definition[part] for part in ("key", "value") if by_name(definition[part]) is None]
    if spec.from_source and own:
        raise InvalidRequest(
            f"store {name!r} is a table of {spec.changelog_of('')} with serdes of the application's own ({own[0]}), "
            "without which it is unknown which records it holds: restore a snapshot's own point"
        )
    return spec


class _Applier:
    """Writes the records of one changelog into a directory."""

    def __init__(self, engine: Engine, spec: StoreSpec, record: CommitRecord, target: int) -> None:
        self._engine = engine
        self._spec = spec
        self._target = target
        self._record = record
        self._store: Any = view(engine, spec, record.stores.get(spec.name, StoreTimes()))
        self.records = 0

    def apply(self, records: Sequence[Record], next_offset: int) -> None:
        """Write those of the records that lie below the target, and the position after them, in one batch."""
        records = [record for record in records if record.offset < self._target]
        kept = as_logged(self._spec, records) if self._spec.from_source else records
        rows = self._store.restore(kept) if kept else {}
        self.records += len(records)
        self._write(rows, min(next_offset, self._target))

    def moved(self) -> CommitRecord:
        """The record at the target."""
        return self._record

    def _write(self, rows: Mapping[str, Mapping[bytes, bytes | None]], offset: int) -> None:
        name, held = self._spec.name, self._store.rows
        # The time stays that of the snapshot: by it a restore judges which deletes an older position has missed.
        before = self._record.positions[name]
        position = before._replace(offset=offset, leader_epoch=-1, marker=False, tag="")
        self._record = replace(
            self._record,
            positions={**self._record.positions, name: position},
            stores={**self._record.stores, name: StoreTimes(held.observed_ms, held.sequence)},
        )
        present = self._engine.families()
        # A segment of windows begins with its first row.
        for family in rows.keys() - present:
            self._engine.create_family(family)
        self._engine.write({**rows, DEFAULT_FAMILY: {CUT_KEY: self._record.encode()}})
