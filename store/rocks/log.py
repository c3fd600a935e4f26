"""RocksDB's own log of a task, the file LOG, held within bounds while the task is open.

RocksDB can roll it by itself (`max_log_file_size`), but then it keeps the description of every family it ever made in
memory, to begin each new file with it: 55 KB a family, and a window store makes a family for each segment of time.

Rules of this file: one file, by its path. RocksDB goes on writing where it was, so what was removed becomes a hole.
"""

from __future__ import annotations

import os
from pathlib import Path

INFO_LOG_BYTES = 4 << 20
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's own


def bound_info_log(path: Path) -> None:
    """Empty the LOG of the database at `path` if it takes more than INFO_LOG_BYTES of the disk."""
    log = path / "LOG"
    try:
        if log.stat().st_blocks * _BLOCK_BYTES > INFO_LOG_BYTES:
            os.truncate(log, 0)
    except FileNotFoundError:
        return  # RocksDB could not make one
