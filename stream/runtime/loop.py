"""The loop of an application: poll, initialise and restore, process, punctuate, commit. As Kafka Streams' StreamThread.

    tasks that run here ──> fetch ──> turn of each task: records, clocks, commit ──> next round
                                           │ an exception
                                           └──> the task fails; the restart strategy says when it is opened again,
                                                or that it never is: the others commit, and the loop ends with the error

A commit waits for the log in a thread of a pool (commits.py) where the log is on other machines. Its task takes no
records until then; the loop goes on with the others. A task is due to commit by its interval, and after the tasks of
the sub-topologies before it: their records come to it once they are committed, and leave it with the same round.

Rules of this file: one thread, driven by `poll_once`. The session restores, follows standbys and takes tasks over;
while the gate is shut every source is paused and polled, and every position stays. A failing task does not affect the
others; a task that may not be restarted any more ends the loop with its error. It never waits for one task's calls
to other services: a commit that needs their results is tried again in each round, while polling goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from standfast.replication.fetch_limits import LIMITS
from standfast.replication.log import Record
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.progress import LOOP
from standfast.store.clock import Clock
from standfast.store.errors import (
    Corruption,
    Fenced,
    InvalidRequest,
    ListenerFailed,
    StateLost,
    Unavailable,
    UnknownStore,
    WorkerFailed,
    is_of_serde,
)
from standfast.store.log import as_event, logger
from standfast.store.process.in_hand import FOLDER, InHand
from standfast.stream.deaths.deadly import Deadly
from standfast.stream.deaths.death_notes import note_stall
from standfast.stream.restart import RestartStrategy
from standfast.stream.runtime.commit_pace import CommitPace
from standfast.stream.runtime.commits import Commits, groups_before
from standfast.stream.runtime.failures import RETRY_WAIT_MS, Failures
from standfast.stream.runtime.holds import Holds, Taken
from standfast.stream.runtime.runner import RunnerSettings, TaskRunner
from standfast.stream.runtime.running import RunningTask, gate_is_shut, positions_text, wait_for_task
from standfast.stream.runtime.source_discovery import SourceDiscovery
from standfast.stream.runtime.source_runs import SourceRuns
from standfast.stream.runtime.starts import Starts
from standfast.stream.session.host import SOURCE_READER
from standfast.stream.session.session import Session
from standfast.stream.task.purge import Purge
from standfast.stream.task.states import GONE, TaskState
from standfast.stream.task.task import Outputs, Task
from standfast.stream.topology.topology import Topology

FETCH_RECORDS_MAX = LIMITS.loop_fetch_records
RECORDS_PER_TURN = 250
WAITING_MAX = LIMITS.input_records  # fetched and unprocessed records that pause an input; it resumes at half of it
BATCH_BYTES = 1 << 20
LINGER_MS = 100  # Kafka Streams' default for its producers
SHUT_WAIT_MS = 5
SOURCE_WAIT_MS = 5  # for records of topics, while sources of one's own run beside them
CALL_WAIT_MS = 5  # for a result, before the log is polled again
COMMIT_WAIT_MS = 2  # for records, before commits under way are looked at again
LAST_CALLS_MS = 10_000  # that the last commit waits for calls in flight; the next owner processes their records again


class Loop:
    """Runs every task of an application that is active on this instance."""

    def __init__(
        self,
        session: Session,
        topology: Topology,
        runners: RunnerSettings,
        *,
        commit_interval_ms: int | None,
        restart: RestartStrategy,
        clock: Clock,
        batch_bytes: int = BATCH_BYTES,
        linger_ms: int = LINGER_MS,
        discovery: SourceDiscovery | None = None,
        sources: SourceRuns | None = None,
    ) -> None:
        self.records_total = 0
        self._discovery = discovery
        self.paused = False
        self._session = session
        self._topology = topology
        self._groups = {topic: group.group for group in topology.groups for topic in group.topics}
        self._runners = runners
        self._progress = runners.progress = session.progress
        self._pace = CommitPace(session.guarantee, commit_interval_ms)
        session.commit_interval_ms = lambda: self._pace.interval_ms
        self._commits = Commits(clock, self._pace, remote=session.log.remote, threads=session.threads)
        self._before = groups_before(topology.groups)
        self._batch_bytes = batch_bytes
        self._linger_ms = linger_ms
        self._clock = clock
        self._reader = session.reader(SOURCE_READER)
        self._running: dict[TaskId, RunningTask] = {}
        self._turns: deque[TaskId] = deque()
        self._held: set[TopicPartition] = set()  # paused because many of their records wait here
        self._shut: set[TopicPartition] = set()  # paused because the gate is shut
        self._rested = False  # whether the last round processed nothing: the gate was shut, or the application paused
        self._failures = Failures(session, restart, clock)
        self._ended = False  # whether the other tasks had their last commit
        self._purge = Purge(session.log.admin, frozenset(one.name for one in topology.internal), clock)
        self._sources = sources or SourceRuns(clock)
        session.own_sources = self._sources.statistics
        self._starts = Starts(topology, runners.partitions_of, session.log.admin)
        self._holds = Holds(session.join_checkpoints(topology.flow()), clock)
        runners.in_hand = InHand(session.state_path / FOLDER)
        self._progress.on_stall = partial(note_stall, session, runners.in_hand)
        self._deadly = Deadly(session, clock)

    def poll_once(self, timeout_ms: int = 0) -> int:
        """Run one round and return the number of processed records. Raises the error of a task that is given up."""
        processed = self._round(timeout_ms)
        self._raise_fatal()
        return processed

    def _round(self, timeout_ms: int) -> int:
        self._progress.step(LOOP)
        self._go_on_committing()
        self._failures.fatal = self._failures.fatal or self._sources.overdue()
        for task in self._deadly.due(self._session.held_tasks()):
            self._session.open_later(task, "its deaths are forgotten", 0)
        if self._discovery is not None and self._discovery.poll():
            for task_id, one in list(self._running.items()):
                self._guarded(task_id, one, partial(self._follow_upstream, one))
        tasks = self._session.open_tasks()
        self._follow_tasks(tasks)
        self._let_go()
        self._hold_back()
        if self.paused or self._session.disk.full or gate_is_shut(self._session, self._running, tasks, self._commits):
            self._rested = True
            # Records processed before stay uncommitted for at most their interval.
            self._commit_due()
            self._poll_shut()
            return 0
        self._open_up()
        if not self._running:
            wait_for_task(self._session, self._clock, timeout_ms)
            return 0
        self._fetch(timeout_ms)
        processed = 0
        # Another task begins each round, so that no task always waits for the others.
        self._turns.rotate(-1)
        for task_id in self._by_due():
            running = self._running.get(task_id)
            if running is not None:
                processed += self._turn(task_id, running)
                # A task that has committed must not wait for the turns of all others, nor one that waits for its room.
                if self._go_on_returned():
                    self._commit_due()
        try:
            self._purge.step(running.task for running in self._running.values())
        except Unavailable as error:
            self._wait_for_log(error)
        self.records_total += processed
        return processed

    def commit_all(self) -> None:
        """Commit every task now; one whose calls have no result after LAST_CALLS_MS is left uncommitted."""
        self._commit_all()
        self._raise_fatal()

    def _commit_all(self, tasks: Mapping[TaskId, RunningTask] | None = None) -> None:
        """Commit these tasks, by default all, once their calls have results, for which it waits."""
        clock = self._runners.calls.clock
        until_ms = clock.monotonic_ms() + LAST_CALLS_MS
        waiting = dict(self._running if tasks is None else tasks)
        begun = {task_id for task_id in waiting if task_id in self._commits}
        while waiting:
            self._go_on_committing()
            for task_id, running in list(waiting.items()):
                if task_id not in begun and self._commits.has_room and self._running.get(task_id) is running:
                    self._guarded(task_id, running, partial(self._commit, running))
                    if not running.committing:
                        begun.add(task_id)
                self._progress.step(LOOP)
                # It may also have failed just now.
                if self._running.get(task_id) is not running or (task_id in begun and task_id not in self._commits):
                    del waiting[task_id]
            calling = [(task_id, running) for task_id, running in waiting.items() if running.committing]
            if len(self._commits):
                self._commits.wait(CALL_WAIT_MS)
            for _, running in calling[:1]:
                running.runner.wait_for_call(CALL_WAIT_MS)
            if calling and clock.monotonic_ms() >= until_ms:
                for task_id, running in calling:
                    logger.warning(
                        "task %s: %d calls have no result after %d ms, so that its last records are not committed and "
                        "are processed again by its next owner", task_id, running.runner.in_flight, LAST_CALLS_MS,
                        extra=as_event("calls_without_result", task=task_id, calls=running.runner.in_flight),
                    )  # fmt: skip
                    del waiting[task_id]

    def close(self) -> None:
        """Close the processors, the application's own sources and the reader; uncommitted changes are discarded.

        The first error of a processor's `close` is raised once all are closed; so is that of a source that does not
        end.
        """
        errors: list[Exception] = []
        for task_id in list(self._running):
            try:
                self._end(task_id)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        hanging = self._sources.join(self._progress)
        if hanging is not None:
            errors.append(hanging)
        self._runners.calls.close()
        self._commits.close()
        self._reader.close()
        self._deadly.close()
        self._runners.in_hand.close()
        self._progress.end(LOOP)
        if errors:
            raise errors[0]

    # --- start and end of tasks ---

    def _follow_tasks(self, tasks: Mapping[TaskId, Task]) -> None:
        held = self._session.held_tasks()
        for task_id, running in list(self._running.items()):
            if task_id in self._commits:
                continue  # the end of its commit comes first: it meets the loss, too
            # Another object under the same id is another opening of the task, with stores of its own.
            if held.get(task_id) is not running.task or running.task.state is not TaskState.RUNNING:
                self._leave(task_id)
        for task_id, task in tasks.items():
            if task_id not in self._running and not task.leaving:
                self._begin(task_id, task)
        for task_id, task in held.items():  # also a standby, and one that restores: they fail in the session's thread
            error = task.error
            if isinstance(error, ListenerFailed) and task.state in GONE and not self._session.lives.has_next(task_id):
                self._failures.note(task, error)

    def _let_go(self) -> None:
        """Commit the tasks that another instance gets, and end their run: the next owner begins where this one ends."""
        for task_id, running in list(self._running.items()):
            if running.last and not running.task.leaving:  # the move was taken back: the run goes on
                running.last = False
                self._guarded(task_id, running, partial(self._take_later, running))
            if not running.task.leaving or task_id in self._commits:
                continue
            if not running.last and self._commits.has_room:
                self._guarded(task_id, running, partial(self._commit, running))
                # Results of calls in flight come first: then a later round commits it.
                running.last = not running.committing
            if running.last and self._running.get(task_id) is running and task_id not in self._commits:
                self._leave(task_id)
                running.task.discard()  # writes of a processor's `close`, which belong to no commit, if the task stays
                self._session.follow_now()  # closed and reported now, since its next owner waits for that

    def _hold_back(self) -> None:
        """Follow the order of a checkpoint: tasks that are to stop commit, and stand still until it frees them."""
        for task_id, running in list(self._running.items()):
            hold, task, runner = running.hold, running.task, running.runner
            if self._holds.follow(hold, task, runner):
                self._guarded(task_id, running, partial(self._take_later, running))
            gone = self._running.get(task_id) is not running
            if gone or task_id in self._commits or not self._holds.may_stop(hold, task, runner):
                continue
            if not hold.committed and self._commits.has_room:
                self._guarded(task_id, running, partial(self._commit, running))
                hold.committed = not running.committing
            if hold.committed and self._running.get(task_id) is running and task_id not in self._commits:
                self._holds.stand(hold, task)

    def _free(self) -> list[tuple[TaskId, RunningTask]]:
        """The tasks that may take records now."""
        return [one for one in self._running.items() if one[0] not in self._commits and not one[1].rests]

    def _begin(self, task_id: TaskId, task: Task) -> None:
        group = self._topology.groups[task_id.group]
        own = {TopicPartition(source.topic, task_id.partition) for source in group.own_sources}
        if own and not self._sources.may_begin(task_id, group.own_sources):
            return  # in a later round, or never: a run that does not end fails the application
        inputs = [TopicPartition(topic, task_id.partition) for topic in sorted(group.topics)]
        partitions = [at for at in inputs if at not in own]
        try:
            committed = task.source_offsets()
            new = [at for at in partitions if at not in committed]
            starts = self._starts.of(new, self._reader.bounds(new)) if new else {}
            positions = {at: committed[at] if at in committed else starts.get(at, 0) for at in inputs}
            fatal = self._deadly.look(task, group, positions)
            runner = TaskRunner(task, group, self._runners, positions)
            runner.leave_out(fatal)
        except Unavailable as error:
            self._wait_for_log(error)
            return
        except WorkerFailed as error:
            task.fail(error)
            self._deadly.warn(task_id, error)
            return
        except Exception as error:  # noqa: BLE001 - a take-over just now, or application code; `_failed` decides
            self._failed(task_id, task, error)
            return
        runner.input_ends = partial(self._ends, runner)
        # Committed at once, since a restart before the first commit would choose another start.
        wait_ms = 0 if self._starts.chosen(starts) else self._pace.interval_ms
        running = RunningTask(task, runner, self._clock.monotonic_ms() + wait_ms)
        try:
            self._reader.add({at: positions[at] for at in partitions})
        except Unavailable as error:
            self._wait_for_log(error)
            return
        except UnknownStore as error:
            self._failed(task_id, task, error)
            return
        task.on_outputs = self._hand_over
        task.looped = True
        self._running[task_id] = running
        self._turns.append(task_id)
        about = as_event("task_started", task=task_id, sources={str(at): offset for at, offset in positions.items()})
        logger.info("task %s runs here, from %s", task_id, positions_text(positions), extra=about)
        self._guarded(task_id, running, runner.start)
        if task_id in self._running:  # not if `init` of a processor failed
            self._guarded(task_id, running, partial(self._sources.begin, task_id, runner))

    def _end(self, task_id: TaskId) -> None:
        try:
            self._commits.finish(task_id)
        finally:
            self._close_run(task_id)

    def _close_run(self, task_id: TaskId) -> None:
        running = self._running.pop(task_id)
        self._turns.remove(task_id)
        self._sources.end(task_id)
        partitions = running.runner.partitions
        self._reader.remove(partitions)
        self._held.difference_update(partitions)
        self._shut.difference_update(partitions)
        running.task.looped = False
        running.runner.close()

    def _leave(self, task_id: TaskId) -> None:
        """End the run of a task that left this instance, or that failed."""
        try:
            self._end(task_id)
        except Exception:  # noqa: BLE001 - the task is gone either way, and the others go on
            logger.exception(
                "task %s: closing its processors failed", task_id, extra=as_event("task_close_failed", task=task_id)
            )

    def _guarded(self, task_id: TaskId, running: RunningTask, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - `_failed` decides
            self._failed(task_id, running.task, error)

    def _failed(self, task_id: TaskId, task: Task, error: Exception) -> None:
        """End a task's run after an error; the session, the restart strategy or the end of the loop comes next."""
        try:
            self._commits.finish(task_id)
        except Exception as earlier:  # noqa: BLE001 - the task fails with it
            error.__context__ = error.__context__ or earlier
            error = earlier
        # A take-over, a revocation or a loss happens in a thread of its own, in the middle of this loop's work.
        gone = task.state is not TaskState.RUNNING and task.error is not error
        if not gone:
            task.fail(error)
        running = self._running.get(task_id)
        # Read before the run ends, because the runner goes with it.
        at = None if running is None else running.runner.failed_at
        behind = running is not None and running.runner.failed_behind
        if running is not None:
            self._leave(task_id)
        if gone or (isinstance(error, (Corruption, Fenced, StateLost)) and not is_of_serde(error)):
            # Such a task is the session's to open again or to give up; a restart would only repeat the error.
            logger.warning("task %s stops: %s", task_id, error, extra=as_event("task_stopped", task=task_id))
            return
        self._failures.note(task, error, at=at, behind=behind)

    def _raise_fatal(self) -> None:
        """Raise the error of a task that is given up, once the other tasks have committed their work."""
        if self._failures.fatal is None:
            return
        if not self._ended:
            self._ended = True
            self._commit_all()
        raise self._failures.fatal

    # --- one round ---

    def _poll_shut(self) -> None:
        """Poll the paused sources: errors of the log show here too."""
        sources = {at for running in self._running.values() for at in running.runner.partitions}
        shutting = sources - self._shut
        self._reader.pause(shutting)
        self._shut |= shutting
        if sources:
            self._process_fetched(0)
        self._clock.sleep_ms(SHUT_WAIT_MS)

    def _open_up(self) -> None:
        if self._shut:
            self._reader.resume(self._shut - self._held)
            self._shut.clear()
        if self._rested:
            self._rested = False
            for running in self._running.values():
                running.runner.restart_silence()

    def _ends(self, runner: TaskRunner) -> Mapping[TopicPartition, int] | None:
        """The ends of a task's inputs, now; None while the log does not answer."""
        try:
            # With records of open transactions: those are on their way, so that the source is not silent.
            ends = self._reader.written_ends(runner.partitions) if runner.partitions else {}
            return {**ends, **self._sources.ends(runner.task.id)}
        except Unavailable as error:
            about = as_event("log_away", task=runner.task.id)
            logger.warning("task %s: windows stay open until the log answers: %s", runner.task.id, error, extra=about)
            return None

    def _fetch(self, timeout_ms: int) -> None:
        # The wait for records must not delay a wall-clock punctuation or a timer.
        runners = [running.runner for _, running in self._free()]
        wall_due_ms = min((runner.next_wall_ms - runner.wall_ms() for runner in runners), default=timeout_ms)
        self._drain()
        busy = self._busy()
        wait_ms = 0 if busy else max(min(timeout_ms, wall_due_ms), 0)
        if len(self._commits) or self._holds.under_way:
            wait_ms = min(wait_ms, COMMIT_WAIT_MS)
        calling = next((runner for runner in runners if runner.in_flight), None)
        if calling is not None:
            self._process_fetched(0)
            self._drain()
            if not self._busy():
                # Results wake it at once; records of the log and of sources are looked for again soon.
                calling.wait_for_call(min(wait_ms, CALL_WAIT_MS))
            return
        if not self._sources.active or not wait_ms:
            self._process_fetched(wait_ms)
            return
        if self._reader.assignment():
            # One wait is for the log or for the sources: short ones by turns, so that neither waits for the other.
            self._process_fetched(min(wait_ms, SOURCE_WAIT_MS))
        else:
            self._sources.wait(wait_ms)
        self._drain()

    def _busy(self) -> bool:
        """Whether a record could be processed now."""
        return any(running.runner.runnable for _, running in self._free())

    def _drain(self) -> None:
        """Take over the records that sources of one's own have collected."""
        if self._sources.active:
            for task_id, running in self._free():
                self._guarded(task_id, running, partial(self._drain_task, task_id, running))

    def _drain_task(self, task_id: TaskId, running: RunningTask) -> None:
        error = self._sources.drain(task_id, running.runner, self._session.counters)
        if error is not None:
            # The records before the failure are whole. Without this, a source that fails sooner than the interval
            # would never get ahead, and be given up for it.
            self._commit_all({task_id: running})
            if self._running.get(task_id) is running:
                raise error

    def _process_fetched(self, wait_ms: int) -> None:
        """Take in records until none is at hand, or there are FETCH_RECORDS_MAX of them.

        The first ones that arrive are often few: the fetch thread hands over the records that it waited for, and the
        others lie in the client.
        """
        left = FETCH_RECORDS_MAX
        while left > 0 and (count := self._take_fetched(left, wait_ms)):
            left -= count
            wait_ms = 0

    def _take_fetched(self, most: int, wait_ms: int) -> int:
        """Take in the records of one fetch; returns their number."""
        try:
            fetched = self._reader.fetch(most, wait_ms)
        except StateLost as lost:
            self._out_of_reach(lost)
            return 0
        except Unavailable as error:
            self._wait_for_log(error)
            return 0
        for batch in fetched:
            task_id = TaskId(self._groups[batch.source.topic], batch.source.partition)
            running = self._running.get(task_id)
            if running is not None:
                take_in = partial(self._take_in, running, batch.source, batch.records, batch.next_offset)
                self._guarded(task_id, running, partial(take_in, batch.at_end))
        return sum(len(batch.records) for batch in fetched)

    def _wait_for_log(self, error: Unavailable) -> None:
        logger.warning("the log does not answer, trying again: %s", error, extra=as_event("log_away"))
        self._failures.interrupted()
        self._clock.sleep_ms(RETRY_WAIT_MS)

    def _out_of_reach(self, lost: StateLost) -> None:
        """Fail the tasks whose next record is gone: purged by a newer owner that processed it, or kept too short.

        The next opening of the task shows which of the two it was.
        """
        positions = self._reader.assignment()
        try:
            bounds = self._reader.bounds(positions)
        except Unavailable as error:
            self._wait_for_log(error)  # the reader reports the loss again
            return
        for at, (begin, end) in bounds.items():
            running = self._running.get(TaskId(self._groups[at.topic], at.partition))
            # A recreated topic may hold the same offsets again, so bounds alone do not show the loss.
            anew = at in lost.sources and lost.reason in ("topic-recreated", "diverged")
            if running is not None and (anew or not begin <= positions[at] <= end):
                problem = InvalidRequest(
                    f"task {running.task.id}: {at} begins at {begin} and ends at {end}, but the next offset to "
                    f"process is {positions[at]}: keep records until they are processed, or reset the application"
                )
                problem.__cause__ = lost
                self._failed(running.task.id, running.task, problem)

    def _hand_over(self, written: Outputs, acknowledged: Mapping[TopicPartition, int]) -> None:
        """Pass a task's records for an internal topic to the next task, if it runs here, without reading them again.

        Only if that task is exactly at the first of these records: otherwise other tasks wrote in between, or it lags.
        """
        for at, batch in written.items():
            task_id = TaskId(self._groups.get(at.topic, -1), at.partition)
            running = self._running.get(task_id)
            next_offset = acknowledged.get(at, 0)
            first = next_offset - len(batch)
            if running is None or at in self._held or running.fetched(at) != first:
                continue
            records = [Record(offset, stamp, key, value, headers)
                       for offset, (key, value, stamp, headers) in enumerate(batch, first)]  # fmt: skip
            # Or the reader would fetch the same records again.
            self._reader.seek(at, next_offset)
            self._session.counters.handed_over_records += len(records)
            self._guarded(task_id, running, partial(self._take_in, running, at, records, next_offset, True))

    def _take_in(
        self, running: RunningTask, at: TopicPartition, records: Sequence[Record], next_offset: int, at_end: bool
    ) -> None:
        # Even to decode the next record may write, such as a dead letter.
        kept: Taken | None = (records, next_offset, at_end)
        if running.task.id not in self._commits and not running.rests:
            taken, kept = running.hold.splits(at, (records, next_offset, at_end))
            running.runner.add(at.topic, *taken)
        if kept is not None:
            running.later.append((at, *kept))
        if running.waiting(at) > WAITING_MAX:
            # Paused at the bound and resumed at half of it: a pause throws librdkafka's prefetched records away.
            self._reader.pause([at])
            self._held.add(at)

    def _turn(self, task_id: TaskId, running: RunningTask) -> int:
        runner, task = running.runner, running.task
        processed = 0
        try:
            if task_id in self._commits or running.rests or not self._commit_asked(task_id, running):
                return 0
            runner.collect()
            while processed < RECORDS_PER_TURN:
                count = runner.run(RECORDS_PER_TURN - processed)
                processed += count
                if not running.asks:
                    break
                if not (self._commits.has_room and self._commit(running)):
                    break
            if task_id in self._commits:
                return processed
            runner.tick()
            task.write_outputs(batch_bytes=self._batch_bytes, linger_ms=self._linger_ms)
            # A punctuation waits for the interval like a record; its writes may have filled the buffer, though.
            if self._is_due(task_id, running):
                self._commit(running)
        except Exception as error:  # noqa: BLE001 - `_failed` decides
            self._failed(task_id, task, error)
            return processed
        self._resume(running)
        return processed

    def _commit_asked(self, task_id: TaskId, running: RunningTask) -> bool:
        """Commit a task that asks for it, if it found no room before; whether the task may take records now."""
        if not running.asks or running.committing:
            return True
        if self._commits.has_room:
            self._commit(running)
        return task_id not in self._commits and not running.asks

    def _resume(self, running: RunningTask) -> None:
        if self._held:
            held = self._held.intersection(running.runner.partitions)
            ready = [at for at in held if running.waiting(at) <= WAITING_MAX // 2]
            if ready:
                self._reader.resume(ready)
                self._held.difference_update(ready)

    # --- commits ---

    def _by_due(self) -> list[TaskId]:
        """The tasks, the one whose commit is due for longest first: it could else miss the room again and again."""
        return sorted(self._turns, key=lambda task_id: self._running[task_id].next_commit_ms)

    def _commit_due(self) -> None:
        for task_id in self._by_due():
            running = self._running.get(task_id)
            if running is not None and self._is_due(task_id, running):
                self._guarded(task_id, running, partial(self._commit, running))

    def _is_due(self, task_id: TaskId, running: RunningTask) -> bool:
        """Whether to commit a task now: it asks for it, or its interval is over and the tasks before it have committed.

        Not while as many commits are under way as there is room for: the task goes on instead of waiting for it.
        """
        if task_id in self._commits or running.rests or not self._commits.has_room:
            return False
        if running.committing or running.asks:
            return True
        now_ms, due_ms = self._clock.monotonic_ms(), running.next_commit_ms
        if now_ms < due_ms:
            return False
        before = self._before[task_id.group]
        # For one interval at most: a task before it may wait for the results of calls.
        if not before or now_ms >= due_ms + self._pace.interval_ms:
            return True
        others = ((one_id, one) for one_id, one in self._running.items() if one_id.group in before)
        dues_ms = (one.due_ms if one_id in self._commits else one.next_commit_ms for one_id, one in others)
        return all(other_ms > due_ms for other_ms in dues_ms)

    def _commit(self, running: RunningTask) -> bool:
        """Commit a task, or ask for the results that the commit needs; returns whether it is committed.

        On a log of other machines the commit is under way then; `_go_on_committing` ends it.
        """
        task_id = running.task.id
        running.committing = not running.runner.ready_to_commit()
        if running.committing:
            return False
        began_ms = running.task.last_commit_ms = self._clock.monotonic_ms()
        running.due_ms, running.next_commit_ms = running.next_commit_ms, began_ms + self._pace.interval_ms
        self._commits.begin(task_id, running.runner.commit_steps(), partial(self._committed, running, began_ms))
        return task_id not in self._commits

    def _committed(self, running: RunningTask, began_ms: int, wrote: bool) -> None:
        # A commit with nothing to commit is no progress of the task.
        if not wrote:
            return
        full = len(self._commits) + 1 >= self._pace.room  # this one is not among them any more
        self._pace.took(self._clock.monotonic_ms() - began_ms, full=full)
        self._failures.committed(running.task.id)

    def _go_on_committing(self) -> None:
        """Continue the commits whose calls to the log have returned; wait for one that takes very long."""
        self._go_on_returned()
        for task_id in self._commits.held():
            running = self._running[task_id]
            self._guarded(task_id, running, partial(self._finish, running))

    def _go_on_returned(self) -> bool:
        """Continue the commits whose calls have returned; whether there were any."""
        returned = self._commits.returned()
        for task_id in returned:
            running = self._running.get(task_id)
            # Records that one of them handed over may have failed a task behind it, which ends its commit.
            if running is not None and task_id in self._commits:
                self._guarded(task_id, running, partial(self._go_on, running))
        return bool(returned)

    def _go_on(self, running: RunningTask) -> None:
        if self._commits.go_on(running.task.id):
            self._take_later(running)

    def _finish(self, running: RunningTask) -> None:
        """Wait for the end of a task's commit, if one is under way."""
        if running.task.id in self._commits:
            self._commits.finish(running.task.id)
            self._take_later(running)

    def _take_later(self, running: RunningTask) -> None:
        """Give a task the records that came during its commit."""
        later, running.later = running.later, []
        for one in later:
            self._take_in(running, *one)

    def _follow_upstream(self, running: RunningTask) -> None:
        self._finish(running)
        running.runner.follow_upstream()
