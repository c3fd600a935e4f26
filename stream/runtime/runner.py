"""One running task: its sub-topology, one instance of every processor, its clocks, and the commit.

    add(fetched) ──> inputs ──> smallest head timestamp first ──> source ──> processors ──> sinks ──> task.send
                                      │                                │
                                      └── stream time, watermarks      └── stores (write buffer of the task)
    after each record    stream-time punctuation, event-time timers, windows that the watermark closes
    collect()            results of asynchronous steps, in the order of their records, to the steps behind them
    tick()               wall-clock punctuation, processing-time timers, periodic watermarks, idle partitions, silence
    commit()             suppressed results of aggregations go downstream; then task.commit

Time does not overtake records: while calls of asynchronous steps are in flight, watermarks and stream-time punctuations
wait for their results, and so does the commit; the task takes no further record then.

Rules of this file: one thread; it fetches nothing and knows no log beyond its task. The loop decides how an exception
ends the task: here it propagates, with a note that names the record in hand.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from standfast.replication.log import Record as LogRecord
from standfast.replication.log import TopicInfo
from standfast.replication.offsets import TopicPartition
from standfast.replication.progress import LOOP, LeaseProgress
from standfast.store.clock import Clock
from standfast.store.errors import InternalError, InvalidRequest
from standfast.store.failpoint import reach
from standfast.store.process.in_hand import INPUT, OFFSET
from standfast.store.process.in_hand import InHand as InHandWords
from standfast.stream.deaths.exits import as_failures, failure_of
from standfast.stream.punctuation import (
    STREAM_TIME,
    Callback,
    Cancellable,
    PunctuationQueue,
    PunctuationType,
    first_due,
)
from standfast.stream.record import Record
from standfast.stream.runtime.call_loop import CANCEL_MS, START_MAX_MS, CallLoop
from standfast.stream.runtime.callbacks import CallbackRunner
from standfast.stream.runtime.event_time import EventTime, send_signal
from standfast.stream.runtime.guard import TaskGuard
from standfast.stream.runtime.inputs import NEVER, Input, NamedInput, OwnInput, choose
from standfast.stream.runtime.passing_time import PassingTime
from standfast.stream.runtime.record_work import RecordWork
from standfast.stream.runtime.skipped import Skipped
from standfast.stream.runtime.step_policies import StepPolicies
from standfast.stream.runtime.task_calls import TaskCalls
from standfast.stream.runtime.task_status import TaskStatus, clocks_of, status_of
from standfast.stream.runtime.timers import Timers
from standfast.stream.steps import Steps, run_steps
from standfast.stream.stream_time import Policy, TaskStreamTime
from standfast.stream.task.task import Task
from standfast.stream.timer import EVENT_TIME, PROCESSING_TIME, TimerKind
from standfast.stream.topology.calls import AsyncCall, AsyncContext
from standfast.stream.topology.drops import Drops
from standfast.stream.topology.nodes import SubTopology
from standfast.stream.topology.processor import Context, CurrentRecord, Forward, Processor
from standfast.stream.topology.wiring import wire
from standfast.stream.trace import Inject, Tracing


@dataclass(slots=True)
class RunnerSettings:
    """Settings that all runners of an application share."""

    clock: Clock
    drops: Drops
    stream_time: Policy = "min"
    watermark_interval_ms: int = 200
    partitions_of: Mapping[str, int] = field(default_factory=dict)
    upstream: Mapping[str, Sequence[str]] = field(default_factory=dict)  # internal topic -> tasks with watermarks
    event_time: frozenset[int] = frozenset()  # groups that have watermarks
    outputs: Mapping[str, TopicInfo] = field(default_factory=dict)  # the output topics by name
    tracing: Tracing | None = None
    progress: LeaseProgress = field(default_factory=LeaseProgress)  # each record and callback is a step of the loop
    calls: CallLoop = field(default_factory=CallLoop)  # of asynchronous steps; it starts with the first call
    in_hand: InHandWords = field(default_factory=InHandWords)  # which outlive this process

    @property
    def shared(self) -> tuple[LeaseProgress, MutableSequence[int]]:
        """The words that other processes read: progress, and the record in hand."""
        return self.progress, self.in_hand.words


class TaskRunner:
    """Runs the sub-topology of one restored task."""

    def __init__(
        self, task: Task, topology: SubTopology, settings: RunnerSettings, positions: Mapping[TopicPartition, int]
    ) -> None:
        self.task = task
        own = {source.topic for source in topology.own_sources}
        self.partitions = tuple(at for at in positions if at.topic not in own)  # those of topics, which are fetched
        self._name = str(task.id)
        self.topology = topology
        self.in_hand = CurrentRecord()
        self.failed_at: str | None = None  # the source offset of the failed record
        self.failed_behind = False  # in work without a record in hand, such as a timer, which an on_error covers too
        self._settings = settings
        self._tracing = settings.tracing
        self.inject: Inject | None = None if self._tracing is None else self._tracing.inject
        self._clock = settings.clock
        self._wall_offset_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        self._thread = threading.get_ident()
        self._inside = False  # whether a processor is running
        self._begun = 0  # processors whose init was called
        self._guard = TaskGuard(task, settings.drops)
        self._left_out = Skipped(task, self._guard, self.in_hand, settings.partitions_of)
        self._unreadable = self._left_out.failed if self._tracing is None else self._traced_unreadable
        callbacks_of = (task, topology, self.in_hand, self._guard, self._left_out)
        self._callbacks = CallbackRunner(*callbacks_of, settings.shared, self.wall_ms)
        self._calls: TaskCalls | None = None  # where a step is asynchronous
        self._draining = False  # a commit waits for the results of all calls
        self._held: deque[Callable[[], object]] = deque()  # work that must not overtake the calls in flight
        self._flushes: list[Callable[[], None]] = []
        self._stream_queue = PunctuationQueue()
        self._wall_queue = PunctuationQueue()
        self._stream_due_ms = NEVER
        self._timers: dict[str, Timers] = {}  # parents first, so that the output of their timers reaches the next
        self._contexts: list[Context] = []
        self._processors: list[Processor] = []
        self._time = TaskStreamTime(policy=settings.stream_time)
        self.inputs: dict[str, Input] = {}
        # The output of one record, or of one due time, cannot be committed in parts; the commit follows it.
        task.stores.buffer.refuse_bytes = NEVER
        task.stores.buffer.keep_bytes = task.stores.buffer.bound_bytes // 2
        task.know_outputs(settings.outputs)
        task.stores.buffer.leave_disk()  # the loop checks the disk before it begins a record
        # The ends of the inputs in the log, None while it does not answer; without fetching all is here that there is.
        self.input_ends: Callable[[], Mapping[TopicPartition, int] | None] = self._fetched
        self._passing = PassingTime(topology, self._timers, self._clock, self._callbacks.without_record)
        self._build(positions)
        self._reading: Input | None = None  # the input whose records are processed now
        self._run_records = 0  # processed in this run
        now_ms = self._clock.monotonic_ms()
        self._heard_ms = dict.fromkeys(self.inputs, now_ms)
        self._idles = [one for one in self.inputs.values() if one.settings.idle_after_ms is not None]
        for one in self.inputs.values():
            largest_ms = self._time.partition_ms(one.key)
            one.largest_ms = one.noted_ms = -1 if largest_ms is None else largest_ms
        self._event_time: EventTime | None = None
        if topology.group in settings.event_time:
            self._event_time = EventTime(
                list(self.inputs.values()),
                settings.upstream,
                task.progress,
                interval_ms=settings.watermark_interval_ms,
                now_ms=now_ms,
                fire=self._advance_time,
                send=lambda signal: self._in_turn(
                    lambda: send_signal(task, topology, settings.partitions_of, signal, self.watermark_ms())
                ),
            )
        task.clocks = partial(clocks_of, self._time, self._event_time)
        work = RecordWork(self._guard, self._left_out, self._clock, self._event_time, self._in_turn)
        for one in self.inputs.values():
            one.work = work.of(one)

    # --- life ---

    def start(self) -> None:
        """Call every processor's `init`, and report this task to downstream tasks."""
        with self._at_work(behind_records=False):
            for processor, context in zip(self._processors, self._contexts, strict=True):
                # Counted before the call, so that a processor whose init failed is closed, too.
                self._begun += 1
                self._await(processor.init, f"init of processor {context.name!r}", START_MAX_MS, context)
            watermark_ms = self.watermark_ms()
            if watermark_ms is not None:
                for work in self._passing.catch_up(watermark_ms):
                    self._in_turn(work)
        if self._event_time is not None:
            self._event_time.announce(self._clock.monotonic_ms())

    def close(self) -> None:
        """Close every processor whose init was called; the first error is raised once all are closed."""
        errors: list[Exception] = []
        self.task.clocks = None
        if self._calls is not None:
            try:
                self._calls.close(partial(self._settings.progress.step, LOOP))
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        for processor, context in zip(self._processors[: self._begun], self._contexts, strict=False):
            try:
                self._await(processor.close, f"close of processor {context.name!r}", CANCEL_MS)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        for context in self._contexts:
            context.close()
        if errors:
            raise errors[0]

    # --- records ---

    def add(self, topic: str, records: Sequence[LogRecord], next_offset: int, at_end: bool) -> int:
        """Add the fetched records of one input; returns how many of its records wait here now."""
        one = self.inputs[topic]
        one.add(records, next_offset, at_end)
        if records:
            self._heard_ms[topic] = self._clock.monotonic_ms()
        if one.head is None:
            self._advance(one)
        return one.waiting

    def leave_out(self, fatal: Mapping[str, Mapping[int, Exception]] | None) -> None:
        """Leave these records out, by topic and offset, and name each that is decoded; None: no process died here."""
        if fatal is not None:
            for topic, one in self.inputs.items():
                one.fatal = fatal.get(topic, {})

    @property
    def own_inputs(self) -> tuple[OwnInput, ...]:
        """The inputs of sources of one's own."""
        return tuple(one for one in self.inputs.values() if isinstance(one, OwnInput))

    def take_collected(self, one: OwnInput, taken: Sequence[tuple[Record, int]], *, at_end: bool) -> None:
        """Add records that a source of one's own collected, each with the next offset behind it."""
        one.add_collected(taken, at_end)
        if taken:
            self._heard_ms[one.topic] = self._clock.monotonic_ms()
        if one.head is None:
            self._advance(one)

    def finish(self, one: OwnInput) -> None:
        """A source of one's own has no more records: it holds back neither stream time nor watermark."""
        with self._at_work():
            self._set_idle(one)
            if self._event_time is not None:
                self._in_turn(partial(self._event_time.finish, one, self._clock.monotonic_ms()))

    def run(self, limit: int) -> int:
        """Process up to `limit` records, until none is ready or a commit is due; returns how many."""
        task, buffer, calls = self.task, self.task.stores.buffer, self._calls
        if calls is not None and not self._takes_records:
            return 0
        self._run_records = 0
        self._inside = True
        try:
            with as_failures():
                while self._run_records < limit:
                    chosen = choose(self.inputs.values())
                    if chosen is None:
                        break
                    self._process(*chosen, limit - self._run_records)
                    if task.commit_requested or buffer.full:
                        break
                    if calls is not None and (self._held or calls.full):
                        break
        finally:
            self._inside = False
            task.counters.processed_records[self._name] += self._run_records
            self.in_hand.clear()
            task.record_timestamp = None
        if calls is not None:
            # All at once, and after their records, which may have been rolled back.
            calls.begin()
        return self._run_records

    @property
    def runnable(self) -> bool:
        """Whether a record could be processed now."""
        return self._takes_records and choose(self.inputs.values()) is not None

    @property
    def in_flight(self) -> int:
        """The number of calls of asynchronous steps whose results have not gone on."""
        return 0 if self._calls is None else self._calls.in_flight

    def collect(self) -> int:
        """Pass the results of asynchronous steps on, and do what waited for them; returns of how many calls."""
        calls = self._calls
        if calls is None:
            return 0
        with self._at_work(), nullcontext() if self._tracing is None else self._tracing.apart():
            try:
                count = calls.pass_on()
            except BaseException as error:
                self._name_call(calls.passing, error)
                raise
            while self._held and not calls.in_flight:
                work, later = self._held.popleft(), self._held
                # Work that follows from this piece comes before pieces that wait behind it.
                self._held = deque()
                work()
                self._held += later
            calls.begin()
        return count

    def wait_for_call(self, wait_ms: float) -> None:
        """Wait until a call ends, for at most so many milliseconds."""
        if self._calls is not None:
            self._calls.wait(wait_ms)

    def waiting(self, at: TopicPartition) -> int:
        """The number of records of one input that were fetched and not processed."""
        return self.inputs[at.topic].waiting

    # --- time ---

    def tick(self) -> None:
        """Periodic work, with or without records: idle inputs, watermarks, wall-clock punctuation and timers."""
        now_ms = self._clock.monotonic_ms()
        if self._calls is not None and self._time_must_wait(now_ms):
            return
        with self._at_work():
            for one in self._idles:
                self._see_idle(one, now_ms)
            if self._event_time is not None:
                self._event_time.tick(now_ms)
            wall_ms = self.wall_ms()
            if self._wall_queue.can_punctuate(wall_ms):
                self._wall_queue.may_punctuate(wall_ms)
            for timers in self._timers.values():
                timers.fire(PROCESSING_TIME, wall_ms)
            self._passing.tick(wall_ms, self.flush, self._ends, self._consumed)

    def restart_silence(self) -> None:
        """Count silence again from now: while nothing was read, it was not that of the sources."""
        self._passing.restart()

    def follow_upstream(self) -> None:
        """Wait for the new upstream tasks, which are in `settings.upstream` already."""
        if self._event_time is not None:
            with self._at_work():
                self._event_time.add_upstream(self.inputs.values(), self._settings.upstream)

    def flush(self) -> None:
        """Forward the suppressed results of aggregations."""
        with self._at_work(), nullcontext() if self._tracing is None else self._tracing.apart():
            for flush in self._flushes:
                flush()
                self._settings.progress.step(LOOP)
        if self._calls is not None:
            self._calls.begin()

    def ready_to_commit(self) -> bool:
        """Whether `commit` may be called: every call has its result. Until then the task takes no record.

        To be called again and again; it waits for nothing.
        """
        if self._calls is None:
            return True
        self._draining = True
        self.collect()
        if self._calls.in_flight:
            return False
        # Suppressed results may go through an asynchronous step, and its results be suppressed again.
        self.flush()
        return not self._calls.in_flight

    def commit(self) -> None:
        """Forward suppressed results, then make state, outputs and offsets durable as one cut."""
        run_steps(self.commit_steps())

    def commit_steps(self) -> Steps[bool]:
        """`commit`, as a generator of its calls to the log; until it ends, this runner must not be used.

        Returns whether there was anything to commit.
        """
        if self._tracing is None:
            return (yield from self._commit_steps())
        with self._tracing.commit(self._name, lambda: self.task.counters.commits["committed"]):
            return (yield from self._commit_steps())

    def _commit_steps(self) -> Steps[bool]:
        # First, because suppressed results belong to the records whose offsets are committed.
        self.flush()
        reach("commit.flushed")
        task = self.task
        if self.in_flight:
            raise InternalError(f"task {task.id}: a commit came before the results of {self.in_flight} calls")
        self._draining = False
        task.stream_times = self._time.to_state()
        if self._event_time is not None:
            task.progress.update(self._event_time.progress())
        return (yield from task.commit_steps({(one.topic, one.partition): one.consumed for one in self._moved()}))

    def _moved(self) -> Iterator[Input]:
        # Only offsets that moved: an unchanged one would make a commit of a turn in which nothing happened.
        known = self.task.source_offsets()
        for one in self.inputs.values():
            if known.get(TopicPartition(one.topic, one.partition)) != one.consumed:
                yield one

    def status(self) -> TaskStatus:
        """The current state of the task's clocks, the inputs that hold them back, and its inputs."""
        wall_ms = self.next_wall_ms
        return TaskStatus(
            task=self._name,
            stream_time_ms=self._time.now_ms,
            stream_time_waits_for=self._time.holding_back(),
            event_time=None if self._event_time is None else self._event_time.statistics(),
            next_wall_clock_ms=None if wall_ms == NEVER else wall_ms,
            inputs=tuple(status_of(one, self._time) for one in self.inputs.values()),
            calls=() if self._calls is None else self._calls.status(),
        )

    # --- services of contexts ---

    def caller(self, node: str, processor: Processor, context: AsyncContext) -> Forward:
        if self._calls is None:
            self._calls = TaskCalls(self.task, self.in_hand, self._settings.calls, self._policies.call_failed)
            self._guard.calls = self._calls
        return self._calls.add_step(node, processor, context)

    def schedule(
        self, context: Context, interval_ms: int, kind: PunctuationType, callback: Callback, start_ms: int | None
    ) -> Cancellable:
        self._check_inside("schedule a punctuation")
        due_ms = first_due(kind, self.wall_ms(), interval_ms, start_ms)
        queue = self._stream_queue if kind is STREAM_TIME else self._wall_queue
        handle = queue.schedule(due_ms, interval_ms, self._callbacks.of(context.name, kind, queue, callback))
        if kind is STREAM_TIME:
            self._stream_due_ms = min(self._stream_due_ms, due_ms)
        return handle

    def set_timer(self, context: Context, key: Any, time_ms: int, kind: TimerKind) -> None:
        self._check_inside("set a timer")
        timers = self._timers_of(context)
        if kind is EVENT_TIME and self._event_time is None:
            raise InvalidRequest(
                f"processor {context.name!r}: an event-time timer needs watermarks, and no source of task "
                f"{self.task.id} makes any: give the source watermarks=..., or set a PROCESSING_TIME timer"
            )
        timers.set(key, time_ms, kind)

    def cancel_timer(self, context: Context, key: Any, time_ms: int, kind: TimerKind) -> None:
        self._check_inside("cancel a timer")
        self._timers_of(context).cancel(key, time_ms, kind)

    @property
    def next_wall_ms(self) -> int:
        """The next due time of wall-clock work, in milliseconds of that clock; NEVER if nothing is scheduled."""
        due_ms = self._wall_queue.next_due_ms
        timers = (one.next_ms(PROCESSING_TIME) for one in self._timers.values())
        return min([NEVER if due_ms is None else due_ms, *timers])

    def stream_time_ms(self) -> int | None:
        self._note_time()
        return self._time.now_ms

    def watermark_ms(self) -> int | None:
        return None if self._event_time is None else self._event_time.clock_ms

    def wall_ms(self) -> int:
        """The wall clock at the task's start plus monotonic time since: it never goes back."""
        return self._wall_offset_ms + self._clock.monotonic_ms()

    def on_flush(self, flush: Callable[[], None]) -> None:
        self._flushes.append(flush)

    # --- inside ---

    def _build(self, positions: Mapping[TopicPartition, int]) -> None:
        self._words = self._settings.in_hand.words
        self._policies = policies = StepPolicies(self.topology, self._guard, self._left_out, self._words)
        # Services of the contexts, beside those of this class.
        self.drop, self.giver, self.read_result = self._guard.drop, policies.giver, policies.read_result
        self.late, self.on_silence = policies.late, self._passing.on_silence
        self.on_watermark, self.before_watermark = self._passing.on_watermark, self._passing.before_watermark
        wired = wire(self.topology, self, self._settings.partitions_of, self._policies.own)
        for node, processor, context in wired.processors:
            self._processors.append(processor)
            self._contexts.append(context)
            if node.timer_store is not None and node.timer_key is not None:
                where = f"processor {node.name!r} of task {self.task.id}"
                store = self.task.store(node.timer_store)
                fire = partial(self._callbacks.fire_timer, node, processor)
                key = node.timer_key.of_topic(store.topic, "key")
                self._timers[node.name] = Timers(store, key, fire, where)
        for source in self.topology.sources:
            at = TopicPartition(source.topic, self.task.id.partition)
            policy = self.topology.policy_at(source.name)
            process = wired.entries[source.name]
            if self._tracing is not None:
                process = self._tracing.processing(process, self._name, source.label, at.partition, self.in_hand)
            given = (at.partition, positions[at], process, self.wall_ms, policy)
            one = Input(source, *given) if source.own is None else OwnInput(source, source.own, *given)
            named = (self._name, source.topic, at.partition, one.behind, self._policies.steps)
            one.in_hand = NamedInput(self._settings.in_hand, *named)
            self.inputs[source.topic] = one
            self._time.add(one.key)
        self._time.restore(self.task.stream_times)

    def _timers_of(self, context: Context) -> Timers:
        try:
            return self._timers[context.name]
        except KeyError:
            raise InvalidRequest(
                f"processor {context.name!r} has no timers: define on_timer(self, timer) in its class"
            ) from None

    def _process(self, one: Input, until_ms: int, limit: int) -> None:
        """Process the records of an input's chunk up to a timestamp, until one asks for a commit, at most `limit`.

        Everything that is the same for them all is looked up once: this loop runs for every record of an application.
        """
        if one.control:
            self._process_control(one)
            return
        hand, task, buffer, calls = self.in_hand, self.task, self.task.stores.buffer, self._calls
        words, work, records, offsets = self._settings.progress.words, one.work, one.records, one.offsets
        hand.topic, hand.partition = one.label, one.partition
        first, steps, last_words = one.place, words[LOOP], self._words
        self._hear(one, records[first].timestamp)
        last_words[INPUT] = one.in_hand.number if calls is None else -one.in_hand.number  # a call may end the process
        try:
            for at in range(first, min(len(records), first + limit)):
                record = records[at]
                _, _, stamp, headers, _ = record
                if stamp > until_ms:
                    break
                one.place = at
                last_words[OFFSET] = hand.offset = offsets[at]
                hand.headers, task.record_timestamp = headers, stamp
                if stamp > one.largest_ms:
                    one.largest_ms = stamp
                work(record)
                # A word in shared memory: the lease process renews only while the loop makes progress.
                words[LOOP] = steps = steps + 1
                # After each record and not once per chunk: how often a callback fires must not depend on the fetches.
                if self._stream_due_ms != NEVER and self._stream_is_due():
                    break
                if task.commit_requested or buffer.size_bytes >= buffer.bound_bytes:
                    break
                if calls is not None and (self._held or calls.full):
                    break
        except BaseException as error:
            self._run_records += one.place - first
            one.stop_at(one.place)
            failure = failure_of(error)
            if isinstance(failure, Exception):
                failure.add_note(f"while task {task.id} processed the {one.at(one.raw)}")
                self.failed_at = f"{one.label}-{one.partition} at offset {one.offset}"
            if failure is error:
                raise
            raise failure from error
        finally:
            last_words[INPUT] = 0
            self._note_time()
            self._reading = None
        self._run_records += one.place - first + 1
        one.consumed = offsets[one.place] + one.behind
        self._advance(one)
        if self._stream_due_ms != NEVER:
            self._punctuate_stream()

    def _process_control(self, one: Input) -> None:
        hand = self.in_hand
        hand.topic, hand.partition, hand.offset, hand.headers = one.label, one.partition, one.offset, one.raw.headers
        if self._event_time is not None:
            self._in_turn(partial(self._event_time.on_control, one, one.raw, self._clock.monotonic_ms()))
        self._settings.progress.step(LOOP)
        self._run_records += 1
        one.consumed = one.offset + one.behind
        self._advance(one)
        self._punctuate_stream()

    def _hear(self, one: Input, stamp: int) -> None:
        """Records of this input are next. A record makes its partition active again, also an older one."""
        self._reading = one
        if one.idle:
            one.idle = False
            self._time.observe(one.key, stamp)

    def _note_time(self) -> None:
        """Let the stream time follow the records of the input in hand: whenever it is read, not at each record."""
        one = self._reading
        if one is not None and one.largest_ms > one.noted_ms:
            one.noted_ms = one.largest_ms
            self._time.observe(one.key, one.largest_ms)

    def _stream_is_due(self) -> bool:
        now_ms = self.stream_time_ms()
        return now_ms is not None and now_ms >= self._stream_due_ms

    def _advance(self, one: Input) -> None:
        try:
            one.advance(self._unreadable)
        except Exception:
            self.failed_at = f"{one.label}-{one.partition} at offset {one.consumed}"
            raise

    def _traced_unreadable(self, one: Input, raw: LogRecord, error: Exception, reason: str) -> None:
        assert self._tracing is not None
        # No processor gets the record, so that it has no span otherwise.
        self._tracing.failed(self._name, one.label, one.partition, raw.offset, raw.headers, error)
        self._left_out.failed(one, raw, error, reason)

    def _see_idle(self, one: Input, now_ms: int) -> None:
        idle_after_ms = one.settings.idle_after_ms
        if one.waiting or not one.at_end:
            self._heard_ms[one.topic] = now_ms
        elif idle_after_ms is not None and not one.idle and now_ms - self._heard_ms[one.topic] > idle_after_ms:
            self._set_idle(one)

    def _set_idle(self, one: Input) -> None:
        one.idle = True
        before_ms = self._time.now_ms
        self._time.set_idle(one.key, True)
        if self._time.now_ms != before_ms:  # records of the other inputs had advanced them already
            self._punctuate_stream()

    def _punctuate_stream(self) -> None:
        if not self._stream_is_due():
            return
        if self.in_flight:
            # With this very time: the punctuation fires before any further record is taken.
            self._held.append(self._punctuate_stream)
            return
        now_ms = self._time.now_ms
        assert now_ms is not None  # it is due
        self._stream_queue.may_punctuate(now_ms)
        due_ms = self._stream_queue.next_due_ms
        self._stream_due_ms = NEVER if due_ms is None else due_ms

    def _fetched(self) -> Mapping[TopicPartition, int]:
        return {TopicPartition(one.topic, one.partition): one.fetched for one in self.inputs.values()}

    def _consumed(self) -> Mapping[TopicPartition, int]:
        return {TopicPartition(one.topic, one.partition): one.consumed for one in self.inputs.values()}

    # --- asynchronous steps ---

    @property
    def _takes_records(self) -> bool:
        return self._calls is None or not (self._draining or self._held or self._calls.full)

    def _in_turn(self, work: Callable[[], object]) -> None:
        """Do this now, or once all calls in flight have their results."""
        if self.in_flight or self._held:
            self._held.append(work)
        else:
            work()

    def _time_must_wait(self, now_ms: int) -> bool:
        """Whether periodic work waits for results; a due poll of watermarks makes the task wait for them, too."""
        if self._event_time is not None and not self._held and self.in_flight and self._event_time.is_due(now_ms):
            self._held.append(partial(self._event_time.tick, now_ms))
        # While a commit waits, a wall-clock punctuation could make calls for ever.
        return bool(self._held) or self._draining

    def _advance_time(self, watermark_ms: int) -> None:
        for work in self._passing.advance(watermark_ms):
            self._in_turn(work)

    def _ends(self) -> Mapping[TopicPartition, int] | None:
        # Results in flight are records on their way: no silence.
        return None if self.in_flight else self.input_ends()

    def _name_call(self, call: AsyncCall | None, error: BaseException) -> None:
        if call is None:
            return
        error.add_note(f"in the call, or behind it, of {call}")
        if call.hand.topic is not None:
            self.failed_at = f"{call.hand.topic}-{call.hand.partition} at offset {call.hand.offset}"

    def _await(self, work: Callable[..., object], what: str, max_ms: int, *given: object) -> None:
        """Call an `init` or `close`, which runs on the event loop if it is asynchronous."""
        with as_failures():
            outcome = work(*given)
            if inspect.iscoroutine(outcome):
                step = partial(self._settings.progress.step, LOOP)
                self._settings.calls.run(outcome, f"{what} of task {self.task.id}", max_ms, step)

    @contextmanager
    def _at_work(self, *, behind_records: bool = True) -> Iterator[None]:
        before, self._inside = self._inside, True
        try:
            with as_failures():
                yield
        except Exception:
            self.failed_behind = behind_records
            raise
        finally:
            self._inside = before

    def _check_inside(self, what: str) -> None:
        if not self._inside or threading.get_ident() != self._thread:
            raise InvalidRequest(
                f"cannot {what} outside a processor: do it in init, process, a punctuation or a timer, in the thread "
                f"that runs task {self.task.id}"
            )
