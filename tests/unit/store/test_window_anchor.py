"""Rows of an older segment survive SIGKILL, though newer segments were committed long after them.

Kafka Streams 4.3.1 loses them: each segment is a database without WAL, and it trusts the newest one's offset. Here
1,000 rows go to one segment, then 60,000 rows of 1 kB to the next, with commits all along, and the process is killed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.store import serde
from standfast.store.specs import WindowStore
from standfast.store.task.commit_record import Position, StoreTimes
from support.stores import Open

MINUTE_MS = 60_000
RETENTION_MS = 10 * MINUTE_MS  # segments of 5 minutes
OLD_ROWS, NEW_ROWS = 1_000, 60_000
NEW_START_MS = 5 * MINUTE_MS

WRITER = f"""
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from standfast.store import serde
from standfast.store.task.commit_record import Position
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import WindowStore
from standfast.store.task.task_stores import TaskStores

spec = WindowStore("win", serde.string, serde.bytes, window_size_ms={MINUTE_MS}, retention_ms={RETENTION_MS})
task = TaskStores(Path(sys.argv[1]), "app", "0_0", [spec], RocksShared(64 << 20), now_ms=lambda: 0)
win = task.store("win")
offset = 0

def put(key, value, start):
    global offset
    win.put(key, value, start, timestamp=start)
    offset += 1
    if offset % 1_000 == 0:
        task.commit(replace(task.cut, positions={{"win": Position(offset)}}))

for number in range({OLD_ROWS}):
    put(f"old-{{number}}", str(number).encode(), number)
for number in range({NEW_ROWS}):
    put(f"new-{{number}}", number.to_bytes(4, "big") * 250, {NEW_START_MS} + number // 1_000)
win.put("uncommitted", b"x", {NEW_START_MS})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_kill_after_the_segment_rolled_loses_no_row_of_the_older_segment(tmp_path: Path, open_task: Open) -> None:
    ended = subprocess.run([sys.executable, "-c", WRITER, str(tmp_path / "0_0")], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    spec = WindowStore("win", serde.string, serde.bytes, window_size_ms=MINUTE_MS, retention_ms=RETENTION_MS)
    task = open_task(spec)
    win = task.store("win")
    old = {key.key: (key.start, value) for key, value in win.fetch_all(0, NEW_START_MS - 1)}
    assert old == {f"old-{number}": (number, str(number).encode()) for number in range(OLD_ROWS)}
    new = {key.key: (key.start, value) for key, value in win.fetch_all(NEW_START_MS, RETENTION_MS)}
    assert new == {
        f"new-{number}": (NEW_START_MS + number // 1_000, number.to_bytes(4, "big") * 250) for number in range(NEW_ROWS)
    }
    assert task.cut.positions == {"win": Position(OLD_ROWS + NEW_ROWS)}
    assert task.cut.stores == {"win": StoreTimes(NEW_START_MS + (NEW_ROWS - 1) // 1_000, 0)}
