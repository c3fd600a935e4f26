"""Restores a whole application under another name, from one snapshot a task.

    plan (clone_plan.py) ──> files of every snapshot, beside each other ──> mark in the log
        ──> topics ──> rows ──> one transaction: source offsets and "whole"
        ──> local state with the positions after the rows, task by task ──> mark deleted

The rows go to the new changelogs first, so that a later restore from those alone is whole, too. The order makes every
kill harmless: until the mark is gone no instance of the new name starts, and a second run with the same snapshots goes
on: rows are written again (the same keys with the same values), unless the mark says that the log has all of them.

Rules of this file: everything that can be refused is refused before the mark. All writes go through one writer, whose
id a second run takes over: a first run that still lives is fenced, and cannot write rows behind the start of the
application.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.log import Committed, GroupCommit, Log, LogWriter, Outgoing
from standfast.replication.metadata_parts import texts_of
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.topics.changelog import keys_of
from standfast.replication.topics.claims import PLAIN, Claims, claim_of
from standfast.replication.topics.restoring import (
    POLICY,
    RestoredPosition,
    Restoring,
    as_record,
    is_written,
    mark_of,
    read_mark,
)
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.clone_plan import ClonePart, ClonePlan, plan_clone, refuse_used
from standfast.restore.snapshot.fetch import fetch, holds_database, place
from standfast.restore.snapshot.logged_rows import drop_rows, lifted, records_of
from standfast.restore.snapshot.manifest import Snapshot
from standfast.restore.snapshot.names import SnapshotName
from standfast.restore.snapshot.storage import Storage
from standfast.store import files
from standfast.store.clock import Clock
from standfast.store.engine import DEFAULT_FAMILY, Engine
from standfast.store.errors import Fenced, InvalidRequest, StandfastError, UnknownStore
from standfast.store.failpoint import reach
from standfast.store.file_errors import told
from standfast.store.log import as_event, logger
from standfast.store.rocks.open_engine import open_engine
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.commit_record import (
    CUT_KEY,
    CommitRecord,
    Position,
    StoreTimes,
    parse_source_key,
    read_record,
)
from standfast.store.task.state_dir import StateDir

MEMORY_BYTES = 64 << 20
# One transaction of the log: within its time-out on a slow broker, and small enough for the embedded log's lock.
BATCH_RECORDS, BATCH_BYTES = 5_000, 4 << 20
Positions = dict[str, dict[str, RestoredPosition]]  # by task, by store


@dataclass(frozen=True, slots=True)
class ClonedTask:
    """A task under the new name: its snapshot, the rows written, next offsets by store, and source offsets."""

    task: str
    snapshot: SnapshotName
    rows: int
    positions: Mapping[str, int]
    sources: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Cloned:
    """The outcome; with `dry_run` the plan of it. `resumed`: an earlier run was completed."""

    app: str
    name: str
    dry_run: bool
    topics: tuple[str, ...]
    tasks: tuple[ClonedTask, ...]
    resumed: bool = False


def clone_app(
    storage: Storage,
    parts: Sequence[Snapshot],
    *,
    name: str,
    log: Log,
    state_dir: Path,
    clock: Clock,
    coordinated: bool = False,
    stateless: Mapping[TopicPartition, Committed] | None = None,
    dry_run: bool = False,
) -> Cloned:
    """Restore an application as `name`, from the snapshot of each of its tasks.

    `coordinated`: the parts are one point over the topics between tasks: each part has consumed exactly the records
    that the parts before it had written. `stateless` are the source offsets, with their metadata, of tasks without
    stores, which have no snapshot. Tasks come to `<state_dir>/<name>`, which is locked meanwhile.
    Raises InvalidRequest with every reason against it, Corruption for a damaged snapshot; both before any change.
    Unavailable and Fenced may come later: then the same call completes it.
    """
    plan = plan_clone(log, parts, name, coordinated=coordinated, stateless=stateless or {})
    ids = {part.snapshot.task: part.snapshot.id for part in plan.parts}
    marked = _marked(log, plan, ids)
    # A name with a mark is in use by the restore itself; the mark proves that it was free before.
    if marked is None:
        refuse_used(log, plan, state_dir)
    if dry_run:
        return _outcome(plan, {}, {}, dry_run=True, resumed=marked is not None)
    with closing(StateDir(state_dir, name)) as state:
        return _Run(storage, plan, Restoring(plan.app, ids), log, state, clock).run()


def begun_parts(log: Log, app: str, name: str, storage: Storage) -> list[Snapshot] | None:
    """The snapshots of an unfinished restore of `app` as `name`; None if there is none.

    Raises InvalidRequest if one of them is gone from the storage.
    """
    mark = read_mark(log, name)
    if mark is None or mark.app != app:
        return None
    by_id = {one.snapshot.id: one.snapshot for one in listed(storage).whole}
    if gone := sorted(task for task, wanted in mark.parts.items() if wanted not in by_id):
        raise InvalidRequest(
            f"the unfinished restore as {name!r} began with a snapshot of task {gone[0]} that {storage.where} does not "
            f"have any more: give it up with `standfast reset` of {name!r}; nothing was changed"
        )
    return [by_id[mark.parts[task]] for task in sorted(mark.parts, key=TaskId.parse)]


class _Run:
    """One run, which begins a restore or completes it."""

    def __init__(
        self, storage: Storage, plan: ClonePlan, mark: Restoring, log: Log, state: StateDir, clock: Clock
    ) -> None:
        self._storage = storage
        self._plan = plan
        self._mark = mark
        self._log = log
        self._state = state
        self._clock = clock
        self._shared = RocksShared(MEMORY_BYTES)
        self._scratches: dict[str, Path] = {}
        self._rows: dict[str, int] = {}
        self._begun = False  # whether the mark is this run's

    def run(self) -> Cloned:
        """Carry the plan out."""
        try:
            # First, since a damaged snapshot is found here, and nothing is in the log yet.
            for part in self._plan.parts:
                self._fetch(part)
            where, owner = mark_of(self._plan.name), self._state.instance_id
            found = _marked(self._log, self._plan, self._mark.parts)
            resumed = found is not None
            try:
                if found is None:
                    self._begin()
                with closing(self._log.writer(where.topic, group=self._plan.name, owner=owner)) as writer:
                    return self._with(writer, resumed=resumed)
            except (StandfastError, KeyboardInterrupt) as error:
                # Two runs at once: the other one may end, and remove the topic of the mark, at any moment of this one.
                if isinstance(error, UnknownStore | Fenced) and not self._is_marked():
                    raise self._completed(Fenced if isinstance(error, Fenced) else InvalidRequest) from error
                self._warn(error)
                raise
        finally:
            for scratch in self._scratches.values():
                files.clear(scratch)

    def _begin(self) -> None:
        """Make the mark's topic, and write the mark. Raises InvalidRequest if the name is in use after all."""
        where = mark_of(self._plan.name)
        self._log.admin.create_topic(where.topic, 1, POLICY)
        try:
            # Again: an instance that started meanwhile has seen no mark before it created its topics.
            refuse_used(self._log, self._plan, self._state.path.parent)
        except InvalidRequest as error:
            # Another run writes its record before it creates a topic: then the mark is that run's.
            with suppress(UnknownStore):  # it has removed the mark
                if not is_written(self._log, self._plan.name):
                    self._log.admin.delete_topic(where.topic)
            raise InvalidRequest(
                f"{error}; another restore as {self._plan.name!r} has begun or completed meanwhile, or an instance has "
                "started"
            ) from error
        # Before the writer, whose claim makes the name look used to a second run that begins just now.
        with closing(self._log.producer()) as producer:
            producer.append({where: [as_record(self._mark, self._clock.wall_ms())]})
        self._begun = True
        reach("clone.marked")

    def _is_marked(self) -> bool:
        return self._log.admin.describe_topic(mark_of(self._plan.name).topic) is not None

    def _completed(self, kind: type[StandfastError] = InvalidRequest) -> StandfastError:
        return kind(
            f"another run has completed the restore as {self._plan.name!r} meanwhile, or a reset has given it up: "
            "nothing is left to do"
        )

    def _warn(self, error: BaseException) -> None:
        """Warn of a run that ends before its mark is gone."""
        if isinstance(error, Fenced):
            left = "another run of the same restore has taken over; if that one does not complete it, run it again"
        elif isinstance(error, InvalidRequest) and not self._begun:
            return  # refused: nothing is left of this run
        else:
            left = "it does not start until the same restore has run again and completed it"
        logger.warning(
            "application %s is not restored as %s: %s; %s",
            self._plan.app,
            self._plan.name,
            "interrupted" if isinstance(error, KeyboardInterrupt) else error,
            left,
            extra=as_event("clone_unfinished", app=self._plan.app, name=self._plan.name),
        )

    def _with(self, writer: LogWriter, *, resumed: bool) -> Cloned:
        where = mark_of(self._plan.name)
        # By the writer that fences all others: from here on no other run can say that the log is whole.
        mark = _marked(self._log, self._plan, self._mark.parts)
        self._begun = mark is not None
        if mark is None:
            raise self._completed()
        if not mark.whole:
            mark = self._fill(writer)
        for part in self._plan.parts:
            self._place(part, mark.positions.get(part.snapshot.task, {}))
            reach("clone.placed")
        self._log.admin.delete_topic(where.topic)
        return _outcome(self._plan, mark.positions, self._rows, dry_run=False, resumed=resumed)

    def _fill(self, writer: LogWriter) -> Restoring:
        """Topics, rows and source offsets; returns the mark that says so."""
        topic_ids = {
            topic: self._log.admin.create_topic(topic, partitions, policy).topic_id
            for topic, (partitions, policy) in sorted(self._plan.topics.items())
        }
        self._claim(topic_ids)
        reach("clone.topics")
        positions: Positions = {}
        offsets: dict[TopicPartition, Committed] = dict(self._plan.stateless)
        for part in self._plan.parts:
            task = part.snapshot.task
            with closing(open_engine(self._scratches[task], shared=self._shared, read_only=True)) as engine:
                record = read_record(engine, str(self._scratches[task]))
                # The changelogs before the record of the local state, which may then name the positions after them.
                positions[task] = self._write_rows(writer, part, engine, record, topic_ids)
            offsets |= _offsets_of(self._plan, part, record, positions[task])
        reach("clone.written")
        whole = Restoring(self._mark.app, self._mark.parts, whole=True, positions=positions)
        # One transaction for all tasks: an offset that is committed for one of them alone would let its task go on
        # beside others that begin with the first record.
        commit = GroupCommit(self._plan.name, offsets) if offsets else None
        writer.transact({mark_of(self._plan.name): [as_record(whole, self._clock.wall_ms())]}, commit)
        reach("clone.whole")
        return whole

    def _claim(self, topic_ids: Mapping[str, str]) -> None:
        """Claim the new topics: an application whose name fits them as well must not begin with these rows."""
        specs = (spec for part in self._plan.parts for spec in part.specs.values())
        keys = {spec.changelog_of(self._plan.name): keys_of(spec) for spec in specs}
        with closing(self._log.group(self._plan.name)) as group:
            claims = Claims(self._plan.name, self._log, group, self._state.instance_id, self._clock)
            claims.take({name: claim_of(name, one, keys.get(name, PLAIN)) for name, one in topic_ids.items()})

    def _write_rows(
        self, writer: LogWriter, part: ClonePart, engine: Engine, record: CommitRecord, topic_ids: Mapping[str, str]
    ) -> dict[str, RestoredPosition]:
        """Write the rows of a task to its changelogs; returns the positions after them."""
        task, found = part.task, {}
        self._rows[str(task)] = 0
        for store, spec in sorted(part.specs.items()):
            at = TopicPartition(spec.changelog_of(self._plan.name), task.partition)
            times = record.stores.get(store, StoreTimes())
            # A store without rows begins at the end, too: an unfinished run may have left its own records below.
            begin = end = self._end(at)
            marker, differs, least_ms = False, False, self._log.least_timestamp_ms
            for batch in _batches(records_of(engine, spec, times, self._clock.wall_ms(), least_ms)):
                changed = lifted(batch, least_ms)
                differs = differs or changed is not None
                end, marker = writer.transact({at: changed or batch})[at], writer.marks_transactions
                self._rows[str(task)] += len(batch)
                reach("clone.rows")
            # Before the rows, if those of the files differ from them: see `_place`.
            after = RestoredPosition(topic_ids[at.topic], end, marker)
            found[store] = RestoredPosition(after.topic_id, begin, marker=False, replayed=True) if differs else after
        return found

    def _end(self, at: TopicPartition) -> int:
        with closing(self._log.reader()) as reader:
            return reader.bounds([at])[at].end

    def _fetch(self, part: ClonePart) -> None:
        task = part.snapshot.task
        scratch = self._state.copying_path(task)
        self._scratches[task] = scratch
        fetch(self._storage, part.snapshot, scratch, self._shared, app=self._plan.name)

    def _place(self, part: ClonePart, positions: Mapping[str, RestoredPosition]) -> None:
        """Put a task's files in place, with the positions after its rows; an earlier run may have done so."""
        task = part.snapshot.task
        scratch, target = self._scratches[task], self._state.task_path(task)
        # In the scratch directory, so that the task's own never holds positions of the old topics.
        with closing(open_engine(scratch, shared=self._shared)) as engine:
            record = read_record(engine, str(scratch))
            # The rows of such a store come from the log alone, where some have other timestamps than in the files.
            times = dict(record.stores)
            for store in (store for store, at in positions.items() if at.replayed):
                drop_rows(engine, part.specs[store], times.pop(store, StoreTimes()))
            record = self._moved(part, replace(record, stores=times), positions)
            engine.write({DEFAULT_FAMILY: {CUT_KEY: record.encode()}})
            engine.flush()
        if holds_database(target):
            # No instance ran since the mark, so it is the earlier run's; another directory would be older state.
            with closing(open_engine(target, shared=self._shared, read_only=True)) as engine:
                if _offsets(read_record(engine, str(target))) != _offsets(record):
                    raise InvalidRequest(
                        f"{target} holds other state than this restore would put there: move it away, and run again"
                    )
            return
        with told("putting a restored task in place", target):
            _sync(scratch)
        place(scratch, target)

    def _moved(self, part: ClonePart, record: CommitRecord, after: Mapping[str, RestoredPosition]) -> CommitRecord:
        """The record of the task under its new name."""
        plan, now_ms = self._plan, self._clock.wall_ms()
        with closing(self._log.reader()) as reader:
            ends = {
                TopicPartition(part.specs[store].changelog_of(plan.name), part.task.partition): at.offset
                for store, at in after.items()
            }
            tags = reader.epoch_tags(ends)
        positions = dict(record.positions)  # those of source topics that serve as changelogs stay
        for store, at in after.items():
            where = TopicPartition(part.specs[store].changelog_of(plan.name), part.task.partition)
            positions[store] = Position(at.offset, -1, at.topic_id, now_ms, at.marker, tags.get(where, ""))
        return replace(
            record,
            positions=positions,
            sources=dict(part.sources),
            stream_times={plan.renamed(key): time for key, time in record.stream_times.items()},
            source_tags={key: tag for key, tag in record.source_tags.items() if plan.renamed(key) == key},
            epoch=0,  # the new name has writers of its own
            commit=-1,
            task=part.snapshot.task,
        )


