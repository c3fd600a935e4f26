"""Whether a get finds the rows that a scan finds: a scan uses no filter of a file, and a get trusts it.

    file of another writer than RocksDB's ── ingested ──> scan: its rows ── get of each ──> the same, or the filter lies

A filter without a key that its file holds hides the row from every get, without an error. So the rows of the first
files of such a writer are looked up before a position stands for them.

Rules of this file: it reads, through any engine, and decides nothing.
"""

from __future__ import annotations

from itertools import islice

from standfast.store.engine import Engine

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
