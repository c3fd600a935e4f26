"""The policies of a task's steps: what happens where the call of one step fails, or has a record that is too late.

    forward ──> own(node)      a step with an on_error of its own, under its savepoint; else its errors fail the task
            ──> giver(node)    results of a table, one by one: a result that fails further down is left out
    result of a stored row that its serde cannot read, call of an asynchronous step that failed for good ──> left out

Rules of this file: one thread, that of the task. `TaskGuard` undoes, `Skipped` counts and writes; this file says when.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from functools import partial
from typing import Any

from standfast.store.errors import Corruption, InternalError
from standfast.store.process.in_hand import STEP
from standfast.stream.deaths.exits import failure_of
from standfast.stream.record import Record
from standfast.stream.runtime.guard import TaskGuard, can_skip, failing
from standfast.stream.runtime.skipped import Skipped
from standfast.stream.topology.calls import AsyncCall
from standfast.stream.topology.nodes import ProcessorNode, Serdes, SinkNode, SubTopology
from standfast.stream.topology.policy import ErrorPolicy
from standfast.stream.topology.processor import Forward


class StepPolicies:
    """The policies of one task. `words` name the step that has the record, for other processes."""

    def __init__(self, topology: SubTopology, guard: TaskGuard, left_out: Skipped, words: MutableSequence[int]) -> None:
        self.steps: list[str] = []  # those with a policy of their own, by their numbers
        self._topology = topology
        self._guard = guard
        self._left_out = left_out
        self._words = words
        self._nodes = {node.name: node for node in topology.processors}

    def own(self, node: ProcessorNode | SinkNode, forward: Forward) -> Forward:
        """The call of a node under its own policy."""
        policy = node.policy
        if policy is None:
            return failing(forward)
        self.steps.append(node.name)
        guarded = partial(self._attempt, policy, node.name, node.given, forward)
        return partial(self._within, len(self.steps), guarded if policy.protects else failing(forward))

    def giver(self, node: str, forward: Forward) -> Forward:
        """The call for each result of a node."""
        policy = self._topology.policy_at(node)
        results = self._nodes[node].results
        return partial(self._attempt, policy, node, results, forward) if policy.protects else forward

    def late(self, node: str, record: Record) -> bool:
        """Write a record to the node's `late` topic; False if it has none."""
        found = self._nodes[node]
        if found.late is None or found.given is None:
            return False
        self._left_out.late_at(node, found.late, found.given, record)
        return True

    def read_result(self, node: str, read: Callable[..., Record | None], given: tuple[Any, ...]) -> Record | None:
        """The result of a stored row; None where the node's policy leaves it out."""
        try:
            return read(*given)
        except Corruption as error:
            policy = self._topology.policy_at(node)
            if not (policy.protects and can_skip(error)):
                raise
            self._left_out.callback_failed(policy, node, "result of a stored row", "result", error)
            return None

    def call_failed(self, call: AsyncCall) -> None:
        """Skip the record of a call that failed for good, as its policy says, or raise the error."""
        error = failure_of(call.error or InternalError(f"{call}: it was cancelled while its task runs"))
        policy = self._topology.policy_at(call.step.name)
        if not isinstance(error, Exception) or not policy.protects or not can_skip(error):
            raise error
        given = self._nodes[call.step.name].given
        self._left_out.failed_at(policy, call.step.name, given, call.record, error, "call")

    def _within(self, step: int, forward: Forward, record: Record) -> None:
        """Name the step while it has the record."""
        words = self._words
        around, words[STEP] = words[STEP], step
        try:
            forward(record)
        finally:
            words[STEP] = around

    def _attempt(self, policy: ErrorPolicy, node: str, serdes: Serdes | None, forward: Forward, record: Record) -> None:
        error = self._guard.attempt(forward, record)
        if error is not None:
            self._left_out.failed_at(policy, node, serdes, record, error)
