"""The options in help() equal those of the signatures, and every option has a description with its unit."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Unpack

import pytest

import standfast as sf
from standfast.stream.dsl.fluent import Stream, Table
from standfast.stream.dsl.grouped import GroupedStream, WindowedStream
from standfast.stream.session.replica import ReplicaOptions
from standfast.stream.signatures import spelled_out
from standfast.stream.task.settings import SessionOptions, SessionSettings
from standfast.stream.task.task import Task
from standfast.stream.topology.policy import StepOptions
from standfast.stream.topology.sources import SourceOptions, SourceSettings, TableOptions

DESCRIBED = [sf.Session, sf.aio.Session, sf.App]
UNITS = {"_ms": "milliseconds", "_bytes": "bytes", "_port": "port", "": "number of"}
ROW = re.compile(r"^(\w+)(?:=(.+))?\n    (\S(?:.*\n?(?:    .*\n?)*))", re.MULTILINE)
RETURNED = [Stream, Table, GroupedStream, WindowedStream, Task]  # public, though not named in `standfast`


def rows(described: Any) -> dict[str, tuple[str, str]]:
    """Options that a docstring lists: name -> default as text, description."""
    return {name: (default, text) for name, default, text in ROW.findall(inspect.getdoc(described) or "")}


@pytest.mark.parametrize("described", DESCRIBED)
def test_help_lists_every_option_of_the_signature_with_its_default(described: type) -> None:
    parameters = inspect.signature(described).parameters
    listed = rows(described)
    assert set(listed) == set(parameters)
    for name, parameter in parameters.items():
        wanted = "" if parameter.default is parameter.empty else repr(parameter.default)
        assert listed[name][0] == wanted, name


@pytest.mark.parametrize("described", DESCRIBED)
def test_help_gives_the_unit_of_every_number(described: type) -> None:
    listed = rows(described)
    for name, parameter in inspect.signature(described).parameters.items():
        if "int" in str(parameter.annotation).split(" | "):
            unit = next(unit for suffix, unit in UNITS.items() if name.endswith(suffix))
            assert re.search(unit, listed[name][1]), f"{name}: {listed[name][1]!r} does not say {unit!r}"


@pytest.mark.parametrize(
    "method", [sf.App.source, sf.App.stream, sf.App.table, sf.App.sink, Stream.map, WindowedStream.count]
)
def test_help_of_a_method_lists_its_options(method: Any) -> None:
    parameters = inspect.signature(method).parameters
    assert not [one for one in parameters.values() if one.kind is one.VAR_KEYWORD]
    named = {name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert set(rows(method)) == named - {"key", "value", "partitioner"}


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (SessionOptions, SessionSettings),
        (ReplicaOptions, SessionSettings),
        (SourceOptions, SourceSettings),
        (TableOptions, SourceSettings),
    ],
)
def test_options_have_the_names_and_types_of_the_settings(options: Any, settings: Any) -> None:
    declared = {one.name: one.type for one in fields(settings)}
    given = {name: kind.__forward_arg__ for name, kind in options.__annotations__.items()}
    assert given.items() <= declared.items()
    if options in (SessionOptions, SourceOptions):  # the others omit some
        assert declared.keys() - given.keys() <= {"key", "value"}


def functions(owner: Any) -> Iterator[tuple[str, Any]]:
    """Public functions of a class or module, and its __init__."""
    for name, value in inspect.getmembers(owner):
        if inspect.isroutine(value) and (name == "__init__" or not name.startswith("_")):
            yield f"{owner.__name__}.{name}", value


def public() -> Iterator[tuple[str, Any]]:
    """Every function that a user of `standfast` meets."""
    for owner in [*(getattr(sf, name) for name in sf.__all__), *RETURNED, sf.testing.Driver, sf.aio.Session]:
        if inspect.isclass(owner) or inspect.ismodule(owner):
            yield from functions(owner)
        elif inspect.isfunction(owner):
            yield owner.__name__, owner


def any_options(found: Iterator[tuple[str, Any]]) -> list[str]:
    """Functions that take any keyword argument at all, for a type checker or in help()."""
    problems = []
    for name, function in found:
        written = inspect.unwrap(function)
        code = getattr(written, "__code__", None)
        if code is None or not str(code.co_filename).endswith(".py") or not code.co_flags & inspect.CO_VARKEYWORDS:
            continue
        last = code.co_varnames[code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]
        annotation = str(written.__annotations__.get(last))
        spelled = all(one.kind is not one.VAR_KEYWORD for one in inspect.signature(written).parameters.values())
        if "Any" in annotation or (annotation.startswith("Unpack[") and not spelled):
            problems.append(f"{name}(**{last}: {annotation})")
    return problems


def test_no_public_function_takes_any_keyword_argument() -> None:
    assert any_options(public()) == []


class Planted:
    def loose(self, **settings: Any) -> None: ...

    def hidden(self, **step: Unpack[StepOptions]) -> None: ...

    def right(self, *, name: str) -> None: ...


def test_planted_signatures_are_found_and_spelling_out_mends_the_honest_one() -> None:
    assert any_options(functions(Planted)) == [
        "Planted.hidden(**step: Unpack[StepOptions])",
        "Planted.loose(**settings: Any)",
    ]
    spelled_out({})(Planted)
    assert any_options(functions(Planted)) == ["Planted.loose(**settings: Any)"]
    assert inspect.signature(Planted.hidden).parameters["dead_letter"].default is None
