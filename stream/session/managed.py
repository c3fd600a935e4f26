"""Placement `managed`: a leader assigns active tasks, standbys and warm-ups to the instances; each follows its part.

    each tick   placement topic ──> leads here, or no live member leads: claim ──> place (pure) ──> publish a generation
                                ──> my tasks of the valid generation: open, give up, stand by, close
                                ──> report: the tasks that run here, and the lags of standbys

    a task that goes elsewhere   task.leaving ──> the loop commits it and ends its run ──> closed here, reported
    a task that comes here       opened once its last owner is gone, or reports that it runs it no more
    an instance that starts      reports its rows on disk first; until it has reported, a leader gives it nothing new

Until it has given a task up, the owner serves it; the log fences an owner that stalled. The lead is a claim of the log
(`<app>-leader`) and ends with the leader's lease; an instance that joins never takes it.

`Part` brings the instance's tasks about: `LocalPart` opens and closes them in this process. A supervisor of worker
processes has one that gives orders to them (`standfast.stream.workers`), which each carries out by a `LocalPart`.

Rules of this file: driven by the instance under the session's lock; `standfast.replication.placement` decides. Work
that failed because the log was unavailable is tried again at the next tick.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from standfast.replication.log import GroupView
from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import Assignment, Away, Copy, CopyState, Member, Round, Settings, View
from standfast.replication.placement.place import is_changed, place
from standfast.replication.placement.records import Generation, PlacementState, Report, instances_of
from standfast.replication.placement.seen import PlacementSnapshot
from standfast.replication.placement.topic import PlacementTopic
from standfast.replication.takeover import Traits, plans
from standfast.restore.verify.on_disk import RowsOnDisk
from standfast.store.errors import Fenced, StandfastError
from standfast.store.log import as_event, logger
from standfast.stream.session.membership import Membership
from standfast.stream.session.take_over import Holder
from standfast.stream.session.task import GONE, Task, TaskState
from standfast.stream.session.writers import Writers

FIRST_LOOK_MS = 2_000  # of reading rows on disk, before an instance reports for the first time
Members = Mapping[str, Traits | None]  # None: an instance of a version without managed placement


class Placed(Protocol):
    """An instance, as its placement needs it. `shared`: all tasks of the application."""

    app: str
    shared: frozenset[TaskId] | None
    writers: Writers
    membership: Membership
    standbys_missing: int


class Facts(NamedTuple):
    """The tasks of an instance: `running` and `restoring` are active; `lags` are the records that each copy lacks.

    `workers` are the tasks of each worker process; empty if the instance is one process.
    """

    running: frozenset[TaskId]
    restoring: frozenset[TaskId]
    lags: Mapping[TaskId, int]
    workers: tuple[frozenset[TaskId], ...] = ()


class Part(Protocol):
    """The tasks of one instance, as placement gives and takes them."""

    def follow(self, active: frozenset[TaskId], standby: frozenset[TaskId], is_free: Callable[[TaskId], bool]) -> None:
        """Hold these tasks and no others. An active task is opened once it `is_free`: no other instance runs it."""
        ...

    def facts(self) -> Facts:
        """The tasks that are held now."""
        ...

    def held(self) -> Collection[TaskId]:
        """Tasks whose directories may be open."""
        ...

    def give_way(self, owners: Mapping[TaskId, str]) -> None:
        """Give up the active tasks that have a newer owner."""
        ...


class LocalPart:
    """The tasks of this process."""

    def __init__(self, instance: Holder) -> None:
        self._instance = instance

    def follow(self, active: frozenset[TaskId], standby: frozenset[TaskId], is_free: Callable[[TaskId], bool]) -> None:
        """As in `Part`."""
        instance = self._instance
        for task_id, task in list(instance.tasks.items()):
            if task.role == "active" and task_id in active:
                task.leaving = False  # the move was taken back before the loop had let it go
            elif task.role == "active":
                self._give_up(task_id, task)
            elif task.role == "standby" and task_id not in active | standby:
                instance.revoke(task_id)
        held = instance.tasks
        due = [one for one in sorted(active) if one not in held or held[one].role == "standby"]
        due = [one for one in due if is_free(one)]
        instance.writers.connect(due)
        for task_id in due:
            # Its former owner reported that it runs the task no more, so it may be taken from a live member.
            instance.take(task_id, if_free=False)
        for task_id in sorted(standby - instance.tasks.keys()):
            instance.try_standby(task_id)

    def facts(self) -> Facts:
        """As in `Part`."""
        tasks = dict(self._instance.tasks)
        active = frozenset(one for one, task in tasks.items() if task.role == "active" and task.state not in GONE)
        running = frozenset(one for one in active if tasks[one].state is TaskState.RUNNING)
        lags = {one: 0 for one, task in tasks.items() if task.state is TaskState.STANDBY}
        for tailed in self._instance.readiness.tailer.changelogs.values():
            if tailed.task in lags:
                lags[tailed.task] += tailed.lag
        return Facts(running, active - running, lags)

    def held(self) -> Collection[TaskId]:
        """As in `Part`."""
        return self._instance.tasks.keys()

    def give_way(self, owners: Mapping[TaskId, str]) -> None:
        """As in `Part`."""
        self._instance.writers.give_way(self._instance.tasks, owners)

    def _give_up(self, task_id: TaskId, task: Task) -> None:
        """Close an active task that is not this process's any more, after its loop has committed it."""
        if task.looped and task.state is TaskState.RUNNING:
            task.leaving = True
            return
        logger.info("task %s leaves this instance", task_id, extra=as_event("task_left", task=task_id))
        self._instance.revoke(task_id)


