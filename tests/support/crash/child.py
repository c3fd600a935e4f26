"""A process to be killed: random operations on every kind of store, a restore, or a standby.

    writer     active for all partitions: operations, commits with source offsets, now and then a reopen
    restorer   restores all partitions in small batches, then waits
    loader     restores all partitions in bulk, by two workers in small runs, then waits
    opener     opens the database of one task with key-value stores of some `names`, and ends
    standby    stands by for all partitions; after `promote_ms`, if given, takes them and goes on as a writer
    racer      a writer beside another one: the loser of tasks stands by, takes them again after a while, and goes on
    healer     active for all partitions of a damaged directory: reads every row until all tasks are whole or refused

    stdout     ready                  it has its tasks (a writer: the gate is open)
               try PARTITION FIRST OFFSET   a commit of the records from FIRST on is about to begin
               ack PARTITION OFFSET   a commit with this source offset has returned
               dropped PARTITION      the commit that was tried is not in the local database, says its next opening
               lost TASK REASON       state was set aside: never correct here
               whole N                a loader has restored everything, N changelogs of it by batches in the end
               restore STORE PARTITION START REASON     a restore begins
               healed PARTITION       every row of every store was read
               refused PARTITION WHY  the task stays closed until an operator accepts the loss
    exit       0 reached `stop_after`, 75 fenced; any other is a failure (the reason is on stderr)

Rules of this file: started by `support/crash/run.py` with its settings as JSON; it remembers nothing between lives.
Whether a commit that raised is in the local database is read from that, never from the object that failed. Processing
of the record at offset n of a partition depends on the seed and n only, so that a record processed again at least once
has the same effect. `counts` holds the number of records processed, in the same commit as the offset.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

from standfast.replication.listeners import Listener
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail import log_care
from standfast.restore.replay import restorer
from standfast.restore.replay.bulk_plan import BulkSettings
from standfast.store import serde
from standfast.store.clock import SystemClock
from standfast.store.errors import Closed, Corruption, Fenced, InvalidRequest, NotReady, StateLost, Unavailable
from standfast.store.rocks import engine as rocks
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import KeyValueStore
from standfast.store.task import task_stores
from standfast.store.task.task_stores import TaskStores
from standfast.stream.session.session import Session
from standfast.stream.task import commit_write
from standfast.stream.task.settings import SessionSettings
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task
from support.crash.options import use
from support.crash.stores import COUNTS, carry_out, event_time, of_names, operations

APP = "crash"
SOURCE = "input"
PARTITIONS = 3
COUNTER = "processed"
START_MS = 1_356_998_400_000
MEMORY_BYTES = 32 << 20
LIFE_MAX_S = 60  # an orphan ends by itself
LEASE_MS = 60_000  # far longer than a run: the lease of a killed process never helps its successor
RESTORE_BATCH_RECORDS = 40  # so that a kill finds a restore under way
BETWEEN = frozenset(("commit.logged", "stores.families", "engine.written", "commit.local"))
DAWDLED = 0.1  # share of these steps
EXIT_FENCED = 75
REFUSED_MS = 3_000
BULK = BulkSettings(2, 8_000, cold_records=1, warm_records=1, fetch_records=20, spills_max=2)


def source_of(app: str) -> str:
    """The source topic of the application."""
    return SOURCE if app == APP else f"{app}-{SOURCE}"


class LossTeller(Listener):
    def on_state_lost(self, task: TaskId, reason: str) -> None:
        say(f"lost {task} {reason}")


class RestoreTeller(LossTeller):
    def on_restore_start(
        self, task: TaskId, store: str, changelog: TopicPartition, start: int, end: int, reason: str
    ) -> None:
        say(f"restore {store} {task.partition} {start} {reason}")


def open_session(settings: Mapping[str, Any], listener: Listener, *, background: bool = True, **more: Any) -> Session:
    """A session with the settings of every process of a run, the looking one included."""
    # Folding to a position needs the records that compaction would remove.
    log_care.CARE_INTERVAL_MS = LIFE_MAX_S * 1_000
    return Session(
        settings["app"],
        log=settings["log"],
        state_dir=settings["state_dir"],
        stores=of_names(settings["stores"]),
        guarantee=settings["guarantee"],
        partitions=PARTITIONS,
        lease_ms=LEASE_MS,
        memory_bytes=MEMORY_BYTES,
        background=background,
        listeners=[listener],
        **more,
    )


def process(task: Task, settings: Mapping[str, Any], offset: int) -> None:
    """The record at one offset of the source."""
    partition, seed, start_ms = task.id.partition, settings["seed"], settings["start_ms"]
    _, now_ms = event_time(seed, partition, offset, start_ms)
    task.observe(source_of(task.app), partition, now_ms)
    for one in operations(seed, partition, offset, start_ms, settings["stores"]):
        carry_out(task.store(one.store), one)
    counts: Any = task.store(COUNTS)
    counts.put(COUNTER, max(counts.get(COUNTER) or 0, offset + 1), now_ms)


def check_counter(task: Task, guarantee: str) -> int:
    """The next offset to read; the counter must fit it.

    The offsets are read from the log after the rows are there. An owner that was replaced in between without having
    noticed may read offsets that its rows lack: Fenced then, because it can commit nothing.
    """
    source = TopicPartition(source_of(task.app), task.id.partition)
    offset = task.source_offsets().get(source, 0)
    counts: Any = task.store(COUNTS)
    counted = counts.get(COUNTER) or 0
    if counted != offset if guarantee == "exactly_once" else counted < offset:
        task.commit({source: offset})
        raise SystemExit(f"task {task.id}: {counted} records counted, but the source offset is {offset}")
    return offset


def write(session: Session, settings: dict[str, Any], random: Random, tried: dict[int, int] | None = None) -> bool:
    """Process and commit until the next reopen; False once every partition has reached `stop_after`.

    A commit that raises leaves its partition and source offset in `tried`.
    """
    tried = {} if tried is None else tried
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
        say(f"try {partition} {offsets[partition]} {offset}")
        tried[partition] = offset
        task.commit({(source_of(session.app), partition): offset})
        del tried[partition]
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
        except Fenced as error:
            say("fenced")
            raise SystemExit(EXIT_FENCED) from error
        session.close()
        if not more:
            return
        session = None


def run_racer(settings: dict[str, Any], random: Random) -> None:
    """A process that loses a task does not end: it stands by, takes over again, and goes on."""
    session = open_session(settings, LossTeller())
    tried: dict[int, int] = {}
    while True:
        try:
            session.assign(active=range(PARTITIONS))
            while write(session, settings, random, tried):
                pass
        except Fenced:
            say("lost-race")
            session.assign(standby=range(PARTITIONS))
            tell_tried(session, tried)
            session.clock.sleep_ms(random.randrange(150))


def tell_tried(session: Session, tried: dict[int, int]) -> None:
    """Say of the commit that raised whether it is in the local database, which was opened again since.

    Another instance took the task over: the log may have the commit or not, and at least once the database may have it
    though the source offsets were refused.
    """
    for partition, offset in tried.items():
        local = session.tasks()[partition].stores.cut.sources.get(f"{source_of(session.app)}/{partition}")
        say(f"ack {partition} {offset}" if local == offset else f"dropped {partition}")
    tried.clear()


def run_healer(settings: dict[str, Any]) -> None:
    session = open_session(settings, RestoreTeller(), gate="task", **settings["accept"])
    open_: set[int] = set(range(PARTITIONS))
    try:
        session.assign(active=range(PARTITIONS))
    except StateLost as refused:
        # The error names the task; the process may go on with the others.
        number = next(one for one in open_ if f"task {TaskId(0, one)}:" in str(refused))
        say(f"refused {number} {type(refused).__name__}: {refused}".replace("\n", " "))
        open_.remove(number)
        session.assign(active=open_)
    say("ready")
    refused_ms: dict[int, int] = {}
    while open_:
        for number in sorted(open_):
            task = session.tasks().get(number)
            if task is not None and task.error is not None:
                now_ms = session.clock.monotonic_ms()
                # A task that failed for now reopens by itself.
                if now_ms - refused_ms.setdefault(number, now_ms) > REFUSED_MS:
                    say(f"refused {number} {type(task.error).__name__}: {task.error}".replace("\n", " "))
                    open_.remove(number)
                continue
            refused_ms.pop(number, None)
            try:
                read_everything(session.task(number))
            except (Corruption, NotReady, Closed, Unavailable, InvalidRequest):
                continue  # found now, or being restored
            say(f"healed {number}")
            open_.remove(number)
        session.clock.sleep_ms(5)
    session.close()


def read_everything(task: Task) -> None:
    """Read every row by a scan; stores read by key also by key, which reads filters and indexes."""
    for name, spec in task.stores.specs.items():
        store: Any = task.store(name)
        for key, _, _ in list(store.logical_rows()):
            if isinstance(spec, KeyValueStore):
                store.get(spec.key.deserialize(key))


def run_restorer(settings: dict[str, Any]) -> None:
    restorer.BATCH_RECORDS_MAX = RESTORE_BATCH_RECORDS
    session = open_session(settings, LossTeller())
    session.assign(active=range(PARTITIONS))
    say("ready")
    watch(session)


def run_loader(settings: dict[str, Any]) -> None:
    """A bulk restore, with ranges and budgets so small that a few hundred records make several runs."""
    SessionSettings.bulk = lambda _, *, threads: BULK  # type: ignore[method-assign]
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
            # Fenced: it took over while the writer was reopening, and is about to give the task up again.
            if task.state is TaskState.FAILED and not isinstance(task.error, Fenced):
                raise SystemExit(f"task {task.id} failed: {task.error}")
        session.clock.sleep_ms(20)


def dawdle(most_ms: int, random: Random) -> None:
    """Let steps of commits take up to that long, now and then, so that other threads run between two of them."""
    clock = SystemClock()
    for module in (commit_write, task_stores, rocks):
        reach = module.reach

        def late(name: str, reach: Callable[[str], None] = reach) -> None:
            reach(name)
            if name in BETWEEN and random.random() < DAWDLED:
                clock.sleep_ms(random.randrange(most_ms))

        module.reach = late  # type: ignore[attr-defined]


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.alarm(LIFE_MAX_S)
    random = Random(settings.get("life"))
    if settings.get("dawdle_ms"):
        dawdle(settings["dawdle_ms"], Random(f"{settings.get('life')}/dawdle"))
    task_stores.PREPARED_ROWS_MIN = 1  # commits of a few rows are prepared too, while Kafka has their records
    if settings["role"] == "opener":
        open_task(settings).close()
    elif settings["role"] == "writer":
        run_writer(settings, random)
    elif settings["role"] == "restorer":
        run_restorer(settings)
    elif settings["role"] == "racer":
        run_racer(settings, random)
    elif settings["role"] == "healer":
        run_healer(settings)
    elif settings["role"] == "loader":
        run_loader(settings)
    else:
        run_standby(settings, random)


if __name__ == "__main__":
    use()
    main()
