"""What the server and its worker for restores and standbys say to each other: one JSON object a line.

    server  ── Open, then Hold*, ReadRows*, Stop ──>  worker     on its standard input; its end, without Stop, ends it
    server  <── State*, Rows*, Failed ──              worker     on its standard output; an empty line is a heartbeat

Rules of this file: pure, values only. The log's address may hold secrets: it goes through the pipe and not on a
command line that every user can list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from standfast.ops.sidecar.worker.moves import Holding
from standfast.store.errors import InternalError


@dataclass(frozen=True, slots=True)
class Open:
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


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold exactly these tasks; what is missing is flushed and closed. `round` comes back in the answer."""

    round: int
    active: tuple[int, ...]
    standby: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Read committed rows; `id` comes back in the answer."""

    id: int
    path: str
    query: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The page, or why there is none: `status`, and the error as the control door tells it."""

    id: int
    status: int
    document: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stop:
    """Close everything cleanly and end."""


@dataclass(frozen=True, slots=True)
class State:
    """What the worker holds. `round`: of the last Hold that it carried out; `status`: at times, the whole document."""

    round: int
    tasks: Mapping[int, Holding]
    error: str = ""
    status: Mapping[str, Any] | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker cannot go on."""

    kind: str
    message: str


Order: TypeAlias = Open | Hold | ReadRows | Stop
Report: TypeAlias = State | Rows | Failed
_ORDERS: dict[str, type[Open] | type[Hold] | type[ReadRows] | type[Stop]] = {
    "Open": Open,
    "Hold": Hold,
    "ReadRows": ReadRows,
    "Stop": Stop,
}


def order_line(order: Order) -> bytes:
    """The line of an order."""
    return _line({"do": type(order).__name__} | asdict(order))


def parse_order(line: bytes) -> Order:
    """Inverse of order_line. Raises InternalError."""
    try:
        shape = json.loads(line)
        kind = _ORDERS[shape.pop("do")]
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in shape.items()
        }
        return kind(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InternalError(f"a worker was given an order that it cannot read: {error!r}") from error


def report_line(report: Report) -> bytes:
    """The line of a report."""
    return _line({"say": type(report).__name__} | asdict(report))


def parse_report(line: bytes) -> Report:
    """Inverse of report_line. Raises InternalError."""
    try:
        shape = json.loads(line)
        said = shape.pop("say")
        if said == "Failed":
            return Failed(**shape)
        if said == "Rows":
            return Rows(**shape)
        if said != "State":
            raise ValueError(f"{said!r} is no kind of report")
        shape["tasks"] = {int(partition): Holding(**one) for partition, one in shape["tasks"].items()}
        return State(**shape)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InternalError(f"a worker said {line[:200]!r}, which is no report: {error!r}") from error


def _line(shape: Mapping[str, Any]) -> bytes:
    return json.dumps(shape, separators=(",", ":")).encode() + b"\n"
