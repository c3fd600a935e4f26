"""Every option of every public call, by introspection, and values that are no value of it.

    options()    "Session.assign", the function, and its options with the kinds that they take

Rules of this file: no list of calls or options. A class whose methods the program itself writes, or that is a plain
tuple of Python, has none; a method that only the library calls is named with its reason in `reasons`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from standfast.stream.dsl.fluent import Stream, Table
from standfast.stream.dsl.grouped import GroupedStream, WindowedStream
from support.attacks.reasons import CLASSES, METHODS, OVERRIDDEN
from support.attacks.surface import public_things

SAMPLES: dict[type, Any] = {
    str: "x",
    int: 1,
    float: 1.5,
    bool: True,
    bytes: b"x",
    type(None): None,
    list: [1],
    dict: {"a": 1},
    FunctionType: len,
    object: object(),
}


class Option(NamedTuple):
    call: str
    function: Callable[..., object]
    name: str
    kind: Any  # the annotation, or Any where only type checkers can read it


def options() -> Iterator[Option]:
    """Each option of each public call; a constructor is the class itself."""
    made = public_things()  # by the program; streams and tables are made by the library
    found = made | {one.__name__: one for one in (Stream, Table, GroupedStream, WindowedStream)}
    for name, thing in found.items():
        if inspect.isfunction(thing):
            yield from _of(name, thing, thing, 0)
        elif inspect.isclass(thing) and not _left_out(name, thing):
            if name not in METHODS and name in made:
                yield from _of(name, thing, thing.__init__, 1)
            for member in dir(thing):
                function = inspect.getattr_static(thing, member)
                public = not member.startswith("_") and f"{name}.{member}" not in METHODS
                if public and inspect.isfunction(function):
                    yield from _of(f"{name}.{member}", function, function, 1)


def _left_out(name: str, thing: type) -> bool:
    plain = issubclass(thing, tuple | BaseException) or getattr(thing, "_is_protocol", False)
    return plain or CLASSES.get(name) == OVERRIDDEN


def _of(call: str, called: Any, function: Any, skip: int) -> Iterator[Option]:
    plain = inspect.unwrap(function)
    for one in list(inspect.signature(function).parameters.values())[skip:]:
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            yield Option(call, called, one.name, _hint(plain, one))


def _hint(plain: Any, parameter: inspect.Parameter) -> Any:
    names = dict(plain.__globals__)
    for given in map(str, plain.__annotations__.values()):
        if given.startswith("Unpack["):
            options = names[given[7:-1]]
            hints = get_type_hints(options)
            if parameter.name in hints and parameter.name not in plain.__annotations__:
                return hints[parameter.name]
    try:
        return get_type_hints(type("One", (), {"__annotations__": {"it": parameter.annotation}}), names)["it"]
    except NameError:
        return Any


def wrong_for(kind: Any) -> dict[type, Any]:
    """The samples that are no value of a kind; empty for one that takes anything."""
    return {one: value for one, value in SAMPLES.items() if not any(_takes(part, one) for part in _parts(kind))}


def _parts(kind: Any) -> list[Any]:
    return (
        [part for one in get_args(kind) for part in _parts(one)] if get_origin(kind) in (Union, UnionType) else [kind]
    )


def _takes(kind: Any, sample: type) -> bool:
    origin = get_origin(kind) or kind
    if origin is Literal:
        return sample in {type(one) for one in get_args(kind)}
    if isinstance(kind, TypeVar) or origin in (Any, object) or getattr(origin, "_is_protocol", False):
        return True
    if origin is type:
        return True  # a class of some sort, which the method looks at
    if getattr(origin, "__name__", "") == "Callable":
        return sample is FunctionType
    if not isinstance(origin, type):
        return True
    if issubclass(origin, str | bytes) or sample in (str, bytes):
        return issubclass(sample, origin)
    if origin is float:
        return sample in (int, float)
    if origin is int:
        return sample is int
    return issubclass(sample, origin)
