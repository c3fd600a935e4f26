"""Sorted files that are ingested into a store: RocksDB takes them whole, or they are built again by its own writer.

Rules of this file: one store's families, in their order; the position of the rows is the caller's to write after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from standfast.store.engine import Engine
from standfast.store.errors import Corruption, InternalError, InvalidRequest
from standfast.store.failpoint import reach
from standfast.store.rocks.lookups import hidden_row


class FilesRefused(Corruption):
    """RocksDB does not take ingested files, or does not find their rows: build them again by RocksDB's own writer."""


def ingest_files(
    engine: Engine,
    where: str,
    by_family: Mapping[str, Sequence[Path]],
    lookups: Sequence[tuple[str, bytes]] | None,
) -> None:
    """Ingest files family by family. `lookups` as in `TaskStores.ingest`; None: files of RocksDB's own writer.

    Raises FilesRefused for files of another writer, the engine's error for its own.
    """
    try:
        for family, paths in by_family.items():
            engine.create_family(family)
            engine.ingest(family, paths)
            reach("ingest.family")
        lookup = next((one for one in lookups or () if one[0] in by_family), None)
        hidden = None if lookup is None else hidden_row(engine, *lookup)
    except (Corruption, InternalError, InvalidRequest) as error:  # not of the disk, and not of a closed engine
        if lookups is None:
            raise
        raise FilesRefused(f"{where}: RocksDB does not take these files ({error.__cause__ or error})") from error
    if hidden is not None:
        raise FilesRefused(
            f"{where}: a get does not find the row {hidden[:64].hex()} of these files: their filter hides it"
        )
