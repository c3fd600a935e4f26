"""Checks of arguments at the public edge, so that every wrong argument is reported in the same form.

    @checked(BadConfig)                   each public method of the class that has options, and its __init__
    class Stream: ...

    stream.filter(f, nmae="paid")         Stream.filter: there is no setting 'nmae': did you mean 'name'?
    stream.to(3)                          Stream.to: topic must be text, not 3

The annotations say which kinds a parameter takes; a parameter of `Any`, or of a name that only type checkers have,
takes everything. Bounds, items of lists and rules between parameters are the method's own.

Rules of this file: pure; functions return lists of problems, empty if there is none, each with the fix. A caller
raises all of them at once, before anything is changed. Methods that run for every record are not wrapped: they end in
`**unknown: Never`, which costs less than a second call, and raise `no_option`.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from types import FunctionType, MethodType, NoneType, UnionType
from typing import Any, Literal, TypeGuard, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import few

INT64_MAX = 2**63 - 1
_NOWHERE: Mapping[str, str] = {}


def is_whole(value: object, least: int = 0, most: int = INT64_MAX) -> TypeGuard[int]:
    """Whether the value is a whole number within these bounds; True and False are not numbers here."""
    # bool is a subclass of int: without the second test True would pass as 1.
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def name_problems(given: Iterable[str], known: Sequence[str], elsewhere: Mapping[str, str] = _NOWHERE) -> list[str]:
    """One problem for each unknown setting, with the nearest known name, or why it is not here."""
    problems = []
    for name in sorted(set(given) - set(known)):
        if name in elsewhere:
            problems.append(f"there is no setting {name!r} here: {elsewhere[name]}")
            continue
        import difflib  # its modules are for errors alone

        near = difflib.get_close_matches(name, known, 1, 0.6)
        problems.append(
            f"there is no setting {name!r}" + (f": did you mean {near[0]!r}?" if near else f": known are {_all(known)}")
        )
    return problems


def flag_problems(**flags: object) -> list[str]:
    """One problem for each flag that is neither True nor False: 0 or "no" would silently count as one of them."""
    return [
        f"{name} must be True or False, not {flag!r:.100}" for name, flag in flags.items() if type(flag) is not bool
    ]


def list_problems(what: str, given: object, kind: type, example: str) -> list[str]:
    """Problems of an argument that must be a list of `kind`, as in `example`."""
    if isinstance(given, kind):
        return [f"{what} must be a list, not one {type(given).__name__} alone: put [ ] around it"]
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        return [f"{what} must be a list such as {example}, not {given!r:.100}"]
    # The items of a generator are not checked: reading them here would leave none for the caller.
    items = [one for one in given if not isinstance(one, kind)] if isinstance(given, Collection) else []
    return [f"{what} must be a list such as {example}, and one item is {one!r:.100}" for one in items]


def path_problems(what: str, given: object) -> list[str]:
    """Problems of an argument that must be the path of a folder."""
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given and "\0" not in given):
        return []
    return [f"{what} must be the path of a folder such as './state', not {given!r:.100}"]


def refuse(problems: Sequence[str]) -> None:
    """Raise BadConfig if there is a problem."""
    if problems:
        raise BadConfig(problems)


def check_functions(what: str, **functions: object) -> None:
    """Raise BadConfig for each argument that cannot be called, or only awaited."""
    problems = []
    for name, given in functions.items():
        if not callable(given):
            problems.append(f"{what}: {name} must be a function, not {given!r:.100}")
        elif inspect.iscoroutinefunction(given):
            # Its coroutine would go on as the value, and never be awaited.
            problems.append(
                f"{what}: {name} is async def, and would never be awaited: for calls to other services there are "
                "map_async and map_values_async"
            )
    refuse(problems)


def pairs_of(where: str, items: Any) -> list[tuple[Any, Any]]:
    """The items as (key, value) pairs; InvalidRequest names the first item that is no pair."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        fix = "give its .items()" if isinstance(items, Mapping) else "give a list of (key, value)"
        raise InvalidRequest(f"{where}: items must be pairs of key and value, not {items!r:.100}: {fix}")
    pairs = []
    for at, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InvalidRequest(f"{where}: item {at} must be (key, value), not {item!r:.100}; none was set")
        pairs.append((item[0], item[1]))
    return pairs


def _all(known: Sequence[str]) -> str:
    return few(sorted(known))


C = TypeVar("C", bound=type)
M = TypeVar("M", bound=Callable[..., object])


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()  # an argument that was left out
_NO_TYPE: frozenset[type] = frozenset()
# Kinds in a caller's words; any other class is named with an article.
_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bytes: "bytes",
    bool: "True or False",
    NoneType: "None",
    Callable: "a function",
    Mapping: "a dict",
    frozenset: "a frozenset",
    "PathLike": "the path of a folder or file",
    "Path": "the path of a folder or file",
}


