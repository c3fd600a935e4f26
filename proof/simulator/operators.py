"""What people do to an application and its log: rolling restarts, another program, topics cut or made again, consent.

    roll, change  ──> one instance after the other ends cleanly and starts, each once all others run
    recreate      ──> all end cleanly ──> the changelog is made again, empty ──> all start
    truncate      ──> the head of a partition goes: of the source below the committed offset, of a changelog anywhere
    hang, age     ──> the log's transactions end late; days pass
    a task refuses to open for CONSENT_MS ──> its instance starts again with the consent of a person

A person accepts a cut or replaced topic, and an empty log beside rows that damage made unreadable: no such row can be
one that the log lacks, which the product cannot know.

Rules of this file: the world's own hand. Rows that a person gave up after a topic was cut or replaced are judged by no
plain computation any more; all others are, those among them that the product gave up by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simulator.checkers import History
from simulator.faults import Fault, Kind
from simulator.hand import APP, Hand, offset_of
from simulator.instance import CONSENT, LOG_EMPTY, Instance
from simulator.plan import Plan
from simulator.programs import COUNTS, IN, MORE
from simulator.witness import changes
from simulator.world import World
from standfast.replication.offsets import TopicPartition
from standfast.store.names import changelog_topic

CONSENT_MS = 3_000
GAP_MS = 300  # between the starts of instances that ended together
DAYS_MS = 8 * 86_400_000  # more than `delete.retention.ms` of a changelog


class Operators:
    """See the head of this file. `restarts`: machine -> time of its next start; `until` notes
    what happens after so many milliseconds."""

    def __init__(
        self,
        plan: Plan,
        world: World,
        hand: Hand,
        instances: Sequence[Instance],
        restarts: dict[int, float],
        history: History,
        until: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._plan = plan
        self._world = world
        self._hand = hand
        self._instances = instances
        self._restarts = restarts
        self._history = history
        self._until = until
        self._rolling: list[tuple[Instance, Fault]] = []  # that are still to end and start again
        self._once_down: Callable[[], None] | None = None  # what to do once no process runs
        self._tampered = False  # with a topic
        self._refused: dict[int, float] = {}  # machine -> since when it refuses a task
        self.damaged: set[tuple[int, str]] = set()  # machines and tasks whose rows are damaged

    @property
    def busy(self) -> bool:
        """Whether something of it goes on."""
        return bool(self._rolling or self._once_down or self._refused)

    @property
    def keeps_down(self) -> bool:
        """Whether no process may start yet."""
        return self._once_down is not None

    def act(self, fault: Fault) -> None:
        """Begin what a fault says."""
        kind, all_of_them = fault.kind, list(self._instances)
        if kind is Kind.ROLL or (kind is Kind.CHANGE and fault.after):
            self._rolling += [(one, fault) for one in all_of_them]
        elif kind is Kind.CHANGE:
            self._rolling.append((self._instances[fault.machine], fault))
        elif kind is Kind.RECREATE:
            self._recreate(fault)
        elif kind is Kind.TRUNCATE:
            self._truncate(fault)
        elif kind is Kind.HANG:
            self._hang(fault)
        elif kind is Kind.AGE:
            self._keep_deletes()
            self._hand.care()
            self._world.passed_ms += DAYS_MS
            for machine in self._world.machines:
                machine.wall_offset_ms += DAYS_MS
            for at in [one for topic in self._hand.log.topics.values() for one in topic.partitions]:
                at.held = None  # readers see within days what is compacted
            self._hand.care()

    def look(self) -> None:
        """Go on with it; the keeper calls this."""
        processes = [one.machine.process for one in self._instances]
        if self._once_down is not None and not any(processes):
            act, self._once_down = self._once_down, None
            act()
        if self._rolling and not self._restarts and all(one.is_open() for one in self._instances):
            instance, fault = self._rolling.pop(0)
            if fault.kind is Kind.CHANGE:
                instance.changed = not instance.changed
                instance.replaces = bool(fault.for_ms % 2)
                which = "a changed" if instance.changed else "the first"
                self._world.event(f"{instance.machine.name} is to run {which} program")
            self._restart(instance, fault.for_ms // len(self._instances))
        for instance in self._instances:
            self._consent(instance)

    def _restart(self, instance: Instance, down_ms: float) -> None:
        instance.stopping = True
        self._restarts[instance.machine.number] = self._world.now_ms + down_ms

    def _consent(self, instance: Instance) -> None:
        number, now_ms = instance.machine.number, self._world.now_ms
        found = instance.refused().items()
        refused = {task.partition for task, why in found if self._tampered or self._is_unwritten(number, task, why)}
        if not refused or instance.stopping:
            self._refused.pop(number, None)
        elif now_ms - self._refused.setdefault(number, now_ms) >= CONSENT_MS:
            del self._refused[number]
            self._history.given_up.update(refused if self._tampered else ())
            instance.accept(CONSENT if self._tampered else (LOG_EMPTY,), f"partitions {sorted(refused)}")
            self._restart(instance, 0)

    def _is_unwritten(self, machine: int, task: Any, reason: str) -> bool:
        """Whether damage explains the refusal of a task, which has a changelog without a record."""
        log, damaged = self._hand.log, (machine, str(task)) in self.damaged
        at = [TopicPartition(name, task.partition) for name in log.topics if name.endswith("-changelog")]
        return damaged and reason == LOG_EMPTY and any(next(changes(log, one), None) is None for one in at)

    def bears(self, instance: Instance, error: Exception) -> bool:
        """Whether damage explains this end of a process, so that a person accepts the empty log for the next start."""
        number, reason = instance.machine.number, getattr(error, "reason", "")
        damaged = any(machine == number and f"task {task}:" in str(error) for machine, task in self.damaged)
        if damaged and reason == LOG_EMPTY:
            instance.accept((LOG_EMPTY,), "a task with which its process ended")
        return damaged and reason == LOG_EMPTY

    def _changelogs(self) -> list[str]:
        """Those whose records no retention removes."""
        names = [changelog_topic(APP, one) for one in (COUNTS, MORE)] if self._plan.program != "windows" else []
        return [name for name in names if name in self._hand.log.topics]

    def _recreate(self, fault: Fault) -> None:
        if not (names := self._changelogs()):
            return
        name = self._world.draws.choice(names, "topic of", fault.at_ms)

        def recreate() -> None:
            self._world.event(f"{name} is made again")
            self._hand.log.recreate_topic(name)
            self._tampered = True
            # As after a reset: an instance without rows cannot know of those that were there.
            self._history.given_up.update(range(self._plan.partitions))

        for number, instance in enumerate(self._instances):
            self._restart(instance, fault.for_ms + GAP_MS * number)
        self._once_down = recreate

    def _truncate(self, fault: Fault) -> None:
        draws, log, about = self._world.draws, self._hand.log, ("topic of", fault.at_ms)
        name = draws.choice([IN, *2 * self._changelogs()], *about)
        at = TopicPartition(name, draws.below(self._plan.partitions, *about, "partition"))
        found = log.partition(at)
        committed = offset_of(self._hand.committed(IN).get(at))
        end = committed if name == IN else found.visible(self._world.monotonic_ms())
        # Often close to the end: a copy is behind the head then that was away for a moment alone.
        begin = max(end - draws.below(draws.choice((1, 9, end + 1), *about, "far"), *about, "begin"), 0)
        self._world.event(f"records of {at} below {begin} of {end} are removed")
        self._history.gone.setdefault(at, []).extend(one for one in changes(log, at) if one[0] < begin)
        found.move_begin(begin)
        log.version += 1
        self._tampered = True

    def _keep_deletes(self) -> None:
        """Let the history keep the deletes of rows whose records people removed: compaction is about to drop them."""
        for at, gone in self._history.gone.items():
            keys = {key for _, key, _ in gone}
            gone += [one for one in changes(self._hand.log, at) if one[1] in keys and one[2] is None]

    def _hang(self, fault: Fault) -> None:
        log = self._hand.log
        if not log.kafka:
            log.stall(fault.for_ms)
            return
        partitions = [at for topic in self._hand.topics() for at in self._hand.partitions(topic)]
        at = self._world.draws.choice(partitions, "partition of", fault.at_ms)
        self._world.event(f"it is {at}")
        log.lose_marker(at)
        self._until(fault.for_ms, lambda: log.end_hanging(late=True))
