"""Typed values at the boundaries where JSON comes in: a class declares its content, and the class is the check.

    class Hold(Shape, tag_field="do", tag=True):      {"do": "Hold", "round": 3, "active": [0, 2]}
        round: int
        active: tuple[int, ...] = ()

    read(bytes, Hold) -> Hold        ValueError: Expected `int`, got `str` - at `$.round`
    line(Hold(3, (0, 2))) -> bytes   the message as one line, for a pipe

Rules of this file: pure. A field that a class does not know is an error; a class that must read the JSON of later
versions has `forbid_unknown_fields=False`. No value counts as one of another type: neither `true` nor 7.5 nor "7" is
an `int`. The standard library writes the text, so that its bytes never depend on another library's version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Annotated, Any, TypeVar, overload

import msgspec
from msgspec import field as field
from msgspec.structs import replace as replace

from standfast.store.names import few

Count = Annotated[int, msgspec.Meta(ge=0)]
SHOWN_MAX = 100  # characters of an error, which may repeat a value
T = TypeVar("T")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}  # they live as long as their types, which modules define
_one_at_a_time = Lock()
_STEP = re.compile(r"\.(\w+)|\[[^\]]*\]")


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object: its fields are written in order of definition; a field without a default is required."""


@overload
def read(raw: bytes | str, kind: type[T]) -> T: ...
@overload
def read(raw: bytes | str, kind: Any) -> Any: ...
def read(raw: bytes | str, kind: Any) -> Any:
    """The value of a JSON text. Raises ValueError, also for text that nests too deep."""
    return _explained(partial(_decoder(kind).decode, raw), kind)


def fit(value: object, kind: type[T]) -> T:
    """The typed value of plain JSON values. Raises ValueError."""
    _decoder(kind)  # `convert` looks the description of the type up, and it is complete now
    return _explained(partial(msgspec.convert, value, kind), kind)


def plain(shape: object) -> Any:
    """A shape as plain values for `json.dumps`."""
    return msgspec.to_builtins(shape)


def dump(shape: object) -> bytes:
    """A shape as compact JSON, in ASCII."""
    return json.dumps(plain(shape), separators=(",", ":")).encode()


def line(shape: object) -> bytes:
    """A shape as one line, for a pipe."""
    return dump(shape) + b"\n"


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of a type, made once, by one thread at a time.

    msgspec 0.22 keeps its description of a class on the class before it is complete, and evaluates annotations with
    the interpreter in between: a second thread that decodes the same class for the first time then reads half of it
    and ends the process with a segmentation fault (4 threads, a class of 20 fields: 8 processes of 8).
    """
    if (found := _decoders.get(kind)) is None:
        with _one_at_a_time:
            found = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return found


def _explained(made: Callable[[], T], kind: type[T]) -> T:
    """The value of `made`; its errors name the place, and the values that would fit there."""
    try:
        return made()
    except msgspec.ValidationError as error:
        what, at, place = str(error).partition(" - at `$")
        told = what if len(what) <= SHOWN_MAX else f"{what[:SHOWN_MAX]}..."
        raise ValueError(f"{told}{at}{place}{_choices(what, place, kind)}") from error
    except RecursionError as error:  # text from outside must not end in an error that its reader does not expect
        raise ValueError("it is nested too deep") from error


def _choices(what: str, place: str, kind: type) -> str:
    """The values, or the names of fields, that fit at the place of an error."""
    document = msgspec.json.schema(kind)
    at = _resolved(document, document)
    for name in _STEP.findall(place):
        inner = at.get("properties", {}).get(name) if name else at.get("items") or at.get("additionalProperties")
        at = _resolved(document, inner if isinstance(inner, dict) else {})
    names = at.get("properties", ()) if "unknown field" in what else at.get("enum", ())
    return f" (there are {few(names)})" if names else ""


def _resolved(document: dict[str, Any], at: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["$defs"][at["$ref"].rpartition("/")[2]] if "$ref" in at else at
    return found
