"""Sorted files: a writer makes them of its rows, and the engine ingests them unchanged.

    rows sorted by key ── SstWriter ──> 0-0.sst ── ingest ──> a family (moved, not copied)

Facts about the binding, each held by a test: keys must ascend strictly; an empty file is an error, so none is made;
a file is complete only after `finish`, so it is written under another name first; an ingest checks no block checksum;
of overlapping files in one call the later wins.

Rules of this file: one of the four that import rocksdict; it knows rows and files, no store type and no log. Threads
that build files use it beside an open database, so it opens none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import rocksdict

from standfast.store import files
from standfast.store.errors import InvalidRequest, Unavailable
from standfast.store.rocks.errors import translate

BLOOM_BITS_PER_KEY = 10
BLOCK_BYTES = 8 << 10
COMPRESSION = "lz4"
UNFINISHED = ".tmp"
TOUCH_ROWS = 1_000

Batch: TypeAlias = tuple[Sequence[bytes], Sequence[bytes | None]]  # keys and rows, in key order; None deletes


class SortedFile(NamedTuple):
    """A finished file: its size, entries (deletes among them), and first and last key."""

    path: Path
    size_bytes: int
    entries: int
    deletes: int
    first_key: bytes
    last_key: bytes


class Written(NamedTuple):
    """The rows of a file that has no name yet: entries (deletes among them), and first and last key."""

    entries: int
    deletes: int
    first_key: bytes
    last_key: bytes


def table_options() -> rocksdict.BlockBasedOptions:
    """The layout of rows in blocks, for files of the database and for files that it ingests."""
    table = rocksdict.BlockBasedOptions()
    table.set_block_size(BLOCK_BYTES)
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    table.set_format_version(5)
    table.set_checksum_type(rocksdict.ChecksumType.xxh3())
    return table


def write_sorted(path: Path, rows: Mapping[bytes, bytes | None]) -> SortedFile:
    """Write rows, at least one, as one file in key order; None deletes. Raises Unavailable if the disk refuses.

    A crash leaves the file whole or, under another name, unfinished.
    """
    return write_batches(path, sorted_batches(rows))


def write_batches(path: Path, batches: Iterable[Batch]) -> SortedFile:
    """As `write_sorted`, of rows in key order that come in batches. An error of the batches ends it, too."""
    (file,) = placed([path], lambda unfinished, where: [_write(unfinished[0], where, batches)])
    return file


def placed(paths: Sequence[Path], write: Callable[[list[Path], str], Sequence[Written | None]]) -> list[SortedFile]:
    """The files that `write(unfinished paths, words for errors)` makes, under their names once all are whole.

    None stands for a file that was not made. Raises Unavailable if the folder is absent or the disk refuses.
    """
    if not paths[0].parent.is_dir():
        raise Unavailable(f"writing {paths[0]}: its folder is absent: create it again")
    unfinished = [path.with_name(path.name + UNFINISHED) for path in paths]
    where = f"writing {paths[0]}"
    made = zip(unfinished, paths, write(unfinished, where), strict=True)
    return [
        SortedFile(path, _called(where, _placed, former, path), *written)
        for former, path, written in made
        if written is not None
    ]


def _write(unfinished: Path, where: str, batches: Iterable[Batch]) -> Written:
    entries = deletes = 0
    first_key = last_key = b""
    writer: Any = None
    for keys, rows in batches:
        if not keys:
            continue
        if writer is None:
            writer = _called(where, rocksdict.SstFileWriter, file_options())
            _called(where, writer.open, str(unfinished))
        deletes += _called(where, _fill, writer, keys, rows)
        first_key, last_key = first_key if entries else keys[0], keys[-1]
        entries += len(keys)
    if writer is None:
        raise InvalidRequest(f"{where}: there are no rows: a file needs at least one")
    _called(where, writer.finish)
    return Written(entries, deletes, first_key, last_key)


def sorted_batches(rows: Mapping[bytes, bytes | None]) -> Iterator[Batch]:
    """Rows in key order.

    In key order each row lies somewhere else in memory. A loop that only looks up a thousand rows at a time, and one
    that touches them, bring them into the processor's cache together: measured, a third less time.
    """
    keys = sorted(rows)
    row_of = rows.__getitem__
    for first in range(0, len(keys), TOUCH_ROWS):
        some = keys[first : first + TOUCH_ROWS]
        yield some, list(map(row_of, some))


def ingest(family: rocksdict.Rdict, paths: Sequence[Path]) -> None:
    """Ingest these files into a family, in this order: where two have the same key, the later one wins.

    The files are moved. If a file overlaps rows of the memtable, RocksDB flushes that first.
    """
    options = rocksdict.IngestExternalFileOptions()
    options.set_move_files(True)  # by links: a copy would write every row once more
    family.ingest_external_file([str(path) for path in paths], options)


def file_options() -> rocksdict.Options:
    """Options of a file that no database writes."""
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(table_options())
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    return options


def _called(where: str, call: Callable[..., Any], *given: object) -> Any:
    """Call the binding, with its errors as ours."""
    try:
        return call(*given)
    except Exception as error:
        raise translate(error, where) from error


def _placed(unfinished: Path, path: Path) -> int:
    size = unfinished.stat().st_size
    files.rename(unfinished, path)
    return size


def _fill(writer: rocksdict.SstFileWriter, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> int:
    """Write the rows; returns the number of deletes."""
    put, delete = writer.__setitem__, writer.__delitem__
    try:
        b"".join(rows)  # type: ignore[arg-type]
    except TypeError:  # a delete among them
        for key, row in zip(keys, rows, strict=True):
            if row is None:
                delete(key)
            else:
                put(key, row)
        return sum(row is None for row in rows)
    deque(map(put, keys, rows), maxlen=0)  # the loop in C
    return 0
