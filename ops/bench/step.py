"""One timed run of a bench of restores, in a process of its own: so its memory is its own and it leaves nothing warm.

    python -m standfast.ops.bench.step '{"step": "restore", "folder": ..., ...}'   ->   a JSON document as its answer

    fill       write a changelog, as fast as the log takes it
    restore    open a session on an empty directory, wait until its restore gate opens

Rules of this file: only the public path (Session, task, store) is timed, with RocksDB, on the embedded log at its
default of synchronous=FULL or on Kafka. The same arguments give the same data; nothing is measured while it is made.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.changelog import changelog_policy
from standfast.store import serde
from standfast.store.clock import SystemClock
from standfast.store.names import changelog_topic
from standfast.store.process.child import ChildProcess, json_line, json_object
from standfast.store.process.parent import Parent
from standfast.store.specs import KeyValueStore

if TYPE_CHECKING:
    from standfast.stream.session.session import Session

APP = "bench"
STORE = "store"
FILL_RECORDS = 5_000
VALUES = 1_000  # different values; records take them in turn
NEAR_RECORDS = 10_000  # all versions of a key lie within so many records
READY_S = 3_600.0
START_MS = 1_356_998_400_000
LAG_MS = str(24 * 3_600_000)

Measured: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class BenchStep:
    """One step of a benchmark. Sizes in bytes; `versions` is the number of records a key."""

    step: str
    folder: str
    records: int
    key_bytes: int
    value_bytes: int
    memory_bytes: int
    run: int = 0
    versions: int = 1
    log: str = ""  # address of the log; without one, each run has an embedded one in its folder
    app: str = APP  # its topics begin with this
    workers: int | None = None  # threads of a bulk restore; 0: batches
    restore_memory_bytes: int = 512 << 20  # a session's default, whose module is slow to import
    tasks: int = 1  # that share the records

    @property
    def changelog(self) -> TopicPartition:
        """The changelog that a restore reads."""
        return TopicPartition(changelog_topic(self.app, STORE), 0)

    @property
    def source(self) -> str:
        """The topic whose offsets are committed."""
        return f"{self.app}-source"


def start(program: str, step: BenchStep) -> ChildProcess[Measured]:
    """Start a process of this module that does the step; its last answer has the measured figures."""
    words = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
    arguments = [json.dumps(asdict(step))]
    # A `ChildProcess` ends with the benchmark; plain subprocesses were orphans once it was killed.
    return ChildProcess(program, arguments, parse=json_object, clock=SystemClock(), stderr=words)


def bench_store() -> KeyValueStore:
    """The store. Every run must read the same log, so nothing may be compacted meanwhile."""
    return KeyValueStore(STORE, key=serde.bytes, value=serde.bytes, changelog={"min.compaction.lag.ms": LAG_MS})


def key_numbers(records: int, versions: int) -> Iterator[int]:
    """Key number of each record, shuffled in stretches that have all versions of their keys."""
    distinct = max(records // versions, 1)
    span = max(min(NEAR_RECORDS, records) // versions, 1)
    for first in range(0, distinct, span):
        numbers = list(range(first, min(first + span, distinct))) * versions
        # Seeded: the same arguments give the same data.
        random.Random(first).shuffle(numbers)
        yield from numbers


def key_of(number: int, key_bytes: int) -> bytes:
    """A key that looks random and is always the same."""
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=key_bytes).digest()


def values_of(value_bytes: int) -> list[bytes]:
    """Values that do not compress."""
    rng = random.Random(1)
    return [rng.randbytes(value_bytes) for _ in range(VALUES)]


def address_of(step: BenchStep) -> str:
    """The log of the step."""
    return step.log or f"sqlite:///{step.folder}/log/"


def session_of(step: BenchStep, state: str, **settings: Any) -> Session:
    """A session over the step's log that has no task yet; `state` names its folder in that of the step."""
    from standfast.stream.session.session import Session  # here: the module of a command imports this one

    return Session(
        step.app,
        log=address_of(step),
        state_dir=Path(step.folder) / state,
        stores=[bench_store()],
        partitions=step.tasks,
        memory_bytes=step.memory_bytes,
        **settings,
    )


def timed(run: Callable[[], None], count: int) -> Measured:
    """Run it once: wall time, and processor time of all threads."""
    clock, used = SystemClock(), resource.getrusage(resource.RUSAGE_SELF)
    started_ms = clock.monotonic_ms()
    run()
    # A rate needs a duration above zero.
    elapsed_ms = max(clock.monotonic_ms() - started_ms, 1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "records": count,
        "elapsed_ms": elapsed_ms,
        "rate": count * 1_000 / elapsed_ms,
        "cpu_ms": round((after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime) * 1_000),
    }


def peak_rss_bytes() -> int:
    """The largest resident size of this process so far."""
    # Not `ru_maxrss`, which counts that of the process that started this one, too.
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def fill(step: BenchStep, numbers: Iterable[int] | None = None) -> Measured:
    """Write the changelogs that restores and standbys read: records dealt out to the tasks in turn.

    `numbers` are the key numbers of the records; None: as `key_numbers`.
    """
    values = values_of(step.value_bytes)
    changelogs = [step.changelog._replace(partition=number) for number in range(step.tasks)]
    with closing(open_log(address_of(step))) as log:
        log.admin.create_topic(step.source, step.tasks, TopicPolicy())
        log.admin.create_topic(step.changelog.topic, step.tasks, changelog_policy(bench_store()))
        producer = log.producer()
        batches: dict[TopicPartition, list[Outgoing]] = {}
        for number, key in enumerate(numbers or key_numbers(step.records, step.versions)):
            record = Outgoing(key_of(key, step.key_bytes), values[number % VALUES], START_MS + number)
            batches.setdefault(changelogs[number % step.tasks], []).append(record)
            if (number + 1) % FILL_RECORDS == 0:
                producer.append(batches)
                batches = {}
        if batches:
            producer.append(batches)
    return {"records": step.records}


def restore(step: BenchStep) -> Measured:
    """From the assignment of a cold task to its open gate: fencing, plan, replay."""
    # No lease process: only the restore is measured.
    session = session_of(
        step,
        f"restore-{step.run}",
        restore_workers=step.workers,
        restore_memory_bytes=step.restore_memory_bytes,
        take_over=False,
    )

    def run() -> None:
        # From the assignment on: opening the session is mostly connections to the broker.
        session.assign(active=[0])
        session.wait_ready(READY_S)

    with closing(session):
        measured = timed(run, step.records) | {"peak_rss_bytes": peak_rss_bytes()}
        last = key_of(max(step.records // step.versions, 1) - 1, step.key_bytes)
        assert session.task(0).store(STORE).get(last) is not None, "a restored key is missing"
        return measured | {"in_bulk": session.statistics().bulk.runs > 0}


def main(arguments: list[str]) -> int:
    """Run one step; the answer is its measured figures."""
    parent, step = Parent(), BenchStep(**json.loads(arguments[0]))
    parent.tell(json_line(STEPS[step.step](step)))
    return 0


STEPS: dict[str, Callable[[BenchStep], Measured]] = {"fill": fill, "restore": restore}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
