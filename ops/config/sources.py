"""Sources of settings: a TOML file, variables STANDFAST_SECTION__KEY, flags. Each value comes with its place.

    standfast.toml:14                             ("http", "port")    8080
    environment variable STANDFAST_HTTP__PORT     ("http", "port")    "8080"

Rules of this file: it reads and reports, and knows no setting. In values of the file `${NAME}` stands for an
environment variable, `$${` for itself; never in names. Any bytes in the file lead to values or problems.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from standfast.store.names import printable

ENV_PREFIX = "STANDFAST_"
FILE_BYTES_MAX = 256 << 10
LINE_CHARS_MAX = 4 << 10  # the TOML reader's time grows with the square of a name's length
DEPTH_MAX = 16  # of tables and lists: `_filled` is recursive, and a key may have thousands of dots
_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_NAME = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_SECTION = re.compile(rf"[ \t]*\[{{1,2}}[ \t]*({_NAME})[ \t]*\]")
_KEY = re.compile(rf"[ \t]*({_NAME})[ \t]*=")
_PARTS = re.compile(_PART)
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_VARIABLE = re.compile(r"\$(\$)?\{([^}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Name = tuple[str, ...]


class GivenValue(NamedTuple):
    """One value; `text` is its spelling in the file if that has `${...}`, else None. If set, only `text` may be
    shown."""

    where: str
    name: Name
    value: Any
    text: Any = None


def from_file(path: Path | None, env: Mapping[str, str], problems: list[str]) -> Iterator[GivenValue]:
    """Every value of the file under the names of its tables; a table without values as an empty table."""
    if path is None:
        return
    read = _read(path, problems)
    if read is None:
        return
    content, text = read
    lines, shown = _lines(text), printable(path)
    for name, value in _leaves(content, ()):
        where = f"{shown}:{_line(lines, name)}"
        missing: list[str] = []
        filled = _filled(value, env, missing)
        if missing:
            problems += [f"{where}: {'.'.join(name)[:80]!r}: {problem}" for problem in dict.fromkeys(missing)]
        else:
            yield GivenValue(where, name, filled, None if filled == value else value)


def from_env(env: Mapping[str, str]) -> Iterator[GivenValue]:
    """Variables with our prefix and two underscores between section and key; others are not settings."""
    for variable in sorted(env):
        name, rest = variable.removeprefix(ENV_PREFIX), variable.startswith(ENV_PREFIX)
        if rest and "__" in name:
            yield GivenValue(f"environment variable {variable}", tuple(name.lower().split("__")), env[variable])


def from_flags(flags: Mapping[str, Any]) -> Iterator[GivenValue]:
    """`section.key` to a value; None means not given."""
    for name, value in flags.items():
        if value is not None:
            head, _, rest = name.partition(".")
            # A name of [kafka] stays whole, since librdkafka's names have dots; the parts of a store's are tables.
            yield GivenValue("command line", (head, *(rest.split(".") if head == "stores" else [rest])), value)


def _read(path: Path, problems: list[str]) -> tuple[dict[str, Any], str] | None:
    shown = printable(path)
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)  # a device such as /dev/zero has no end
        if len(raw) > FILE_BYTES_MAX:
            problems.append(f"{shown}: larger than {FILE_BYTES_MAX >> 10} KiB, the limit of a settings file")
            return None
        text = raw.decode()
        long = next((at for at, line in enumerate(text.split("\n"), 1) if len(line) > LINE_CHARS_MAX), None)
        if long is not None:
            problems.append(f"{shown}:{long}: longer than {LINE_CHARS_MAX} characters, the limit of a line")
            return None
        return tomllib.loads(text), text
    except OSError as error:
        problems.append(f"{shown}: cannot be read: {error.strerror or error}")
    except UnicodeDecodeError as error:
        problems.append(f"{shown}: not UTF-8 text: {error.reason} at byte {error.start}")
    except RecursionError:
        problems.append(f"{shown}: nested deeper than any setting")
    except ValueError as error:  # TOMLDecodeError, and a plain ValueError for numbers and dates out of range
        line = _TOML_LINE.search(str(error))
        where = f"{shown}:{line[1]}" if line else shown
        problems.append(f"{where}: not TOML: {_TOML_LINE.sub('', str(error)).strip()}")
    return None


def _leaves(table: Mapping[str, Any], prefix: Name) -> Iterator[tuple[Name, Any]]:
    """The leaves of nested tables; an explicit stack, since a key may have many dots."""
    stack: list[tuple[Name, Any]] = [(prefix, table)]
    while stack:
        name, value = stack.pop()
        if isinstance(value, dict) and value and len(name) < DEPTH_MAX:
            stack += [((*name, key), inner) for key, inner in reversed(value.items())]
        elif name:
            yield name, value


def _filled(value: Any, env: Mapping[str, str], missing: list[str], depth: int = 0) -> Any:
    if depth > DEPTH_MAX:
        missing.append("nested deeper than any setting")
        return None
    if isinstance(value, list):
        return [_filled(one, env, missing, depth + 1) for one in value]
    if isinstance(value, dict):
        return {key: _filled(one, env, missing, depth + 1) for key, one in value.items()}
    if not isinstance(value, str):
        return value

    def put(found: re.Match[str]) -> str:
        name = found[2]
        if found[1]:
            return f"${{{name}}}"  # written as `$${`
        if not _VARIABLE_NAME.fullmatch(name):
            missing.append("${...} must hold the name of an environment variable; write $${ for the text itself")
        elif name not in env:
            missing.append(f"environment variable {name} is not set")
        return env.get(name, "")

    return _VARIABLE.sub(put, value)


def _lines(text: str) -> dict[Name, int]:
    """Line numbers of tables and keys, which the TOML reader does not report.

    A second, forgiving look at the text: a wrong guess costs a line number, never a value.
    """
    lines: dict[Name, int] = {}
    section: Name = ()
    fence = ""
    for number, line in enumerate(text.split("\n"), 1):
        if fence:  # inside a multi-line string
            fence = "" if line.count(fence) % 2 else fence
            continue
        header, key = _SECTION.match(line), _KEY.match(line)
        if header is not None:
            section = _parts(header[1])
            lines.setdefault(section, number)
        elif key is not None:
            lines.setdefault((*section, *_parts(key[1])), number)
            fence = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
    return lines


def _parts(name: str) -> Name:
    return tuple(part.strip("\"'") for part in _PARTS.findall(name))


def _line(lines: Mapping[Name, int], name: Name) -> int:
    # From the longest name: a key of an inline table has no line of its own and gets that of the table.
    for length in range(min(len(name), 8), 0, -1):
        if name[:length] in lines:
            return lines[name[:length]]
    return 1
