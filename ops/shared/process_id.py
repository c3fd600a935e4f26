"""The identity of a process: its id with its start time, so that a later process of the same id is another one.

Rules of this file: Linux's /proc and pidfd. A signal goes only to the process that was recorded.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from standfast.store.clock import Clock, boot_id

POLL_MS = 20
GONE_STATES = ("Z", "X")  # ended: a zombie whose parent has not reaped it yet, or dead


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process of this machine; `started_ticks` counts clock ticks from the boot named by `boot`."""

    pid: int
    started_ticks: int
    boot: str


def identify(pid: int) -> ProcessId | None:
    """The process with this id now, or None."""
    read = _stat(pid)
    return None if read is None else ProcessId(pid, read[1], boot_id())


def is_alive(process: ProcessId) -> bool:
    """Whether the recorded process still runs."""
    return identify(process.pid) == process


def send(process: ProcessId, number: signal.Signals) -> bool:
    """Signal the recorded process. False if it is gone, also if its id belongs to another process by now."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):  # asked while the handle pins the id: it cannot change hands in between
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def wait_gone(process: ProcessId, clock: Clock, timeout_ms: int) -> bool:
    """Wait until the process is gone; False if it still runs after `timeout_ms`."""
    deadline_ms = clock.monotonic_ms() + timeout_ms
    while is_alive(process):
        if clock.monotonic_ms() >= deadline_ms:
            return False
        clock.sleep_ms(POLL_MS)
    return True


def _stat(pid: int) -> tuple[str, int] | None:
    """State and start (clock ticks since boot) of a process; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before the last ")" may hold spaces and brackets
    return None if fields[0] in GONE_STATES else (fields[0], int(fields[19]))
