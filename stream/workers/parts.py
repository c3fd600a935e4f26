"""The parts of coordinated checkpoints that an instance's worker processes have: one report of all of them.

    order of the leader ──> PoolParts.follow ──> every worker, before it is to open a task
    worker 1: PartReport ─┐
    worker 2: PartReport ─┴──> report(): one PartReport, as of an instance of one process
    end of a worker seen ───> its tasks fail in the checkpoint under way, which the leader abandons

A part counts only as long as the process that cut it lives: its replacement knows nothing of it, and its task may have
gone on since.

Rules of this file: pure. Workers are numbered from 0. One thread, as `pool.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from standfast.replication.offsets import TaskId
from standfast.replication.placement.checkpoint import Order, OrderState, PartReport


class PoolParts:
    """The order in force, and the last report of each worker. `send` gives an order to every worker."""

    def __init__(self, send: Callable[[Order], None]) -> None:
        self.order: Order | None = None
        self._send = send
        self._reports: dict[int, PartReport] = {}
        self._lost: PartReport | None = None  # the tasks of workers that ended during the last checkpoint

    @property
    def under_way(self) -> bool:
        """Whether tasks are to stand still, so that the tick looks often."""
        order = self.order
        return order is not None and order.state is OrderState.RUNNING and bool(order.stop)

    def follow(self, order: Order | None) -> None:
        """Take the newest order of the placement topic; the workers get each order once."""
        if order is not None and order != self.order:
            self.order = order
            self._send(order)

    def reported(self, worker: int, report: PartReport | None) -> None:
        """A living worker has these parts."""
        if report is not None:
            self._reports[worker] = report

    def ended(self, worker: int, ran: Collection[TaskId]) -> None:
        """The end of a worker's process was seen, which ran these tasks: the parts that it had are gone."""
        gone, order = self._reports.pop(worker, None), self.order
        if order is None or order.state is not OrderState.RUNNING:
            return
        failed = set(ran)  # also before their parts: the others would stand still until its replacement runs
        if gone is not None and gone.number == order.number:
            failed |= gone.applied | gone.stopped | gone.stored
        why = f"worker {worker + 1}, which ran it, ended in the middle of the checkpoint"
        known = self._lost.failed if self._lost is not None and self._lost.number == order.number else {}
        if failed:
            self._lost = PartReport(order.number, 0, failed={**dict.fromkeys(failed, why), **known})

    def report(self) -> PartReport | None:
        """The parts of the last checkpoint that had any here."""
        return merged([*self._reports.values(), *(() if self._lost is None else (self._lost,))])


def merged(reports: Collection[PartReport]) -> PartReport | None:
    """The report of an instance by those of its workers; None if none has had a part yet."""
    number = max((one.number for one in reports), default=0)
    if not number:
        return None
    newest = [one for one in reports if one.number == number]
    step = max(one.step for one in newest)
    applied: set[TaskId] = set()
    stopped: set[TaskId] = set()
    stored: set[TaskId] = set()
    failed: dict[TaskId, str] = {}
    for one in newest:
        # A worker that has not seen the newest step has only the limits of an older one in force.
        applied |= one.applied if one.step == step else frozenset()
        stopped |= one.stopped
        stored |= one.stored
        failed |= one.failed
    return PartReport(number, step, frozenset(applied), frozenset(stopped), frozenset(stored), failed)
