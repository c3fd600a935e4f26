"""A task's database in object storage, opened without fetching it whole: one store needs the files of its families.

    CURRENT, MANIFEST, write-ahead log      fetched, and checked byte for byte
      ── opened ──> table files of each family ──> those of the store and the commit record fetched ── opened again

Opened with files missing, RocksDB passes over damage in the write-ahead log. So if a log is damaged, or a file differs
from the MANIFEST, the whole task is fetched and opened like a directory of this machine.

Rules of this file: reads only. RocksDB alone decides which rows exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from standfast.restore.spark.files import Files
from standfast.restore.verify.at_rest import MEMORY_BYTES, open_task
from standfast.store.engine import DEFAULT_FAMILY, Engine
from standfast.store.errors import Corruption
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.files import CONFIG_FILE
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.seal import SEAL, check_seal
from standfast.store.rocks.wal import HEADER_BYTES, TABLE, damaged_at, records, unmasked, wal_files
from standfast.store.types.segments import store_of_family

# Arrays take a step for each byte of the longest record, which costs more than a few megabytes record by record.
ARRAYS_FROM_BYTES = 4 << 20
NOT_ROWS = ("LOCK", "LOG", "OPTIONS-")


@contextmanager
def open_fetched(files: Files, store: str | None) -> Iterator[Engine]:
    """A task's database, with the rows of one store (None: of none) and the commit record."""
    careful = _took_part(files, store)
    if not careful:
        files.take(name for name in files.sizes if not name.startswith(NOT_ROWS))
        with open_task(files.path) as engine:
            yield engine
        return
    engine = RocksEngine(files.path, shared=RocksShared(MEMORY_BYTES), read_only=True, careful=True)
    with closing(engine):
        yield engine


def wal_is_whole(raw: bytes, *, arrays_from: int = ARRAYS_FROM_BYTES) -> bool:
    """Whether each record of a write-ahead log matches its checksum; a log that ends within the last one is whole."""
    if len(raw) < arrays_from:
        return damaged_at(raw, every_byte=True) is None
    if damaged_at(raw, every_byte=False) is not None:
        return False
    found = [(at, length) for at, length in records(raw) if at + HEADER_BYTES + length <= len(raw)]
    found = [(at, length) for at, length in found if raw[at + 6]]  # 0: space reserved and not written
    if not found:
        return True
    at, length = np.array(found, np.int64).T
    order = np.argsort(-length, kind="stable")
    wanted = np.array([unmasked(raw, int(one)) for one in at], np.uint32)[order]
    return bool(np.array_equal(_checksums(raw, at[order] + 6, length[order] + 1), wanted))


def _checksums(raw: bytes, at: np.ndarray, length: np.ndarray) -> np.ndarray:
    """CRC32C of parts of `raw`, given the longest first: one step takes a byte of every part."""
    data, table = np.frombuffer(raw, np.uint8), np.array(TABLE, np.uint32)
    found = np.full(len(at), 0xFFFFFFFF, np.uint32)
    ends = np.searchsorted(-length, -np.arange(int(length[0])), "left")  # number of parts with a further byte
    for step, count in enumerate(ends.tolist()):
        part = found[:count]
        part[:] = table[(part ^ data[at[:count] + step]) & 0xFF] ^ (part >> np.uint32(8))
    return found ^ np.uint32(0xFFFFFFFF)


def _took_part(files: Files, store: str | None) -> bool:
    """Fetch the files that the store needs; False if these may not suffice, or are all files of the task."""
    names = files.sizes
    logs = [name for name in names if name.endswith(".log") and name.removesuffix(".log").isdigit()]
    if not logs or "CURRENT" not in names or any(name.endswith(".blob") for name in names):
        return False
    files.take(name for name in names if name in ("CURRENT", "IDENTITY", CONFIG_FILE, SEAL))
    files.take([*(name for name in names if name.startswith("MANIFEST-")), *logs])
    try:
        # RocksDB takes a MANIFEST that lost its end for an older one, and rows are gone without an error.
        check_seal(files.path)
        if not all(wal_is_whole(path.read_bytes()) for path in wal_files(files.path)):
            return False
        needed, all_of_it = _needed(files.path, store)
    except Corruption:
        return False
    # Damage that an opening with files missing would pass over.
    if any(names.get(name) != size for name, size in all_of_it.items()):
        return False
    files.take(needed)
    return len(needed) < len(all_of_it)


def _needed(path: Path, store: str | None) -> tuple[Collection[str], dict[str, int]]:
    """(table files of the commit record and of a store, all table files with their bytes)."""
    needed: set[str] = set()
    all_of_it: dict[str, int] = {}
    with closing(RocksEngine(path, shared=RocksShared(MEMORY_BYTES), read_only=True, careful=True)) as engine:
        for family in engine.families():
            files = engine.table_files(family)
            all_of_it |= files
            if family == DEFAULT_FAMILY or (store is not None and store_of_family(family) == store):
                needed |= files.keys()
    return sorted(needed), all_of_it
