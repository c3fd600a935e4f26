"""Placement `managed`: a leader assigns active tasks, standbys and warm-ups to the instances; each follows its part.

    each tick   placement topic ──> leads here, or no live member leads: claim ──> place (pure) ──> publish a generation
                                ──> my tasks of the valid generation: open, give up, stand by, close
                                ──> report: the tasks that run here, and the lags of standbys

    a task that goes elsewhere   task.leaving ──> the loop commits it and ends its run ──> closed here, reported
    a task that comes here       opened once its last owner is gone, or reports that it runs it no more
    an instance that starts      reports its rows on disk first; until it has reported, a leader gives it nothing new

Until it has given a task up, the owner serves it; the log fences an owner that stalled. The lead is a claim of the log
(`<app>-leader`) and ends with the leader's lease; an instance that joins never takes it. A leader that does not look,
while a decision waits, loses the lead to an instance that does (`replication/placement/busy_lead.py`).

`InstancePart` (`local_part.py`) brings the instance's tasks about: `LocalPart` opens and closes them in this process. A
supervisor of worker processes has one that gives orders to them (`standfast.stream.workers`), which each carries out
by a `LocalPart`.

Rules of this file: driven by the instance under the session's lock; `standfast.replication.placement` decides. Work
that failed because the log was unavailable is tried again at the next tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from standfast.replication.leases import IDLE, Busy
from standfast.replication.log import GroupView
from standfast.replication.offsets import TaskId
from standfast.replication.pauses import FAILOVER, PLANNED, Deaths, Pause, PauseWatch, newest
from standfast.replication.placement.busy_lead import BusyLead, is_busy
from standfast.replication.placement.checkpoint import Order, PartReport
from standfast.replication.placement.model import (
    Assignment,
    Away,
    PlacementSettings,
    Round,
    View,
)
from standfast.replication.placement.no_room import Shortages
from standfast.replication.placement.place import is_changed, place
from standfast.replication.placement.program_choice import Members, Programs
from standfast.replication.placement.records import (
    Generation,
    PlacementState,
    Report,
    instances_of,
    placed_member,
)
from standfast.replication.placement.seen import PlacementSnapshot
from standfast.replication.placement.start_wait import StartWait
from standfast.replication.placement.topic import PlacementTopic
from standfast.replication.programs import Shapes
from standfast.replication.takeover import Free, MemberTraits, claimed, orphans, plans, to_claim
from standfast.store.clock import boot_id
from standfast.store.errors import Fenced, StandfastError
from standfast.store.log import as_event, logger
from standfast.store.timestamps import duration_text
from standfast.stream.session.local_part import InstancePart
from standfast.stream.session.membership import Membership
from standfast.stream.session.writers import Writers
from standfast.stream.snapshots.coordinator import Coordinator, Lead
from standfast.stream.task.rows_on_disk import RowsOnDisk
from standfast.stream.task.statistics import SessionCounters

FIRST_LOOK_MS = 2_000  # of reading rows on disk, before an instance reports for the first time
FENCED_MOST = 50  # writers in one round: each is a round trip to a broker, and the lease must be renewed meanwhile
WAITS_CHARS = 2_000


PartOf: TypeAlias = tuple[Assignment, frozenset[TaskId], frozenset[TaskId]]  # active tasks and copies of an instance


class PlacementHost(Protocol):
    """An instance, as its placement needs it. `shared`: all tasks of the application."""

    app: str
    shared: frozenset[TaskId] | None
    writers: Writers
    membership: Membership
    standbys_missing: int
    counters: SessionCounters


class Parts(Protocol):
    """The instance's parts of coordinated checkpoints: made in this process, or in its worker processes."""

    @property
    def under_way(self) -> bool:
        """Whether tasks are to stand still, so that the tick looks often."""
        ...

    def follow(self, order: Order | None) -> None:
        """Take the newest order of the placement topic."""
        ...

    def report(self) -> PartReport | None:
        """The parts of the last checkpoint that had any here."""
        ...


