"""What a request over HTTP may hold: JSON schemas, checked by the very documents that the OpenAPI document serves.

    parse_body(bytes, SCHEMA) -> dict        InvalidRequest names the place: `assignment.tasks[2].role: ...`

Rules of this file: pure; the few words of JSON Schema that our requests need (type, properties, required, items, enum,
const, minimum, maximum, minLength, maxLength, pattern, minItems, maxItems, additionalProperties), and nothing of what
a request means. Every text, list and number has a bound, so that a body within BODY_BYTES_MAX stays small when parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from standfast.store.errors import InvalidRequest
from standfast.store.specs import TRAITS

Schema: TypeAlias = Mapping[str, Any]

BODY_BYTES_MAX = 1 << 20
DEPTH_MAX = 16
OFFSET_MAX = 2**63 - 1
PARTITION_MAX = 99_999
GENERATION_MAX = 2**53 - 1
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def parse_body(body: bytes, schema: Schema) -> dict[str, Any]:
    """The object in a request's body. Raises InvalidRequest that says where it does not fit the schema."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant, parse_float=_number) if body else {}
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error
    check(value, schema)
    assert isinstance(value, dict)
    return value


def check(value: Any, schema: Schema, where: str = "the body") -> None:
    """Raise InvalidRequest for the first place where a value does not fit."""
    problem = _problem(value, schema, where)
    if problem is not None:
        raise InvalidRequest(problem)


def _problem(value: Any, schema: Schema, where: str) -> str | None:
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind] if kind is not None else []
    if kinds and not any(_is(value, one) for one in kinds):
        return f"{where}: must be {' or '.join(kinds)}, not {_shown(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where}: must be one of {', '.join(map(str, schema['enum']))}, not {_shown(value)}"
    if isinstance(value, str):
        return _text_problem(value, schema, where)
    if isinstance(value, int) and not isinstance(value, bool):
        return _number_problem(value, schema, where)
    if isinstance(value, list):
        return _list_problem(value, schema, where)
    if isinstance(value, dict):
        return _object_problem(value, schema, where)
    return None


def _text_problem(value: str, schema: Schema, where: str) -> str | None:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if len(value) < least or (most is not None and len(value) > most):
        return f"{where}: must have {least} to {most} characters, it has {len(value)}"
    pattern = schema.get("pattern")
    if pattern is not None and re.search(pattern, value) is None:
        return f"{where}: must match {pattern}, {_shown(value)} does not"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{where}: half of a surrogate pair is no text"
    return None


def _number_problem(value: int, schema: Schema, where: str) -> str | None:
    least, most = schema.get("minimum"), schema.get("maximum")
    if (least is not None and value < least) or (most is not None and value > most):
        return f"{where}: must be {least} to {most}, not {_shown(value)}"
    return None


def _list_problem(value: list[Any], schema: Schema, where: str) -> str | None:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < least or (most is not None and len(value) > most):
        return f"{where}: must have {least} to {most} items, it has {len(value)}"
    items = schema.get("items")
    problems = (_problem(one, items, f"{where}[{at}]") for at, one in enumerate(value)) if items is not None else ()
    return next((problem for problem in problems if problem is not None), None)


def _object_problem(value: dict[str, Any], schema: Schema, where: str) -> str | None:
    known: Mapping[str, Schema] = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{where}: {missing[0]!r} is missing"
    if len(value) > schema.get("maxProperties", len(value)):
        return f"{where}: must have at most {schema['maxProperties']} names"
    rest = schema.get("additionalProperties", True)
    for name, one in value.items():
        inner = known.get(name)
        if inner is None and rest is False:
            return f"{where}: no field {_shown(name)}; there are {', '.join(known) or 'none'}"
        inner = inner if inner is not None else rest if isinstance(rest, Mapping) else None
        problem = None if inner is None else _problem(one, inner, f"{where}.{name[:64]}")
        if problem is not None:
            return problem
    return None


def _is(value: Any, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, _TYPES[kind])


def _shown(value: Any) -> str:
    """A value in a message: short, and never more than its kind if it is a container."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a number that large"
    return text if len(text) <= 60 else text[:57] + "..."


def _number(text: str) -> float | int:
    """7.0 is a whole number in JSON Schema, and in languages that know one kind of number."""
    found = float(text)
    return int(found) if found.is_integer() and abs(found) <= 2**53 else found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def obj(properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    made: dict[str, Any] = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return made | ({"required": list(required)} if required else {})


def number(least: int = 0, most: int = OFFSET_MAX) -> dict[str, Any]:
    """The schema of a whole number."""
    return {"type": "integer", "minimum": least, "maximum": most}


def array(items: Schema, most: int, least: int = 0) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": dict(items), "maxItems": most} | ({"minItems": least} if least else {})


def choice(*names: str) -> dict[str, Any]:
    """The schema of one of these texts."""
    return {"type": "string", "enum": list(names)}


NAME = {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$", "maxLength": 128}
TOPIC = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,249}$", "maxLength": 249}
PARTITION = number(0, PARTITION_MAX)
GENERATION = number(0, GENERATION_MAX)
FLAG = {"type": "boolean"}

STORE = obj(
    {
        "name": NAME,
        "kind": choice(*TRAITS),
        "timestamped": FLAG,
        "caching": FLAG,
        "logging": FLAG,
        "engine": choice("rocksdb", "memory"),
        "window_size_ms": number(1),
        "retention_ms": number(1),
        "history_retention_ms": number(0),
        "retain_duplicates": FLAG,
        "changelog": {
            "type": "object",
            "maxProperties": 50,
            "additionalProperties": {"type": "string", "maxLength": 200},
        },
    },
    ("name", "kind"),
)
STORES = obj({"partitions": number(1, PARTITION_MAX + 1), "stores": array(STORE, 100, 1)}, ("stores",))
ASSIGNED = obj(
    {
        "partition": PARTITION,
        "role": choice("active", "standby"),
        "sources": array(obj({"topic": TOPIC, "partition": PARTITION}, ("topic", "partition")), 1_000),
    },
    ("partition", "role"),
)
ASSIGNMENT = obj(
    {
        "generation": GENERATION,
        "lease_ms": number(100, 3_600_000),
        "tasks": array(ASSIGNED, PARTITION_MAX),
    },
    ("generation", "tasks"),
)
REVOKE = obj(
    {"generation": GENERATION, "partitions": array(PARTITION, PARTITION_MAX, 1), "mode": choice("clean", "lost")},
    ("generation", "partitions"),
)
HEARTBEAT = obj({"generation": GENERATION}, ("generation",))
SCHEDULE = obj(
    {
        "partition": PARTITION,
        "kind": choice("stream_time", "wall_clock_time"),
        "interval_ms": number(1, 366 * 86_400_000),
        "start_ms": number(0, 2**53),
    },
    ("partition", "kind", "interval_ms"),
)
SNAPSHOT = obj({"name": NAME}, ("name",))
VERIFY = obj({"store": NAME, "partition": PARTITION})
DRAIN = obj({"wait_ms": number(0, 3_600_000)})
WIPE = obj({"partition": PARTITION, "epoch": number(0)}, ("partition", "epoch"))
