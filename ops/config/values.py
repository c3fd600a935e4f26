"""Readers of the value of one setting: sizes, times, numbers, choices, names, paths, lists.

    "64MiB" -> 67108864      "30s" -> 30000      "off" -> None      "a, b" -> ("a", "b")

Rules of this file: pure but for `~` in paths. A reader takes a value of TOML, or the text of a variable or a flag, and
returns the setting's value or raises ValueError (or an error of the library) that names the expected form; it never
repeats the value, which may be a secret in the wrong place. `schema` is the same as JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standfast.store.names import check_name
from standfast.store.task.state_dir import ADDRESS

_SIZE = re.compile(r"([0-9]{1,15})\s*(B|KiB|MiB|GiB|TiB)?")
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_TIME = re.compile(r"([0-9]{1,15})\s*(ms|s|m|h|d)")
_TIMES_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WHOLE = re.compile(r"[0-9]{1,18}")
_GROUP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
LIST_MAX = 1_000
TEXT_MAX = 4_096

Parse = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Reads one value; `schema` describes its form in TOML."""

    parse: Parse
    schema: Mapping[str, Any] = field(default_factory=dict)


def parse_size(value: Any) -> int:
    """Bytes of `256MiB` or 268435456. Raises ValueError with the expected form."""
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None:
        return int(found[1]) * _SIZES[found[2] or "B"]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:  # a bool is an int in Python
        return value
    raise ValueError("expected a size such as 256MiB")


def parse_duration(value: Any) -> int:
    """Milliseconds of `3s`. Raises ValueError, also for a bare number, which has no unit."""
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError("expected a time with its unit, such as 500ms or 3s")
    return int(found[1]) * _TIMES_MS[found[2]]


def _parse_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("expected text in quotes")
    if len(value) > TEXT_MAX or any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError(f"expected at most {TEXT_MAX} characters, none of them a control character")
    return value


def _parse_switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("expected true or false")


def _parse_path(value: Any) -> Path:
    if ADDRESS.match(_parse_text(value)):
        raise ValueError(
            "expected a folder of this machine (only verify --spark and pipeline take an address, by --state-dir)"
        )
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError("expected a path whose home folder is known") from error


def _parse_group(value: Any) -> str:
    if not isinstance(value, str) or not _GROUP.fullmatch(value):
        raise ValueError("expected the name of a group of this machine")
    return value


SIZE = ValueReader(parse_size, {"type": ["string", "integer"], "examples": ["64MiB"], "minimum": 0})
DURATION = ValueReader(parse_duration, {"type": "string", "examples": ["30s"], "pattern": "^[0-9]+ *(ms|s|m|h|d)$"})
TEXT = ValueReader(_parse_text, {"type": "string", "minLength": 1, "maxLength": TEXT_MAX})
SWITCH = ValueReader(_parse_switch, {"type": "boolean"})
PATH = ValueReader(_parse_path, {"type": "string", "minLength": 1})
GROUP = ValueReader(_parse_group, {"type": "string", "pattern": f"^{_GROUP.pattern}$"})


def number(least: int, most: int | None = None) -> ValueReader:
    """A whole number."""

    def parse(value: Any) -> int:
        text = value.strip() if isinstance(value, str) else ""
        found: Any = int(text) if _WHOLE.fullmatch(text) else value
        upper = "" if most is None else f" and at most {most}"
        whole = isinstance(found, int) and not isinstance(found, bool)
        if not whole or found < least or found > (1 << 63 if most is None else most):
            raise ValueError(f"expected a whole number of at least {least}{upper}")
        return int(found)

    return ValueReader(parse, {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most}))


def at_least(reader: ValueReader, text: str) -> ValueReader:
    """The reader with a least value, spelled as in a file."""
    least = reader.parse(text)

    def parse(value: Any) -> Any:
        found = reader.parse(value)
        if found < least:
            raise ValueError(f"expected at least {text}")
        return found

    return ValueReader(parse, {**reader.schema, "description": f"at least {text}"})


def or_off(reader: ValueReader) -> ValueReader:
    """The reader, with "off" for None."""
    return ValueReader(
        lambda value: None if value == "off" else reader.parse(value),
        {"anyOf": [{"const": "off"}, dict(reader.schema)]},
    )


def or_auto(reader: ValueReader) -> ValueReader:
    """The reader of a text with a pattern, with "auto" for None; its schema keeps its fields."""
    return ValueReader(
        lambda value: None if value == "auto" else reader.parse(value),
        {**reader.schema, "pattern": f"^auto$|{reader.schema['pattern']}"},
    )


def one_of(*choices: str) -> ValueReader:
    """One of the given words."""

    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"expected {' | '.join(choices)}")
        return str(value)

    return ValueReader(parse, {"enum": list(choices)})


def named(kind: str) -> ValueReader:
    """A name that cannot leave the state directory."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or len(value) > TEXT_MAX >> 4:  # check_name repeats the name in its error
            raise ValueError(
                f"expected the name of an {kind}" if kind[0] in "aeiou" else f"expected the name of a {kind}"
            )
        return check_name(kind, value)

    return ValueReader(parse, {"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$"})


def list_of(reader: ValueReader) -> ValueReader:
    """A list; text is split at commas."""

    def parse(value: Any) -> tuple[Any, ...]:
        # Text comes from variables and flags, which have no lists.
        found = [one.strip() for one in value.split(",") if one.strip()] if isinstance(value, str) else value
        if not isinstance(found, list) or len(found) > LIST_MAX:
            raise ValueError(f"expected a list of at most {LIST_MAX} values")
        return tuple(reader.parse(one) for one in found)

    return ValueReader(parse, {"type": "array", "items": dict(reader.schema), "maxItems": LIST_MAX})


def mapping_of_text() -> ValueReader:
    """Names to texts, numbers or switches, as a table of TOML; names with dots may be nested tables."""

    def parse(value: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            raise ValueError("expected a table of names and values")
        return {name: plain_text(found) for name, found in flattened(value)}

    return ValueReader(parse, {"type": "object"})


def plain_text(value: Any) -> str:
    """A scalar as the text of a library's setting."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return _parse_text(value)


def flattened(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """`{"sasl": {"username": "x"}}` as `[("sasl.username", "x")]`."""
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += flattened(value, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value))
    return found
