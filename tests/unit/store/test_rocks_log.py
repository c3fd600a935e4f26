"""RocksDB's own log takes neither memory for each segment of time nor more than its bound of the disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from standfast.store.rocks import files as rocks_files
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared

FAMILIES = 120
GROWTH_MAX_MIB = 2.0
# Families come and go as the segments of a window store do; the first ones warm all caches up.
SEGMENTS = f"""
import sys
from pathlib import Path
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared

def rss_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

engine = RocksEngine(Path(sys.argv[1]), shared=RocksShared(32 << 20))
for number in range({FAMILIES}):
    engine.create_family(f"f{{number}}")
    engine.write({{f"f{{number}}": {{b"k": b"v"}}}})
    engine.drop_family(f"f{{number}}")
    if number == {FAMILIES} // 3:
        before = rss_mib()
print(rss_mib() - before)
engine.close()
"""


@pytest.mark.slow
def test_segments_that_come_and_go_leave_no_memory_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", SEGMENTS, tmp_path / "db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < GROWTH_MAX_MIB


def test_log_beyond_its_bound_is_emptied_while_the_database_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    engine = RocksEngine(path, shared=RocksShared(32 << 20))
    engine.create_family("kept")
    told = (path / "LOG").stat().st_size
    assert told > 0
    monkeypatch.setattr(rocks_files, "INFO_LOG_BYTES", 0)
    engine.create_family("other")
    assert (path / "LOG").read_bytes().strip(b"\0") == b""
    engine.write({"kept": {b"k": b"v"}})
    monkeypatch.setattr(rocks_files, "INFO_LOG_BYTES", 4 << 20)
    engine.flush()
    assert b"flush" in (path / "LOG").read_bytes()
    assert engine.get("kept", b"k") == b"v"
    engine.close()


def test_database_without_a_log_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "db"
    engine = RocksEngine(path, shared=RocksShared(32 << 20))
    (path / "LOG").unlink()
    engine.create_family("kept")
    engine.flush()
    assert not (path / "LOG").exists()
    engine.close()
