"""How databases are opened: the memory that all of them share, and the options of each and of its families.

    RocksShared(memory_bytes)    one per process: block cache + write-buffer manager charged to it
      options(...)               of one database; a family that is opened without them has neither cache nor filter
        opened(path, ...)        every open names all families

Rules of this file: one of the four that import rocksdict; raw mode always (any other mode unpickles the bytes that it
reads). A number here was measured; the comment says with what.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import rocksdict

from standfast.store import files
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import InvalidRequest
from standfast.store.rocks.errors import translate
from standfast.store.rocks.sst import table_options

MEMORY_BYTES_MIN = 1 << 20
WAL_BYTES_MAX = 32 << 20  # a reopen after a kill replays at most this: 180 MB took 4.5 s, 5 MB 58 ms
# A memtable. Each file of level 0 is one of them, and so many fewer compactions rewrite the level below. Measured with
# 1,000,000 rows of 124 bytes and random keys: an insert takes 0.1 us more than with 8 MiB, 0.2 to 0.5 in batches of
# 1,000, and compactions 0.5 us a row less.
WRITE_BUFFER_BYTES = 16 << 20
WRITE_BUFFERS_MAX = 3  # one to write to while two are flushed
ARENA_BLOCK_BYTES = 128 << 10  # a task may have a hundred small segment families, each with a memtable
OPEN_FILES_MAX = 512
# Measured on rows of JSON: level 1 takes a fifth less of a compaction's processor time than zstd's default, 3, and
# files are 5 % larger.
ZSTD_LEVEL, ZSTD_WINDOW_BITS = 1, -14
# Files of level 0 at which compaction begins, writes slow down, and writes stop: while restoring, and otherwise. Each
# compaction of level 0 rewrites the level below, 256 MiB at most, for few files of WRITE_BUFFER_BYTES. Measured with
# 1,000,000 rows of 124 bytes and random keys: 3.1 s of processor time with 8 files, 3.7 with 4, RocksDB's default; in a
# restore 1.4 s with 16 instead of 2.0. A get looks into the filters of that many more files.
LEVEL0_FILES = {True: (16, 28, 44), False: (8, 20, 36)}
# With more families the defaults stay: RocksDB writes each setting with those of all families (200: 13 s to set them).
LEVEL0_FAMILIES_MAX = 32


class RocksShared:
    """Memory that all tasks of a process share: `memory_bytes` bounds cached blocks and write buffers together.

    Half of it may be write buffers (charged to the cache); the cache may pass the bound while scans pin blocks.
    """

    def __init__(self, memory_bytes: int) -> None:
        if memory_bytes < MEMORY_BYTES_MIN:
            raise InvalidRequest(f"memory of {memory_bytes} bytes is too small: give at least {MEMORY_BYTES_MIN}")
        self.memory_bytes = memory_bytes
        self._cache = rocksdict.Cache(memory_bytes)
        # False: buffers over their half must not stall the writes of all tasks.
        self._buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            memory_bytes // 2, False, self._cache
        )

    def usage_bytes(self) -> int:
        """Bytes in use now: cached blocks, filters, indexes and write buffers."""
        return self._cache.get_usage()

    def options(self, *, read_only: bool = False, careful: bool = False, whole_wal: bool = False) -> rocksdict.Options:
        """Options of a database and of each of its families; a family opened without them has no cache or filter.

        `careful` and `whole_wal` as for RocksEngine.
        """
        table = table_options()
        table.set_block_cache(self._cache)
        # Else indexes and filters are beside the cache, and `memory_bytes` bounds nothing once files are many.
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(not read_only)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self._buffers)
        options.set_paranoid_checks(not careful)
        options.set_disable_auto_compactions(careful)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        options.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
        set_level0_options(options, LEVEL0_FILES[False])
        options.set_arena_block_size(ARENA_BLOCK_BYTES)
        options.set_max_total_wal_size(WAL_BYTES_MAX)
        options.set_wal_recovery_mode(
            rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records()
            if whole_wal
            else rocksdict.DBRecoveryMode.point_in_time()
        )
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        options.set_bottommost_compression_type(rocksdict.DBCompressionType.zstd())
        options.set_bottommost_compression_options(ZSTD_WINDOW_BITS, ZSTD_LEVEL, 0, 0, True)
        options.set_max_background_jobs(2)
        # A reader keeps all files open: then the owner may delete them without disturbing it.
        options.set_max_open_files(-1 if read_only else OPEN_FILES_MAX)
        options.set_keep_log_file_num(2)
        # Both only write to LOG or memory for people; the figures are read as properties.
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        return options


def set_level0(rows: rocksdict.Rdict, files: tuple[int, int, int]) -> None:
    names = ("file_num_compaction_trigger", "slowdown_writes_trigger", "stop_writes_trigger")
    rows.set_options({f"level0_{name}": str(count) for name, count in zip(names, files, strict=True)})


def set_level0_options(options: rocksdict.Options, files: tuple[int, int, int]) -> None:
    options.set_level_zero_file_num_compaction_trigger(files[0])
    options.set_level_zero_slowdown_writes_trigger(files[1])
    options.set_level_zero_stop_writes_trigger(files[2])


def list_families(path: Path, options: rocksdict.Options) -> list[str]:
    return rocksdict.Rdict.list_cf(str(path), options)


def opened(
    path: Path, options: rocksdict.Options, access: rocksdict.AccessType, where: str, added: Collection[str]
) -> rocksdict.Rdict:
    try:
        files.make_folder(path, mode=0o777, parents=True, exist_ok=True)
        names = list_families(path, options) if (path / "CURRENT").exists() else [DEFAULT_FAMILY]
        return rocksdict.Rdict(str(path), options, dict.fromkeys([*names, *added], options), access)
    except Exception as error:
        raise translate(error, where, path) from error


def repair(path: Path, shared: RocksShared) -> None:
    """Write a new MANIFEST from the existing table files and logs; unreadable files go to `lost/`.

    Files of a dropped family, and files that a compaction replaced, count again if they still exist.
    """
    try:
        for name in ("CURRENT", *(found.name for found in path.glob("MANIFEST-*"))):
            files.remove(path / name, missing_ok=True)
        rocksdict.Rdict.repair(str(path), shared.options())
    except Exception as error:
        raise translate(error, f"repairing {path}") from error