class ManagedPlacement:
    """One instance's part in managed placement. `tasks` holds its tasks; `stateless`: groups without stores."""

    def __init__(
        self,
        instance: Placed,
        tasks: Part,
        topic: PlacementTopic,
        settings: Settings,
        traits: Traits,
        stateless: frozenset[int],
        on_disk: RowsOnDisk,
    ) -> None:
        self.round: Round | None = None  # the last decision, of a leader
        self._instance = instance
        self._tasks = tasks
        self._topic = topic
        self._settings = settings
        self._program = traits.program
        self._stateless = stateless
        self._on_disk = on_disk
        self._group: GroupView | None = None  # as of the last tick
        self._members: Members = {}  # those of that view
        self._stored: Mapping[TaskId, int] = {}
        self._decided_for: object = None
        self._again_ms: int | None = None
        self._gone_since: dict[str, int] = {}
        self._waits_for: tuple[str, ...] = ()
        self._leader: str | None = None
        self._part: tuple[Assignment, frozenset[TaskId], frozenset[TaskId]] | None = None

    @property
    def leads(self) -> bool:
        """Whether this instance leads the application."""
        return self._topic.leads

    @property
    def valid(self) -> Generation | None:
        """The last valid generation that was read here."""
        return self._topic.state.valid

    def unplaced(self) -> str:
        """Why this instance follows no placement yet; empty once it does."""
        if self._waits_for:
            return f"this instance waits until {', '.join(self._waits_for)} have stopped"
        return "" if self._part is not None else "no placement of this instance is known yet"

    def tick(self, now_ms: int) -> None:
        """Read the topic; decide, if this instance leads; follow its part, and report."""
        instance, writers = self._instance, self._instance.writers
        view = instance.membership.look()
        if view != self._group:  # in a large group reading it takes longer than all the rest
            self._group, self._members = view, {name: plan.managed for name, plan in plans(view).items()}
        members = self._members
        if instance.membership.member not in members:
            return  # the lease ran out: the next heartbeat joins again
        self._topic.look()
        owners, leader = writers.owners_and_leader(instance.shared or frozenset(), self._topic.leader_id)
        self._leader = leader
        self._tasks.give_way(owners)
        if self._waits(members):
            return
        self._look_at_disk()
        self._lead(members, leader, now_ms)
        if self.valid is not None:
            self._follow(self.valid.assignment, members, owners)
        self._topic.report(self._own_report())

    def snapshot(self, wall_ms: int) -> PlacementSnapshot:
        """The placement as this instance has read it, at a time of its wall clock."""
        view = self._instance.membership.view
        members = {} if view is None else {name: plan.managed for name, plan in plans(view).items()}
        leader = self._instance.membership.member if self.leads else self._leader
        return PlacementSnapshot(self._topic.state.copy(), members, leader, wall_ms)

    def close(self) -> None:
        """Report that this instance has stopped; the lead ends as the member leaves the group."""
        try:
            self._topic.close()
        except StandfastError as error:  # as with leaving the group: all other steps of closing go on
            logger.warning(
                "%s could not report that it stops: %s",
                self._instance.membership.member,
                error,
                extra=as_event("stop_not_reported"),
            )

    # -- leader -------------------------------------------------------------------------------------------------------

    def _lead(self, members: Members, leader: str | None, now_ms: int) -> None:
        member, topic = self._instance.membership.member, self._topic
        if leader is not None and leader != member and leader in members:
            if topic.leads:
                self._told("lead_lost", "%s leads application %s now: this instance follows", leader)
                topic.resign()
            return
        try:
            led = topic.leads
            if not topic.claim():
                return
            if not led:
                self._told("lead_claimed", "this instance (%s) leads application %s", member)
                self._gone_since, self._decided_for, self.round = {}, None, None
            self._decide(members, now_ms)
            if self.round is not None:
                topic.explain(self.round)
        except Fenced as newer:
            logger.info(
                "this instance does not lead application %s any more: %s",
                self._instance.app,
                newer,
                extra=as_event("lead_lost", app=self._instance.app),
            )

    def _told(self, event: str, text: str, leader: str) -> None:
        app = self._instance.app
        logger.info(text, leader, app, extra=as_event(event, app=app, leader=leader))

    def _decide(self, members: Members, now_ms: int) -> None:
        """Decide again if anything was reported since, or copies were to catch up meanwhile."""
        mine, state = self._own_report(), self._topic.state
        basis = (state.changes, sorted(members), mine, self._instance.shared)
        due = self._again_ms is not None and now_ms >= self._again_ms
        if basis == self._decided_for and not due:
            return
        view = self._view(members, mine, now_ms)
        self.round = place(view)
        self._decided_for = basis
        self._again_ms = None if self.round.again_ms is None else now_ms + self.round.again_ms
        self._instance.standbys_missing = self.round.standbys_missing
        if view.previous is None or is_changed(view.previous, self.round.assignment):
            self._topic.publish(self.round.assignment, members, self._program, why=self.round)

    def _view(self, members: Members, mine: Report, now_ms: int) -> View:
        state, me = self._topic.state, self._instance.membership.member
        previous = None if state.valid is None else state.valid.assignment
        members = self._started(previous, state, members)
        warmups = {} if previous is None else previous.warmups
        # Also one that only has standby places, or had tasks that were taken over: it is expected back as well.
        known = set() if previous is None else instances_of(previous)
        if state.valid is not None and state.valid.program != self._program:
            known = set()  # instances of another program are not expected back
        gone = known - members.keys()
        self._gone_since = {name: self._gone_since.get(name, now_ms) for name in gone}
        away = {name: Away(now_ms - since, _stopped(state.report(name))) for name, since in self._gone_since.items()}
        return View(
            members=tuple(
                # This instance's own state is newer than its last report.
                _member(name, traits, mine if name == me else state.report(name), warmups)
                for name, traits in sorted(members.items())
                # One with another program waits by itself, and holds nothing that could be given to others.
                if traits is not None and traits.program == self._program
            ),
            tasks=tuple(sorted(self._instance.shared or ())),
            settings=self._settings,
            previous=previous,
            away=away,
            stateless=self._stateless,
        )

    def _started(self, previous: Assignment | None, state: PlacementState, members: Members) -> Members:
        """The members that may be given tasks: not those that start, and have not reported their rows on disk."""
        me, named = self._instance.membership.member, set() if previous is None else instances_of(previous)
        found = {}
        for name, traits in members.items():
            report = state.report(name)
            # One that restarts after it stopped is still expected back until then.
            starts = name not in named if report is None else report.stopped
            if name == me or not starts:
                found[name] = traits
        return found

    # -- instance -----------------------------------------------------------------------------------------------------

    def _follow(self, valid: Assignment, members: Members, owners: Mapping[TaskId, str]) -> None:
        instance = self._instance
        if self._part is None or self._part[0] is not valid:  # else ten ticks a second would look at every task
            self._part = (valid, *_part_of(valid, instance.membership.member))
        known = instance.shared or frozenset()  # the leader may have found new partitions of a source before
        active, standby = self._part[1] & known, self._part[2] & known
        self._tasks.follow(active, standby, lambda task_id: self._is_free(task_id, valid.generation, members, owners))

    def _is_free(self, task_id: TaskId, generation: int, members: Members, owners: Mapping[TaskId, str]) -> bool:
        """Whether no other live member runs a task, as far as it reported."""
        owner = owners.get(task_id)
        if owner is None or owner == self._instance.membership.member or owner not in members:
            return True
        report = self._topic.state.report(owner)
        if report is None or report.generation < generation:
            return False
        return task_id not in report.running | report.restoring

    def _look_at_disk(self) -> None:
        """Read rows on disk: for a while before the first report, and then one task after the other."""
        budget_ms = 0
        if not self._topic.has_reported:
            assignment = Assignment() if self.valid is None else self.valid.assignment
            # An instance that comes back to its own tasks opens them at once, whatever else it has on disk.
            owners = {*assignment.active.values(), *assignment.held.values()}
            budget_ms = 0 if self._instance.membership.member in owners else FIRST_LOOK_MS
        self._stored = self._on_disk.look(self._tasks.held(), budget_ms)

    def _own_report(self) -> Report:
        found = self._tasks.facts()
        generation = 0 if self.valid is None else self.valid.assignment.generation
        held = self._tasks.held()
        stored = {one: lag for one, lag in self._stored.items() if one not in held}
        return Report(found.running, found.restoring, stored, found.lags, generation, workers=found.workers)

    def _waits(self, members: Members) -> bool:
        """Whether members that cannot share tasks with this one run them: it takes none until they have stopped."""
        older = [name for name, traits in members.items() if traits is None]
        program = "" if self.valid is None else self.valid.program
        different = program and program != self._program
        others = [name for name, one in members.items() if different and one is not None and one.program == program]
        found = tuple(sorted(older or others))
        if found and found != self._waits_for:
            logger.warning(
                "application %s: %s run %s: this instance waits until they have stopped",
                self._instance.app,
                ", ".join(found),
                "a version without managed placement and share the tasks out by themselves"
                if older
                else "another program, with other groups, source topics or stores, under the same name",
                extra=as_event("instance_waits", app=self._instance.app, others=list(found)),
            )
        self._waits_for = found
        return bool(found)