class ManagedPlacement:
    """One instance's part in managed placement. `tasks` holds its tasks; `stateless`: groups without stores.

    `shapes`: what its program declares; `replace`: it takes the application over from live instances of another one.
    """

    def __init__(
        self,
        instance: PlacementHost,
        tasks: InstancePart,
        topic: PlacementTopic,
        settings: PlacementSettings,
        traits: MemberTraits,
        stateless: frozenset[int],
        on_disk: RowsOnDisk,
        *,
        shapes: Shapes | None = None,
        replace: bool = False,
    ) -> None:
        self.round: Round | None = None  # the last decision, of a leader
        self.misses_partitions = False  # tasks were placed here of partitions that this instance has not found yet
        self.parts: Parts | None = None  # of coordinated checkpoints
        self.coordinator = Coordinator(instance.app, instance.membership.member, instance.counters.snapshots)
        self._looked: object = None  # the records and parts as of the last tick
        self._instance = instance
        self._tasks = tasks
        self._topic = topic
        self._settings = settings
        self._traits = traits
        self._programs = Programs(
            instance.app,
            instance.membership.member,
            traits.program,
            shapes or {},
            replace=replace,
            grace_ms=settings.restart_grace_ms,
        )
        self._busy_lead = BusyLead(instance.membership.member)
        self._deaths = Deaths()
        self._start_wait = StartWait(instance.app, settings.restart_grace_ms)
        self._has_looked = self._closed = False
        self._stateless = stateless
        self._on_disk = on_disk
        self._group: GroupView | None = None  # as of the last tick
        self._owners: Mapping[TaskId, str] = {}  # likewise
        self._members: Members = {}  # those of that view
        self._boot = boot_id()
        self._stored: Mapping[TaskId, int] = {}
        self._decided_for: object = None
        self._again_ms: int | None = None
        # A new leader goes on with its own: a grace that began again with each change of the lead would have no end.
        self._gone_since: dict[str, int] = {}
        self._gone_of: tuple[Generation | None, Members | None] = None, None  # as of which a follower noted them
        self._shortages = Shortages()  # of a leader, or of a member beside a busy one
        self._leader: str | None = None
        self._part: PartOf | None = None
        self._mine: dict[TaskId, int] = {}  # since which generation each active task has been this instance's
        self._running: frozenset[TaskId] = frozenset()  # as of the last report
        self._coming = PauseWatch()
        self._pauses: dict[TaskId, Pause] = {}  # of the tasks that are active here
        self._waits_for_owner: dict[str, object] = {}  # with the report that said no

    @property
    def leads(self) -> bool:
        """Whether this instance leads the application."""
        return self._topic.leads

    @property
    def max_tasks(self) -> int | None:
        """The bound of this instance's active tasks; None: no bound."""
        return self._traits.max_tasks

    @property
    def slots_missing(self) -> int:
        """Places that tasks of the application wait for."""
        return self._topic.state.slots_missing

    @property
    def valid(self) -> Generation | None:
        """The last valid generation that was read here."""
        return self._topic.state.valid

    def unplaced(self) -> str:
        """Why this instance has no tasks yet; empty once it takes its part."""
        if self._programs.waits or self._part is None:
            return self._programs.waits or "no placement of this instance is known yet"
        if not self._part[0].active and (missing := self.slots_missing):
            return f"{_slots(missing)}; until then no task starts"
        return self._start_wait.text

    def tick(self, now_ms: int) -> None:
        """Read the topic; decide, if this instance leads; follow its part, and report."""
        self._tick(now_ms)
        self._instance.membership.looked()

    def _tick(self, now_ms: int) -> None:
        instance, writers = self._instance, self._instance.writers
        view = instance.membership.look()
        # In a large group reading it takes longer than all the rest.
        if self._group is None or view.members != self._group.members:
            self._members = {name: plan.managed for name, plan in plans(view).items()}
        self._group, members = view, self._members
        self._deaths.look(members, instance.membership.lease_ms, now_ms, view.ended)
        if instance.membership.member not in members:
            self._forget()
            return  # the lease ran out: the next heartbeat joins again
        if not self._has_looked:
            # Half of the topic may end with a generation that was replaced since, of another program even.
            self._topic.look_whole()
            self._has_looked = True
        self._topic.look()
        owners, leader = writers.owners_and_leader(instance.shared or frozenset(), self._topic.leader_id)
        self._leader, self._owners = leader, owners
        self._tasks.give_way(owners)
        if self._programs.look(self.valid, members, now_ms, claimed=self._topic.claimed):
            self._wait()
            return
        self._look_at_disk()
        if not self.leads and (self._gone_of[0] is not self.valid or self._gone_of[1] is not members):
            self._gone_of = self.valid, members
            self._note_gone(members, now_ms)
        self._lead(members, leader, now_ms)
        if not self.leads:
            self.coordinator.resign()
        if self.parts is not None:
            self.parts.follow(self._topic.state.order)  # before a task is opened that the order holds back
        if self.valid is not None and self._programs.runs(self.valid):
            self._follow(self.valid.assignment, members, owners, now_ms)
            self._note_held(self.valid.assignment, now_ms)
        self._end_pauses(now_ms)
        self._topic.report(self._own_report())
        self._looked = self._looks()

    @property
    def waits_for_owner(self) -> bool:
        """Whether a task was given to this instance that its former owner still has."""
        return bool(self._waits_for_owner)

    def has_news(self) -> bool:
        """Whether a task waits here for its former owner, and that one has reported since the last tick.

        Such a task is opened as soon as that owner reports that it has closed it, and not after an interval. Likewise
        whether a checkpoint goes on, for which tasks stand still.
        """
        if self.coordinator.has_news:
            return True
        if self.parts is not None and self.parts.under_way:
            self._topic.look()
            return self._looks() != self._looked
        if not self._waits_for_owner:
            return False
        state = self._topic.look()
        return any(state.unread(owner) is not report for owner, report in self._waits_for_owner.items())

    def _looks(self) -> object:
        return self._topic.state.records, None if self.parts is None else self.parts.report()

    def snapshot(self, wall_ms: int) -> PlacementSnapshot:
        """The placement as this instance has read it, at a time of its wall clock."""
        view = self._instance.membership.view
        members = {} if view is None else {name: plan.managed for name, plan in plans(view).items()}
        leader = self._instance.membership.member if self.leads else self._leader
        return PlacementSnapshot(self._topic.state.copy(), members, leader, wall_ms)

    def leave_first(self) -> None:
        """As the instance stops: report its tasks and leave the group before they are closed, if all are committed."""
        if self._topic.has_reported and self._tasks.give_up():
            self.close()
            self._instance.membership.leave()

    def close(self) -> None:
        """Report that this instance has stopped; the lead ends as the member leaves the group. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        try:
            self._topic.close(Report(boot=self._boot, left=newest(self._tasks.facts().left)))
        except StandfastError as error:  # as with leaving the group: all other steps of closing go on
            logger.warning(
                "%s could not report that it stops: %s",
                self._instance.membership.member,
                error,
                extra=as_event("stop_not_reported"),
            )

    # -- leader -------------------------------------------------------------------------------------------------------

    def _lead(self, members: Members, leader: str | None, now_ms: int) -> None:
        instance, topic = self._instance, self._topic
        member = instance.membership.member
        replaces = self._programs.replaces(self.valid)
        waits = leader is not None and self._waits(members.get(leader), leader)
        follows = leader is not None and leader != member and leader in members and not waits
        if leader is not None and follows and not replaces:
            if topic.leads:
                self._told("lead_lost", "%s leads application %s now: this instance follows", leader)
                topic.resign()
            if not self._takes_lead(leader, members, now_ms):
                return
        try:
            led = topic.leads
            if not topic.claim(if_free=not (replaces or follows or waits)):
                return
            if not led:
                self._note_program(replaces=replaces)
                self._told("lead_claimed", "this instance (%s) leads application %s", member)
                if not self._busy_lead.watches:
                    self._begin_memory(now_ms)
                self._busy_lead.ends()
                self._decided_for, self.round = None, None
            self._decide(members, now_ms)
            if self.round is not None:
                topic.explain(self.round)
            # After the decision: a checkpoint ends with an assignment that was published just now.
            if topic.leads:
                lead = Lead(self.valid, instance.shared or frozenset(), self._report_of, frozenset(members))
                self.coordinator.lead(topic, lead, now_ms)
        except Fenced as newer:
            logger.info(
                "this instance does not lead application %s any more: %s",
                self._instance.app,
                newer,
                extra=as_event("lead_lost", app=self._instance.app),
            )

    def _waits(self, traits: MemberTraits | None, leader: str) -> bool:
        """Whether a former leader started again with another program: it waits for this one, under the id that led."""
        if traits is None or traits.program == self._programs.program:
            return False
        report = self._topic.state.report(leader)
        return report is not None and bool(report.waits)

    def _takes_lead(self, leader: str, members: Members, now_ms: int) -> bool:
        """Whether a decision waits for a leader that does not look, and this instance is the one to take the lead."""
        valid, membership = self.valid, self._instance.membership
        busy: Mapping[str, Busy] = {} if self._group is None else self._group.busy
        lease_ms = membership.lease_ms
        if not is_busy(busy, leader, lease_ms) or valid is None or valid.drains or not self._programs.runs(valid):
            self._busy_lead.ends()
            return False
        if not self._busy_lead.watches:
            self._busy_lead.begins()
            self._begin_memory(now_ms)
        found = self._next(members, self._own_report(), now_ms) or self.round
        if found is None or not is_changed(valid.assignment, found.assignment):
            self._busy_lead.rests()
            return False
        able = [one for one, traits in members.items() if traits is not None and traits.program == valid.program]
        if not self._busy_lead.takes(busy, able, lease_ms, now_ms):
            return False
        logger.warning(
            "%s leads application %s and has not looked at the placement for %s, while a decision waits: this "
            "instance takes the lead",
            *(leader, self._instance.app, duration_text(busy[leader].look_ms)),
            extra=as_event("lead_taken", app=self._instance.app, leader=leader, busy_ms=busy[leader].look_ms),
        )
        return True

    def _begin_memory(self, now_ms: int) -> None:
        """Begin to decide: the memory of an earlier time as leader, or beside a busy one, is of no use any more."""
        self._decided_for = None
        self._shortages.begin(self._topic.state.moves.values(), self._topic.wall_ms(), now_ms)

    def _forget(self) -> None:
        """This instance has no part in the application for a while, in which others may come and go."""
        self._busy_lead.ends()
        self._gone_since, self._gone_of = {}, (None, None)

    def _note_gone(self, members: Members, now_ms: int) -> None:
        """Note since when instances that the assignment names have been gone; none of another program comes back."""
        # Also one that only has standby places, or had tasks that were taken over: it is expected back as well.
        runs = self.valid is not None and self._programs.runs(self.valid)
        known = instances_of(self.valid.assignment) if self.valid is not None and runs else set()
        self._gone_since = {name: self._gone_since.get(name, now_ms) for name in known - members.keys()}

    def _told(self, event: str, text: str, leader: str) -> None:
        app = self._instance.app
        logger.info(text, leader, app, extra=as_event(event, app=app, leader=leader))

    def _note_program(self, *, replaces: bool) -> None:
        if not replaces:
            return
        self._programs.replaced()
        if self.valid is None or self._programs.runs(self.valid):
            return  # another instance of this program was faster
        logger.warning(
            "application %s: this instance (%s) replaces another program: %s",
            self._instance.app,
            self._instance.membership.member,
            self._programs.difference(self.valid),
            extra=as_event("program_replaced", app=self._instance.app),
        )

    def _may_place(self, members: Members) -> bool:
        """Whether tasks may be placed: none of another program may be open beside them."""
        valid, programs = self.valid, self._programs
        if valid is None or (programs.runs(valid) and not valid.drains):
            return True
        if not programs.runs(valid) and programs.others(members):
            self._publish(Assignment(), members, replaced=valid.program, drains=True)
            return False
        if valid.drains and not programs.is_drained(valid, self._topic.state, members):
            return False
        mine = {name for name, one in members.items() if one is not None and one.program == programs.program}
        return self._instance.writers.fence_others(mine, FENCED_MOST)

    def _publish(
        self, assignment: Assignment, members: Members, why: Round | None = None, *, replaced: str, drains: bool = False
    ) -> None:
        mine = self._programs
        self._topic.publish(
            assignment, members, mine.program, why=why, shapes=mine.shapes, replaced=replaced, drains=drains
        )

    def _decide(self, members: Members, now_ms: int) -> None:
        """Decide again if anything was reported since, or copies were to catch up meanwhile."""
        if not self._may_place(members):
            return
        valid, before = self.valid, 0 if self.round is None else self.round.slots_missing
        found = self._next(members, self._own_report(), now_ms)
        if found is None:
            return
        if found.slots_missing not in (0, before):
            missing = _slots(found.slots_missing)
            about = as_event("slots_missing", app=self._instance.app, missing=found.slots_missing)
            logger.warning("application %s: %s", self._instance.app, missing, extra=about)
        self._instance.standbys_missing = found.standbys_missing
        # Also for the program alone: an unchanged assignment of the program before is none of this one.
        begins = valid is None or valid.drains or valid.program != self._programs.program
        if begins or valid is None or is_changed(valid.assignment, found.assignment):
            replaced = valid.replaced if valid is not None and self._programs.runs(valid) else ""
            self._publish(found.assignment, members, found, replaced=replaced)
            self._shortages.published(found, now_ms)

    def _next(self, members: Members, mine: Report, now_ms: int) -> Round | None:
        """The next round; None if the last one still holds, since nothing was reported after it."""
        # A member that takes up a record leaves a task unopened that was just given to it.
        busy = frozenset() if self._group is None or self._again_ms is None else frozenset(self._group.busy)
        basis = (self._topic.state.changes, members, mine, self._instance.shared, busy)
        due = self._again_ms is not None and now_ms >= self._again_ms
        if basis == self._decided_for and not due:
            return None
        self.round = place(self._view(members, mine, now_ms))
        self._decided_for = basis
        self._again_ms = None if self.round.again_ms is None else now_ms + self.round.again_ms
        return self.round

    def _view(self, members: Members, mine: Report, now_ms: int) -> View:
        state, me = self._topic.state, self._instance.membership.member
        previous = None if state.valid is None else state.valid.assignment
        members = self._started(previous, state, members)
        warmups = {} if previous is None else previous.warmups
        busy: Mapping[str, Busy] = {} if self._group is None else self._group.busy
        self._note_gone(members, now_ms)
        away = {name: Away(now_ms - since, _stopped(state.report(name))) for name, since in self._gone_since.items()}
        # This instance's own state is newer than its last report.
        able = [
            (name, traits, mine if name == me else state.report(name))
            for name, traits in sorted(members.items())
            # One with another program waits by itself, and holds nothing that could be given to others.
            if traits is not None and traits.program == self._programs.program
        ]
        short = [name for name, _, report in able if report is not None and report.no_room]
        no_room_ms = self._shortages.look(short, now_ms)
        return View(
            members=tuple(placed_member(*one, warmups, no_room_ms.get(one[0]), busy.get(one[0], IDLE)) for one in able),
            tasks=tuple(sorted(self._instance.shared or ())),
            settings=self._settings,
            previous=previous,
            away=away,
            stateless=self._stateless,
            moved_for_room=self._shortages.recent(now_ms),
            # Between two programs the assignment is empty, and an application without stores has no copies.
            ran=state.valid is not None and bool(state.valid.drains or state.valid.replaced),
            claimed={} if previous is None else claimed(self._orphans(members), previous.standbys, self._owners),
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

    def _follow(self, valid: Assignment, members: Members, owners: Mapping[TaskId, str], now_ms: int) -> None:
        instance = self._instance
        if self._part is None or self._part[0] is not valid:  # else ten ticks a second would look at every task
            part = (valid, *_part_of(valid, instance.membership.member))
            self._mine = mine_since(self._part, part, self._mine)
            self._part = part
        known = instance.shared or frozenset()  # the leader may have found new partitions of a source before
        self.misses_partitions = not known >= self._part[1] | self._part[2]
        active, standby = self._within_bound(self._part[1] & known), self._part[2] & known
        claims = self._claims(valid, members, owners, now_ms) & standby
        active, standby = active | claims, standby - claims
        self._begin_pauses(active, valid.generation, members, owners, now_ms)
        self._tasks.follow(active, standby, lambda task_id: self._is_free(task_id, valid.generation, members, owners))

    def _claims(
        self, valid: Assignment, members: Members, owners: Mapping[TaskId, str], now_ms: int
    ) -> frozenset[TaskId]:
        """The tasks of instances that are gone, which copies here take over before the leader has decided."""
        lost = {} if self.leads else self._orphans(members)
        if not lost:
            return frozenset()
        me, mine, most = self._instance.membership.member, self._own_report(), self.max_tasks
        busy = IDLE if self._group is None else self._group.busy.get(me, IDLE)
        near = [task for task, lag in mine.lags.items() if lag <= self._settings.acceptable_lag]
        # A copy beside a record in hand would begin after that record.
        ready = {task for task in near if not busy.of_worker(mine.worker_of(task))} - mine.restoring
        return to_claim(
            lost,
            valid.standbys,
            me,
            members,
            owners,
            ready=() if mine.no_room else ready,
            places=None if most is None else most - len(mine.running | mine.restoring),
            gone_ms={name: now_ms - since for name, since in self._gone_since.items()},
        )

    def _orphans(self, members: Members) -> dict[TaskId, str]:
        """The tasks of instances that are gone since the valid generation, and these."""
        valid = self.valid if self._gone_since else None
        return {} if valid is None or valid.drains else orphans(valid.assignment.active, members)

    def _within_bound(self, active: frozenset[TaskId]) -> frozenset[TaskId]:
        """The tasks to run: after a start with a lower bound more may be placed here, until a leader has seen it."""
        most = self.max_tasks
        if most is None or len(active) <= most:
            return active
        found = self._tasks.facts()
        open_ = found.running | found.restoring
        return frozenset(sorted(active, key=lambda task_id: (task_id not in open_, task_id))[:most])

    def _note_held(self, valid: Assignment, now_ms: int) -> None:
        assert self._part is not None, "it follows the assignment"
        gone_since = self._gone_since if self.leads else {}
        wall_ms = self._topic.wall_ms()
        self._start_wait.look(valid.held, self._part[1], gone_since, now_ms=now_ms, wall_ms=wall_ms)

    def _is_free(self, task_id: TaskId, generation: int, members: Members, owners: Mapping[TaskId, str]) -> Free:
        """Whether no other live member runs a task, as far as it reported."""
        owner = owners.get(task_id)
        if owner is None or owner not in members:
            return Free.UNOWNED
        if owner == self._instance.membership.member:
            return Free.GIVEN
        report = self._topic.state.report(owner)
        # Not the newest one: where instances come and go there are several in a second, and each would be waited for.
        if report is None or report.generation < self._mine.get(task_id, generation):
            return Free.NO
        return Free.NO if task_id in report.running | report.restoring else Free.GIVEN

    def _begin_pauses(
        self,
        active: frozenset[TaskId],
        generation: int,
        members: Members,
        owners: Mapping[TaskId, str],
        now_ms: int,
    ) -> None:
        """Note since when the tasks are free that come here from another instance."""
        self._coming.keep(active)
        me, state = self._instance.membership.member, self._topic.state
        placed_ms = 0 if state.valid_ms is None else max(self._topic.wall_ms() - state.valid_ms, 0)  # ago
        self._waits_for_owner = {}
        for task_id in active - self._running:
            owner = owners.get(task_id)
            if owner is None or owner == me or task_id in self._coming:
                continue
            if not self._is_free(task_id, generation, members, owners):
                self._waits_for_owner[owner] = state.unread(owner)
                continue
            report = state.report(owner)
            # The last report of a killed owner may be older than its last opening of the task.
            if owner not in members and not _stopped(report):
                died_ms = self._deaths.since(owner, now_ms - placed_ms)
                since_ms = now_ms if died_ms is None else died_ms
                self._coming.frees(task_id, FAILOVER, since_ms, generation=generation)
            elif report is not None and task_id in report.left:
                same = report.boot == self._boot
                self._coming.left(task_id, report.left[task_id], now_ms, same_clock=same, generation=generation)
            else:
                self._coming.frees(task_id, PLANNED, now_ms, generation=generation)

    def _end_pauses(self, now_ms: int) -> None:
        """Count the pauses of tasks that run by now."""
        if not self._coming:
            return
        found = self._tasks.facts()
        for task_id in found.running:
            pause = self._coming.runs(task_id, found.since.get(task_id, now_ms))
            if pause is not None:
                self._pauses.pop(task_id, None)  # so that the last one is at the end
                self._pauses[task_id] = pause
                note_pause(self._instance.counters, task_id, pause)

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
        self._running = found.running
        return Report(
            found.running,
            found.restoring,
            stored,
            found.lags,
            generation,
            boot=self._boot,
            left=newest(found.left),
            pauses=newest(self._pauses, found.running),
            workers=found.workers,
            waits=self._programs.waits[:WAITS_CHARS],
            checkpoint=None if self.parts is None else self.parts.report(),
            no_room=found.no_room[:WAITS_CHARS],
        )

    def _report_of(self, instance: str) -> Report | None:
        """The last report of an instance; this one's own is newer than that."""
        mine = instance == self._instance.membership.member
        return self._own_report() if mine else self._topic.state.report(instance)

    def _wait(self) -> None:
        """Give up all tasks, each once its loop has committed it, and report that; another program runs."""
        if self._topic.leads:
            self._topic.resign()
        self._forget()
        if self.valid is None:
            return  # instances of a version without managed placement, which read no reports
        self._part, self.round = None, None
        self._tasks.follow(frozenset(), frozenset(), lambda _: Free.NO)
        self._look_at_disk()
        self._topic.report(self._own_report())


