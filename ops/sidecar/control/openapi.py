"""The OpenAPI document of the control API, made from the table of its calls.

Rules of this file: pure. The document shows the checks: schemas of bodies are made from the classes that check them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from standfast.ops.sidecar.control import schema as schemas
from standfast.store.base.version import __version__

VERSION = "3.1.0"
_PLACE = re.compile(r"\{([a-z]+)\}")
_STATUS_TEXTS = {
    400: "the request is wrong: fix it",
    401: "the caller is not authenticated",
    403: "the caller lacks permission",
    404: "the named object does not exist",
    405: "no such method on this path",
    409: "the partition is not held here, the generation is over, or the request conflicts with the present state",
    413: "the body is too large",
    429: "a limit is reached: back off",
    500: "the request failed: see the reason",
    503: "the task, the log or the sidecar is not ready: ask again",
    507: "the disk is full",
}
ALWAYS = (401, 403, 500)
_REF = "#/components/schemas/{name}"
_Key = Annotated[str, Meta(max_length=1_000)]
_PATH_TYPES: Mapping[str, Any] = {
    "name": schemas.Name,
    "verb": Annotated[Literal["get", "scan", "fetch"], schemas.TEXT],
    "id": Annotated[str, Meta(pattern="^[0-9]{1,15}$")],
}
_ROWS_QUERY: tuple[tuple[str, Any, str], ...] = (
    ("key", _Key, "get, fetch: the key"),
    ("from", _Key, "scan: first key; fetch: first time in milliseconds"),
    ("to", _Key, "scan: last key; fetch: last time in milliseconds"),
    ("prefix", _Key, "scan: prefix of the keys"),
    ("as_of", schemas.Number, "get: time in milliseconds, of a versioned store"),
    ("after", Annotated[str, Meta(max_length=2_000)], "scan: `after` of the previous answer"),
    ("limit", Annotated[int, Meta(ge=1, le=10_000)], "maximum number of rows"),
    ("partition", schemas.Partition, "only this partition"),
    (
        "stale",
        Annotated[Literal["0", "1"], schemas.TEXT],
        "also read a standby or a restoring task; with partition, one in a worker too, at most 1,000 rows",
    ),
    ("key_format", Annotated[Literal["utf8", "hex"], schemas.TEXT], "format of keys"),
)


class Error(msgspec.Struct, kw_only=True):
    """An answer other than 200."""

    schema: str
    error: str
    reason: str | msgspec.UnsetType = msgspec.UNSET
    message: str


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
    bodies = [call.body for call in calls if call.body is not None]
    _, components = msgspec.json.schema_components([Error, *bodies], ref_template=_REF)
    for call in calls:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, components)
    return {
        "openapi": VERSION,
        "info": {"title": "standfast sidecar, control", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(call: CallShape, components: Mapping[str, Any]) -> dict[str, Any]:
    # Rows have one table of parameters for all verbs, and the verb is part of the path.
    rows = call.path.endswith("{verb}")
    query = [(one.name, one.kind, one.text) for one in call.query] if not rows else _ROWS_QUERY
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": msgspec.json.schema(_PATH_TYPES[name])}
        for name in _PLACE.findall(call.path)
    ] + [
        {"name": name, "in": "query", "schema": msgspec.json.schema(kind), "description": text}
        for name, kind, text in query
    ]
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
                "content": {"application/json": {"schema": _ref(Error)}},
            }
            for status in sorted(statuses)
        },
    }
    if call.body is not None:
        made["requestBody"] = {
            "required": bool(components[call.body.__name__]["required"]),
            "content": {"application/json": {"schema": _ref(call.body)}},
        }
    return made


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}
