"""The callbacks of a task that have no record in hand: punctuations and timers.

    record in hand ──> set aside ──> callback, under its step's on_error ──> record in hand again

Rules of this file: one thread, that of the task. It decides about no time: the queues and timers call when one is due.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableSequence
from functools import partial
from typing import Any

from standfast.replication.progress import LOOP, LeaseProgress
from standfast.store.errors import InvalidRequest
from standfast.store.process.in_hand import INPUT
from standfast.stream.punctuation import Callback, PunctuationQueue, PunctuationType
from standfast.stream.runtime.guard import TaskGuard
from standfast.stream.runtime.skipped import Skipped
from standfast.stream.task.task import Task
from standfast.stream.timer import EVENT_TIME, Timer
from standfast.stream.topology.nodes import ProcessorNode, SubTopology
from standfast.stream.topology.processor import CurrentRecord, Processor


class CallbackRunner:
    """Calls the callbacks of one task. `shared`: words that other processes read."""

    def __init__(
        self,
        task: Task,
        topology: SubTopology,
        in_hand: CurrentRecord,
        guard: TaskGuard,
        left_out: Skipped,
        shared: tuple[LeaseProgress, MutableSequence[int]],
        wall_ms: Callable[[], int],
    ) -> None:
        self._task = task
        self._topology = topology
        self._in_hand = in_hand
        self._guard = guard
        self._left_out = left_out
        self._progress, self._words = shared
        self._wall_ms = wall_ms
        self._step_policies = {
            node.name: node.policy for node in topology.processors if node.policy is not None and node.policy.protects
        }

    def of(self, node: str, kind: PunctuationType, queue: PunctuationQueue, callback: Callback) -> Callback:
        """The call of a punctuation. Raises InvalidRequest for a callback that cannot be one."""
        if not callable(callback):
            raise InvalidRequest(f"processor {node!r}: callback {callback!r} cannot be called")
        if inspect.iscoroutinefunction(callback):
            raise InvalidRequest(
                f"processor {node!r}: callback {callback!r} is async def, and would never be awaited: forward a record "
                "to an asynchronous step there"
            )
        return partial(self._punctuate, node, kind, queue, callback)

    def _punctuate(
        self, node: str, kind: PunctuationType, queue: PunctuationQueue, callback: Callback, now_ms: int
    ) -> None:
        self._task.counters.punctuation_delay_seconds[(kind.value,)].observe(queue.late_ms / 1_000)
        with_record = self._set_aside(now_ms)
        outcome = "failed"
        policy = self._step_policies.get(node)
        try:
            # No record has caused it, so that only the step's own policy covers it.
            error = None if policy is None else self._guard.attempt(callback, now_ms)
            if policy is None:
                callback(now_ms)
            elif error is not None:
                self._left_out.callback_failed(policy, node, f"punctuation ({kind.value}) at {now_ms}", node, error)
            outcome = "fired" if error is None else "failed"
        finally:
            self._task.counters.punctuations[kind.value, outcome] += 1
            self._take_up(with_record)

    def fire_timer(self, node: ProcessorNode, processor: Processor, timer: Timer) -> None:
        """Call `on_timer` for a timer that is due."""
        policy = self._topology.policy_at(node.name)
        with_record = self._set_aside(timer.time if timer.kind is EVENT_TIME else self._wall_ms())
        try:
            if not policy.protects:
                processor.on_timer(timer)
                return
            error = self._guard.attempt(processor.on_timer, timer)
            if error is not None:  # the timer stays fired: it would fail again, and delay the timers behind it
                what = f"timer of key {timer.key!r} at {timer.time} ({timer.kind.value})"
                self._left_out.callback_failed(policy, node.name, what, "timer", error)
        finally:
            self._take_up(with_record)

    def without_record(self, now_ms: int, work: Callable[[], None]) -> None:
        """Do other work of the task's clocks, at this time."""
        with_record = self._set_aside(now_ms)
        try:
            work()
        finally:
            self._take_up(with_record)

    def _set_aside(self, now_ms: int) -> tuple[Any, ...]:
        # A callback is progress for the lease like a record, or a long series of timers would stop its renewal.
        self._progress.step(LOOP)
        hand = self._in_hand
        words = self._words
        kept = (hand.topic, hand.partition, hand.offset, hand.headers, self._task.record_timestamp, words[INPUT])
        words[INPUT] = 0
        hand.clear()
        self._task.record_timestamp = now_ms
        return kept

    def _take_up(self, kept: tuple[Any, ...]) -> None:
        hand = self._in_hand
        hand.topic, hand.partition, hand.offset, hand.headers, self._task.record_timestamp, self._words[INPUT] = kept