def _part_of(valid: Assignment, me: str) -> tuple[frozenset[TaskId], frozenset[TaskId]]:
    """The active tasks of an instance, and those of which it keeps a copy."""
    active = {task_id for task_id, name in valid.active.items() if name == me}
    standby = {task_id for task_id, names in valid.standbys.items() if me in names}
    standby |= {task_id for task_id, name in valid.warmups.items() if name == me}
    standby |= {task_id for task_id, (_, old) in valid.replacing.items() if old == me}
    return frozenset(active), frozenset(standby)


def _stopped(report: Report | None) -> bool:
    return report is not None and report.stopped


def _member(name: str, traits: Traits, report: Report | None, warmups: Mapping[TaskId, str]) -> Member:
    """A live instance, as placement sees it."""
    copies: dict[TaskId, Copy] = {}
    if report is not None:
        copies.update({task_id: Copy(CopyState.STORED, lag) for task_id, lag in report.stored.items()})
        for task_id, lag in report.lags.items():
            state = CopyState.WARMUP if warmups.get(task_id) == name else CopyState.STANDBY
            copies[task_id] = Copy(state, lag)
        copies.update(dict.fromkeys(report.restoring, Copy(CopyState.RESTORING)))
        copies.update(dict.fromkeys(report.running, Copy(CopyState.RUNNING, 0)))
    return Member(name, traits.slots, traits.tags.get("rack"), traits.tags, copies)
