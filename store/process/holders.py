"""The living processes that hold the lock (flock) of a file, as the kernel lists them.

The file's own text names the process that took the lock, which may have ended since: a process that shares the open
file, such as a worker or a child of a fork, keeps the lock.

Rules of this file: Linux's /proc, read only; a process whose files this user may not see is not found.
"""

from __future__ import annotations

import os
from pathlib import Path

from standfast.store.names import few

PROC = Path("/proc")


def lock_holders(handle: int) -> list[int]:
    """Ids of the processes that hold the lock of the file that `handle` has open, the lowest first."""
    opened = os.fstat(handle)
    pids = sorted(int(path.name) for path in PROC.iterdir() if path.name.isdigit())
    return [pid for pid in pids if _holds(PROC / str(pid), (opened.st_dev, opened.st_ino))]


def _holds(process: Path, file: tuple[int, int]) -> bool:
    try:
        handles = list((process / "fd").iterdir())
    except OSError:  # ended, or another user's
        return False
    for path in handles:
        try:
            found = path.stat()
            if (found.st_dev, found.st_ino) == file and "FLOCK" in (process / "fdinfo" / path.name).read_text():
                return True
        except OSError:
            continue  # closed meanwhile
    return False


def held_by(handle: int) -> tuple[str, str]:
    """The holders of a file's lock, as "pid 7", and how an error names them: "that process"."""
    pids = lock_holders(handle)
    if not pids:
        return "a process that this user cannot see, or that has just ended", "that process"
    if len(pids) == 1:
        return f"pid {pids[0]}", "that process"
    return f"pids {few(map(str, pids))}", "those processes"