def _marked(log: Log, plan: ClonePlan, ids: Mapping[str, str]) -> Restoring | None:
    """The mark of an earlier run, None if there is none. Raises InvalidRequest for one of other snapshots."""
    found = read_mark(log, plan.name)
    if found is None:
        # Or of a run killed right after it made the topic: it had not looked yet whether the name was still free.
        return None
    if (found.app, found.parts) != (plan.app, ids):
        raise InvalidRequest(
            f"an unfinished restore of {found.app!r} as {plan.name!r} has other snapshots: run that one again (without "
            f"--snapshot it goes on with its own), or give it up with `standfast reset` of {plan.name!r}; nothing was "
            "changed"
        )
    return found


def _offsets_of(
    plan: ClonePlan, part: ClonePart, record: CommitRecord, after: Mapping[str, RestoredPosition]
) -> dict[TopicPartition, Committed]:
    """A task's source offsets with their metadata, as its own commit would have written them."""
    times = {plan.renamed(key): time for key, time in record.stream_times.items()}
    metadata = replace(CommitMetadata.of(record), epoch=0, stream_times=times, commit=-1)
    ends = {spec.changelog_of(plan.name): after[store].offset for store, spec in part.specs.items()}
    text, pieces = texts_of(metadata, [*ends])
    found = {TopicPartition(*parse_source_key(key)): Committed(offset, text) for key, offset in part.sources.items()}
    for topic, piece in pieces.items() if found else ():
        found[TopicPartition(topic, part.task.partition)] = Committed(ends[topic], piece)
    return found


