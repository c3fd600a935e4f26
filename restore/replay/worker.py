"""A worker of a bulk restore: folds a range of a changelog and writes it as sorted files, in a process of its own.

    python -m standfast.restore.replay.worker        jobs on standard input, events on standard output; see
    worker_protocol.py

Python does about a microsecond of work a record in one process, whatever the threads, so large restores run in
several; and the process that serves reads keeps its interpreter lock for itself. A worker has no database: the owner
ingests the files.

Rules of this file: a shell around `run_builder.py` and a reader. A worker ends as soon as its standard input does, so
that none outlives its owner. It retries a log that does not answer: the owner decides how long that may last.
"""

from __future__ import annotations

import gc
import os
import queue
import resource
import sys
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path

from standfast._version import __version__
from standfast.replication.columns import payload_bytes
from standfast.replication.log import Log, LogReader, Record
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import narrow_address, open_log
from standfast.restore.files.manifest import Made, Manifest, ManifestPartition
from standfast.restore.replay.bulk_plan import (
    TAIL_RECORDS,
    Tail,
    skip_before_ms,
    split,
)
from standfast.restore.replay.run_builder import RunBuilder
from standfast.restore.replay.worker_protocol import (
    Done,
    Event,
    Job,
    Progress,
    Ready,
    Run,
    Surveyed,
    event_line,
    failed,
    parse_job,
)
from standfast.store.clock import SystemClock, measured_ns
from standfast.store.disk import DiskGuard
from standfast.store.errors import StateLost, Unavailable
from standfast.store.failpoint import reach
from standfast.store.log import as_event, logger, print_as_parent
from standfast.store.rocks.sst import COMPRESSION
from standfast.store.specs import StoreSpec
from standfast.store.types.kinds import definition_spec

FETCH_WAIT_MS = 200
RETRY_MS = 500
PROGRESS_MS = 100
SAMPLES = 16
DENSE = 0.9  # a log that still holds this share of its oldest offsets was hardly compacted
SAMPLE_RECORDS = 200

Say = Callable[[Event], None]


class Worker:
    """Does jobs, one after the other; keeps the log of the last one open."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._log: Log | None = None
        self._address = ""
        self._clock = SystemClock()

    def do(self, job: Job) -> None:
        """Do a job and report its result, errors included."""
        phases_ns: Counter[str] = Counter()
        try:
            log = self._open(job.address)
            info = log.admin.describe_topic(job.topic)
            # Offsets of a recreated topic stand for other records.
            if info is None or info.topic_id != job.topic_id:
                raise StateLost(f"topic {job.topic!r} was deleted or recreated", reason="topic-recreated")
            with closing(log.reader()) as reader:
                if job.survey:
                    self._say(survey(job, log, reader, self._clock))
                else:
                    self._build(job, reader, phases_ns)
        except Exception as error:  # noqa: BLE001  the owner hears of every error, else it would see a death
            self._say(failed(job.number, error))
            return
        # Linux gives ru_maxrss in KiB.
        self._say(Done(job.number, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, dict(phases_ns)))

    def _build(self, job: Job, reader: LogReader, phases_ns: Counter[str]) -> None:
        builder = RunBuilder(
            definition_spec(job.store, job.definition),
            Path(job.folder),
            job.prefix,
            job.partition,
            job.start,
            job.budget_bytes,
            observed_ms=job.observed_ms,
            drop_deletes=job.drop_deletes,
        )
        records = size = 0
        said_ms = self._clock.monotonic_ms()
        position = job.start
        done_ns = measured_ns()
        for batch, position in read_range(reader, _source(job), job.start, job.end, self._clock, job.fetch_records):
            fetched_ns = measured_ns()
            batch_bytes = payload_bytes(batch)
            builder.add(batch, batch_bytes)
            folded_ns = measured_ns()
            records += len(batch)
            size += batch_bytes
            now_ms = self._clock.monotonic_ms()
            if now_ms - said_ms >= PROGRESS_MS:
                self._say(Progress(job.number, position, records, size))
                records, size, said_ms = 0, 0, now_ms
            if position < job.end and builder.full:  # the last run follows the loop
                self._wait_for_room(job, builder.used_bytes)
                self._say_run(job, builder.run(position))
            phases_ns["fetch"] += fetched_ns - done_ns
            phases_ns["decode"] += folded_ns - fetched_ns
            done_ns = measured_ns()
            phases_ns["write"] += done_ns - folded_ns
        self._say(Progress(job.number, position, records, size))
        self._wait_for_room(job, builder.used_bytes)
        # The last run ends at the job's end, also without rows: the owner's position moves only with runs.
        self._say_run(job, builder.run(job.end))
        phases_ns["write"] += measured_ns() - done_ns

    def _wait_for_room(self, job: Job, used_bytes: int) -> None:
        """Wait until the files of a run leave the disk floor free. The owner ends a worker that waits for too long."""
        disk = DiskGuard({"folder of a bulk restore": Path(job.folder)}, job.disk_floor_bytes + used_bytes)
        while job.disk_floor_bytes:
            disk.look()
            if not disk.full:
                return
            self._clock.sleep_ms(RETRY_MS)

    def _say_run(self, job: Job, partition: ManifestPartition) -> None:
        reach("worker.run")
        made = Made("run", self._clock.wall_ms(), __version__, _rocksdict_version(), COMPRESSION)
        manifest = Manifest(
            job.app, job.store, job.definition, job.topic, job.topic_id, job.partition_count, (partition,), made
        )
        self._say(Run(job.number, manifest))

    def _open(self, address: str) -> Log:
        # Several readers on one machine: the client's default queue would take 250 MB in each worker.
        address = narrow_address(address)
        if self._log is not None and self._address != address:
            self._log.close()
            self._log = None
        if self._log is None:
            self._log, self._address = open_log(address, create=False), address
        return self._log


def read_range(
    reader: LogReader, source: TopicPartition, start: int, end: int, clock: SystemClock, records_max: int
) -> Iterator[tuple[Sequence[Record], int]]:
    """Batches of records below `end`, each with the position after it, until that is `end`; they may be empty."""
    position = start
    reader.assign({source: start})
    while position < end:
        try:
            fetched = reader.fetch(records_max, FETCH_WAIT_MS)
        except Unavailable as error:
            logger.warning(
                "the worker process for %s reads the log again: %s",
                source,
                error,
                extra=as_event("restore_worker_log_away", changelog=source),
            )
            clock.sleep_ms(RETRY_MS)
            continue
        for batch in fetched:
            records, position = batch.records, min(batch.next_offset, end)
            if position < batch.next_offset:
                records = records[: bisect_left(records, end, key=itemgetter(0))]
            yield records, position


def survey(job: Job, log: Log, reader: LogReader, clock: SystemClock) -> Surveyed:
    """The ranges that a changelog is restored in, after skipping expired records."""
    spec, source, start = definition_spec(job.store, job.definition), _source(job), job.start
    tail = read_tail(spec, reader, source, start, job.end, clock)
    if spec.traits.lead:
        before_ms = skip_before_ms(tail, retention_ms=spec.kept_ms, lead_ms=getattr(spec, spec.traits.lead))
        if before_ms is not None:
            start = min(max(log.admin.first_offsets({source: before_ms})[source], start), job.end)
    # One range needs no densities, and each sample costs some 30 ms on Kafka.
    samples = [(start, 1.0)] if job.parts == 1 else list(sample(reader, source, start, job.end, clock))
    ranges = tuple(split(samples, job.end, job.parts, job.least))
    return Surveyed(job.number, ranges, -1 if tail is None else tail.observed_ms)


def read_tail(
    spec: StoreSpec, reader: LogReader, source: TopicPartition, start: int, end: int, clock: SystemClock
) -> Tail | None:
    """Times of the last records' rows; None for a store whose rows have no times."""
    times = spec.traits.times
    if times is None:
        return None
    observed_ms, lead_ms = -1, 0
    for records, _ in read_range(reader, source, max(start, end - TAIL_RECORDS), end, clock, TAIL_RECORDS):
        for record in records:
            if record.key is None:
                continue  # no store wrote it; the restore counts it
            time_ms = times.time_of(record.key)
            observed_ms = max(observed_ms, time_ms)
            lead_ms = max(lead_ms, time_ms - record.timestamp)
    return Tail(observed_ms, lead_ms)


