"""What each path of the HTTP door answers: metrics, status, health, and rows for people.

    /metrics   /livez   /readyz   /v1/status   /v1/tasks
    /v1/stores/NAME/get?key=&as_of=                              partition=, stale=1, key_format=utf8|hex everywhere
    /v1/stores/NAME/scan?from=&to=&prefix=&limit=&after=         after: as the answer before gave it
    /v1/stores/NAME/fetch?key=&from=&to=&limit=                  from and to in milliseconds, both ends included

Rules of this file: from a path and its query to a reply; no sockets. Reads only, committed rows only. An error is a
document {schema, error, message}; its status says who must act (STATUSES). Keys and values never go into a log.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from standfast.ops.observe import metrics
from standfast.ops.observe.reads import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    REPLY_BYTES_MAX,
    VERBS,
    Part,
    ReadRequest,
    document,
    live_part,
    read,
)
from standfast.ops.observe.status import not_ready_reasons, status_document, tasks_document
from standfast.ops.shared.text import dumps, parse_key_format
from standfast.store.errors import (
    Closed,
    Corruption,
    Fenced,
    Held,
    InternalError,
    InvalidRequest,
    NotReady,
    StandfastError,
    StateLost,
    TooLarge,
    Unavailable,
    UnknownStore,
)
from standfast.store.specs import StoreSpec
from standfast.stream.session.session import Session
from standfast.stream.session.task import Task, TaskState

ERROR_SCHEMA = "standfast.error/1"
HEALTH_SCHEMA = "standfast.health/1"
JSON = "application/json; charset=utf-8"
QUERY_FIELDS_MAX = 20
RETRY_AFTER_S = 1

# First match wins, so a class stands above the one it derives from.
STATUSES: tuple[tuple[type[StandfastError], int], ...] = (
    (UnknownStore, 404),
    (TooLarge, 413),
    (InvalidRequest, 400),
    (NotReady, 503),
    (Held, 409),
    (Fenced, 409),
    (Unavailable, 503),
    (Closed, 503),
    (StateLost, 500),
    (Corruption, 500),
    (InternalError, 500),
)
_ALLOWED = {
    "get": frozenset({"key", "as_of"}),
    "scan": frozenset({"from", "to", "prefix", "limit", "after"}),
    "fetch": frozenset({"key", "from", "to", "limit"}),
}
_ALWAYS = frozenset({"partition", "stale", "key_format"})


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class Refusal(Exception):
    """An answer that is no error of the library: nothing there, or not here."""

    def __init__(self, status: int, error: str, message: str) -> None:
        self.status = status
        self.error = error
        super().__init__(message)

    def document(self) -> dict[str, Any]:
        """As the sidecar tells it: NotActive has the reason NOT_ACTIVE."""
        reason = re.sub(r"(?<=.)([A-Z])", r"_\1", self.error).upper()
        return {"schema": ERROR_SCHEMA, "error": self.error, "reason": reason, "message": str(self)}


class Routes:
    """The paths of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._metrics = metrics.SessionMetrics(session)
        self._fixed: dict[str, Callable[[], Reply]] = {
            "/metrics": self._scrape,
            "/livez": self._live,
            "/readyz": self._ready,
            "/v1/status": lambda: json_reply(200, status_document(session.statistics())),
            "/v1/tasks": lambda: json_reply(200, tasks_document(status_document(session.statistics()))),
        }

    def answer(self, target: str) -> Reply:
        """The reply to a GET of this path and query; errors of the library become replies too."""
        try:
            split = urlsplit(target)
            route = self._fixed.get(split.path)
            if route is not None:
                return route()
            return json_reply(200, self.rows(split.path, split.query))
        except Refusal as refusal:
            return error_reply(refusal.status, refusal.error, str(refusal))
        except StandfastError as error:
            return error_reply(status_of(error), type(error).__name__, str(error))

    def _scrape(self) -> Reply:
        return Reply(200, self._metrics.exposition(), metrics.CONTENT_TYPE)

    def _live(self) -> Reply:
        try:
            # Takes the session's lock and looks at its background work: a hang there shows as a time-out here.
            self._session.tasks()
        except StandfastError as error:
            return _health(503, "live", [str(error)])
        return _health(200, "live", [])

    def _ready(self) -> Reply:
        try:
            # Asks neither the log nor the disk, so that a slow log does not take the instance out of service.
            reasons = not_ready_reasons(self._session.missing(), self._session.all_tasks().values())
        except StandfastError as error:
            reasons = [str(error)]
        return _health(503 if reasons else 200, "ready", reasons)

    def rows(
        self, path: str, query: str, rows_max: int = LIMIT_MAX, bytes_max: int = REPLY_BYTES_MAX
    ) -> dict[str, Any]:
        """The rows that a path asks for, as a document. Raises Refusal, and errors of the library."""
        parts = path.split("/")
        if len(parts) != 5 or parts[:3] != ["", "v1", "stores"] or parts[4] not in VERBS:
            known = ", ".join([*self._fixed, *(f"/v1/stores/NAME/{verb}" for verb in VERBS)])
            raise Refusal(404, "NotFound", f"no such path; there are {known}")
        name, verb = unquote(parts[3]), parts[4]
        values = _parameters(query, _ALLOWED[verb] | _ALWAYS)
        request = _request(verb, name, values)
        request = replace(request, limit=min(request.limit, rows_max))
        found = self._parts(request, stale=_flag(values, "stale") or self._session.read_only)
        answer = read(found, request, bytes_max)
        if verb == "get" and not answer.rows:
            raise Refusal(404, "NotFound", f"store {name!r} has no row of this key in the partitions read here")
        return document(self._session.app, request, found, answer)

    def _parts(self, request: ReadRequest, *, stale: bool) -> list[Part]:
        """The partitions of the store to read. One that cannot be read now fails the whole answer."""
        spec = self._spec(request.store)
        held = self._session.all_tasks()
        # A failed task has no open stores, but its definitions tell whose group it is of.
        tasks = {task_id.partition: task for task_id, task in held.items() if spec.name in task.stores.specs}
        if request.partition is not None:
            if request.partition not in tasks:
                known = ", ".join(map(str, sorted(tasks))) or "none"
                raise Refusal(
                    409,
                    "NotAssigned",
                    f"partition {request.partition} is not held by this instance (it holds: {known})",
                )
            tasks = {request.partition: tasks[request.partition]}
        elif not stale:
            tasks = {partition: task for partition, task in tasks.items() if not _is_standby(task)} or tasks
        if not tasks:
            raise Refusal(409, "NotAssigned", "this instance holds no partition: ask another one")
        return [self._part(spec, partition, task, stale) for partition, task in sorted(tasks.items())]

    def _part(self, spec: StoreSpec, partition: int, task: Task, stale: bool) -> Part:
        if _is_standby(task) and not stale:
            raise Refusal(
                409,
                "NotActive",
                f"partition {partition} is a standby here: ask the active instance, or for stale rows with stale=1",
            )
        view = self._session.read(spec.name, partition, allow_stale=stale)
        return live_part(spec, view.store.rows, partition, view.role, view.lag_records)

    def _spec(self, name: str) -> StoreSpec:
        for spec in self._session.specs:
            if spec.name == name:
                return spec
        known = [spec.name for spec in self._session.specs]
        raise UnknownStore(f"no store {name!r}{nearest(name, known)}")


