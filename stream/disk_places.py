"""The volumes that a session writes to, for the guard of free space.

Rules of this file: it names places, and looks at none of them.
"""

from __future__ import annotations

from pathlib import Path

from standfast.replication.tail.open_log import log_folder
from standfast.store.disk import DiskGuard


def disk_guard(state_path: Path, log: str | None, floor_bytes: int) -> DiskGuard:
    """A guard of the state directory, and of the log's folder where it is on this machine."""
    folder = None if log is None else log_folder(log)
    places = {"state directory": state_path, **({} if folder is None else {"log": folder})}
    return DiskGuard(places, floor_bytes)
