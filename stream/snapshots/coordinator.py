"""The leader's side of coordinated checkpoints: when one begins, its orders, its end.

    tick, leading   due by the schedule, or asked for ──> every task runs? ──> begun in the storage (a thread) ──> round
                    reports ──> CheckpointRound (pure) ──> orders to the placement topic, ends of internal topics
                    every part stored ──> sealed in the storage (a thread) ──> order and pointer, one transaction
    a new leader    finds a checkpoint under way ──> abandons it, in the storage too (or finds that it was complete)

Rules of this file: driven by the placement's tick. It never waits for the storage, and a storage that is away costs the
checkpoint alone. An order of a leader that was replaced does not reach the topic, since its writer is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from standfast.replication.checkpoint_flow import Flow
from standfast.replication.offsets import TaskId
from standfast.replication.placement.checkpoint import Order, OrderState, Pointer, Request
from standfast.replication.placement.checkpoint_round import CheckpointRound, Do, PartHolders
from standfast.replication.placement.records import Generation, Report
from standfast.replication.placement.topic import PlacementTopic
from standfast.store.errors import InvalidRequest, StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.stream.snapshot_counts import ABANDONED, COMPLETE, SnapshotCounts
from standfast.stream.snapshots.care import StorageCare

if TYPE_CHECKING:
    from standfast.restore.snapshot.checkpoints import CheckpointOutcome

AGAIN_MS = 60_000  # after a checkpoint that was abandoned, unless the schedule comes first
SOON_MS = 2_000  # after one that instances have ended which came or went
RETRY_MS = 1_000  # between two attempts at the storage
SETTLE_MS = 30_000  # that a request waits until every task runs
NO_STORAGE = "the leader has no storage for snapshots: give every instance snapshots=SnapshotPolicy(...)"
NO_LOOP = "the leader does not run the application yet"


class Lead(NamedTuple):
    """The application as its leader sees it. `report`: the last report of an instance; `members` live."""

    generation: Generation | None
    tasks: frozenset[TaskId]
    report: Callable[[str], Report | None]
    members: frozenset[str]

    @property
    def owners(self) -> Mapping[TaskId, str]:
        """The instance of each task."""
        return {} if self.generation is None else self.generation.assignment.active

    def reports(self, where: Mapping[TaskId, str]) -> dict[TaskId, Report | None]:
        """The report of an instance for each task."""
        known = {name: self.report(name) for name in set(where.values())}
        return {task: known.get(where.get(task, "")) for task in self.tasks}

    def unready(self) -> str:
        """Why no checkpoint can begin now; empty if every task runs where it is assigned."""
        if self.generation is None or not self.tasks:
            return "no task is assigned yet"
        for task, report in sorted(self.reports(self.owners).items()):
            # Not by its generation: where instances come and go some report is always of the one before.
            if report is None or report.stopped or task not in report.running:
                return f"task {task} does not run: a checkpoint needs all of them"
        return ""


class Coordinator:
    """The checkpoints of one application, on the instance that leads it."""

    def __init__(self, app: str, instance: str, counts: SnapshotCounts) -> None:
        self.app = app
        self.flow: Flow | None = None  # of the application's groups; None: its loop begins later
        self.keeper: StorageCare | None = None  # the storage
        self.opening = False  # the session of this process opens, and its storage is not known yet
        self._instance = instance
        self._counts = counts
        self._round: CheckpointRound | None = None
        self._job: Future[CheckpointOutcome | int] | None = None
        self._then: Callable[[PlacementTopic, Future[CheckpointOutcome | int], int], None] | None = None
        self._leads = False
        self._due_ms: int | None = None
        self._handled = ""  # the last request that was answered, or passed over
        self._asked: tuple[Request, int] | None = None  # one that waits until every task runs, and since when
        self._begun_ms = self._again_ms = 0
        self._request: tuple[Request, int] | None = None  # the one that the round answers
        self._holders = PartHolders(())
        self._lead: Lead | None = None  # as of the last tick
        self._pending: list[tuple[Order, Pointer | None]] = []  # for the topic

    def lead(self, topic: PlacementTopic, lead: Lead, now_ms: int) -> None:
        """One tick of the leader. Raises Fenced once another instance leads, Unavailable."""
        if self.opening:
            return  # a checkpoint of the former leader cannot be concluded without the storage
        self._flush(topic, now_ms)  # the orders that the log did not take in the last tick
        self._lead = lead
        if not self._leads:
            self._begin_to_lead(topic, now_ms)
        elif self._job is not None:
            if self._job.done():
                job, then, self._job, self._then = self._job, self._then, None, None
                assert then is not None
                then(topic, job, now_ms)
        elif self._round is not None:
            self._drive(topic, lead, now_ms)
        else:
            self._look_for_work(topic, lead, now_ms)
        self._flush(topic, now_ms)

    @property
    def has_news(self) -> bool:
        """Whether the storage has answered since the last tick."""
        return self._job is not None and self._job.done()

    def resign(self) -> None:
        """Another instance leads: it abandons a checkpoint that is under way."""
        if self._leads:
            self._leads, self._round, self._job, self._then, self._asked = False, None, None, None, None
            self._pending.clear()

    # --- begin ---

    def _begin_to_lead(self, topic: PlacementTopic, now_ms: int) -> None:
        self._leads = True
        found, pointer = topic.state.order, topic.state.complete
        self._handled = "" if found is None else found.request
        every_ms = self._every_ms
        if every_ms is not None:
            # The schedule of the former leader goes on, by the wall clock that wrote the pointer.
            since_ms = every_ms if pointer is None else max(topic.wall_ms() - pointer.at_ms, 0)
            self._due_ms = now_ms + max(every_ms - since_ms, 0)
        if found is None or found.state is not OrderState.RUNNING:
            return
        why = "its leader ended in the middle of it"
        over = replace(found, step=found.step + 1, state=OrderState.ABANDONED, stop=frozenset(), limits={}, why=why)
        if found.stop or self.keeper is None:
            self._publish(over)  # the tasks go on first, whatever the storage does
        if self.keeper is not None:
            self._start(partial(self._abandon_stored, found.number, why), partial(self._former_ended, over))

    @property
    def _every_ms(self) -> int | None:
        return None if self.keeper is None else self.keeper.policy.checkpoint_every_ms

    def _former_ended(
        self, over: Order, topic: PlacementTopic, job: Future[CheckpointOutcome | int], now_ms: int
    ) -> None:
        """The outcome of the former leader's checkpoint: it may have been complete."""
        _ignore(topic, job, now_ms)
        outcome = _outcome_of(job)
        if outcome is not None and outcome.state == COMPLETE:
            done = replace(over, step=over.step + 1, state=OrderState.COMPLETE, why="", pause_ms=outcome.pause_ms)
            self._publish(done, Pointer(outcome.number, outcome.at_ms, len(outcome.parts)))
        elif topic.state.order is not None and topic.state.order.state is OrderState.RUNNING:
            self._publish(over)

    def _look_for_work(self, topic: PlacementTopic, lead: Lead, now_ms: int) -> None:
        self._look_at_request(topic, now_ms)
        due = self._due_ms is not None and now_ms >= self._due_ms
        if self._asked is None and not due:
            return
        # The reasons that no wait can mend come first.
        why_not = NO_LOOP if self.flow is None else NO_STORAGE if self.keeper is None else lead.unready()
        if why_not:
            self._counts.checkpoint = f"the next checkpoint waits: {why_not}"
            if self._asked is not None and (why_not == NO_STORAGE or now_ms - self._asked[1] >= SETTLE_MS):
                self._refuse(topic, why_not)
            return
        assert self.flow is not None
        try:
            self.flow.stages()
        except InvalidRequest as error:
            self._due_ms = None  # no later attempt can succeed
            self._refuse(topic, str(error))
            return
        if now_ms < self._again_ms and self._asked is None:
            return
        # Above the log's number as well as the storage's: either may have been lost.
        order = topic.state.order
        least = 1 if order is None else order.number + 1
        self._begun_ms = now_ms
        self._start(partial(self._begin_stored, least, topic.wall_ms()), self._begun)

    def _look_at_request(self, topic: PlacementTopic, now_ms: int) -> None:
        request = topic.state.request
        if request is None or request.id == self._handled:
            return
        self._handled = request.id
        # Its command has given up, and has said so.
        if topic.wall_ms() - request.at_ms <= request.patience_ms:
            self._asked = request, now_ms

    def _refuse(self, topic: PlacementTopic, why: str) -> None:
        request = "" if self._asked is None else self._asked[0].id
        self._asked = None
        order = topic.state.order or Order(0)
        over = replace(order, step=order.step + 1, state=OrderState.REFUSED, request=request, why=why)
        self._publish(replace(over, stop=frozenset(), limits={}))

    def _begun(self, topic: PlacementTopic, job: Future[CheckpointOutcome | int], now_ms: int) -> None:
        lead = self._lead
        assert self.keeper is not None and self.flow is not None and lead is not None
        policy = self.keeper.policy
        request = "" if self._asked is None else self._asked[0].id
        error = job.exception()
        if error is not None:
            self._later(now_ms)
            self._refuse(topic, f"no checkpoint was begun: {error}")
            return
        number = job.result()
        assert isinstance(number, int)
        why_not = lead.unready()
        if why_not or lead.generation is None:  # a task has left meanwhile: no other one needs to stand still for that
            self._later(now_ms)
            self._start(partial(self._abandon_stored, number, why_not), _ignore)
            return
        self._request, self._asked = self._asked, None
        self._holders = PartHolders(lead.tasks)
        self._round = CheckpointRound(
            number,
            self.flow,
            lead.tasks,
            lead.generation.stamp,
            pause_ms=policy.checkpoint_pause_ms,
            store_ms=policy.grace_ms // 2,
            now_ms=now_ms,
            request=request,
        )
        self._publish(self._round.order)

    # --- under way ---

    def _drive(self, topic: PlacementTopic, lead: Lead, now_ms: int) -> None:
        assert self._round is not None
        one = self._round
        where = self._holders.where(lead.owners)
        reports = lead.reports(where)
        parts = {task: None if report is None else report.checkpoint for task, report in reports.items()}
        why = self._holders.broken(lead.tasks, lead.members, one.stored)
        do = one.abandon(why) if why else one.look(parts, now_ms)
        self._holders.note(one.stopped, where)
        if do is Do.READ_ENDS:
            # After the reports, in the same tick: the writers stand still until an order of this leader frees them.
            do = one.ends(topic.written_ends(one.to_read), now_ms)
        if do is Do.PUBLISH:
            if one.is_over and self._ask_again(topic, lead, now_ms):
                one.order = replace(one.order, request="")  # its command waits for the next attempt
            self._publish(one.order)
            if one.is_over:
                self._over(now_ms, moved=self._has_moved(lead))
                self._start(partial(self._abandon_stored, one.order.number, one.order.why), _ignore)
        elif do is Do.SEAL:
            tasks, at_ms = lead.tasks, topic.wall_ms()
            self._start(partial(self._seal_stored, tasks, at_ms), partial(self._sealed, tasks, at_ms))

    def _sealed(
        self,
        tasks: frozenset[TaskId],
        at_ms: int,
        topic: PlacementTopic,
        job: Future[CheckpointOutcome | int],
        now_ms: int,
    ) -> None:
        assert self._round is not None
        one, error = self._round, job.exception()
        if isinstance(error, Unavailable) and self._in_time(now_ms):
            # With the same time, so that an outcome whose answer was lost is found to be this one.
            again = partial(self._seal_stored, tasks, at_ms, RETRY_MS)
            self._start(again, partial(self._sealed, tasks, at_ms))
            return
        outcome = _outcome_of(job)
        if outcome is not None and outcome.state == COMPLETE:
            one.sealed()
            self._publish(one.order, Pointer(outcome.number, outcome.at_ms, len(outcome.parts)))
            self._over(now_ms)
            assert self.keeper is not None
            self._start(partial(_pruned, self.keeper), _ignore)
            return
        why = f"{error}" if error is not None else "another leader has abandoned it"
        one.sealed(why)
        self._publish(one.order)
        self._over(now_ms)
        self._start(partial(self._abandon_stored, one.order.number, why), _ignore)

    def _has_moved(self, lead: Lead) -> bool:
        """Whether tasks were assigned again since the checkpoint began."""
        assert self._round is not None
        return lead.generation is None or lead.generation.stamp != self._round.order.stopped_at

    def _ask_again(self, topic: PlacementTopic, lead: Lead, now_ms: int) -> bool:
        """Try again for a request, once all tasks run, if instances that came or went have ended the checkpoint."""
        if self._request is None or not self._has_moved(lead):
            return False
        request = self._request[0]
        if topic.wall_ms() - request.at_ms > request.patience_ms:
            return False
        if self._asked is None:  # else a newer one waits, which answers for this one, too
            self._asked = request, now_ms
        return True

    def _over(self, now_ms: int, *, moved: bool = False) -> None:
        """The end of a round: the next one comes by the schedule, or soon after one that was abandoned.

        `moved`: tasks were assigned again meanwhile, and no other reason speaks against the next one.
        """
        assert self._round is not None
        complete = self._round.order.state is OrderState.COMPLETE
        self._counts.checkpoints[COMPLETE if complete else ABANDONED] += 1
        self._round = None
        if self._every_ms is not None:
            self._due_ms = self._begun_ms + self._every_ms
        if not complete:
            self._later(now_ms, SOON_MS if moved else AGAIN_MS)

    def _later(self, now_ms: int, wait_ms: int = AGAIN_MS) -> None:
        self._again_ms = now_ms + min(wait_ms, self._every_ms or wait_ms)
        if self._due_ms is not None:
            self._due_ms = self._again_ms

    def _in_time(self, now_ms: int) -> bool:
        assert self.keeper is not None
        return now_ms - self._begun_ms <= self.keeper.policy.grace_ms // 2

    def _publish(self, order: Order, pointer: Pointer | None = None) -> None:
        self._pending.append((order, pointer))

    def _flush(self, topic: PlacementTopic, now_ms: int) -> None:
        """Write the orders of this tick; those that the log does not take now come first in the next tick."""
        while self._pending:
            order, pointer = self._pending[0]
            try:
                topic.order(order, pointer)
            except InvalidRequest as error:
                if self._round is None or self._round.is_over:
                    raise
                self._round.abandon(str(error))  # it fits no record
                self._pending[0] = self._round.order, None
                self._over(now_ms)
                continue
            del self._pending[0]
            self._tell(order, pointer)

    def _tell(self, order: Order, pointer: Pointer | None) -> None:
        what = f"checkpoint {order.number} {order.state}"
        if order.why:
            what += f": {order.why}"
        if order.state is OrderState.RUNNING:
            what += f", step {order.step}"
        self._counts.checkpoint = what
        level = logger.warning if order.why else logger.info if pointer or order.step == 1 else logger.debug
        level("application %s: %s", self.app, what, extra=as_event("checkpoint", number=order.number, step=order.step))

    # --- threads ---

    def _start(
        self,
        work: Callable[[], CheckpointOutcome | int],
        then: Callable[[PlacementTopic, Future[CheckpointOutcome | int], int], None],
    ) -> None:
        """Call the storage in a thread; a later tick goes on with its answer."""
        answer: Future[CheckpointOutcome | int] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except Exception as error:  # noqa: BLE001 - the tick has it
                answer.set_exception(error)

        assert self.keeper is not None
        self._job, self._then = answer, then
        self.keeper.threads.start("standfast-checkpoint", run)

    def _begin_stored(self, least: int, at_ms: int) -> int:
        from standfast.restore.snapshot.checkpoints import begin

        assert self.keeper is not None
        return begin(self.keeper.storage, least, self._instance, at_ms)

    def _abandon_stored(self, number: int, why: str) -> CheckpointOutcome:
        from standfast.restore.snapshot.checkpoints import CheckpointOutcome, CheckpointState, conclude

        assert self.keeper is not None
        at_ms = self.keeper.wall_ms()
        return conclude(
            self.keeper.storage, CheckpointOutcome(number, CheckpointState.ABANDONED, why, self._instance, at_ms, 0, ())
        )

    def _seal_stored(self, tasks: frozenset[TaskId], at_ms: int, wait_ms: int = 0) -> CheckpointOutcome:
        from standfast.restore.snapshot.checkpoints import CheckpointOutcome, CheckpointState, seal

        assert self._round is not None and self.keeper is not None and self.flow is not None
        keeper, flow, one, begun_ms = self.keeper, self.flow, self._round, self._begun_ms
        keeper.wait(wait_ms)
        readers = {topic: flow.readers([topic]) for topic in flow.partitions}
        return seal(
            keeper.storage,
            CheckpointOutcome(
                one.order.number, CheckpointState.COMPLETE, "", self._instance, at_ms, one.order.pause_ms, ()
            ),
            tasks,
            one.order.limits,
            readers,
            in_time=lambda: keeper.monotonic_ms() - begun_ms <= keeper.policy.grace_ms // 2,
        )


def _outcome_of(job: Future[CheckpointOutcome | int]) -> CheckpointOutcome | None:
    """The outcome that a thread found in the storage; None if it failed."""
    if job.exception() is not None:
        return None
    found = job.result()
    return None if isinstance(found, int) else found


def _pruned(keeper: StorageCare) -> int:
    keeper.prune()
    return 0


def _ignore(topic: PlacementTopic, job: Future[CheckpointOutcome | int], now_ms: int) -> None:
    error = job.exception()
    if error is not None:
        # The order in the topic stands; without an outcome the checkpoint counts as unfinished, and is collected.
        logger.warning(
            "the end of a checkpoint is not noted in the storage: %s",
            error,
            exc_info=None if isinstance(error, StandfastError) else error,
            extra=as_event("checkpoint_not_noted"),
        )