def checked(error: type[InvalidRequest], *but: str, exact: Collection[str] = ("__init__",)) -> Callable[[C], C]:
    """Class decorator: its public methods refuse wrong names and kinds of arguments by `error`, except those `but`.

    `exact`: methods that say by themselves which values there are, with their bounds: only their names are checked. The
    decorator belongs above every other one that changes signatures.
    """

    def decorate(cls: C) -> C:
        for name, function in list(vars(cls).items()):
            public = name == "__init__" or not name.startswith("_")
            if public and name not in but and isinstance(function, FunctionType):
                setattr(cls, name, _checking(function, cls, error, exact=name in exact))
        return cls

    return decorate


def checked_call(error: type[InvalidRequest], *, exact: bool = False) -> Callable[[M], M]:
    """Decorator of a public function, as `checked` of a class's methods."""

    def decorate(function: M) -> M:
        made: M = _checking(cast("FunctionType", function), None, error, exact=exact)
        return made

    return decorate


def unchecked(method: M) -> M:
    """A bound method without its checks, for calls that the library makes for every record."""
    found: Any = method
    if (plain := getattr(found, "unchecked", None)) is not None:
        found = MethodType(plain, found.__self__)
    return cast("M", found)


def no_option(method: Callable[..., object], unknown: Collection[str]) -> InvalidRequest:
    """The error of a method that ends in `**unknown`, for the names that it was given, or for those that it lacks."""
    known = list(inspect.signature(method).parameters)[1:]
    where = method.__qualname__
    problems = name_problems(unknown, known) or [f"an argument is missing: it takes {', '.join(known)}"]
    return InvalidRequest("; ".join(f"{where}: {problem}" for problem in problems))


def _checking(function: FunctionType, owner: type | None, error: type[InvalidRequest], *, exact: bool = False) -> Any:
    skip = int(owner is not None)  # self
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    if not parameters:
        return function
    if any(one.kind is one.VAR_KEYWORD and one.name == "unknown" for one in parameters):
        return _checking_itself(function)
    made: list[_Parameters] = []  # at the first call: annotations may name classes further down in their module

    def check(given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not made:
            made.append(_parameters(function, parameters))
        values = given[skip:]
        if not made[0].usual(values, named) and (
            problems := made[0].problems(values, named, getattr(owner, "_elsewhere", _NOWHERE), exact=exact)
        ):
            where = function.__name__ if owner is None else _called(owner, given, function)
            problems = [f"{where}: {problem}" for problem in problems]
            is_config = function.__name__ == "__init__" or issubclass(error, BadConfig)
            raise BadConfig(problems) if is_config else error("; ".join(problems))

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        check(given, named)
        return function(*given, **named)

    @wraps(function)
    async def call_async(*given: Any, **named: Any) -> Any:
        check(given, named)
        return await function(*given, **named)

    made_call: Any = call_async if inspect.iscoroutinefunction(function) else call
    made_call.unchecked = function
    return made_call


def _checking_itself(function: FunctionType) -> FunctionType:
    """A method that ends in `**unknown`: Python lets it run without arguments, too, which else it refuses itself."""
    signature = inspect.signature(function)
    shown = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]
    needed = sum(one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD for one in shown[1:])
    function.__defaults__ = (MISSING,) * needed + (function.__defaults__ or ())
    return function


def _called(owner: type, given: Sequence[Any], function: FunctionType) -> str:
    """`Class.method` by the class of the object, or the class alone for its __init__."""
    cls = type(given[0]).__name__ if given and isinstance(given[0], owner) else owner.__name__
    return cls if function.__name__ == "__init__" else f"{cls}.{function.__name__}"


