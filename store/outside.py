"""Sources outside of the library's own state, and places for the parts of a simulation.

    new_id("member", 12)      random digits, for names that must differ          time     store/clock.py
    random_number("retry")    a number in [0, 1)                                 files    store/files.py
    process_id(), host_name(), environment()

    with NEW_ID.replaced(simulated): ...        in this process the function of the simulation answers
    with OTHERS.added("sim", scheme): ...      one more implementation by its name

Rules of this file: the library replaces and adds nothing. A function receives the purpose of the call, so that a
simulation can answer each question by itself. tests/repo/test_outside.py finds another way to the outside.
"""

from __future__ import annotations

import os
import random
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from standfast.store.errors import InvalidRequest

T = TypeVar("T")


class Replaceable(Generic[T]):
    """A function of the whole process; `ask` is the one that counts now."""

    def __init__(self, function: T) -> None:
        self.ask = function

    @contextmanager
    def replaced(self, function: T) -> Iterator[None]:
        """Answer by another function within the block."""
        before, self.ask = self.ask, function
        try:
            yield
        finally:
            self.ask = before


class Implementations(dict[str, T]):
    """Implementations by name, beside those of the library, which have the names `built_in`."""

    def __init__(self, *built_in: str) -> None:
        super().__init__()
        self._built_in = built_in

    @contextmanager
    def added(self, name: str, implementation: T) -> Iterator[None]:
        """Have one more within the block. Raises InvalidRequest for a name that is taken."""
        if name in self or name in self._built_in:
            raise InvalidRequest(f"an implementation has the name {name!r} already: give the new one another name")
        self[name] = implementation
        try:
            yield
        finally:
            del self[name]


NEW_ID: Final = Replaceable[Callable[[str, int], str]](lambda kind, digits: uuid.uuid4().hex[:digits])
RANDOM_NUMBER: Final = Replaceable[Callable[[str], float]](lambda kind: random.random())
PROCESS_ID: Final = Replaceable[Callable[[], int]](os.getpid)
HOST_NAME: Final = Replaceable[Callable[[], str]](socket.gethostname)
ENVIRONMENT: Final = Replaceable[Callable[[], Mapping[str, str]]](lambda: os.environ)


def new_id(kind: str, digits: int) -> str:
    """So many random hexadecimal digits, 32 at most; `kind` says for what."""
    return NEW_ID.ask(kind, digits)


def random_number(kind: str) -> float:
    """A random number from 0 to below 1; `kind` says for what."""
    return RANDOM_NUMBER.ask(kind)


def random_bytes(kind: str, count: int) -> bytes:
    """So many random bytes; `kind` says for what."""
    return random.Random(new_id(kind, 32)).randbytes(count)


def process_id() -> int:
    """The number of this process on its machine."""
    return PROCESS_ID.ask()


def host_name() -> str:
    """The name of this machine."""
    return HOST_NAME.ask()


def environment() -> Mapping[str, str]:
    """The variables of this process."""
    return ENVIRONMENT.ask()