def note_pause(counters: SessionCounters, task: TaskId, pause: Pause, *, worker: int | None = None) -> None:
    """Count a pause that has ended; `worker`: the number of the worker process that runs the task now, from 1."""
    counters.pause_seconds[(pause.kind,)].observe(pause.ms / 1_000)
    where = "this instance" if worker is None else f"worker {worker}"
    about = as_event("task_arrived", task=task, pause_ms=pause.ms, kind=pause.kind, generation=pause.generation)
    logger.info(
        "task %s runs on %s, after a %s pause of %s", task, where, pause.kind, duration_text(pause.ms), extra=about
    )


def _slots(missing: int) -> str:
    return f"WAITING_FOR_SLOTS: {missing} more needed: start an instance, or raise the max_tasks of one"


def mine_since(before: PartOf | None, now: PartOf, known: Mapping[TaskId, int]) -> dict[TaskId, int]:
    """Since which generation each active task of the part has been the instance's without a break.

    Of generations that were not read one after the other, the newest: a task may have been another one's in between.
    """
    valid, active, _ = now
    follows = before is not None and before[0].generation == valid.generation - 1
    kept = before[1] if before is not None and follows else frozenset()
    return {
        task_id: known.get(task_id, valid.generation) if task_id in kept else valid.generation for task_id in active
    }


def _part_of(valid: Assignment, me: str) -> tuple[frozenset[TaskId], frozenset[TaskId]]:
    """The active tasks of an instance, and those of which it keeps a copy."""
    active = {task_id for task_id, name in valid.active.items() if name == me}
    standby = {task_id for task_id, names in valid.standbys.items() if me in names}
    standby |= {task_id for task_id, name in valid.warmups.items() if name == me}
    standby |= {task_id for task_id, (_, old) in valid.replacing.items() if old == me}
    return frozenset(active), frozenset(standby)


def _stopped(report: Report | None) -> bool:
    return report is not None and report.stopped
