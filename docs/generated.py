"""Pages that the product writes about itself: commands, settings, HTTP calls, RESP commands, errors and exit codes.

    parser, schema of settings, OpenAPI document, tables of commands and errors ──> docs/reference/generated/

Rules of this file: texts come from the product; here they only get the form of Markdown.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MARKS = re.compile(r"([*_<>\[\]|$])")
FOLDER = Path(__file__).parent / "reference" / "generated"


def write_all() -> None:
    """Write every page; one that did not change keeps its time, so that Sphinx need not read it again."""
    FOLDER.mkdir(exist_ok=True)
    for name, lines in (
        ("cli", _commands()),
        ("settings", _settings()),
        ("http", _calls()),
        ("resp", _resp()),
        ("errors", _errors()),
        ("exit-codes", _exit_codes()),
    ):
        path, text = FOLDER / f"{name}.md", "\n".join(lines) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _commands() -> Iterator[str]:
    from standfast.ops.command.command_line import build_parser

    yield from _parsers(build_parser(), "standfast", 2)


def _parsers(parser: argparse.ArgumentParser, name: str, depth: int) -> Iterator[str]:
    from standfast.ops.command.examples import EXAMPLES

    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if depth > 2:
        yield from ("", f"{'#' * min(depth - 1, 4)} `{name}`", "", _prose(parser.description or ""), "")
        usage = parser.format_usage().removeprefix("usage: ").strip()
        yield from ("```text", re.sub(r"\n\s+", "\n    ", usage), "```", "")
        if not groups and parser.prog in EXAMPLES:
            yield from ("```sh", *EXAMPLES[parser.prog], "```", "")
        options = [one for one in parser._actions if one.help != argparse.SUPPRESS and one not in groups]
        rows = [(_option(one), _prose(one.help or "")) for one in options if one.dest != "help"]
        if rows:
            yield from _table(("argument", "meaning"), rows)
    for group in groups:
        for word, one in group.choices.items():
            yield from _parsers(one, f"{name} {word}", depth + 1)


def _option(action: argparse.Action) -> str:
    shown = action.metavar or (action.dest.upper() if action.nargs != 0 and not action.choices else "")
    if action.choices and not action.metavar:
        shown = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return _code(str(shown or action.dest))
    words = ", ".join(_code(one) for one in action.option_strings)
    return f"{words} {_code(str(shown))}" if shown else words


def _settings() -> Iterator[str]:
    from standfast.ops.config.show import json_schema

    for section, table in json_schema()["properties"].items():
        yield from ("", f"## `[{section}]`", "", _prose(table.get("description", "")), "")
        shapes = table.get("properties") or table.get("additionalProperties", {})
        fields = shapes.get("properties", shapes) if isinstance(shapes, Mapping) else {}
        rows = [
            (_code(name), _kind(one), _default(one), _prose(one.get("description", "")))
            for name, one in fields.items()
            if isinstance(one, Mapping)
        ]
        if rows:
            yield from _table(("setting", "type", "default", "meaning"), rows)


def _default(shape: Mapping[str, Any]) -> str:
    return _code(str(shape["default"])) if "default" in shape else ""


def _kind(shape: Mapping[str, Any]) -> str:
    if "enum" in shape:
        return ", ".join(_code(str(one)) for one in shape["enum"])
    examples = shape.get("examples")
    return str(shape.get("type", "")) + (f" such as {_code(str(examples[0]))}" if examples else "")


def _calls() -> Iterator[str]:
    from standfast.ops.sidecar.control.openapi import document
    from standfast.ops.sidecar.control.routes import CALLS

    rows = [
        (_code(f"{method.upper()} {path}"), _code(call["x-role"]), _prose(call["summary"]))
        for path, methods in document(CALLS)["paths"].items()
        for method, call in methods.items()
    ]
    yield from _table(("call", "role", "meaning"), rows)


def _resp() -> Iterator[str]:
    from standfast.ops.sidecar.resp.table import COMMANDS

    rows = []
    for name, handler, _least, _most, kind in COMMANDS:
        text = _prose(inspect.getdoc(handler) or "")
        rows.append((_code(name), kind, text))
    yield from _table(("command", "access", "use"), rows)


def _errors() -> Iterator[str]:
    from standfast.ops.shared.error_codes import ERRORS, REASONS
    from standfast.store import errors

    of: dict[str, list[str]] = {}
    for error, reason, _ in ERRORS:
        of.setdefault(reason.name, []).append(_code(error.__name__))
    yield from ("## In Python", "")
    rows = [
        (_code(f"sf.{error.__name__}"), _code(reason.name), str(code), _first(error.__doc__))
        for error, reason, code in ERRORS
        if getattr(errors, error.__name__, None) is error
    ]
    yield from _table(("error", "code", "exit code", "meaning"), sorted(rows))
    yield from ("", "## Over HTTP and RESP", "")
    rows = [
        (
            _code(one.name),
            str(one.http),
            _code(f"-{one.resp}"),
            "" if one.retry_after_s is None else f"after {one.retry_after_s} s",
            ", ".join(of.get(one.name, ())),
        )
        for one in REASONS.values()
    ]
    yield from _table(("code", "HTTP", "RESP", "try again", "Python"), rows)


def _exit_codes() -> Iterator[str]:
    from standfast.ops.shared import exit_codes
    from standfast.ops.shared.error_codes import ERRORS

    names = {value: name for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    rows = []
    for value, name in sorted(names.items()):
        of = ", ".join(_code(error.__name__) for error, _, code in ERRORS if code == value)
        rows.append((str(value), name.lower(), of))
    yield from _table(("exit code", "name", "errors"), rows)


def _first(text: str | None) -> str:
    return _prose(inspect.cleandoc(text or "").partition("\n\n")[0])


def _prose(text: str) -> str:
    """Text of help as Markdown: a star or a pipe in it means itself; backticks mean code there too."""
    parts = " ".join(text.replace("%%", "%").split()).split("`")
    return "`".join(part if at % 2 else MARKS.sub(r"\\\1", part) for at, part in enumerate(parts))


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(names) + " |"
    yield "|" + "---|" * len(names)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""
