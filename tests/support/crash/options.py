"""Options of RocksDB and of the product that a crash run draws from its seed, for all of its processes.

    seed_of_run() ── draw(seed), printed ──> STANDFAST_CRASH_OPTIONS ──> use() in each child

    rocks      constants of the product: memtables, blocks, filter, WAL, level 0, sizes of files and levels
    product    settings of a session that the harness does not set itself

Rules of this file: small values, so that a life of a second flushes and compacts. The process that looks at the files
and restores them afterwards has the usual options: a directory must open under others, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from random import Random
from typing import Any

import rocksdict

from standfast.store.rocks import opening, sst
from standfast.store.rocks.opening import RocksShared
from standfast.stream.task.settings import SessionSettings

OPTIONS = "STANDFAST_CRASH_OPTIONS"
KIB, MIB = 1 << 10, 1 << 20


def draw(seed: int) -> dict[str, dict[str, Any]]:
    """The options of a run; half of them are the usual ones."""
    random = Random(f"{seed}/options")

    def some(choices: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        return {name: random.choice(values) for name, values in choices.items() if random.random() < 0.5}

    trigger = random.choice((1, 2, 4))
    return {
        "rocks": some(
            {
                "write_buffer_bytes": (16 * KIB, 64 * KIB, MIB),
                "write_buffers_max": (2, 6),
                "arena_block_bytes": (4 * KIB, 64 * KIB),
                "block_bytes": (256, KIB, 64 * KIB),
                "bloom_bits_per_key": (1, 20),
                "wal_bytes_max": (64 * KIB, MIB),
                "level0_files": ((trigger, trigger + 4, trigger + 8),),
                "file_bytes": (16 * KIB, 256 * KIB),
                "level_bytes": (32 * KIB, MIB),
            }
        ),
        "product": some(
            {
                "memory_bytes": (2 * MIB, 4 * MIB, 64 * MIB),  # the least of two workers, as below
                "cache_max_bytes": (0, 256 * KIB, 64 * MIB),
                "gate": ("all", "task"),
                "restore_workers": (0, 1, 2),
                "restore_memory_bytes": (32 * MIB, 64 * MIB),
                "bulk_restore_records": (1, 100),
                "value_max_bytes": (MIB,),
                "warmups_max": (1, 8),
                "acceptable_lag": (0, 100),
            }
        ),
    }


def choose(seed: int) -> None:
    """Draw the options of a run, print them, and have its children use them."""
    os.environ[OPTIONS] = json.dumps(drawn := draw(seed))
    print(f"options {drawn}")


def use() -> None:
    """In a child: the options of its run, if it has any. Settings that the harness gives stay."""
    drawn = json.loads(os.environ.get(OPTIONS, "{}"))
    if drawn:
        _use_rocks(drawn["rocks"])
        _use_product(drawn["product"])


def _use_rocks(drawn: Mapping[str, Any]) -> None:
    for module, name in (
        (opening, "WRITE_BUFFER_BYTES"),
        (opening, "WRITE_BUFFERS_MAX"),
        (opening, "ARENA_BLOCK_BYTES"),
        (opening, "WAL_BYTES_MAX"),
        (sst, "BLOCK_BYTES"),
        (sst, "BLOOM_BITS_PER_KEY"),
    ):
        if name.lower() in drawn:
            setattr(module, name, drawn[name.lower()])
    if "level0_files" in drawn:
        opening.LEVEL0_FILES[False] = tuple(drawn["level0_files"])
    usual = RocksShared.options

    def options(self: RocksShared, **given: bool) -> rocksdict.Options:
        made = usual(self, **given)
        if "file_bytes" in drawn:
            made.set_target_file_size_base(drawn["file_bytes"])
        if "level_bytes" in drawn:
            made.set_max_bytes_for_level_base(drawn["level_bytes"])
        return made

    RocksShared.options = options  # type: ignore[method-assign]


def _use_product(drawn: Mapping[str, Any]) -> None:
    usual = SessionSettings.of

    def of(given: Mapping[str, Any]) -> SessionSettings:
        # The harness bounds memory, so that many processes fit a machine: a drawn bound is as good.
        memory = {name: value for name, value in drawn.items() if name == "memory_bytes"}
        return usual({**drawn, **given, **memory})

    SessionSettings.of = of  # type: ignore[method-assign,assignment]
