"""Bulk restore: workers build sorted files from ranges of changelogs, this process ingests them in offset order.

    add ──> (survey) ──> ranges ──> worker processes ──> runs ── sha256 ── applier.ingest ──> position ──> ... end
                                                                                                            │
                                                              done <── shape: compact where level 0 is full ┘

Rules of this file: a shell driven by one thread through `poll_once`, which waits for an ingest only;
`standfast.restore.replay.bulk_plan` decides which changelogs are loaded and how they are split. A position moves only
with an ingested run, so that an interrupted restore goes on from there (a window or session store begins again). Stores
that a standby tails are never loaded here.

A worker's failure fails no task: after it was killed, died, wrote a damaged file or could not start, its range goes to
a worker again; after `ATTEMPTS_MAX` times the changelog is given back, and batches restore the rest. The same holds for
an unreadable record, since batches report which one it is.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from standfast.replication.log import Log
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.applier import ChangelogApplier
from standfast.restore.files.manifest import Manifest, ManifestPartition
from standfast.restore.files.manifest_files import check_files
from standfast.restore.replay.bulk_plan import BulkSettings, Choice, choose, needs_compaction, parts_of
from standfast.restore.replay.worker_pool import Answer, Died, WorkerPool
from standfast.restore.replay.worker_protocol import Done, Failed, Job, Progress, Ready, Run, Surveyed
from standfast.store.clock import measured_ns
from standfast.store.errors import StandfastError, StateLost, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import StoreTimes
from standfast.store.task.state_dir import BULK_FOLDER

ATTEMPTS_MAX = 3
LEVEL0_PROPERTY = "num-files-at-level0"


@dataclass(frozen=True, slots=True)
class BulkStatistics:
    """Counts since the start: runs and files ingested, workers that failed, changelogs given back to batches.

    worker_peak_rss_bytes   largest resident size that a worker has reported
    """

    workers_now: int = 0
    workers_max: int = 0
    runs: int = 0
    files: int = 0
    failures: int = 0
    given_back: int = 0
    worker_peak_rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Result of a round for one changelog.

    position            applied and durable up to here
    covered             read by workers up to here, as one number for a progress bar
    records             applied in this round; read_records and read_bytes: read by workers
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
    done: bool = False
    given_back: str | None = None
    error: StandfastError | None = None


@dataclass(slots=True)
class _Range:
    """A range under work; `built`: end of the last reported run, `read`: position of the worker."""

    start: int
    end: int
    built: int
    read: int
    job: int = -1
    attempts: int = 0
    runs: deque[Manifest] = field(default_factory=deque)


@dataclass(slots=True)
class _Load:
    """One changelog. `ranges` are None until it is planned."""

    applier: ChangelogApplier
    changelog: TopicPartition
    spec: StoreSpec
    start: int
    end: int
    cold: bool
    folder: Path
    position: int
    covered: int
    ranges: list[_Range] | None = None
    surveying: _Range | None = None
    observed_ms: int = -1
    records: int = 0
    read_records: int = 0
    read_bytes: int = 0
    shaping: _Shaping | None = None

    def range_of(self, number: int) -> _Range | None:
        """The range, or survey, of a job."""
        return next((one for one in self.every() if one.job == number), None)

    def unfinished_jobs(self) -> set[int]:
        """Jobs with runs still to build; a worker that has built all of them has only to report so."""
        return {one.job for one in self.every() if one.job >= 0 and one.built < one.end}

    def every(self) -> list[_Range]:
        """All ranges, and the survey."""
        return [*(self.ranges or ()), *([self.surveying] if self.surveying else ())]


class BulkLoader:
    """All bulk loads of one process."""

    def __init__(self, log: Log, settings: BulkSettings) -> None:
        self._log = log
        self._settings = settings
        self._pool = WorkerPool(settings.workers)
        self.phases_ns = self._pool.phases_ns
        self._loads: dict[TopicPartition, _Load] = {}
        self._next_job = 0
        self._runs = self._files = self._failures = self._given_back = 0

    @property
    def workers(self) -> list[int]:
        """Ids of the worker processes that run now."""
        return self._pool.pids

    def statistics(self) -> BulkStatistics:
        """Counts so far."""
        return BulkStatistics(
            workers_now=len(self._pool.pids),
            workers_max=self._settings.workers,
            runs=self._runs,
            files=self._files,
            failures=self._failures,
            given_back=self._given_back,
            worker_peak_rss_bytes=self._pool.peak_rss_bytes,
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
        """Load a changelog from position to end; the work begins with the next round."""
        spec = applier.stores.specs[applier.store_of[changelog]]
        # On the database's own file system: across devices, an ingest by move falls back to a copy.
        folder = applier.stores.directory.parent / BULK_FOLDER / str(applier.task) / spec.name
        self._loads[changelog] = _Load(
            applier=applier,
            changelog=changelog,
            spec=spec,
            start=position,
            end=end,
            cold=applier.position(changelog) is None,
            folder=folder,
            position=position,
            covered=position,
        )

    def remove(self, task: TaskId) -> None:
        """Give up the loads of a task; ingested runs stay, with their position."""
        for load in [one for one in self._loads.values() if one.applier.task == task]:
            self._drop(load)

    def poll_once(self) -> list[Step]:
        """Read the workers' events, ingest the next runs, give out work; one step for each changelog that moved."""
        if not self._loads and self._pool.quiet:
            return []
        steps = self._plan()
        for answer in self._pool.poll():
            steps += self._take(answer)
        for load in list(self._loads.values()):
            steps += self._advance(load)
        # Start build workers while the survey runs; starting one takes about as long. Not for windows: the survey may
        # find that most have expired.
        surveys = sum(one.surveying is not None and not one.spec.traits.lead for one in self._loads.values())
        for died in self._pool.hand_out(surveys * (self._parts - 1)):
            steps += self._take(died)
        return steps

    def close(self) -> None:
        """End the workers and remove their files."""
        for load in list(self._loads.values()):
            self._drop(load)
        self._pool.close()

    # -- work for the workers -----------------------------------------------------------------------------------------

    def _plan(self) -> list[Step]:
        """Split new loads: only now the number of changelogs that share the workers is known."""
        steps = []
        for load in [one for one in self._loads.values() if one.ranges is None and one.surveying is None]:
            try:
                shutil.rmtree(load.folder, ignore_errors=True)  # files left by a process that was killed
                load.folder.mkdir(mode=0o700, parents=True)
            except OSError as error:
                steps.append(self._end(load, given_back=f"its folder cannot be created: {error}"))
                continue
            # One range and no expiry: a survey has nothing to decide.
            if self._parts == 1 and load.spec.traits.times is None:
                self._split(load, [(load.start, load.end)])
            else:
                load.surveying = _Range(load.start, load.end, load.start, load.start)
                self._submit(load, load.surveying, self._parts)
        return steps

    def _split(self, load: _Load, ranges: Collection[tuple[int, int]]) -> None:
        load.ranges = [_Range(start, end, start, start) for start, end in ranges]
        load.surveying = None
        for one in load.ranges:
            self._submit(load, one)

    def _submit(self, load: _Load, one: _Range, parts: int = 0) -> None:
        """Queue a job that builds a range from the end of its runs, or that surveys it (`parts` > 0)."""
        one.job, self._next_job = self._next_job, self._next_job + 1
        first = load.ranges is not None and one is load.ranges[0] and one.built == one.start
        self._pool.submit(
            Job(
                number=one.job,
                address=self._log.address,  # through the pipe: every user can list command lines
                app=load.applier.stores.app,
                store=load.spec.name,
                definition=load.spec.definition(),
                topic=load.changelog.topic,
                topic_id=load.applier.topic_id(load.changelog),  # the worker refuses a recreated topic
                partition=load.changelog.partition,
                partition_count=load.applier.partition_counts[load.changelog],
                start=one.built,
                end=one.end,
                folder=str(load.folder),
                prefix=str(one.job),
                budget_bytes=self._settings.memory_bytes // self._settings.workers,  # the bound is for all workers
                fetch_records=self._settings.fetch_records,
                observed_ms=load.observed_ms,
                drop_deletes=load.cold and first,  # with rows below, or in a later run, a delete hides an older value
                survey=parts > 0,
                parts=max(parts, 1),
                least=self._settings.range_records,
                disk_floor_bytes=self._settings.disk_floor_bytes,
            )
        )

    def _take(self, answer: Answer) -> Iterator[Step]:
        if isinstance(answer, Ready):
            return
        found = ((load, load.range_of(answer.number)) for load in self._loads.values())
        load, one = next(((load, one) for load, one in found if one is not None), (None, None))
        if load is None or one is None:
            return  # the load was given up meanwhile
        if isinstance(answer, Surveyed):
            load.observed_ms = answer.observed_ms
            self._split(load, answer.ranges)
        elif isinstance(answer, Progress):
            one.read = max(one.read, answer.position)
            load.read_records += answer.records
            load.read_bytes += answer.bytes
        elif isinstance(answer, Run):
            one.runs.append(answer.manifest)
            one.built = answer.manifest.partitions[0].end
        elif isinstance(answer, Done):
            one.job = -1
        else:
            yield from self._again(load, one, answer)

    def _again(self, load: _Load, one: _Range, answer: Died | Failed) -> Iterator[Step]:
        """Queue a range again from the end of its runs, as long as another attempt may help."""
        if isinstance(answer, Failed):
            error = answer.error()
            what = f"failed: {error}"
            # The log has lost records, which batches would not find either.
            if isinstance(error, StateLost):
                yield self._end(load, error=error)
                return
            # An unreachable log may answer the next time; an unreadable record stays unreadable.
            passing = isinstance(error, Unavailable)
        else:
            what, passing = f"died ({answer.how})", True
        one.attempts += 1
        self._failures += 1
        if not passing or one.attempts >= ATTEMPTS_MAX:
            yield self._end(load, given_back=f"a worker process {what}")
            return
        logger.warning(
            "the worker process for %s from offset %d %s: trying again",
            load.changelog,
            one.built,
            what,
            extra=as_event("restore_worker_retried", changelog=load.changelog, offset=one.built),
        )
        one.read = one.built  # rows of the unfinished run were lost with the worker
        self._submit(load, one, self._parts if one is load.surveying else 0)

    @property
    def _parts(self) -> int:
        return parts_of(len(self._loads), self._settings.workers)

    # -- runs of the workers ------------------------------------------------------------------------------------------

    def _advance(self, load: _Load) -> Iterator[Step]:
        if load.ranges is None:
            return
        before = load.position
        try:
            self._ingest(load)
        except _Spoilt as error:
            yield self._end(
                load, given_back=f"a file of a worker process does not match its manifest: {error.__cause__}"
            )
            return
        except StandfastError as error:
            yield self._end(load, error=error)
            return
        covered = load.end - sum(one.end - max(one.read, one.built) for one in load.ranges)
        # A range that is built again has read less than before, and progress must not go back.
        load.covered = max(load.covered, min(covered, load.end))
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

    def _ingest(self, load: _Load) -> None:
        """Ingest the next runs in offset order.

        Expired rows of segments were skipped by a stream time from the end of the log, so that such a store is right at
        the end and at no offset before: it takes all runs at once.
        """
        assert load.ranges is not None
        at_once = load.spec.traits.times is not None
        if at_once and any(one.built < one.end for one in load.ranges):
            return
        ready: list[ManifestPartition] = []
        for one in load.ranges:
            ready += [run.partitions[0] for run in one.runs]
            one.runs.clear()
            if one.built < one.end:
                break  # later ranges have runs too, but the last writer wins: offset order
        for runs in [ready] if at_once and ready else [[run] for run in ready]:
            files = [file for run in runs for file in run.files]
            started_ns = measured_ns()
            try:
                paths = check_files(load.folder, files)  # an ingest checks no block checksums
            except StandfastError as error:
                raise _Spoilt from error
            load.applier.ingest(
                load.changelog,
                [(file.family, path) for file, path in zip(files, paths, strict=True)],
                runs[-1].end,
                StoreTimes(max(run.observed_ms for run in runs), max(run.sequence for run in runs)),
                sum(run.skipped for run in runs),
            )
            self.phases_ns["ingest"] += measured_ns() - started_ns
            # After the ingest: a position must never stand for rows that are not in.
            load.position = runs[-1].end
            load.records += sum(run.records for run in runs)
            self._runs += len(runs)
            self._files += len(files)

    def _step(self, load: _Load, *, done: bool = False, **ending: object) -> Step:
        step = Step(
            load.applier.task,
            load.changelog,
            load.position,
            load.covered,
            load.records,
            load.read_records,
            load.read_bytes,
            done,
            **ending,  # type: ignore[arg-type]
        )
        load.records = load.read_records = load.read_bytes = 0
        return step

    def _end(self, load: _Load, *, given_back: str | None = None, error: StandfastError | None = None) -> Step:
        self._drop(load)
        self._given_back += given_back is not None
        return self._step(load, done=given_back is None and error is None, given_back=given_back, error=error)

    def _drop(self, load: _Load) -> None:
        del self._loads[load.changelog]
        # A worker that has built all its runs is not killed: only its `Done` is missing.
        self._pool.cancel(load.unfinished_jobs())
        shutil.rmtree(load.folder, ignore_errors=True)


class _Spoilt(Exception):
    """A file does not match its manifest."""


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