def status_of(error: StandfastError) -> int:
    """The HTTP status of an error of the library."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def json_reply(status: int, document: Mapping[str, Any], **headers: str) -> Reply:
    """A JSON document."""
    return Reply(status, dumps(document).encode() + b"\n", headers=headers)


def error_reply(status: int, error: str, message: str) -> Reply:
    """An error as a document; 503 says when to ask again."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
    return json_reply(status, {"schema": ERROR_SCHEMA, "error": error, "message": message}, **headers)


def nearest(name: str, known: list[str]) -> str:
    """`, did you mean ...?`, or what there is."""
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f", did you mean {near[0]!r}?" if near else f": there are {', '.join(known) or 'none'}"


def _is_standby(task: Task) -> bool:
    return task.state is TaskState.STANDBY


def _health(status: int, what: str, reasons: list[str]) -> Reply:
    return json_reply(status, {"schema": HEALTH_SCHEMA, "check": what, "ok": status == 200, "reasons": reasons})


def _parameters(query: str, allowed: frozenset[str]) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise InvalidRequest(f"the query is not readable ({error}): percent-encode UTF-8") from error
    values: dict[str, str] = {}
    for name, value in pairs:
        if name not in allowed:
            raise InvalidRequest(f"no parameter {name!r}{nearest(name, sorted(allowed))}")
        if name in values:
            raise InvalidRequest(f"parameter {name!r} is given twice: give it once")
        values[name] = value
    return values


def _request(verb: str, store: str, values: Mapping[str, str]) -> ReadRequest:
    limit = _number(values, "limit")
    times = verb == "fetch"
    return ReadRequest(
        verb,
        store,
        key=values.get("key"),
        key_from=None if times else values.get("from"),
        key_to=None if times else values.get("to"),
        prefix=values.get("prefix"),
        time_from=_number(values, "from") if times else None,
        time_to=_number(values, "to") if times else None,
        as_of=_number(values, "as_of"),
        partition=_number(values, "partition"),
        limit=LIMIT_DEFAULT if limit is None else limit,
        key_format=parse_key_format(values.get("key_format", "utf8")),
        after=values.get("after"),
    )


def _number(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidRequest(f"{name} is {text!r}: give a whole number from 0")
    return int(text)


def _flag(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name, "0")
    if text not in ("0", "1"):
        raise InvalidRequest(f"{name} is {text!r}, use 0 or 1")
    return text == "1"
