"""What each path of an instance's HTTP server answers: metrics, status, health, and rows (`rows.py`).

    /metrics   /livez   /readyz   /v1/status   /v1/tasks   /v1/stores/NAME/get, scan, fetch

Rules of this file: from a path and its query to a reply; no sockets. An error is a document {schema, error, reason,
message}, by the table of `reasons.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from standfast.ops.http.rows import ROW_PATHS, Rows
from standfast.ops.observe import metrics
from standfast.ops.observe.status import not_ready_reasons, status_document, tasks_document
from standfast.ops.shared.reasons import ERROR_SCHEMA, NotFound, error_document, reason_of
from standfast.ops.shared.text import dumps
from standfast.store.errors import StandfastError
from standfast.stream.session.session import Session

HEALTH_SCHEMA = "standfast.health/1"
JSON = "application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class Routes:
    """The paths of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows = Rows(session)
        self._metrics = metrics.SessionMetrics(session)
        self._fixed: dict[str, Callable[[], Reply]] = {
            "/metrics": self._scrape,
            "/livez": self._live,
            "/readyz": self._ready,
            "/v1/status": lambda: json_reply(200, status_document(session.statistics())),
            "/v1/tasks": lambda: json_reply(200, tasks_document(status_document(session.statistics()))),
        }

    def answer(self, target: str) -> Reply:
        """The reply to a GET of this path and query; errors become replies too."""
        try:
            split = urlsplit(target)
            route = self._fixed.get(split.path)
            if route is not None:
                return route()
            if not split.path.startswith("/v1/stores/"):
                raise NotFound(f"no such path; there are {', '.join([*self._fixed, *ROW_PATHS])}")
            return json_reply(200, self._rows.document(split.path, split.query))
        except Exception as error:  # noqa: BLE001  the server outlives a bug in one answer
            reason = reason_of(error)
            retry = {} if reason.retry_after_s is None else {"Retry-After": str(reason.retry_after_s)}
            return json_reply(reason.http, error_document(error), **retry)

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


def json_reply(status: int, document: Mapping[str, Any], **headers: str) -> Reply:
    """A JSON document."""
    return Reply(status, dumps(document).encode() + b"\n", headers=headers)


def error_reply(status: int, error: str, message: str) -> Reply:
    """A refusal of the server's own, as a document."""
    return json_reply(status, {"schema": ERROR_SCHEMA, "error": error, "message": message})


def _health(status: int, what: str, reasons: list[str]) -> Reply:
    return json_reply(status, {"schema": HEALTH_SCHEMA, "check": what, "ok": status == 200, "reasons": reasons})
