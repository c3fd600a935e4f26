"""Runs the world of a plan, and judges it.

    run(plan) ──> topics, a feeder, an instance on each machine, a keeper ──> faults ──> rest ──> clean end ──> Outcome

The keeper is the world's own hand: it starts processes again, damages disks while they are down, and looks for rest.

Rules of this file: one real thread, apart from the main one, since the product treats the main thread of a process in a
way of its own; the garbage collector runs between worlds alone.
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import hashlib
import logging
import mmap
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from simulator.checkers import Alarm, History, checkpoint_alarms, result_alarms
from simulator.client import Clients
from simulator.disk import SimDisk
from simulator.engine import damage_somewhere
from simulator.faults import ENDS, FURTHER, Fault, Kind
from simulator.files import SimFiles
from simulator.hand import APP, Hand, offset_of
from simulator.instance import Instance
from simulator.log import SimLog
from simulator.log.cluster import Owner
from simulator.operators import Operators
from simulator.outside import outside_of
from simulator.own_consumer import ConsumerInstance
from simulator.plan import DELETES, OWN_CONSUMER, Plan, draw_plan
from simulator.programs import COUNTS, IN, OUT, Truth
from simulator.storage import SimBucket
from simulator.witness import changes
from simulator.world import Machine, World
from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.offsets import TopicPartition
from standfast.replication.topics.app_topics import PLACEMENT
from standfast.store.disk import AGAIN_MS
from standfast.store.errors import InvalidRequest
from standfast.store.log import logger
from standfast.store.names import changelog_topic
from standfast.store.process.tracebacks import clear_frames

LOOK_MS = 100
NO_ROOM = (Kind.FULL, Kind.READ_ONLY)
CRAWL_MS = 30.0
PLACEMENTS = TopicPartition(APP + PLACEMENT, 0)
TRANSACTION_MS = 10_000  # as the product asks of brokers
REST_MS = 30_000  # of simulated time, from the last fault's end to rest
FIRST_MS = 500  # from one start to the next one, at first
STILL_MS = 500  # of rest, before the world is judged: what is in the log may be on its way to the rows
FREE_BYTES = re.compile(r"[^ ]* has \d+ of \d+ bytes free: |: \d+ of \d+ bytes are free")  # of the real disk
# Events of the product's log.
LOSSES = ("stores_reset", "store_dropped", "directory_set_aside", "import_interrupted", "state_exchanged")
MEMORY = Path("/dev/shm")  # noqa: S108  folders of its own in it


@dataclass(slots=True)
class Outcome:
    """What a world came to. `digest` is that of its whole trace."""

    plan: Plan
    alarms: list[Alarm]
    digest: str
    trace: list[str]
    events: list[str]
    simulated_ms: int
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    states: Counter[tuple[str, str]] = field(default_factory=Counter)
    scripts: Counter[str] = field(default_factory=Counter)


def run(plan: Plan) -> Outcome:
    """Run a world in a thread of its own. Raises whatever the world itself raises."""
    folder = Path(tempfile.mkdtemp(prefix="world-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        with _own_process(), ThreadPoolExecutor(1, "simulator") as pool:
            try:
                return pool.submit(lambda: _Run(plan, folder).outcome()).result()
            except BaseException as error:
                clear_frames(error)  # they keep the world
                raise
    finally:
        _close_left(folder)
        shutil.rmtree(folder, ignore_errors=True)


def run_seed(seed: int) -> Outcome:
    """Run the world of a seed; one without an alarm comes back without its trace."""
    found = run(draw_plan(seed))
    return found if found.alarms else replace(found, trace=[], events=[])


@contextmanager
def _own_process() -> Iterator[None]:
    """What simulated processes share, because they are one real process.

    A finaliser of a dead process runs at the end of the world, not in the middle of another process. The first one that
    opened would write its stacks to a file of its own.
    """
    stacks = faulthandler.is_enabled()
    faulthandler.enable()
    gc.freeze()  # so that the collection at the end looks at the world alone, which saves a tenth of its time
    gc.disable()
    try:
        yield
    finally:
        collect_dead()
        gc.enable()
        gc.unfreeze()
        if not stacks:
            faulthandler.disable()


def collect_dead() -> None:
    """Collect the objects of dead processes, to the last that closes a descriptor when it goes."""
    # A finaliser keeps all that its object refers to for another collection. One that outlives `_close_left` would
    # close a later file of its number, such as another test's log, or a pipe of a Kafka client, which writes on.
    for _ in range(5):
        gc.collect()
        if not any(isinstance(one, mmap.mmap) for one in gc.get_objects()):
            return
    raise AssertionError("an object of a dead process would close a descriptor of a later one")


def _close_left(folder: Path) -> None:
    """Close the files that dead processes had open: nothing has them any more."""
    for link in sorted(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if link.readlink().is_relative_to(folder):
                os.close(int(link.name))


class _Run:
    """One world from its beginning to its judgement."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.world = World(plan.seed, plan.machines, plan.faults)
        self.truth = Truth(deletes=plan.program == DELETES)
        self.history = History(self.truth, plan.program, exact=plan.guarantee == "exactly_once")
        self._claims: dict[str, int] = {}  # id -> when its owner claimed it
        self._logged: dict[int, int] = {}  # partition of the counts -> how far their changelog was looked at
        self._rest_since = 0.0
        self._over = False
        self._restarts: dict[int, float] = {}  # machine -> time of its next start
        self._ends: list[tuple[float, Callable[[], None]]] = []  # of faults that last: when, and what then
        self._last: dict[int, Fault] = {}  # machine -> fault that ended its process

    def outcome(self) -> Outcome:
        """Run it."""
        plan, world = self.plan, self.world
        with ExitStack() as stack:
            log = self.log = SimLog("world", world, world, style=plan.style)
            self.bucket = SimBucket(world, world.wall_ms)
            self.disks = [SimDisk(self.folder / f"m{machine.number}", world) for machine in world.machines]
            stack.enter_context(outside_of(world, log, self.disks, self.bucket))
            stack.enter_context(SimFiles(self.disks).watched())
            stack.enter_context(_told(world, self.folder, self.history))
            stack.callback(self._end_all)  # in a world that raises, too
            self.hand = Hand(world, log)
            make = Instance
            if plan.hosting == OWN_CONSUMER:
                make = ConsumerInstance
                log.transaction_ms = TRANSACTION_MS  # of a commit without records, which no later owner fences
            self.instances = [
                make(machine, plan, world, log, disk.root, self.history)
                for machine, disk in zip(world.machines, self.disks, strict=True)
            ]
            world.states_of = lambda machine: self.instances[machine.number].states()
            world.on_fault = self._on_fault
            log.on_write, log.on_claim = self.history.wrote, self._claimed
            log.on_late = lambda name: _note(self.history.late, name)
            self.operators = Operators(
                plan, world, self.hand, self.instances, self._restarts, self.history, self._until
            )
            self.hand.create(IN, plan.partitions)
            self.hand.create(OUT, plan.partitions)
            self._restarts.update({machine.number: FIRST_MS * machine.number for machine in world.machines})
            for fault in plan.faults:
                if fault.kind is Kind.JOIN and fault.machine:
                    self._restarts[fault.machine] = fault.at_ms
            clients = self.clients = Clients(plan, world, self.hand, self.truth)
            own = [world.scheduler.spawn("feeder", clients.feed), world.scheduler.spawn("keeper", self._keep)]
            if plan.client:
                own.append(world.scheduler.spawn("client", clients.transact))
            met_ms = max((one.at_ms + one.stays_ms for one in plan.faults), default=0)
            limit_ms = max(plan.feed_ms, met_ms) + sum(one.for_ms for one in plan.faults) + REST_MS
            if any(one.kind in NO_ROOM for one in plan.faults):
                limit_ms += AGAIN_MS  # an instance counts as one with room only after so long
            if not world.scheduler.run_until(lambda: self._over, limit_ms):
                self.history.alarm("rest", self._unrest())
            for actor in own:
                if actor.error is not None:
                    raise actor.error
            self._judge()
            self._stop()
        for alarm in self.history.alarms:
            world.tell(str(alarm))
        digest = hashlib.sha256("\n".join(world.trace).encode()).hexdigest()
        told = (digest, world.trace, world.events, int(world.now_ms))
        return Outcome(plan, self.history.alarms, *told, world.met, world.states, world.lives.scripts)

    # --- the keeper: a process without a machine, which meets no fault, as the clients ---

    def _keep(self) -> None:
        world = self.world
        while not self._over:
            for instance in self.instances:
                self._look_after(instance)
            self.operators.look()
            for at_ms, end in [one for one in self._ends if one[0] <= world.now_ms]:
                self._ends.remove((at_ms, end))
                end()
            for machine in world.machines:
                machine.waiting = [one for one in machine.waiting if one.at_ms + one.stays_ms > world.now_ms]
            for topic in self._inputs():
                for at, found in self.hand.committed(topic).items():
                    self.history.in_log(topic, at.partition, found.offset)
                    told = CommitMetadata.from_text(found.metadata)
                    if told is not None:
                        times = {**told.stream_times, **told.progress}
                        self.history.committed_times(topic, at.partition, times)
            self._look_at_counts()
            if not self._at_rest():
                self._rest_since = world.now_ms
            self._over = world.now_ms - self._rest_since >= STILL_MS
            world.wait(LOOK_MS)

    def _look_at_counts(self) -> None:
        """Give the history what the changelog of a program that counts by key got, and the offset of its source."""
        if self.plan.program not in ("count", "table") or self.log.lost_markers:  # which hide acknowledged records
            return
        committed = self.hand.committed(IN)
        for at in self.hand.partitions(changelog_topic(APP, COUNTS)):
            known = self._logged.get(at.partition, 0)
            removed = [
                one for one in self.history.gone.get(at, ()) if one[0] >= known
            ]  # by people, since the last look
            new = [*removed, *changes(self.log, at, known)]
            if new:
                self._logged[at.partition] = new[-1][0] + 1
            self.history.processed(at.partition, offset_of(committed.get(TopicPartition(IN, at.partition))), new)

    def _look_after(self, instance: Instance) -> None:
        machine, now_ms = instance.machine, self.world.now_ms
        process = machine.process
        if process is not None and process.done:
            machine.process = None
            self.world.lives.end(repr(process), "the process ends")
            self.disks[machine.number].end_process()
            self._damage(machine)
            if process.error is not None and not self.operators.bears(instance, process.error):
                self._judge_error(repr(process), process.error)
            instance.app = None
            instance.stopping = False
            self._restarts.setdefault(machine.number, now_ms + FIRST_MS)
        if self.operators.keeps_down:
            return
        if machine.process is None and now_ms >= self._restarts.get(machine.number, now_ms + 1):
            del self._restarts[machine.number]
            machine.process = self.world.scheduler.spawn(machine.name, instance.body)
            self.world.event(f"{machine.process} starts")

    def _damage(self, machine: Machine) -> None:
        """What happens to the machine while its process is down."""
        disk, fault = self.disks[machine.number], self._last.pop(machine.number, None)
        if fault is None:
            return
        about = ("disk", machine.number, fault.at_ms)
        if fault.kind in (Kind.POWER, Kind.WIPE, Kind.BLIND):
            self.history.lost(machine.number)
        if fault.kind is Kind.POWER:
            disk.lose_power(self.world.draws, *about)
        elif fault.kind is Kind.DAMAGE:
            if (path := damage_somewhere(disk, self.world.draws, *about)) is not None:
                self.operators.damaged.add((machine.number, path.parent.name))
        elif fault.kind in (Kind.WIPE, Kind.BLIND):
            shutil.rmtree(disk.root, ignore_errors=True)

    def _judge_error(self, who: str, error: Exception) -> None:
        """A process may end with an error only if that says that something outside is wrong."""
        self.world.event(f"{who} ends: {type(error).__name__}: {error}".replace(f"{self.folder}/", ""))
        refused = isinstance(error, InvalidRequest) and "read-only" in str(error)  # as the disk is
        if not refused and type(error).__name__ not in ("Unavailable", "Held", "Fenced", "Broken", "DiskFull"):
            self.history.alarm("error", f"{who} ends with {type(error).__name__}: {error}")

    def _on_fault(self, fault: Fault, machine: Machine) -> None:
        """Carry out what happens to more than the process that met the fault."""
        kind, disk, draws = fault.kind, self.disks[machine.number], self.world.draws
        if kind in FURTHER:
            self.operators.act(fault)
        false_word = kind is Kind.WORD and (self.history.exact or not self.log.kafka)  # elsewhere a word is true
        if false_word or (kind is Kind.KILL and fault.after):
            self.instances[machine.number].end_lease(self.log)
        if kind in ENDS:
            self._restarts[machine.number] = self.world.now_ms + fault.for_ms
            self._last[machine.number] = fault
            self.instances[machine.number].stopping = kind is Kind.STOP
            if kind is Kind.BLIND:
                self._storage_away(2 * fault.for_ms)
        elif kind in NO_ROOM:
            disk.refuses = errno.ENOSPC if kind is Kind.FULL else errno.EROFS
            self._until(fault.for_ms, lambda: setattr(disk, "refuses", 0))
        elif kind is Kind.CRAWL:
            disk.slow_ms = CRAWL_MS
            self._until(fault.for_ms, lambda: setattr(disk, "slow_ms", 0.0))
        elif kind in (Kind.AWAY, Kind.LATE):
            partitions = [at for topic in self.hand.topics() for at in self.hand.partitions(topic)]
            at = draws.choice(partitions, "partition of", fault.at_ms, machine.number)
            self.world.event(f"it is {at}")
            self.log.stall(fault.for_ms, at) if kind is Kind.AWAY else self.log.hold(at, fault.for_ms)
        elif kind is Kind.REBALANCE:
            self.instances[machine.number].rebalance(expelled=fault.after)
        elif kind is Kind.COMPACT:
            self.hand.care()
        elif kind is Kind.VANISH and self.bucket.objects:
            key = draws.choice(sorted(self.bucket.objects), "object of", fault.at_ms)
            self.world.event(f"it is {key}")
            self.bucket.lose(key)
        elif kind is Kind.STORAGE:
            self._storage_away(fault.for_ms)

    def _storage_away(self, for_ms: int) -> None:
        self.bucket.away = True
        self._until(for_ms, lambda: setattr(self.bucket, "away", False))

    def _until(self, for_ms: int, end: Callable[[], None]) -> None:
        self._ends.append((self.world.now_ms + for_ms, end))

    def _claimed(self, name: str, before: Owner | None, taken: Owner) -> None:
        """A member has claimed an id: as far as it has seen, the owner before has died or processes that task no more.

        One that claims by what it saw before the owner was there, or alive again, is late: the log fences the other.
        So is one to which the log withholds newer placements and reports.
        """
        since_ms, self._claims[name] = self._claims.get(name, 0), self.world.monotonic_ms()
        machine = self.world.machine()
        lease = None if before is None else self.hand.log.group(before.group).leases.get(before.member_id)
        lives = lease is not None and lease.deadline_ms > self.world.monotonic_ms()
        self.world.lives.claim(self.world.who(), name, before, taken, alive=lives)
        if before is None or machine is None or before.member_id == taken.member_id:
            return
        if self.log.kafka and not self.history.exact:
            _note(self.history.unfenced, name)  # an offset alone, without a transaction, is not fenced there
        if lease is None or not lives:
            return
        placements = self.log.find(PLACEMENTS)
        withheld = placements is not None and placements.visible(self.world.monotonic_ms()) < placements.end
        withheld = withheld or self.log.outage([PLACEMENTS]) is not None
        knows = machine.looked_ms > max(since_ms, lease.since_ms) and not withheld
        if knows and any(one.owns(before.member_id, name) for one in self.instances):
            self.history.alarm("claims", f"{self.world.who()} takes {name} from {before.member_id}, which processes it")

    # --- rest ---

    def _at_rest(self) -> bool:
        """Whether all faults are over, all records are processed, and every copy is complete."""
        if self.truth.total < self.plan.records or not self.clients.over or self._faults_last():
            return False
        return not self._unrest()

    def _faults_last(self) -> bool:
        now_ms = self.world.now_ms
        held = [one.held[1] for topic in self.log.topics.values() for one in topic.partitions if one.held is not None]
        ends = [*held, *(one.until_ms for one in self.log.outages)]
        if self._restarts or self._ends or self.operators.busy or any(until_ms > now_ms for until_ms in ends):
            return True
        return any(
            one.waiting or one.cut_until_ms > now_ms or one.slow_until_ms > now_ms for one in self.world.machines
        )

    def _inputs(self) -> list[str]:
        return [IN, *self.hand.repartitions()]

    def _unrest(self) -> str:
        """Why the world is not at rest; "" if it is."""
        late = self.history.unfenced  # a former owner's commit may be the last one there: the owner's own offset counts
        own = {at: to for one in self.instances for at, to in one.processed().items() if at.partition in late}
        for topic in self._inputs():
            found = {at: offset_of(one) for at, one in self.hand.committed(topic).items()}
            ends = self.hand.ends(topic).items()
            behind = {str(at): end for at, end in ends if max(found.get(at, 0), own.get(at, 0)) < end}
            if behind:
                return f"not committed up to {behind}; {self._tasks()}"
        missing = [one.machine.name for one in self.instances if one.app is None or one.app.session is None]
        if missing:
            return f"not open: {missing}"
        tasks = Counter(state for one in self.instances for state in one.copies())
        active = sum(count for state, count in tasks.items() if state.startswith("active"))
        groups = 2 if self.plan.program == "rekeyed" else 1
        if tasks["active running"] != active or active != groups * self.plan.partitions:
            return f"not all tasks run: {self._tasks()}"
        return next((why for one in self.instances if (why := one.behind())), "")

    def _tasks(self) -> str:
        return "; ".join(f"{one.machine.name}: {', '.join(one.copies()) or 'nothing'}" for one in self.instances)

    # --- the end ---

    def _stop(self) -> None:
        """End every instance cleanly."""
        scheduler = self.world.scheduler
        for instance in self.instances:
            instance.stopping = True
            instance.machine.waiting.clear()
        running = [one.machine.process for one in self.instances if one.machine.process is not None]
        if not scheduler.run_until(lambda: all(one.done for one in running), scheduler.now_ms + REST_MS):
            late = [one for one in running if not one.done]
            self.history.alarm("end", f"a clean end takes longer than {REST_MS} ms: {late}")
        self._end_all()
        for one in running:
            if one.error is not None:
                self._judge_error(repr(one), one.error)

    def _end_all(self) -> None:
        """End what still runs: a frame that were left would close its files later, when others have their numbers."""
        for actor in list(self.world.scheduler.actors):
            self.world.scheduler.end(actor)
            self.world.lives.end(repr(actor), "the process ends")
        for disk in self.disks:
            disk.end_process()

    def _judge(self) -> None:
        plan, hand, alarms = self.plan, self.hand, self.history.alarms
        found = Counter((_text(one.key), _text(one.value)) for at in hand.partitions(OUT) for one in hand.records(at))
        given_up = self.history.given_up
        alarms += result_alarms(found, self.truth, plan.program, exact=self.history.exact, given_up=given_up)
        if plan.program == "rekeyed" and self.history.exact and not self.log.kafka:
            alarms += checkpoint_alarms(self.bucket.objects)
        for instance in self.instances:
            for who, store, at, rows in instance.rows():
                end = hand.log.partition(at).end
                alarms += self.history.folded(who, store, rows, at, changes(hand.log, at), end)


def _note(partitions: set[int], name: str) -> None:
    """Add the partition of the task with this transactional id; the leader's id has none."""
    partition = name.rpartition("-")[2]
    if partition.isdigit():
        partitions.add(int(partition))


def _text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode()


@contextmanager
def _told(world: World, folder: Path, history: History) -> Iterator[None]:
    """Put what the product logs into the trace, and tell the history which rows went with a word."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = f"{world.who()} {record.levelname}: {record.getMessage()}".replace(f"{folder}/", "")
            text = FREE_BYTES.sub("", text)
            machine = world.machine()
            if machine is not None and getattr(record, "event", "") in LOSSES:
                one = getattr(record, "store", None)
                stores = getattr(record, "stores", None if one is None else [one])
                history.lost(machine.number, str(getattr(record, "task")), stores)  # noqa: B009
            world.lives.line(world.who(), record)
            (world.event if record.levelno >= logging.WARNING else world.tell)(text)

    handler, before = Handler(), (logger.level, logger.propagate)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
