"""The common part of a benchmark's steps: their arguments, the data they make, and the stopwatch.

Rules of this file: the same arguments give the same data; nothing is measured while it is made.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from standfast.replication.offsets import TopicPartition
from standfast.store import serde
from standfast.store.clock import SystemClock
from standfast.store.names import changelog_topic
from standfast.store.process.child import ChildProcess, json_object
from standfast.store.specs import KeyValueStore
from standfast.stream.session.session import Session
from standfast.stream.task.settings import RESTORE_MEMORY_DEFAULT_BYTES

APP = "bench"
STORE = "store"
FILL_RECORDS = 5_000
VALUES = 1_000  # different values; records take them in turn
READY_S = 3_600.0
START_MS = 1_356_998_400_000
LAG_MS = str(24 * 3_600_000)

Measured: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Step:
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
    restore_memory_bytes: int = RESTORE_MEMORY_DEFAULT_BYTES
    tasks: int = 1  # that share the records

    @property
    def changelog(self) -> TopicPartition:
        """The changelog that a restore reads."""
        return TopicPartition(changelog_topic(self.app, STORE), 0)

    @property
    def source(self) -> str:
        """The topic whose offsets are committed."""
        return f"{self.app}-source"


def start(program: str, step: Step) -> ChildProcess[Measured]:
    """Start a process of this module that does the step; its last answer has the measured figures."""
    words = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
    arguments = [json.dumps(asdict(step))]
    # A `ChildProcess` ends with the benchmark; plain subprocesses were orphans once it was killed.
    return ChildProcess(program, arguments, parse=json_object, clock=SystemClock(), stderr=words)


def bench_store() -> KeyValueStore:
    """The store. Every run must read the same log, so nothing may be compacted meanwhile."""
    return KeyValueStore(STORE, key=serde.bytes, value=serde.bytes, changelog={"min.compaction.lag.ms": LAG_MS})


def key_of(number: int, key_bytes: int) -> bytes:
    """A key that looks random and is always the same."""
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=key_bytes).digest()


def values_of(value_bytes: int) -> list[bytes]:
    """Values that do not compress."""
    rng = random.Random(1)
    return [rng.randbytes(value_bytes) for _ in range(VALUES)]


def address_of(step: Step) -> str:
    """The log of the step."""
    return step.log or f"sqlite:///{step.folder}/log/"


def session_of(step: Step, state: str, **settings: Any) -> Session:
    """A session over the step's log that has no task yet; `state` names its folder in that of the step."""
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