def sample(
    reader: LogReader, source: TopicPartition, start: int, end: int, clock: SystemClock
) -> Iterator[tuple[int, float]]:
    """(offset, records per offset around there) at even distances; only one for a log that was not compacted.

    Measured: each costs some 30 ms on Kafka, half a second in all.
    """
    for number in range(SAMPLES):
        offset = start + (end - start) * number // SAMPLES
        last, count = offset - 1, 0
        reader.assign({source: offset})
        while count < SAMPLE_RECORDS and last < end - 1:
            try:
                fetched = reader.fetch(SAMPLE_RECORDS, FETCH_WAIT_MS)
            except Unavailable:
                clock.sleep_ms(RETRY_MS)
                continue
            for batch in fetched:
                count += len(batch.records)
                last = batch.next_offset - 1
        # In a gap of many offsets, the next record counts for all of them.
        density = count / max(last + 1 - offset, 1)
        yield offset, density
        # Sixteen looks took half a second on Kafka, and a log that was hardly compacted is even.
        if number == 0 and density >= DENSE:
            return


def main() -> int:
    """Do jobs until standard input ends."""
    events = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # prints of a library must not come between events
    gc.disable()  # rows are bytes in dictionaries: no cycles to find, only many objects to traverse
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            jobs.put(line)
        os._exit(0)  # the owner is gone, or has no more work: work in progress is of no use

    # A thread, so that the end of the input is noticed in the middle of a job.
    threading.Thread(target=listen, daemon=True).start()

    def say(event: Event) -> None:
        try:
            events.write(event_line(event))
        except BrokenPipeError:  # the owner is gone
            os._exit(0)

    worker = Worker(say)
    say(Ready(os.getpid()))
    while True:
        worker.do(parse_job(jobs.get()))


def _source(job: Job) -> TopicPartition:
    return TopicPartition(job.topic, job.partition)


@cache
def _rocksdict_version() -> str:
    return version("rocksdict")


def run() -> int:
    """Run `main`, and report an error that ends it on standard error."""
    print_as_parent()
    try:
        return main()
    except Exception as error:  # noqa: BLE001  the outermost frame: the owner finds out by the end of the output
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(1)  # Python would wait for the thread that reads standard input, and abort


if __name__ == "__main__":
    raise SystemExit(run())
