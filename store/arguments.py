"""Checks of arguments at the public edge, so that every wrong argument is reported in the same form.

Rules of this file: pure; each function returns a list of problems, empty if there is none, each with the fix. A
caller raises all of them at once, before anything is changed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import few

INT64_MAX = 2**63 - 1


def is_whole(value: object, least: int = 0, most: int = INT64_MAX) -> TypeGuard[int]:
    """Whether the value is a whole number within these bounds; True and False are not numbers here."""
    # bool is a subclass of int: without the second test True would pass as 1.
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def name_problems(given: Iterable[str], known: Sequence[str]) -> list[str]:
    """One problem for each unknown setting, with the nearest known name."""
    problems = []
    for name in sorted(set(given) - set(known)):
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
