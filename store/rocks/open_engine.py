"""Opens the engine that keeps rows on disk: RocksDB, or an engine that a simulation put in its place.

Rules of this file: all code that reads or writes rows of a directory opens it here. A directory with a database has a
file CURRENT, also that of another engine. A look into files of RocksDB, such as a repair, finds none of another engine.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol, Required, TypedDict, Unpack

from standfast.store.engine import Engine
from standfast.store.outside import Replaceable
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared


class EngineOptions(TypedDict, total=False):
    """The arguments of `RocksEngine`, which says what each means."""

    shared: Required[RocksShared]
    read_only: bool
    careful: bool
    whole_wal: bool
    restoring: bool
    families: Collection[str]


class OpenEngine(Protocol):
    """The constructor of `RocksEngine`."""

    def __call__(self, path: Path, **options: Unpack[EngineOptions]) -> Engine: ...


def _rocks(path: Path, **options: Unpack[EngineOptions]) -> Engine:
    return RocksEngine(path, **options)


OPEN_ENGINE: Final = Replaceable[OpenEngine](_rocks)


def open_engine(path: Path, **options: Unpack[EngineOptions]) -> Engine:
    """Open the database of a directory; as `RocksEngine`."""
    return OPEN_ENGINE.ask(path, **options)
