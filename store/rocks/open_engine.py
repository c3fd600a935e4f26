"""Opens the engine that keeps rows on disk: RocksDB, or an engine that a simulation put in its place.

Rules of this file: all code that reads or writes rows of a directory opens it here. A directory with a database has a
file CURRENT, also that of another engine. A look into files of RocksDB, such as a repair, finds none of another engine.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol

from standfast.store.engine import Engine
from standfast.store.outside import Replaceable
from standfast.store.rocks.engine import RocksEngine, RocksShared


class OpenEngine(Protocol):
    """The constructor of `RocksEngine`, which says what each argument means."""

    def __call__(
        self,
        path: Path,
        *,
        shared: RocksShared,
        read_only: bool = False,
        careful: bool = False,
        whole_wal: bool = False,
        restoring: bool = False,
        families: Collection[str] = (),
    ) -> Engine: ...


OPEN_ENGINE: Final = Replaceable[OpenEngine](RocksEngine)


def open_engine(
    path: Path,
    *,
    shared: RocksShared,
    read_only: bool = False,
    careful: bool = False,
    whole_wal: bool = False,
    restoring: bool = False,
    families: Collection[str] = (),
) -> Engine:
    """Open the database of a directory; as `RocksEngine`."""
    return OPEN_ENGINE.ask(
        path,
        shared=shared,
        read_only=read_only,
        careful=careful,
        whole_wal=whole_wal,
        restoring=restoring,
        families=families,
    )
