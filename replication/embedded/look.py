"""The watch of the embedded log: periodic looks whether it can be read and written now.

    our lock, held for long ─┐
    SQLite's, by a program ──┼──> Unavailable, which names the process       the file ──> Corruption

Rules of this file: it uses a connection of its own and writes nothing. It waits for a lock only while it opens the
connection, and then as long as any write would.
"""

from __future__ import annotations

from collections.abc import Callable

from standfast.replication.embedded.db import Database
from standfast.replication.embedded.holder import STUCK_MS, LockProgress, stuck
from standfast.replication.embedded.lock import SOON
from standfast.store.clock import SystemClock
from standfast.store.errors import Closed, Corruption, StandfastError, Unavailable

LOOK_MS = 100
CHECK_MS = 1_000  # least time between two checks of the file
SHARE = 20  # checks take at most 1/20 of the time: in a large log they are slow

_clock = SystemClock()


def locked_now(path: str) -> Unavailable | None:
    """The error that names the process which blocks every write to the log at `path`; takes two seconds at most."""
    watch = LogWatch(path, None)
    deadline_ms = _clock.monotonic_ms() + SOON.still_ms + LOOK_MS
    while True:
        locked = watch.locked()
        seen = watch.is_in_doubt()
        if locked is not None or not seen or _clock.monotonic_ms() >= deadline_ms:
            return locked
        _clock.sleep_ms(LOOK_MS)


class LogWatch:
    """Looks of one watcher; one thread at a time may call it."""

    def __init__(self, path: str, connect: Callable[[], Database] | None) -> None:
        """Without `connect` the watch looks at locks only."""
        self._path = path
        self._connect = connect
        self._db: Database | None = None
        self._wrong: StandfastError | None = None  # result of the last check of the file
        self._check_ms = 0  # time of the next check
        self._progress = LockProgress(path)
        self._held = False

    def look(self) -> StandfastError | None:
        """The reason why the log cannot be written, or read; None if nothing is in the way."""
        locked = self.locked()
        began_ms = _clock.monotonic_ms()
        if began_ms >= self._check_ms:
            self._wrong = self._check(locked)
            # Time spent waiting for a lock is no work, and the lock may be free at the next look.
            took_ms = 0 if isinstance(self._wrong, Unavailable) else _clock.monotonic_ms() - began_ms
            self._check_ms = began_ms + max(CHECK_MS, took_ms * SHARE)
        return self._wrong or locked

    def _check(self, locked: Unavailable | None) -> StandfastError | None:
        try:
            if self._db is None and locked is None and self._connect is not None:
                self._db = self._connect()
            if self._db is not None:
                self._db.check_file()
        except (Corruption, Unavailable) as error:
            return error
        except Closed:
            pass  # the log was closed meanwhile, and its watch goes with it
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()

    def is_in_doubt(self) -> bool:
        """Whether a lock was held at the last look, so that another look may find for how long."""
        return self._held

    def locked(self) -> Unavailable | None:
        """The error that names the process which has had a lock for long; None if there is none."""
        seen = self._progress.look()
        self._held = seen.holder is not None or seen.program > 0
        return stuck(self._path, seen) if seen.still_ms >= (STUCK_MS if seen.program else SOON.still_ms) else None
