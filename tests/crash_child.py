"""A process to be killed: random operations on every kind of store, a restore, or a standby.

    writer     active for all partitions: operations, commits with source offsets, now and then a reopen
    restorer   restores all partitions in small batches, then waits
    loader     restores all partitions in bulk, by two workers in small runs, then waits
    opener     opens the database of one task with key-value stores of some `names`, and ends
    standby    stands by for all partitions; after `promote_ms`, if given, takes them and goes on as a writer

    stdout     ready                  it has its tasks (a writer: the gate is open)
               ack PARTITION OFFSET   a commit with this source offset has returned
               lost TASK REASON       state was set aside: never right here
               whole N                a loader has restored everything, N changelogs of it by batches in the end
    exit       0 reached `stop_after`, 75 fenced, anything else is a failure (the reason is on stderr)

Rules of this file: started by `crash_run.py` with its settings as JSON; it remembers nothing between lives. What it
does with the record at offset n of a partition depends on the seed and n only, so that a record processed again at
least once does the same again. `counts` holds how many records were processed, in the same commit as the offset.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from standfast.replication.listeners import Listener
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore import restorer
from standfast.restore.bulk_plan import BulkSettings
from standfast.store import serde
from standfast.store.errors import Fenced, InvalidRequest
from standfast.store.rocks import RocksShared
from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, VersionedStore, WindowStore
from standfast.store.task_stores import TaskStores
from standfast.stream import log_care
from standfast.stream.session import Session
from standfast.stream.settings import SessionSettings
from standfast.stream.task import Task, TaskState

APP = "crash"
SOURCE = "input"
PARTITIONS = 3
COUNTER = "processed"
START_MS = 1_356_998_400_000
MEMORY_BYTES = 32 << 20
LIFE_MAX_S = 60  # an orphan ends by itself
LEASE_MS = 60_000  # far longer than a run: the lease of a killed process never helps its successor
RESTORE_BATCH_RECORDS = 40  # so that a kill finds a restore under way
EXIT_FENCED = 75
BULK = BulkSettings(2, 8_000, cold_records=1, warm_records=1, range_records=20, fetch_records=20)

KEPT: tuple[StoreSpec, ...] = (
    KeyValueStore("counts", serde.string, serde.int64),
    KeyValueStore("cached", serde.string, serde.string),
    KeyValueStore("uncached", serde.string, serde.string, caching=False),
    KeyValueStore("plain", serde.string, serde.string, timestamped=False),
    WindowStore("window", serde.string, serde.string, window_size_ms=60_000, retention_ms=180_000),
    WindowStore(
        "duplicates", serde.string, serde.string, window_size_ms=60_000, retention_ms=180_000, retain_duplicates=True
    ),
    SessionStore("session", serde.string, serde.string, retention_ms=150_000),
    VersionedStore("versioned", serde.string, serde.string, history_retention_ms=60_000),
)
VOLATILE: tuple[StoreSpec, ...] = (
    KeyValueStore("memory", serde.string, serde.string, engine="memory"),
    WindowStore(
        "memory-window", serde.string, serde.string, window_size_ms=60_000, retention_ms=180_000, engine="memory"
    ),
)


def source_of(app: str) -> str:
    """The topic that an application reads."""
    return SOURCE if app == APP else f"{app}-{SOURCE}"


def specs_of(settings: Mapping[str, Any]) -> tuple[StoreSpec, ...]:
    """Stores in memory come back from their changelog only, so not every run has them beside the others."""
    return KEPT + VOLATILE if settings["volatile"] else KEPT


class LossTeller(Listener):
    def on_state_lost(self, task: TaskId, reason: str) -> None:
        say(f"lost {task} {reason}")


def open_session(settings: Mapping[str, Any], listener: Listener, *, background: bool = True) -> Session:
    """A session as every process of a run opens it, the looking one included."""
    log_care.CARE_INTERVAL_S = LIFE_MAX_S  # folding to a position needs what compaction would remove
    return Session(
        settings["app"],
        log=settings["log"],
        state_dir=settings["state_dir"],
        stores=specs_of(settings),
        guarantee=settings["guarantee"],
        partitions=PARTITIONS,
        lease_ms=LEASE_MS,
        memory_bytes=MEMORY_BYTES,
        background=background,
        listeners=[listener],
    )


def operate(task: Task, random: Random, now_ms: int) -> None:
    """One random operation."""
    key = f"k{random.randrange(30)}"
    value = None if random.random() < 0.2 else f"{random.randrange(10**6)}" * random.choice((1, 1, 1, 40))
    late_ms = random.choice((0, 0, random.randrange(60_000), random.randrange(250_000)))
    at_ms = now_ms - late_ms
    name = random.choice([name for name in task.stores.specs if name != "counts"])
    store: Any = task.store(name)
    if name == "session":
        # Bounds on a grid, so that a session is met again and removed.
        start, end = (at_ms - random.randrange(20_000)) // 10_000 * 10_000, at_ms // 10_000 * 10_000
        store.put(key, start, end, value, at_ms)
    elif name == "versioned":
        store.put(key, value, at_ms // 1_000 * 1_000)
    elif name in ("window", "duplicates", "memory-window"):
        store.put(key, value, at_ms // 60_000 * 60_000, now_ms)
    else:
        store.put(key, value, at_ms)


def process(task: Task, settings: Mapping[str, Any], offset: int) -> None:
    """The record at one offset of the source."""
    partition = task.id.partition
    random = Random(f"{settings['seed']}/{partition}/{offset}")
    now_ms = settings["start_ms"] + offset * 4_000 + random.randrange(4_000)
    task.observe(source_of(task.app), partition, now_ms)
    for _ in range(random.randrange(1, 9)):
        operate(task, random, now_ms)
    counts: Any = task.store("counts")
    counts.put(COUNTER, max(counts.get(COUNTER) or 0, offset + 1), now_ms)


def check_counter(task: Task, guarantee: str) -> int:
    """Where to read on; the counter must fit it."""
    offset = task.source_offsets().get(TopicPartition(source_of(task.app), task.id.partition), 0)
    counts: Any = task.store("counts")
    counted = counts.get(COUNTER) or 0
    if counted != offset if guarantee == "exactly_once" else counted < offset:
        raise SystemExit(f"task {task.id}: {counted} records counted, but the source offset is {offset}")
    return offset


def write(session: Session, settings: dict[str, Any], random: Random) -> bool:
    """Process and commit until the next reopen; False once every partition has reached `stop_after`."""
    stop_after = settings.get("stop_after") or sys.maxsize
    session.wait_ready(30)
    offsets = {number: check_counter(session.task(number), settings["guarantee"]) for number in range(PARTITIONS)}
    say("ready")
    for _ in range(random.randrange(10, 200)):
        behind = [number for number, offset in offsets.items() if offset < stop_after]
        if not behind:
            return False
        partition = random.choice(behind)
        task = session.task(partition)
        offset = offsets[partition]
        for _ in range(random.choice((1, 3, 10, 10, 60))):
            process(task, settings, offset)
            offset += 1
        if random.random() < 0.05:
            task.discard()
            continue
        task.commit({(source_of(session.app), partition): offset})
        offsets[partition] = offset
        say(f"ack {partition} {offset}")
    return True


def run_writer(settings: dict[str, Any], random: Random, session: Session | None = None) -> None:
    while True:
        if session is None:
            session = open_session(settings, LossTeller())
            session.assign(active=range(PARTITIONS))
        try:
            more = write(session, settings, random)
        except (Fenced, InvalidRequest) as error:
            if not isinstance(error, Fenced) and "not assigned" not in str(error):
                raise
            say("fenced")
            raise SystemExit(EXIT_FENCED) from error
        session.close()
        if not more:
            return
        session = None


def run_restorer(settings: dict[str, Any]) -> None:
    restorer.BATCH_RECORDS_MAX = RESTORE_BATCH_RECORDS
    session = open_session(settings, LossTeller())
    session.assign(active=range(PARTITIONS))
    say("ready")
    watch(session)


def run_loader(settings: dict[str, Any]) -> None:
    """Bulk, with ranges and budgets so small that a few hundred records make several runs."""
    SessionSettings.bulk = lambda _: BULK  # type: ignore[method-assign]
    session = open_session(settings, LossTeller())
    session.assign(active=range(PARTITIONS))
    say("ready")
    session.wait_ready(LIFE_MAX_S)
    say(f"whole {session.statistics().bulk.given_back}")
    watch(session)


def run_standby(settings: dict[str, Any], random: Random) -> None:
    session = open_session(settings, LossTeller())
    session.assign(standby=range(PARTITIONS))
    say("ready")
    if settings.get("promote_ms") is None:
        watch(session)
    session.clock.sleep_ms(settings["promote_ms"])
    session.assign(active=range(PARTITIONS))
    run_writer(settings, random, session)


def open_task(settings: Mapping[str, Any]) -> TaskStores:
    """The stores of one task, without log or session."""
    specs = [KeyValueStore(name, serde.string, serde.string) for name in settings["names"]]
    return TaskStores(Path(settings["directory"]), APP, "0_0", specs, RocksShared(MEMORY_BYTES), now_ms=lambda: 0)


def watch(session: Session) -> NoReturn:
    """Wait to be killed; a failure of the background work must not pass for a quiet life."""
    while True:
        for task in session.tasks().values():
            # Fenced: it took over while the writer was opening itself anew, and is about to give the task up again.
            if task.state is TaskState.FAILED and not isinstance(task.error, Fenced):
                raise SystemExit(f"task {task.id} failed: {task.error}")
        session.clock.sleep_ms(20)


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.alarm(LIFE_MAX_S)
    random = Random(settings.get("life"))
    if settings["role"] == "opener":
        open_task(settings).close()
    elif settings["role"] == "writer":
        run_writer(settings, random)
    elif settings["role"] == "restorer":
        run_restorer(settings)
    elif settings["role"] == "loader":
        run_loader(settings)
    else:
        run_standby(settings, random)


if __name__ == "__main__":
    main()
