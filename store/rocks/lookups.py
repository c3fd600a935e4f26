"""Whether a get finds the rows that a scan finds: a scan uses no filter of a file, and a get trusts it.

    file of another writer than RocksDB's ── ingested ──> scan: its rows ── get of each ──> the same, or the filter lies

A filter without a key that its file holds hides the row from every get, without an error. So the rows of the first
files of such a writer are looked up before a position stands for them.

Rules of this file: it reads, through any engine, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from standfast.store.engine import Engine
from standfast.store.errors import Corruption

# Of each hundred keys, a filter that was made by another hash finds one by accident.
LOOKED_UP_ROWS = 8


def hidden_row(engine: Engine, family: str, key: bytes | None = None) -> bytes | None:
    """The first of a few rows that a get does not find as the scan does; None if it finds all.

    The rows begin with that of `key`, which is known to be there; None: with the first one, if there is any.
    """
    if key is not None and engine.get(family, key) is None:
        return key
    with engine.scan(family, key) as scan:
        rows = list(islice(scan, LOOKED_UP_ROWS))
    return next((found for found, row in rows if engine.get(family, found) != row), None)


def check_found(engine: Engine, families: Iterable[str], where: str) -> None:
    """Raise Corruption if a get does not find the first rows of one of these families, as they were ingested."""
    for family in sorted(set(families)):
        key = hidden_row(engine, family)
        if key is not None:
            raise Corruption(
                f"{where}: a get does not find the row {key[:64].hex()} of these files, which a scan finds: their "
                "filter is not one of this RocksDB: make them again, with STANDFAST_NATIVE=0 in the environment"
            )
