"""Processes of the machine, those that a test did not start itself among them, and the figures of one.

Rules of this file: it only looks; a test ends the processes that it started.
"""

from __future__ import annotations

import os
from pathlib import Path


def has_ended(pid: int) -> bool:
    """Whether a process has ended, also if no parent has waited for it: init may do so seconds later."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def is_stopped(pid: int) -> bool:
    """Whether a process that has not ended is stopped, as by SIGSTOP."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "T"


def descendants(pid: int) -> list[int]:
    """Processes that this one started, that those started, and so on."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found, left = [], [pid]
    while left:
        mine = children.get(left.pop(), [])
        found += mine
        left += mine
    return found


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process, by default of this one."""
    return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    """Number of open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def thread_count() -> int:
    """Number of threads of this process, those of C libraries too."""
    return len(list(Path("/proc/self/task").iterdir()))
