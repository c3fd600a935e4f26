"""Bulk restore: threads build sorted files from changelogs, the session's thread ingests them in offset order.

    add ──> worker thread, one for each changelog ──> runs ── digest ── applier.ingest ──> position ──> ... end
                                                                                                         │
                                                            done <── shape: compact where level 0 is full ┘

A changelog has one worker. Measured: two with a half each are slower, since keys of both halves are written twice.

Rules of this file: a shell driven by one thread through `poll_once`, which waits for an ingest only;
`standfast.restore.replay.bulk_plan` decides which changelogs are loaded. A position moves only with an ingested run, so
that an interrupted restore goes on from there (a window or session store begins again). Stores that a standby tails
are never loaded here.

A worker's failure fails no task: after an error of the log, a damaged file or a thread that could not start, the rest
of the changelog goes to a worker again; after `ATTEMPTS_MAX` times it is given back, and batches restore the rest. The
same holds for an unreadable record, since batches report which one it is.

Files of the compiled writer that RocksDB refuses, or whose rows a get does not find (one is looked up in each load),
are built again by RocksDB's own writer, which then writes all later files of this process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from standfast.replication.log import Log
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.applier import ChangelogApplier
from standfast.restore.files.manifest import ManifestPartition
from standfast.restore.files.manifest_files import check_files
from standfast.restore.replay.bulk_plan import BulkSettings, Choice, choose, lookups_in, needs_compaction
from standfast.restore.replay.jobs import Done, Event, Failed, Job, JobProgress, Run
from standfast.restore.replay.run_builder import each_digest, quick_digest
from standfast.restore.replay.worker_pool import WorkerPool
from standfast.store import files
from standfast.store.clock import measured_ns
from standfast.store.errors import StandfastError, StateLost, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import StoreTimes
from standfast.store.task.ingested import FilesRefused
from standfast.store.task.state_dir import BULK_FOLDER

ATTEMPTS_MAX = 3
LEVEL0_PROPERTY = "num-files-at-level0"


@dataclass(frozen=True, slots=True)
class BulkStatistics:
    """Counts since the start: runs and files ingested, workers that failed, changelogs given back to batches.

    refused                    loads whose files of the compiled writer RocksDB refused, and whose rest was built again
    workers_now, workers_max   threads that build files now, and at most
    worker_peak_rss_bytes      the most memory that the rows of one worker took; the name is that of a time when
                               workers were processes
    """

    workers_now: int = 0
    workers_max: int = 0
    runs: int = 0
    files: int = 0
    failures: int = 0
    given_back: int = 0
    refused: int = 0
    worker_peak_rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BulkStep:
    """Result of a round for one changelog.

    position            applied and durable up to here
    covered             read by workers up to here, as one number for a progress bar
    records             in the files of this round, `skipped` ones included, which no store writes; read_records and
                        read_bytes: read by workers
    done                whole, and compacted if needed
    given_back          why batches must restore the rest; error: why the task failed
    """

    task: TaskId
    changelog: TopicPartition
    position: int
    covered: int
    records: int = 0
    read_records: int = 0
    read_bytes: int = 0
    skipped: int = 0
    done: bool = False
    given_back: str | None = None
    error: StandfastError | None = None


@dataclass(slots=True)
class _Load:
    """One changelog. `built`: end of the last reported run, `read`: position of the worker; `job` -1: none.

    `live_keys`: see RowFold, of all files so far. `refused`: files of the compiled writer were.
    """

    applier: ChangelogApplier
    changelog: TopicPartition
    spec: StoreSpec
    start: int
    end: int
    cold: bool
    folder: Path
    position: int
    covered: int
    built: int
    read: int
    job: int = -1
    attempts: int = 0
    runs: deque[ManifestPartition] = field(default_factory=deque)
    live_keys: dict[str, bytes | None] = field(default_factory=dict)
    looked_up: bool = False  # a row of the compiled writer was found by a get
    refused: bool = False
    records: int = 0
    skipped: int = 0
    read_records: int = 0
    read_bytes: int = 0
    shaping: _Shaping | None = None


class BulkLoader:
    """All bulk loads of one process.

    `wake` is called, by any thread, when a worker has reported something that the next `poll_once` acts on; None: the
    caller polls, and a load begins with its next round.
    """

    def __init__(self, log: Log, settings: BulkSettings, wake: Callable[[], None] | None = None) -> None:
        self._settings = settings
        self._begins_at_once = wake is not None
        self._pool = WorkerPool(log, settings.workers, wake or (lambda: None))
        self.phases_ns = self._pool.phases_ns
        self._loads: dict[TopicPartition, _Load] = {}
        self._next_job = 0
        self._ingests = True  # in this round: one run each, since it holds the session's lock
        self._runs = self._files = self._failures = self._given_back = self._refused = 0

    @property
    def loading(self) -> bool:
        """Whether a changelog is being loaded."""
        return bool(self._loads)

    @property
    def workers(self) -> list[str]:
        """Names of the threads that build files now."""
        return self._pool.threads

    def statistics(self) -> BulkStatistics:
        """Counts so far."""
        return BulkStatistics(
            workers_now=len(self._pool.threads),
            workers_max=self._settings.workers,
            runs=self._runs,
            files=self._files,
            failures=self._failures,
            given_back=self._given_back,
            refused=self._refused,
            worker_peak_rss_bytes=self._pool.peak_bytes,
        )

    def choice(self, applier: ChangelogApplier, changelog: TopicPartition, position: int, end: int) -> Choice:
        """Whether this changelog is loaded in bulk, and why."""
        spec = applier.stores.specs[applier.store_of[changelog]]
        return choose(
            spec.kind,
            in_memory=spec.engine == "memory",
            from_source=spec.from_source,
            cold=applier.position(changelog) is None,
            records=end - position,
            settings=self._settings,
        )

    def add(self, applier: ChangelogApplier, changelog: TopicPartition, position: int, end: int) -> None:
        """Load a changelog from position to end; the work begins now, or with the next round."""
        spec = applier.stores.specs[applier.store_of[changelog]]
        # On the database's own file system: across devices, an ingest by move falls back to a copy.
        folder = applier.stores.directory.parent / BULK_FOLDER / str(applier.task) / spec.name
        load = self._loads[changelog] = _Load(
            applier=applier,
            changelog=changelog,
            spec=spec,
            start=position,
            end=end,
            cold=applier.position(changelog) is None,
            folder=folder,
            position=position,
            covered=position,
            built=position,
            read=position,
        )
        # Now, and not with the next round: that may be far, since the rest of this one waits for the log. Measured, a
        # session's first restore on Kafka: 30 ms. A folder that cannot be created is reported by the next round.
        if self._begins_at_once:
            with suppress(OSError):
                self._start(load)
                self._pool.hand_out()

    def remove(self, task: TaskId) -> None:
        """Give up the loads of a task; ingested runs stay, with their position."""
        for load in [one for one in self._loads.values() if one.applier.task == task]:
            self._drop(load)

    def poll_once(self) -> list[BulkStep]:
        """Read the workers' reports, ingest the next runs, give out work; one step for each changelog that moved."""
        if not self._loads and self._pool.quiet:
            return []
        steps = self._begin()
        for answer in self._pool.poll():
            steps += self._take(answer)
        self._ingests = True
        for load in list(self._loads.values()):
            steps += self._advance(load)
        self._pool.hand_out()
        return steps

    def close(self) -> None:
        """End the workers and remove their files."""
        self._pool.close()
        for load in list(self._loads.values()):
            self._drop(load)

    # -- work for the workers -----------------------------------------------------------------------------------------

    def _begin(self) -> list[BulkStep]:
        """Start the loads that have no job yet."""
        steps = []
        for load in [one for one in self._loads.values() if one.job < 0 and one.built == one.start and not one.runs]:
            try:
                self._start(load)
            except OSError as error:
                steps.append(self._end(load, given_back=f"its folder cannot be created: {error}"))
        return steps

    def _start(self, load: _Load) -> None:
        """Give a new load a folder and a job. Raises OSError."""
        files.clear(load.folder)  # files left by a process that was killed
        files.make_folder(load.folder, parents=True, exist_ok=True)
        self._submit(load)

    def _submit(self, load: _Load) -> None:
        """Queue a job from the end of the load's runs on."""
        load.job, self._next_job = self._next_job, self._next_job + 1
        settings = self._settings
        self._pool.submit(
            Job(
                number=load.job,
                spec=load.spec,
                changelog=load.changelog,
                topic_id=load.applier.topic_id(load.changelog),  # the worker refuses a recreated topic
                start=load.built,
                end=load.end,
                folder=load.folder,
                budget_bytes=settings.memory_bytes // settings.workers,  # the bound is for all workers
                fetch_records=settings.fetch_records,
                # With rows below, in an earlier run or in a part of refused files, a delete hides an older value.
                drop_deletes=load.cold and load.built == load.start and not load.refused,
                disk_floor_bytes=settings.disk_floor_bytes,
                spills_max=settings.spills_max,
                rocks_writer=self._refused > 0,
            )
        )

    def _take(self, event: Event) -> Iterator[BulkStep]:
        load = next((load for load in self._loads.values() if load.job == event.number), None)
        if load is None:
            return  # the load was given up meanwhile
        if isinstance(event, JobProgress):
            load.read = max(load.read, event.position)
            load.read_records += event.records
            load.read_bytes += event.bytes
        elif isinstance(event, Run):
            load.runs.append(event.partition)
            load.built = event.partition.end
            load.live_keys |= event.live_keys
        elif isinstance(event, Failed):
            yield from self._again(load, event.error)
        else:
            assert isinstance(event, Done)

    def _again(self, load: _Load, error: StandfastError) -> Iterator[BulkStep]:
        """Queue the rest of a changelog again, as long as another attempt may help."""
        # The log has lost records, which batches would not find either.
        if isinstance(error, StateLost):
            yield self._end(load, error=error)
            return
        load.attempts += 1
        self._failures += 1
        # An unreachable log may answer the next time; an unreadable record stays unreadable.
        if not isinstance(error, Unavailable) or load.attempts >= ATTEMPTS_MAX:
            yield self._end(load, given_back=f"a worker failed: {error}")
            return
        logger.warning(
            "the worker for %s from offset %d failed: %s: trying again",
            load.changelog,
            load.built,
            error,
            extra=as_event("restore_worker_retried", changelog=load.changelog, offset=load.built),
        )
        load.read = load.built  # rows of the unfinished run were lost with the worker
        self._submit(load)

    # -- runs of the workers ------------------------------------------------------------------------------------------

    def _advance(self, load: _Load) -> Iterator[BulkStep]:
        before = load.position
        try:
            self._ingest(load)
        except _Spoilt as error:
            yield self._end(load, given_back=f"a file of a worker does not match its digest: {error.__cause__}")
            return
        except FilesRefused as error:
            self._build_again(load, error)
        except StandfastError as error:
            yield self._end(load, error=error)
            return
        # A worker that begins again has read less than before, and progress must not go back.
        load.covered = max(load.covered, min(max(load.read, load.built), load.end))
        if load.position >= load.end:
            if load.shaping is None:
                load.shaping = _Shaping(load)
            if load.shaping.failure is not None:
                yield self._end(load, error=load.shaping.failure)
                return
            if load.shaping.done:
                self.phases_ns["compact"] += load.shaping.spent_ns
                yield self._end(load)
                return
        if load.position > before or load.read_records:
            yield self._step(load)

    def _build_again(self, load: _Load, error: FilesRefused) -> None:
        """Queue the rest of a changelog again, for RocksDB's own writer. A part of the refused files may be in."""
        self._refused += 1
        load.refused = True
        logger.warning(
            "%s: %s: its files from offset %d on are built again by RocksDB's own writer, as are those of all later "
            "restores of this process; STANDFAST_NATIVE=0 avoids the attempt",
            load.changelog,
            error,
            load.position,
            extra=as_event("restore_files_refused", changelog=load.changelog, offset=load.position),
        )
        if load.built < load.end:  # the worker removes its own files
            self._pool.cancel([load.job])
        with suppress(OSError):
            for path in list(load.folder.glob(f"{load.job}-*")):
                files.remove(path, missing_ok=True)
        load.runs.clear()
        load.live_keys.clear()
        load.built = load.read = load.position
        self._submit(load)

    def _ingest(self, load: _Load) -> None:
        """Ingest the next run in offset order, unless this round has ingested one.

        Expired rows of segments were skipped by a stream time from the end of the log, so that such a store is right at
        the end and at no offset before: it takes all runs at once.
        """
        at_once = load.spec.traits.times is not None
        if not (load.runs and self._ingests) or (at_once and load.built < load.end):
            return
        self._ingests = False
        runs = [load.runs.popleft() for _ in range(len(load.runs) if at_once else 1)]
        files = [file for run in runs for file in run.files]
        started_ns = measured_ns()
        try:
            # An ingest checks no block checksums. The worker has read all and left the other processors idle.
            digest = each_digest(quick_digest, [load.folder / file.name for file in files])
            paths = check_files(load.folder, files, digest)
        except StandfastError as error:
            raise _Spoilt from error
        lookups = None
        if any(file.name in load.live_keys for file in files):
            lookups = [] if load.looked_up else lookups_in(files, load.live_keys)
        load.applier.ingest(
            load.changelog,
            [(file.family, path) for file, path in zip(files, paths, strict=True)],
            runs[-1].end,
            StoreTimes(max(run.observed_ms for run in runs), max(run.sequence for run in runs)),
            skipped := sum(run.skipped for run in runs),
            lookups,
        )
        load.looked_up = load.looked_up or bool(lookups)
        self.phases_ns["ingest"] += measured_ns() - started_ns
        # After the ingest: a position must never stand for rows that are not in.
        load.position = runs[-1].end
        load.records += sum(run.records for run in runs)
        load.skipped += skipped
        self._runs += len(runs)
        self._files += len(files)

    def _step(self, load: _Load, *, done: bool = False, **ending: object) -> BulkStep:
        step = BulkStep(
            load.applier.task,
            load.changelog,
            load.position,
            load.covered,
            load.records,
            load.read_records,
            load.read_bytes,
            load.skipped,
            done,
            **ending,  # type: ignore[arg-type]
        )
        load.records = load.read_records = load.read_bytes = load.skipped = 0
        return step

    def _end(self, load: _Load, *, given_back: str | None = None, error: StandfastError | None = None) -> BulkStep:
        self._drop(load)
        self._given_back += given_back is not None
        return self._step(load, done=given_back is None and error is None, given_back=given_back, error=error)

    def _drop(self, load: _Load) -> None:
        del self._loads[load.changelog]
        # A worker that has built all its runs is left alone: only its `Done`, with its phases, is missing.
        self._pool.cancel([load.job] if load.built < load.end else [])
        files.clear(load.folder)


class _Spoilt(Exception):
    """A file does not match its digest."""


class _Shaping:
    """Compacts a store's families in a thread: that may take seconds, and other stores go on meanwhile."""

    def __init__(self, load: _Load) -> None:
        stores = load.applier.stores
        self._engine = stores.engine
        self._families = [
            family
            for family in stores.store(load.spec.name).families()
            if needs_compaction(self._engine.statistics(family).properties[LEVEL0_PROPERTY])
        ]
        self.failure: StandfastError | None = None
        self.spent_ns = 0
        self._thread: threading.Thread | None = None
        if self._families:
            name = f"standfast-shape-{load.changelog}"
            # A thread is enough: `compact` releases the interpreter lock.
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    @property
    def done(self) -> bool:
        """Whether no family is left to compact."""
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        started_ns = measured_ns()
        try:
            for family in self._families:
                self._engine.compact(family)
        except StandfastError as error:  # closed meanwhile, or damage; the next round reports it
            self.failure = error
        self.spent_ns = measured_ns() - started_ns
