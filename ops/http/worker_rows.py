"""Rows of an instance with worker processes: each partition is read by the worker that has its task.

    path and query ──> plan: worker of each partition ──> pages of PAGE_BYTES, one after the other ──> one document
                                                          other reads than scans by key: one page of a partition

The plan is made once. A partition that has left its worker when a page of it is read fails the whole answer, as does a
task that is to run here and is in no worker: an answer is whole, or an error.

Rules of this file: it runs in a thread of the HTTP server, and knows paths and documents as `rows.py` does; no row is
decoded here. Keys and values never go into a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from standfast.ops.client.client import error_in
from standfast.ops.http.rows import NOTHING_HELD, check_found, named_spec, not_held, row_request, standby_here
from standfast.ops.http.worker_lines import WorkerLine, WorkerLines
from standfast.ops.observe.reads import REPLY_BYTES_MAX, SCHEMA, ReadRequest, parse_place, start_of
from standfast.ops.shared.error_codes import CLOSED, NOT_ACTIVE, NOT_ASSIGNED, NotAssigned
from standfast.store.errors import InternalError, NotReady, Unavailable
from standfast.store.names import few
from standfast.stream.workers.orders import ACTIVE, STANDBY, ReportedTask
from standfast.stream.workers.seen import InstanceSeen, WorkerSeen
from standfast.stream.workers.supervisor import Supervisor

PAGE_ROWS, PAGE_BYTES = 1_000, 1 << 20
_LEFT = (NOT_ASSIGNED.name, NOT_ACTIVE.name, CLOSED.name)  # of a task that was in this worker when the plan was made


@dataclass(frozen=True, slots=True)
class _Place:
    """A partition in the worker that has it."""

    partition: int
    worker: WorkerSeen
    held: ReportedTask

    @property
    def stands_by(self) -> bool:
        return self.held.state == STANDBY

    def shown(self) -> dict[str, Any]:
        role = STANDBY if self.stands_by else ACTIVE
        return {"partition": self.partition, "role": role, "lag_records": self.held.lag}


@dataclass(slots=True)
class _Reading:
    """The rows so far, within the bounds of one answer."""

    limit: int
    bytes_left: int
    paged: bool  # of a scan by key; a place that is a number of rows is another one after a write between two pages
    rows: list[dict[str, Any]] = field(default_factory=list)
    truncated: bool = False
    after: str | None = None

    @property
    def full(self) -> bool:
        return len(self.rows) >= self.limit or self.bytes_left <= 0

    def cut(self, after: str | None) -> None:
        """There are more rows than this answer may have."""
        self.truncated, self.after = True, after


class WorkerRows:
    """Rows of all workers of one instance."""

    def __init__(self, supervisor: Supervisor, lines: WorkerLines) -> None:
        self._supervisor = supervisor
        self._lines = lines

    def document(self, path: str, query: str) -> dict[str, Any]:
        """As `Rows.document`; also raises Unavailable for a worker that does not answer, and NotReady."""
        request, stale = row_request(path, query)
        spec = named_spec(self._supervisor.specs, request.store)
        seen = self._supervisor.seen
        held = _held(seen, self._supervisor.group_of_store(request.store))
        plan = self._plan(seen, held, request, stale=stale)
        shown = {one.partition: one.shown() for one in plan}
        reading = _Reading(request.limit, REPLY_BYTES_MAX, request.verb == "scan" and spec.traits.by_key)
        begin = -1 if request.after is None else parse_place(request.after)[0]
        for one in plan:
            if one.partition >= begin and not reading.truncated:
                after = request.after if one.partition == begin else None
                shown[one.partition] = self._read(one, request, path, query, after, reading) or shown[one.partition]
        standbys = {partition for partition, one in held.items() if one.stands_by}
        found = {
            "schema": SCHEMA,
            "app": self._supervisor.app,
            "store": request.store,
            "kind": spec.kind,
            "partitions": list(shown.values()),
            "not_read": sorted(standbys - shown.keys()) if request.partition is None else [],
            "rows": reading.rows,
            "truncated": reading.truncated,
            "after": reading.after,
        }
        check_found(request, found)
        return found

    def _plan(self, seen: InstanceSeen, held: dict[int, _Place], request: ReadRequest, *, stale: bool) -> list[_Place]:
        """The partitions to read, in order. Raises NotAssigned, NotActive, NotReady."""
        group = self._supervisor.group_of_store(request.store)
        absent = {task.partition for task in seen.missing if task.group == group} - held.keys()
        if request.partition is not None:
            absent &= {request.partition}
        if absent:
            # An answer without them would look whole.
            raise NotReady(
                f"partitions {few(sorted(absent))} of store {request.store!r} are in no worker yet, since a worker "
                "starts or a task moves: ask again" + ("" if request.partition is not None else ", or name a partition")
            )
        if request.partition is not None:
            if request.partition not in held:
                raise not_held(request.partition, held)
            held = {request.partition: held[request.partition]}
        elif not stale:
            # As of a session: where every partition is a standby, the error says how to read them.
            held = {partition: one for partition, one in held.items() if not one.stands_by} or held
        if not held:
            raise NotAssigned(NOTHING_HELD)
        for partition, one in sorted(held.items()):
            if one.stands_by and not stale:
                raise standby_here(partition)
        return [one for _, one in sorted(held.items())]

    def _read(
        self, place: _Place, request: ReadRequest, path: str, query: str, after: str | None, reading: _Reading
    ) -> dict[str, Any] | None:
        """Read a partition to its end, or to the bounds of the answer; its role and lag by its worker."""
        line = self._line(place)
        while True:
            # In a full answer one more row shows that there are further ones.
            rows_max = (
                1
                if reading.full
                else min(reading.limit - len(reading.rows), PAGE_ROWS if reading.paged else request.limit)
            )
            bytes_max = max(min(reading.bytes_left, PAGE_BYTES) if reading.paged else reading.bytes_left, 1)
            page = self._page(line, place, path, _query(query, place.partition, after), rows_max, bytes_max)
            size = page.pop("_size")
            shown: dict[str, Any] | None = page["partitions"][0]
            if reading.full:
                if page["rows"]:
                    reading.cut((after or start_of(place.partition)) if request.verb == "scan" else None)
                return shown
            reading.rows += page["rows"]
            reading.bytes_left -= size
            after = page["after"]
            if not page["truncated"]:
                return shown
            if reading.full or not reading.paged:
                reading.cut(after)
                return shown

    def _line(self, place: _Place) -> WorkerLine:
        worker = place.worker
        if worker.pid is None:  # its tasks are free, and the plan has none of them
            raise Unavailable(f"worker {worker.number} has ended: ask again")
        line = self._lines.find(worker.pid)
        line.name = f"worker {worker.number} (process {worker.pid})"
        return line

    def _page(
        self, line: WorkerLine, place: _Place, path: str, query: str, rows_max: int, bytes_max: int
    ) -> dict[str, Any]:
        status, document, size = line.ask(path, query, rows_max, bytes_max)
        if status == 200:
            if not document.get("partitions"):
                raise InternalError(f"{line.name} answered without a partition")
            return document | {"_size": size}
        if document.get("reason") in _LEFT:
            raise NotReady(
                f"partition {place.partition} has left {line.name}, while its rows were read: ask again, or ask "
                "another instance"
            )
        raise error_in(status, document)


def _held(seen: InstanceSeen, group: int) -> dict[int, _Place]:
    """The partitions of a group that are in a worker; an active task before a copy of the same one."""
    found: dict[int, _Place] = {}
    for worker in seen.workers:
        for task, one in worker.held().items():
            if task.group == group and (task.partition not in found or one.role == ACTIVE):
                found[task.partition] = _Place(task.partition, worker, one)
    return found


def _query(query: str, partition: int, after: str | None) -> str:
    """The query of one page, of one partition; the bound of its rows goes beside it."""
    values: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    values.pop("after", None)
    if after is not None:
        values["after"] = after
    return urlencode({**values, "partition": partition})
