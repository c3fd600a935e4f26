"""Processes of the machine that a test did not start itself.

Rules of this file: it only looks; a test ends the processes that it started.
"""

from __future__ import annotations

from pathlib import Path


def has_ended(pid: int) -> bool:
    """Whether a process has ended, also if no parent has waited for it: init may do so seconds later."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
