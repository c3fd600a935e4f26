"""The work of one job of a bulk restore: folds a changelog and writes it as sorted files, in a thread of its own.

    survey    the tail of a window or session store's changelog: records that are dead at the end are skipped
    build     records ── run_builder.py ──> runs, until the job's end

The compiled reader and fold release the interpreter lock, as RocksDB and the digests of files do, so that threads of
several changelogs and the thread that ingests overlap. A worker has no database: its owner ingests the files.

Rules of this file: a shell around `run_builder.py` and a reader of its own. It reports through `say`, errors included,
and looks at `stop` at least every `FETCH_WAIT_MS`. It retries a log that does not answer: the owner decides how long.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress

from standfast.replication.columns import RecordColumns, offsets_of, payload_bytes
from standfast.replication.log import Log, LogReader, Record
from standfast.restore.replay.bulk_plan import TAIL_RECORDS, Tail, skip_before_ms
from standfast.restore.replay.jobs import Done, Event, Failed, Job, JobProgress, Run
from standfast.restore.replay.run_builder import RunBuilder, quick_digest
from standfast.store import files
from standfast.store.clock import measured_ns, real_clock
from standfast.store.disk import DiskGuard
from standfast.store.errors import InternalError, StandfastError, StateLost, Unavailable, UnknownStore
from standfast.store.failpoint import reach
from standfast.store.log import as_event, logger
from standfast.store.process.interrupts import Flag

FETCH_WAIT_MS = 200
RETRY_MS = 500
PROGRESS_MS = 100
# Files that one run's rows are written to at once: nothing is left to read then, and the other processors are idle.
WRITERS = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 4)

Say = Callable[[Event], None]


class Stopped(Exception):
    """The owner has no more use for the job."""


class Worker:
    """Does one job. `stop` is set by its owner."""

    def __init__(self, log: Log, job: Job, say: Say, stop: Flag) -> None:
        self._log = log
        self._job = job
        self._say = say
        self._stop = stop
        self._clock = real_clock()
        self._phases_ns: Counter[str] = Counter()

    def run(self) -> None:
        """Do the job and report its result, errors included; remove its files if the owner has stopped it."""
        job = self._job
        try:
            peak_bytes = self._do()
        except Stopped:
            pass  # its files go below
        except UnknownStore as error:
            # The topic went away since `_do` saw it. Batches would read one of the same name, whose offsets stand for
            # other records, and wait for an end that it may never reach.
            self._say(Failed(job.number, StateLost(str(error), reason="topic-recreated")))
        except StandfastError as error:
            self._say(Failed(job.number, error))
        except Exception as error:  # noqa: BLE001  the owner hears of every error: batches restore the rest
            logger.exception("building files of %s failed", job.changelog, extra=as_event("restore_worker_failed"))
            self._say(Failed(job.number, InternalError(f"{type(error).__name__}: {error}")))
        else:
            self._say(Done(job.number, peak_bytes, dict(self._phases_ns)))
        finally:
            # Also after the last look at the flag: the owner has removed the folder already, and files may be younger.
            if self._stop.is_set():
                with suppress(OSError):  # the owner removes the folder meanwhile
                    for path in list(job.folder.glob(f"{job.prefix}-*")):
                        files.remove(path, missing_ok=True)

    def _do(self) -> int:
        job = self._job
        info = self._log.admin.describe_topic(job.changelog.topic)
        # Offsets of a recreated topic stand for other records.
        if info is None or info.topic_id != job.topic_id:
            raise StateLost(f"topic {job.changelog.topic!r} was deleted or recreated", reason="topic-recreated")
        with closing(self._log.reader(narrow=True)) as reader:
            start, observed_ms = self._survey(reader)
            builder = RunBuilder(
                job.spec,
                job.folder,
                job.prefix,
                job.changelog.partition,
                start,
                job.budget_bytes,
                observed_ms=observed_ms,
                drop_deletes=job.drop_deletes,
                check=self._check,
                digest=quick_digest,
                writers=WRITERS,
                spills_max=job.spills_max,
                rocks_writer=job.rocks_writer,
            )
            with closing(builder):
                self._build(builder, reader)
        return builder.peak_bytes

    def _survey(self, reader: LogReader) -> tuple[int, int]:
        """(first offset to read, a stream time that the store will observe), after skipping expired records."""
        job, spec = self._job, self._job.spec
        tail = self._tail(reader)
        if tail is None:
            return job.start, -1
        start = job.start
        if spec.traits.lead:
            before_ms = skip_before_ms(tail, retention_ms=spec.kept_ms, lead_ms=getattr(spec, spec.traits.lead))
            if before_ms is not None:
                first = self._log.admin.first_offsets({job.changelog: before_ms})[job.changelog]
                # The last record is as late as that. A broker finds none where people have cut the log: its search ends
                # with the begin's segment, if a removed record there is as late.
                start = max(first, start) if first < job.end else start
        return start, tail.observed_ms

    def _tail(self, reader: LogReader) -> Tail | None:
        """Times of the last records' rows; None for a store whose rows have no times."""
        job = self._job
        times = job.spec.traits.times
        if times is None:
            return None
        observed_ms, lead_ms = -1, 0
        for records, _ in self._read(reader, max(job.start, job.end - TAIL_RECORDS), TAIL_RECORDS):
            for record in records:
                if record.key is None:
                    continue  # no store wrote it; the restore counts it
                time_ms = times.time_of(record.key)
                observed_ms = max(observed_ms, time_ms)
                lead_ms = max(lead_ms, time_ms - record.timestamp)
        return Tail(observed_ms, lead_ms)

    def _build(self, builder: RunBuilder, reader: LogReader) -> None:
        job, phases_ns = self._job, self._phases_ns
        records = size = 0
        said_ms = self._clock.monotonic_ms()
        done_ns = measured_ns()
        for batch, position in self._read(reader, builder.start, job.fetch_records):
            fetched_ns = measured_ns()
            batch_bytes = payload_bytes(batch)
            builder.add(batch, batch_bytes)
            folded_ns = measured_ns()
            records += len(batch)
            size += batch_bytes
            now_ms = self._clock.monotonic_ms()
            if now_ms - said_ms >= PROGRESS_MS:
                self._say(JobProgress(job.number, position, records, size))
                records, size, said_ms = 0, 0, now_ms
            if position < job.end and builder.full:  # the last run follows the loop
                self._relieve(builder, position)
            phases_ns["fetch"] += fetched_ns - done_ns
            phases_ns["decode"] += folded_ns - fetched_ns
            done_ns = measured_ns()
            phases_ns["write"] += done_ns - folded_ns
        self._say(JobProgress(job.number, job.end, records, size))
        # The last run ends at the job's end, also without rows: the owner's position moves only with runs.
        self._write(builder, job.end)
        phases_ns["write"] += measured_ns() - done_ns

    def _read(self, reader: LogReader, start: int, most: int) -> Iterator[tuple[Sequence[Record], int]]:
        """Batches of records below the job's end, each with the position after it, until that is the end."""
        job, position = self._job, start
        if position < job.end:
            reader.assign({job.changelog: position})
        while position < job.end:
            self._check()
            try:
                fetched = reader.fetch(most, FETCH_WAIT_MS)
            except Unavailable as error:
                logger.warning(
                    "the worker for %s reads the log again: %s",
                    job.changelog,
                    error,
                    extra=as_event("restore_worker_log_away", changelog=job.changelog),
                )
                self._stop.wait(RETRY_MS / 1_000)
                continue
            for batch in fetched:
                position = min(batch.next_offset, job.end)
                yield below(batch.records, job.end), position

    def _relieve(self, builder: RunBuilder, position: int) -> None:
        """Move the rows out of memory."""
        self._await_disk(builder)
        if builder.spill():
            reach("worker.spilled")
        else:
            self._write(builder, position)

    def _write(self, builder: RunBuilder, end: int) -> None:
        """Write a run once its files leave the disk floor free."""
        self._await_disk(builder)
        run = builder.run(end)
        reach("worker.run")
        self._say(Run(self._job.number, run, builder.live_keys))
        builder.forget()  # only now: the owner ingests meanwhile

    def _await_disk(self, builder: RunBuilder) -> None:
        """Wait until the next files leave the disk floor free. The owner stops a worker that waits for too long."""
        job = self._job
        disk = DiskGuard({"folder of a bulk restore": job.folder}, job.disk_floor_bytes + builder.used_bytes)
        while job.disk_floor_bytes:
            disk.look()
            if not disk.full:
                break
            self._stop.wait(RETRY_MS / 1_000)
            self._check()

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped


def below(records: Sequence[Record], end: int) -> Sequence[Record]:
    """The records below an offset."""
    if not len(records):
        return records
    columns = records if isinstance(records, RecordColumns) else None
    if (columns.last_offset if columns is not None else records[-1].offset) < end:
        return records
    if columns is not None:
        return columns[: columns.index_of(end)]
    return records[: sum(offset < end for offset in offsets_of(records))]
