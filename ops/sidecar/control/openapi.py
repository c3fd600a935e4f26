"""The OpenAPI document of the control door, made from the table of its calls.

Rules of this file: pure. What is checked is what is told: bodies are the very schemas that requests are checked with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from standfast._version import __version__
from standfast.ops.sidecar.control import schema as schemas

VERSION = "3.1.0"
_PLACE = re.compile(r"\{([a-z]+)\}")
_STATUS_TEXTS = {
    400: "the request is wrong: fix it",
    401: "who asks is not known",
    403: "who asks may not",
    404: "there is no such thing",
    405: "no such method here",
    409: "not here, not now, or under a generation that is over",
    413: "the body is too large",
    429: "too much at once: back off",
    500: "a fault: see the reason",
    503: "not ready: ask again",
    507: "the disk is full",
}
ALWAYS = (401, 403, 500)
_PATH_SCHEMAS: Mapping[str, Any] = {
    "name": schemas.NAME,
    "verb": schemas.choice("get", "scan", "fetch"),
    "id": {"type": "string", "pattern": "^[0-9]{1,15}$"},
}
_ROWS_QUERY: tuple[tuple[str, Any, str], ...] = (
    ("key", {"type": "string", "maxLength": 1_000}, "get, fetch: the key"),
    ("from", {"type": "string", "maxLength": 1_000}, "scan: first key; fetch: milliseconds"),
    ("to", {"type": "string", "maxLength": 1_000}, "scan: last key; fetch: milliseconds"),
    ("prefix", {"type": "string", "maxLength": 1_000}, "scan: keys that begin so"),
    ("as_of", schemas.number(), "get: of a versioned store"),
    ("after", {"type": "string", "maxLength": 2_000}, "scan: where the answer before said that it goes on"),
    ("limit", schemas.number(1, 10_000), "rows at most"),
    ("partition", schemas.PARTITION, "of this partition only"),
    (
        "stale",
        {"type": "string", "enum": ["0", "1"]},
        "also from a standby or a restoring task; with partition, from one in a worker, at most 1,000 rows",
    ),
    ("key_format", schemas.choice("utf8", "hex"), "how keys are written"),
)


class CallShape(Protocol):
    """A call, as the table has it."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def body(self) -> Any: ...
    @property
    def query(self) -> Sequence[Any]: ...
    @property
    def statuses(self) -> Sequence[int]: ...


def document(calls: Sequence[CallShape]) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call)
    return {
        "openapi": VERSION,
        "info": {"title": "standfast sidecar, control", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(call: CallShape) -> dict[str, Any]:
    rows = call.path.endswith("{verb}")
    query = [(one.name, one.schema, one.text) for one in call.query] if not rows else _ROWS_QUERY
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}
        for name in _PLACE.findall(call.path)
    ] + [{"name": name, "in": "query", "schema": schema, "description": text} for name, schema, text in query]
    statuses = {*ALWAYS, *call.statuses, *((400, 413) if call.body is not None else ())}
    statuses |= {400, 404, 409, 413, 429, 503} if rows else set()
    good = "text/event-stream" if call.path.endswith("/events") else "application/json"
    shape: dict[str, Any] = {"type": "string"} if good != "application/json" else {"type": "object"}
    place = _PLACE.sub(r"by_\1", call.path).strip("/").replace("/", "_").replace(".", "_")
    made: dict[str, Any] = {
        "summary": call.text,
        "operationId": f"{call.method.lower()}_{place}",
        "x-role": call.role,
        "parameters": parameters,
        "responses": {"200": {"description": "done", "content": {good: {"schema": shape}}}}
        | {
            str(status): {
                "description": _STATUS_TEXTS[status],
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            }
            for status in sorted(statuses)
        },
    }
    if call.body is not None:
        made["requestBody"] = {
            "required": bool(call.body.get("required")),
            "content": {"application/json": {"schema": call.body}},
        }
    return made


_ERROR = {
    "type": "object",
    "required": ["schema", "error", "message"],
    "properties": {
        "schema": {"type": "string"},
        "error": {"type": "string"},
        "reason": {"type": "string"},
        "message": {"type": "string"},
    },
}