def _batches(records: Iterable[Outgoing]) -> Iterator[list[Outgoing]]:
    """Batches of at most BATCH_RECORDS records and about BATCH_BYTES."""
    batch: list[Outgoing] = []
    size = 0
    for record in records:
        batch.append(record)
        size += len(record.key or b"") + len(record.value or b"")
        if len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _offsets(record: CommitRecord) -> tuple[dict[str, tuple[str, int]], dict[str, int]]:
    return {name: (at.topic_id, at.offset) for name, at in record.positions.items()}, dict(record.sources)


def _sync(directory: Path) -> None:
    """Make every file of a closed database durable, before it gets its place."""
    for path in directory.iterdir():
        files.sync_file(path)
    files.sync_folder(directory)


def _outcome(
    plan: ClonePlan,
    positions: Mapping[str, Mapping[str, RestoredPosition]],
    rows: Mapping[str, int],
    *,
    dry_run: bool,
    resumed: bool,
) -> Cloned:
    tasks = tuple(
        ClonedTask(
            part.snapshot.task,
            part.snapshot.name,
            rows.get(part.snapshot.task, 0),
            {store: at.offset for store, at in positions.get(part.snapshot.task, {}).items()},
            dict(part.sources),
        )
        for part in plan.parts
    )
    return Cloned(plan.app, plan.name, dry_run, tuple(sorted(plan.topics)), tasks, resumed)
