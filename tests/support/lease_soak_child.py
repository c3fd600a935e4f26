"""The process of `test_lease_soak.py`: a session whose task is reopened all the time, each time with a long WAL.

python support/lease_soak_child.py prepare|run '{"app": ..., "log": ..., "state_dir": ..., "wal_mb": N, "soak_s": N}'

prepare   write a task whose rows stand in the WAL alone, as after a kill; keeps a copy of its directory
run       open the copy, release it, ... for `soak_s`; prints JSON: rounds, lost, gap_ms, slowest_ms
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import standfast as sf
from standfast.store.rocks import opening as rocks

VALUE_BYTES = 100
BATCH = 2_000
TASK = "0_0"


def session_of(given: dict[str, Any], **settings: Any) -> sf.Session:
    stores = [sf.KeyValueStore("rows", sf.serde.bytes, sf.serde.bytes)]
    return sf.Session(
        given["app"], log=given["log"], state_dir=given["state_dir"], stores=stores, partitions=1, **settings
    )


def prepare(given: dict[str, Any]) -> None:
    # No other limit lets a WAL grow so long; one batch of that size, or an older version, does.
    rocks.WAL_BYTES_MAX = rocks.WRITE_BUFFER_BYTES = 4 << 30
    session = session_of(given, memory_bytes=8 << 30, cache_max_bytes=0)
    session.assign(active=[0])
    session.wait_ready(60)
    task, rng = session.task(0), random.Random(1)
    put, directory = task.store("rows").put, session.state_path / TASK
    while wal_bytes(directory) < given["wal_mb"] << 20:
        for _ in range(BATCH):
            put(rng.randbytes(16), rng.randbytes(VALUE_BYTES), 1)
        task.commit({})
    shutil.copytree(directory, session.state_path.parent / "kept")
    os._exit(0)  # RocksDB must not flush


def run(given: dict[str, Any]) -> None:
    rounds, slowest_ms = 0, 0.0
    with session_of(given) as session:
        directory = session.state_path / TASK
        until = time.monotonic() + given["soak_s"]
        while time.monotonic() < until or not rounds:
            session.assign()
            shutil.rmtree(directory)
            shutil.copytree(session.state_path.parent / "kept", directory)
            started = time.monotonic()
            session.assign(active=[0])
            slowest_ms = max(slowest_ms, (time.monotonic() - started) * 1_000)
            session.wait_ready(600)
            rounds += 1
        counters = session.counters
        said = {"rounds": rounds, "lost": dict(counters.leases_lost), "gap_ms": counters.lease_gap_ms}
        words = list(session.progress.words)
        print(json.dumps({**said, "words": words, "slowest_ms": round(slowest_ms)}), flush=True)


def wal_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.log"))


if __name__ == "__main__":
    {"prepare": prepare, "run": run}[sys.argv[1]](json.loads(sys.argv[2]))
