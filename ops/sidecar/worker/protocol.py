"""Messages between the server and its standby worker: one JSON object a line.

    server  ── Open, then Hold*, ReadRows*, Stop ──>  worker     on its standard input; its end, without Stop, ends it
    server  <── State*, Rows*, Failed ──              worker     on its standard output; an empty line is a heartbeat

Rules of this file: pure, values only. The log's address may hold secrets: it goes through the pipe and not on a
command line that every user can list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from standfast.ops.sidecar.worker.moves import Holding
from standfast.replication.shapes import Shape, line, read
from standfast.store.errors import InternalError


class OpenTails(Shape, frozen=True, tag_field="do", tag="Open"):
    """Open a session on the server's state directory. `lock` is the inherited handle of its lock.

    `cares_for`: the member in whose place it cares for the log, the server's; "" for a second worker.
    """

    app: str
    log: str
    state_root: str
    lock: int
    member: str
    cares_for: str
    stores: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]


class HoldTails(Shape, frozen=True, tag_field="do", tag="Hold"):
    """Hold exactly these tasks; any other is flushed and closed. `round` comes back in the answer."""

    round: int
    active: tuple[int, ...]
    standby: tuple[int, ...]


class ReadRows(Shape, frozen=True, tag_field="do", tag=True):
    """Read committed rows; `id` comes back in the answer."""

    id: int
    path: str
    query: str


class RowsPage(Shape, frozen=True, tag_field="say", tag="Rows"):
    """The page, or why there is none: `status`, and the error as the control API answers it."""

    id: int
    status: int
    document: Mapping[str, Any] = {}


class StopTails(Shape, frozen=True, tag_field="do", tag="Stop"):
    """Close all tasks cleanly and end."""


class TailsState(Shape, frozen=True, tag_field="say", tag="State"):
    """Tasks of the worker. `round`: of the last Hold that it carried out; `status`: at times, the whole document."""

    round: int
    tasks: Mapping[int, Holding]
    error: str = ""
    status: Mapping[str, Any] | None = None


class TailsFailed(Shape, frozen=True, tag_field="say", tag="Failed"):
    """The worker cannot go on."""

    kind: str
    message: str


Order: TypeAlias = OpenTails | HoldTails | ReadRows | StopTails
Report: TypeAlias = TailsState | RowsPage | TailsFailed

order_line = report_line = line


def parse_order(line: bytes) -> Order:
    """The order that a line holds. Raises InternalError."""
    try:
        order: Order = read(line, Order)
    except ValueError as error:
        raise InternalError(f"the standby worker received an order that it cannot read: {error}") from error
    return order


def parse_report(line: bytes) -> Report:
    """The report that a line holds. Raises InternalError."""
    try:
        report: Report = read(line, Report)
    except ValueError as error:
        raise InternalError(f"the standby worker sent {line[:200]!r}, which is not a report: {error}") from error
    return report
