"""A coordinated checkpoint in the placement topic: the leader's order, the parts that instances report, the last one.

    key                    written by    value, compact JSON
    checkpoint             the leader    the order in force: number, step, groups that stop, ends of internal topics
    checkpoint/complete    the leader    the last complete checkpoint, in the transaction of the order that completes it
    checkpoint/request     a command     asks the leader for a checkpoint

Each instance follows the newest order: tasks of a group in `stop` commit and stand still once they have processed their
inputs up to the `limits`, tasks of other groups that are not `done` take no record beyond the limits, all others run
free. An order that is not RUNNING frees every task. An instance that starts reads the order before it opens a task, so
a task that is opened again during a checkpoint stands still, too.

Rules of this file: pure. `checkpoint_round.py` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from standfast.replication.log import Outgoing
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.placement.formats import FORMAT, read_known
from standfast.replication.placement.task_ranges import parse_ranges, task_ranges
from standfast.replication.shapes import Count, Shape, dump
from standfast.store.errors import InvalidRequest

CHECKPOINT_KEY = b"checkpoint"
COMPLETE_KEY = b"checkpoint/complete"
REQUEST_KEY = b"checkpoint/request"
ORDER_BYTES_MAX = 500_000  # half of a broker's default for one record
FAILED_MOST = 5  # tasks of which a report says why they have no part
WHY_CHARS = 500


class OrderState(StrEnum):
    """State of a checkpoint. Only RUNNING holds tasks back."""

    RUNNING = "running"
    COMPLETE = "complete"
    ABANDONED = "abandoned"
    REFUSED = "refused"  # a request that no checkpoint was begun for


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a checkpoint. `step` grows with every order of one number; `limits` are ends of internal topics.

    `pause_ms`: the longest time from the order that stopped a group until the one that freed it. `request`: the id of
    the request that it answers. `stopped_at` names the assignment under which its parts count: epoch and generation.
    """

    number: int
    step: int = 0
    state: OrderState = OrderState.RUNNING
    stop: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    limits: Mapping[TopicPartition, int] = field(default_factory=dict)
    stopped_at: tuple[int, int] = (0, 0)
    request: str = ""
    why: str = ""
    pause_ms: int = 0

    def stops(self, task: TaskId) -> bool:
        """Whether this task is to stand still once its inputs are processed up to the limits."""
        return self.state is OrderState.RUNNING and task.group in self.stop

    def limits_of(self, task: TaskId, inputs: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets at which these inputs of a task end for now."""
        if self.state is not OrderState.RUNNING or task.group in self.done:
            return {}
        return {at: self.limits[at] for at in inputs if at in self.limits}


@dataclass(frozen=True, slots=True)
class PartReport:
    """The parts of one instance in checkpoint `number`.

    `applied`: tasks for which the order of `step` is in force. `stopped`: tasks whose part is cut, `stored`: those
    whose part is in the storage; both stay when the task goes on. `failed`: why a task has no part.
    """

    number: int
    step: int
    applied: frozenset[TaskId] = frozenset()
    stopped: frozenset[TaskId] = frozenset()
    stored: frozenset[TaskId] = frozenset()
    failed: Mapping[TaskId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pointer:
    """The last complete checkpoint, and when it was completed, by the clock of its leader."""

    number: int
    at_ms: int
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A wish for a checkpoint. A leader that reads it more than `patience_ms` after `at_ms` passes it over."""

    id: str
    at_ms: int
    patience_ms: int


class PartShape(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """`PartReport` in the report of an instance."""

    number: Count
    step: Count
    applied: str = ""
    stopped: str = ""
    stored: str = ""
    failed: dict[str, str] = {}  # noqa: RUF012 - msgspec copies a default


class _Order(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    standfast: int
    number: Count
    step: Count
    state: OrderState
    stop: tuple[Count, ...] = ()
    done: tuple[Count, ...] = ()
    limits: dict[str, dict[str, Count]] = {}  # noqa: RUF012 - msgspec copies it
    stopped_at: tuple[Count, Count] = (0, 0)
    request: str = ""
    why: str = ""
    pause_ms: Count = 0


class _Pointer(Shape, frozen=True, forbid_unknown_fields=False):
    standfast: int
    number: Count
    at_ms: int
    tasks: Count = 0


class _Request(Shape, frozen=True, forbid_unknown_fields=False):
    standfast: int
    id: str
    at_ms: int
    patience_ms: Count


def order_records(order: Order, timestamp_ms: int, pointer: Pointer | None = None) -> list[Outgoing]:
    """Records of an order, and of the pointer that it completes. Raises InvalidRequest for one that fits no record."""
    limits: dict[str, dict[str, int]] = {}
    for at, end in sorted(order.limits.items()):
        limits.setdefault(at.topic, {})[str(at.partition)] = end
    value = dump(
        _Order(
            FORMAT,
            order.number,
            order.step,
            order.state,
            tuple(sorted(order.stop)),
            tuple(sorted(order.done)),
            limits,
            order.stopped_at,
            order.request,
            order.why[:WHY_CHARS],
            order.pause_ms,
        )
    )
    if len(value) > ORDER_BYTES_MAX:
        raise InvalidRequest(
            f"the ends of {len(order.limits)} partitions take {len(value)} bytes of a record, the limit is "
            f"{ORDER_BYTES_MAX}: checkpoints are for applications with fewer partitions of internal topics"
        )
    records = [Outgoing(CHECKPOINT_KEY, value, timestamp_ms)]
    if pointer is not None:
        shape = _Pointer(FORMAT, pointer.number, pointer.at_ms, pointer.tasks)
        records.append(Outgoing(COMPLETE_KEY, dump(shape), timestamp_ms))
    return records


def order_text(order: Order) -> str:
    """An order as the text of its record, for another process of this instance; `read_order` reads it."""
    return (order_records(order, 0)[0].value or b"").decode()


def request_record(request: Request) -> Outgoing:
    """The record of a request."""
    shape = _Request(FORMAT, request.id, request.at_ms, request.patience_ms)
    return Outgoing(REQUEST_KEY, dump(shape), request.at_ms)


def read_order(raw: bytes) -> Order:
    """The order of a record. Raises ValueError."""
    found = read_known(raw, _Order)
    limits = {
        TopicPartition(topic, int(partition)): end
        for topic, ends in found.limits.items()
        for partition, end in ends.items()
    }
    return Order(
        found.number,
        found.step,
        found.state,
        frozenset(found.stop),
        frozenset(found.done),
        limits,
        found.stopped_at,
        found.request,
        found.why,
        found.pause_ms,
    )


def read_pointer(raw: bytes) -> Pointer:
    """The pointer of a record. Raises ValueError."""
    found = read_known(raw, _Pointer)
    return Pointer(found.number, found.at_ms, found.tasks)


def read_request(raw: bytes) -> Request:
    """The request of a record. Raises ValueError."""
    found = read_known(raw, _Request)
    return Request(found.id, found.at_ms, found.patience_ms)


def part_shape(report: PartReport | None) -> PartShape | None:
    """A part report for the report of an instance; of many failures it names a few."""
    if report is None:
        return None
    failed = {str(task): report.failed[task][:WHY_CHARS] for task in sorted(report.failed)[:FAILED_MOST]}
    applied, stopped, stored = map(task_ranges, (report.applied, report.stopped, report.stored))
    return PartShape(report.number, report.step, applied, stopped, stored, failed)


def part_report(shape: PartShape | None) -> PartReport | None:
    """Inverse of `part_shape`. Raises ValueError."""
    if shape is None:
        return None
    applied, stopped, stored = map(parse_ranges, (shape.applied, shape.stopped, shape.stored))
    failed = {TaskId.parse(task): why for task, why in shape.failed.items()}
    return PartReport(shape.number, shape.step, applied, stopped, stored, failed)