@dataclass(frozen=True, slots=True)
class _Parameters:
    """Kinds of parameters by name; `places`: the names that may be given by position; `needed`: those without a
    default. `spread`, `others`: any number of further positions, or names, are taken."""

    kinds: dict[str, Any]
    places: list[str]
    needed: list[str]
    spread: bool
    others: bool
    simple: dict[str, frozenset[type] | None]  # types that need no further look; None: all

    def usual(self, given: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Whether all is right at a first look, which is cheap."""
        if len(given) > len(self.places) or len(given) < len(self.needed):
            return False
        simple = self.simple
        for name, value in (*zip(self.places, given, strict=False), *named.items()):
            types = simple.get(name, _NO_TYPE)
            if types is not None and type(value) not in types:
                return False
        return not named or named.keys().isdisjoint(self.places[: len(given)])

    def problems(
        self, given: Sequence[Any], named: Mapping[str, Any], elsewhere: Mapping[str, str], *, exact: bool
    ) -> list[str]:
        """Everything that is wrong with the arguments of a call; kinds, if it is `exact`, beside wrong names alone."""
        known, places = list(self.kinds), self.places
        problems = [] if self.others or named.keys() <= self.kinds.keys() else name_problems(named, known, elsewhere)
        if len(given) > len(places) and not self.spread:
            problems.append(f"it takes by position {', '.join(places) or 'nothing'} alone, not {len(given)} arguments")
        by_place = dict(zip(places, given, strict=False))
        problems += [f"{name} is given twice" for name in by_place if name in named]
        if not problems:  # a misspelt name is not missing besides
            problems = [f"{name} is missing" for name in self.needed if name not in by_place and name not in named]
        if exact and not problems:
            return []
        for name, value in (*by_place.items(), *named.items()):
            kind = self.kinds.get(name, Any)
            if not fits(value, kind):
                problems.append(f"{name} must be {worded(kind)}, not {value!r:.100}{_remedy(value, kind)}")
        return problems


def _parameters(function: FunctionType, parameters: Sequence[inspect.Parameter]) -> _Parameters:
    plain: Any = inspect.unwrap(function)
    spaces = _spaces(plain)
    names: dict[str, Any] = plain.__globals__
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    kinds = {one.name: _evaluated(one.annotation, spaces.get(one.name, names)) for one in named}
    return _Parameters(
        kinds,
        [one.name for one in named if one.kind is not one.KEYWORD_ONLY],
        [one.name for one in named if one.default is one.empty],
        any(one.kind is one.VAR_POSITIONAL for one in parameters),
        any(one.kind is one.VAR_KEYWORD for one in parameters),
        {name: _simple(kind) for name, kind in kinds.items()},
    )


def _simple(kind: Any) -> frozenset[type] | None:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if any(map(_takes_all, kinds)):
        return None
    plain = {NoneType if one is None else get_origin(one) or one for one in kinds}
    return frozenset(one for one in (*plain, *(dict for one in plain if one is Mapping)) if isinstance(one, type))


def _takes_all(kind: Any) -> bool:
    """Whether a kind is checked by the method itself: Any, a type variable, a protocol, a class of some sort."""
    origin = get_origin(kind)
    if kind is None or origin is not None:
        return origin is type
    return kind is Any or kind is object or not isinstance(kind, type) or getattr(kind, "_is_protocol", False)


def _spaces(plain: Any) -> dict[str, dict[str, Any]]:
    """The module's names for each option that a TypedDict declares, in which its annotation is written."""
    spaces: dict[str, dict[str, Any]] = {}
    for annotation in map(str, plain.__annotations__.values()):
        if annotation.startswith("Unpack["):
            options = plain.__globals__[annotation.removeprefix("Unpack[").removesuffix("]")]
            # Also of a TypedDict below it, which another module may define.
            spaces |= {name: vars(sys.modules[one.__forward_module__]) for name, one in options.__annotations__.items()}
    return spaces


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    try:
        return get_type_hints(type("_", (), {"__annotations__": {"it": annotation}}), names)["it"]
    except NameError:  # a name that only type checkers have
        return Any


def fits(value: object, kind: Any) -> bool:
    """Whether a value is of the kind that an annotation says; items of lists and dicts are not looked at."""
    if kind is None:
        return value is None
    origin = get_origin(kind)
    if _takes_all(kind):
        return True
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in get_args(kind))
    if origin is Literal:
        return type(value) in {type(one) for one in get_args(kind)}  # the method says which texts there are
    kind = origin or kind
    if kind is Callable:
        return callable(value)
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if issubclass(kind, os.PathLike):  # pyright: ignore[reportGeneralTypeIssues]
        return isinstance(value, os.PathLike)
    if not issubclass(kind, Iterable) or issubclass(kind, str | bytes | tuple | Set | Mapping):
        return isinstance(value, kind)
    if kind is Sequence and isinstance(value, Mapping):
        return False  # its keys are no list
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def _remedy(value: object, kind: Any) -> str:
    """The fix of a usual mistake: a class for an object of it, an item for a list of such."""
    for one in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if isinstance(value, type) and isinstance(one, type) and issubclass(value, one):
            return f": give an object of the class, {value.__name__}(...)"
        if any(isinstance(item, type) and item is not Any and isinstance(value, item) for item in get_args(one)):
            return ": put [ ] around it"
    return ""


def worded(kind: Any) -> str:
    """The kind in words."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        words = list(dict.fromkeys(worded(one) for one in get_args(kind)))
        return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    if origin is Literal:
        return " or ".join(f'"{one}"' if isinstance(one, str) else repr(one) for one in get_args(kind))
    kind = NoneType if kind is None else origin or kind
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(kind.__members__)
    if said := getattr(kind, "in_words", ""):
        return str(said)
    name = getattr(kind, "__name__", str(kind))
    if word := _WORDS.get(kind) or _WORDS.get(name):
        return word
    if isinstance(kind, type) and issubclass(kind, Iterable) and not issubclass(kind, tuple):
        return "a list"
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"
