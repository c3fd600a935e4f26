"""Waits for changes of the embedded log's groups, which the kernel reports between processes.

    join, leave, removal ── committed ──> `note_change`: the lock file's times ──inotify──> each `EmbeddedGroupWatch`

The mark is a hint. Where it fails or cannot be seen (no inotify left, another user's limits), members are found by the
next look at the group, as they are when a lease runs out.

Rules of this file: no SQL, no lock. The log's lock file is there anyway, and nothing else changes its attributes.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
from pathlib import Path

from standfast.store.log import as_event, logger
from standfast.store.process import forks

IN_ATTRIB = 0x4
READ_BYTES = 1 << 12


def note_change(path: str) -> None:
    """Report to the watches of the log at `path` that the members of a group have changed: after the commit."""
    try:
        os.utime(f"{path}.lock")
    except OSError as error:
        logger.debug("%s.lock cannot be marked: %s", path, error, extra=as_event("mark_failed"))


class EmbeddedGroupWatch:
    """GroupWatch of the embedded log at `path`; it reports changes of all groups of the file."""

    def __init__(self, path: str) -> None:
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._inotify = -1
        self._closing = threading.Lock()  # `wake` must not write to a later file of that number
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        forks.dies_in_child(self)
        libc = ctypes.CDLL(None, use_errno=True)
        inotify = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if inotify < 0 or libc.inotify_add_watch(inotify, os.fsencode(f"{path}.lock"), IN_ATTRIB) < 0:
            why = os.strerror(ctypes.get_errno())
            logger.info(
                "members of %s are looked at by the clock: %s", Path(path).name, why, extra=as_event("no_watch")
            )
            if inotify >= 0:
                os.close(inotify)
            return
        self._inotify = inotify
        self._poll.register(inotify, select.POLLIN)

    def wait(self, within_ms: int) -> bool:
        """See GroupWatch."""
        ready = {handle for handle, _ in self._poll.poll(within_ms)}
        if self._inotify not in ready:
            return False
        os.read(self._inotify, READ_BYTES)  # several marks are one change, and the rest ends the next wait
        return True

    def wake(self) -> None:
        """See GroupWatch."""
        with self._closing:
            if self._woken >= 0:
                os.eventfd_write(self._woken, 1)

    def close(self) -> None:
        """See GroupWatch."""
        with self._closing:
            handles, self._woken, self._inotify = (self._woken, self._inotify), -1, -1
            for handle in handles:
                if handle >= 0:
                    os.close(handle)

    def forked(self) -> None:
        """As in `forks.Owned`."""
        self._closing = threading.Lock()
        self.close()
