"""The public calls, by introspection: methods and attributes of public classes, and functions.

    standfast.__all__ ──> classes, functions, modules ──> "Session.commit", "open_log", "testing.Driver.pipe", ...

Rules of this file: no list of calls. Classes that no public name leads to, but a public call returns (a task, a
producer, parts of the log), are named in RETURNED. A frozen value has no calls: a look at it holds and changes nothing.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import standfast as sf
from standfast.ops.client.connect import SidecarClient, SidecarTask
from standfast.replication.log import Group, Log, LogAdmin, LogReader, LogWriter
from standfast.stream.app.producer import Producer
from standfast.stream.session.session_tasks import ReadView
from standfast.stream.task.task import Task

RETURNED: tuple[type, ...] = (
    Task,
    ReadView,
    Producer,
    Log,
    LogAdmin,
    LogReader,
    LogWriter,
    Group,
    SidecarClient,
    SidecarTask,
)
ENTERED = ("__enter__", "__exit__", "__aenter__", "__aexit__", "__iter__", "__next__", "__call__")


def is_value(found: Any) -> bool:
    """Whether it is a constant, an error, or a class of values that cannot change."""
    if not inspect.isclass(found):
        return isinstance(found, int | str | enum.Enum)
    if issubclass(found, tuple | enum.Enum | BaseException):
        return True
    settings = getattr(found, "__dataclass_params__", None)
    return dataclasses.is_dataclass(found) and settings is not None and bool(settings.frozen)


def public_things() -> dict[str, Any]:
    """All public names with their objects; a module's names begin with the module's."""
    things: dict[str, Any] = {}
    for name in sf.__all__:
        found = getattr(sf, name)
        if isinstance(found, ModuleType):
            things |= {f"{name}.{inner}": value for inner, value in _of_module(found)}
        else:
            things[name] = found
    return things | {found.__name__: found for found in RETURNED}


def _of_module(module: ModuleType) -> Iterator[tuple[str, Any]]:
    listed = getattr(module, "__all__", None)
    for name, value in vars(module).items():
        own = inspect.isclass(value) or inspect.isfunction(value)
        public = name in listed if listed is not None else own and value.__module__ == module.__name__
        if public and not name.startswith("_"):
            yield name, value


def public_calls() -> dict[str, str]:
    """Each public call by its name, with the name of the class or function that it belongs to.

    A member that a public class inherits from another one is the other's.
    """
    things = {name: found for name, found in public_things().items() if not is_value(found)}
    calls: dict[str, str] = {}
    for name, found in things.items():
        calls[name] = name
        if inspect.isclass(found):
            calls |= {f"{name}.{one}": name for one in _members(found, things)}
    return calls


def _members(found: type, things: dict[str, Any]) -> Iterator[str]:
    bases = [one for one in things.values() if inspect.isclass(one) and one is not found and one in found.__mro__]
    for name in dir(found):
        owner = next(base for base in found.__mro__ if name in vars(base))
        inherited = owner in bases or (name not in ENTERED and any(owner in base.__mro__ for base in bases))
        if owner is not object and not inherited and (not name.startswith("_") or name in ENTERED):
            yield name
