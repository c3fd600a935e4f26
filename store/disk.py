"""Room on disk: writes end at a floor, so that accepted writes can be committed and no write meets a full disk.

    free bytes  ────────────── floor ────────────── reserve ────────────── 0
    puts        until here: DiskFull
    deletes, commits, flushes   go on ───> until here: DiskFull, before any part of them began

    look      statvfs of each place, now and then in the background                  ──> full, why; room
    judge     from looks, and from writes that failed ──> whether the instance has room: `Room`
    grant     a write buffer asks for credit of some bytes, all buffers share the room   no room left: another look

Free bytes fall long after a write was accepted: at its commit, its flush, the log's next checkpoint. So the bytes that
buffers hold, or may take by their credit, are subtracted from the free bytes; between two looks the guard grants no
more than was free at the first. A full disk counts as full until an eighth of the floor is free above it.

Rules of this file: it asks the file system and decides about numbers; callers refuse the writes. Any thread may use the
guard: `full` and `spaces` are read without the lock.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

from standfast.store import files
from standfast.store.errors import DiskFull, StandfastError
from standfast.store.file_errors import FIXES, SPACE, NoRoom, has_text, no_room, space_of
from standfast.store.log import as_event, logger
from standfast.store.outside import new_id

# Bytes on disk for each buffered byte, at most: a buffer counts row and change, and either is written twice on the way
# (RocksDB: WAL and table file; the embedded log: its WAL and the file).
AMPLIFICATION: Final = 2
CREDIT_BYTES: Final = 64 << 10  # the least that a buffer gets at a time, so that it seldom asks
COMMIT_BYTES: Final = 64 << 10  # pages of the embedded log that any commit writes
RESUME_SHARE: Final = 8  # this share of the floor must be free above it before writes go on
STATE: Final = "state directory"
LOG: Final = "log"
RESERVE_SHARE: Final = 4  # commits and deletes leave this share of the floor, too: RocksDB and the log also write alone


AGAIN_MS: Final = 60_000  # for so long a disk must take writes before it counts as one with room
PROBE_MS: Final = 10_000
LINE_MS: Final = 60_000
PROBE_BYTES: Final = 64 << 10
LEAST_BYTES: Final = 64 << 20  # free bytes that count as room where no floor is set; of a small volume a tenth
MARGIN: Final = 10  # this share of the floor must be free above it


class Borrower(Protocol):
    """A write buffer as the guard sees it."""

    @property
    def claim_bytes(self) -> int:
        """Bytes that the buffer holds, or may take without asking again."""
        ...

    def revoke(self) -> None:
        """Make the buffer ask before its next write."""
        ...


@dataclass(frozen=True, slots=True)
class Space:
    """One place at the last look; `what` names it ("state directory", "log"). An `error` counts as no space at all."""

    what: str
    path: Path
    free_bytes: int
    total_bytes: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class DiskState:
    """A guard at one moment; `full` as in the guard, `spaces` with the least free one first.

    `no_room`: why the state directory takes no writes; empty while it does.
    """

    floor_bytes: int
    full: str
    spaces: tuple[Space, ...]
    no_room: str = ""


class Room:
    """Whether the state directory's file system takes writes, as one state of the whole instance. `log`: of an embedded
    log, its folder.

        a write fails (ENOSPC, EDQUOT, EROFS, EIO), or the floor is reached ───────────────> no room: text, reported
        the floor and a tenth of it are free, and a probe is written ──────────────────────> writes go on: no text
        for AGAIN_MS since then no write has failed ───────────────────────────────────────> room: nothing reported

    Without this state each task would meet the error for itself, with every record: it would be opened again without an
    end, while other instances have its rows. The place that raised an error decides, not its number: those of the log
    are the log's, on whatever disk, and EIO of a read is damage. `refused` may come from any thread, one drives `look`.
    It removes no file but its own probe.
    """

    def __init__(self, path: Path, floor_bytes: int, log: Path | None = None) -> None:
        self.path = path
        self.text = ""  # why writes fail now, with path and bytes
        self._short = ""  # as `text`, and for AGAIN_MS longer
        self._floor_bytes = floor_bytes
        self._log = log
        self._why = self._fix = ""
        self._shared = False  # the log's volume has no room either
        self._error: NoRoom | None = None  # of a write since the last look
        self._good_ms: int | None = None  # since when the disk takes writes again
        self._probe_ms = self._line_ms = 0

    @property
    def reported(self) -> str:
        """Why tasks are to go to other instances. Empty where those cannot go on either: the log is on this volume."""
        return "" if self._shared else self._short

    def refused(self, error: NoRoom) -> None:
        """A write to the state directory failed with this error."""
        self._error = error
        if not self.text:
            self._begin(os.strerror(error.number), FIXES[error.number], error.number)

    @contextmanager
    def watched(self, doing: str) -> Iterator[None]:
        """Note errors of the block that say that there is no room; those of the system are raised as NoRoom."""
        try:
            yield
        except NoRoom as error:
            self.refused(error)
            raise
        except (OSError, StandfastError) as error:
            number = self._errno_of(error)
            if number is None:
                raise
            told = no_room(doing, number, self.path)
            self.refused(told)
            raise told from error

    def look(self, now_ms: int, floor: str = "") -> None:
        """Decide again; `floor` says why the disk is below its floor, empty if it is not."""
        error, self._error = self._error, None
        if error is not None or floor:
            if not self.text:
                self._begin(floor, "", errno.ENOSPC)
            self._good_ms = None
            self._probe_ms = now_ms + PROBE_MS
        elif self._short and now_ms >= self._probe_ms:
            self._probe_ms = now_ms + PROBE_MS
            self._judge(now_ms)
        if self.text and now_ms >= self._line_ms:
            self._line_ms = now_ms + LINE_MS
            self._say()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _begin(self, why: str, fix: str, number: int) -> None:
        # EIO on one file says nothing about the log's files beside it.
        self._shared = number != errno.EIO and self._on_one_volume()
        self._why, self._fix = why, fix
        self.text = self._short = self._words()

    def _words(self) -> str:
        log = "; the log is on the same volume, so no other instance can go on" if self._shared else ""
        fix = f": {self._fix}" if self._fix else ""
        return f"the state directory takes no writes ({self._why}): {has_text(self.path)}{fix}{log}"

    def _say(self) -> None:
        self.text = self._short = self._words()
        logger.error("no room: %s", self.text, extra=as_event("no_room", path=str(self.path)))

    def _judge(self, now_ms: int) -> None:
        free, total = space_of(self.path)
        floor = self._floor_bytes or min(LEAST_BYTES, total // MARGIN)
        if not self._writes():
            self._good_ms, self.text = None, self.text or self._words()
        elif free < floor + floor // MARGIN:
            self._good_ms = None
        elif self._good_ms is None:
            self._good_ms = now_ms
            if self.text:
                self.text = ""
                self._tell("writes_go_on", "takes writes again", free, total)
        elif now_ms - self._good_ms >= AGAIN_MS:
            self._short, self._shared, self._good_ms = "", False, None
            self._tell("room_again", "has room again", free, total)

    def _tell(self, event: str, what: str, free: int, total: int) -> None:
        about = as_event(event, path=str(self.path), free_bytes=free)
        logger.warning("the state directory %s %s: %d of %d bytes are free", self.path, what, free, total, extra=about)

    def _writes(self) -> bool:
        """Whether a file can be written: a quota, a read-only mount and a dying disk show in no count of bytes."""
        path = self.path / f"ROOM.{new_id('file', 8)}.tmp"  # a name that the next opening cleans up
        try:
            with files.create(path, buffering=0) as file:
                # The last bytes of a disk are written without an error.
                whole = file.write(bytes(PROBE_BYTES)) == PROBE_BYTES
                files.sync(file.fileno(), path)
        except OSError:
            return False
        finally:
            with suppress(OSError):
                files.remove(path)
        return whole

    def _errno_of(self, error: OSError | StandfastError) -> int | None:
        """The errno of a write to the state directory that failed for want of room. EIO may be a read's: not here."""
        found = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(found, OSError) or found.errno not in FIXES or found.errno == errno.EIO:
            return None
        # The log is on this machine, too, and its errors name its own files.
        where = found.filename if found is error else str(error)
        return found.errno if where is None or str(self.path) in str(where) else None

    def _on_one_volume(self) -> bool:
        try:
            return self._log is not None and self._log.stat().st_dev == self.path.stat().st_dev
        except OSError:
            return False


class DiskGuard:
    """Watches the places that one process writes to. With a floor of 0 it measures and refuses nothing."""

    def __init__(self, places: Mapping[str, Path], floor_bytes: int = 0) -> None:
        self.floor_bytes = floor_bytes
        self.full = ""  # why new writes are refused; empty while there is room
        self.spaces: tuple[Space, ...] = ()  # the least free one first
        self.room = Room(places.get(STATE, next(iter(places.values()))), floor_bytes, places.get(LOG))
        self._places = dict(places)
        self._room = 0  # bytes that may still be granted before the next look
        self._borrowers: WeakSet[Borrower] = WeakSet()  # weak: the buffer of a task that failed must not claim for ever
        self._lock = threading.Lock()

    @property
    def state(self) -> DiskState:
        """The guard's state, for reports."""
        return DiskState(self.floor_bytes, self.full, self.spaces, self.room.text)

    @property
    def free_bytes(self) -> int | None:
        """Free bytes of the place that has the least; None before the first look."""
        return self.spaces[0].free_bytes if self.spaces else None

    @property
    def reserve_bytes(self) -> int:
        """Free bytes below which no write, delete or commit begins."""
        return self.floor_bytes // RESERVE_SHARE

    @property
    def resume_bytes(self) -> int:
        """Free bytes from which refused writes go on."""
        # Above the floor itself, so that a disk near its floor does not flip between full and open at each look.
        return self.floor_bytes + self.floor_bytes // RESUME_SHARE

    def watch(self, borrower: Borrower) -> None:
        """Count the borrower's claim from now on."""
        with self._lock:
            self._borrowers.add(borrower)

    def forget(self, borrower: Borrower) -> None:
        """Stop counting a borrower that writes no more."""
        with self._lock:
            self._borrowers.discard(borrower)

    def look(self) -> None:
        """Measure the places and decide whether writes go on. Never raises: an unreadable place counts as full."""
        spaces = self._measure()  # outside of the lock: statvfs of a hung mount would hold every writer
        with self._lock:
            self._take(spaces)

    def judge(self, now_ms: int) -> None:
        """Decide from the last look whether the state directory has room; by one thread."""
        found = {one.what: one for one in self.spaces}
        state, log = found.get(STATE), found.get(LOG)
        # Below its own floor the log takes no instance's records: then it is no matter of this state directory.
        own = state is not None and state.free_bytes < self.resume_bytes
        others = log is not None and log.free_bytes < self.resume_bytes
        self.room.look(now_ms, self.full if own and not others else "")

    def grant(self, wanted_bytes: int) -> int:
        """Credit for a write: at least `wanted_bytes`. Raises DiskFull, and then no buffer gets any credit."""
        if not self.full and wanted_bytes > self._room:
            self.look()
        with self._lock:
            if not self.full and wanted_bytes <= self._room:
                credit = max(wanted_bytes, min(CREDIT_BYTES, self._room))
                self._room -= credit
                return credit
            if not self.full:
                self._fill(f"has no room for {wanted_bytes} bytes more above its floor of {self.floor_bytes}")
            raise DiskFull(self.full)

    def check_reserve(self, wanted_bytes: int, what: str) -> None:
        """Raise DiskFull, before `what` begins, unless `wanted_bytes` leave the reserve free by a new measurement."""
        if not self.floor_bytes:
            return
        least = self._measure()[0]  # the buffers' claims are left out: every commit comes here
        needed = self.reserve_bytes + AMPLIFICATION * wanted_bytes + COMMIT_BYTES
        if least.free_bytes < needed:
            raise DiskFull(
                f"{what} needs {needed} bytes free, {self.reserve_bytes} of them as a reserve, and {least.what} "
                f"{least.path} {_has(least)}: nothing was changed; free space there"
            )

    # -- inside -------------------------------------------------------------------------------------------------------

    def _measure(self) -> tuple[Space, ...]:
        found = (_space(what, path) for what, path in self._places.items())
        return tuple(sorted(found, key=lambda one: one.free_bytes))

    def _take(self, spaces: tuple[Space, ...]) -> None:
        least = spaces[0]
        if least.error and not (self.spaces and self.spaces[0].error):
            logger.error(
                "%s %s cannot be measured: %s",
                least.what,
                least.path,
                least.error,
                extra=as_event("disk_unmeasured", path=str(least.path)),
            )
        self.spaces = spaces
        if not self.floor_bytes:
            return
        claims = AMPLIFICATION * sum(one.claim_bytes for one in self._borrowers)
        over = least.free_bytes - claims - self.floor_bytes
        self._room = max(over // AMPLIFICATION, 0)
        if over <= 0 or (self.full and least.free_bytes - claims < self.resume_bytes):
            claimed = f", {claims} of them for writes that are accepted already" if claims else ""
            self._fill(f"{_has(least)}{claimed}; the floor (disk_floor) is {self.floor_bytes}")
        elif self.full:
            self.full = ""
            logger.warning(
                "%s %s has %d bytes free: writes go on",
                least.what,
                least.path,
                least.free_bytes,
                extra=as_event("writes_resumed", path=str(least.path), free_bytes=least.free_bytes),
            )

    def _fill(self, why: str) -> None:
        least, before = self.spaces[0], self.full
        self._room = 0
        self.full = (
            f"{least.what} {least.path} {why}: nothing new is written until {self.resume_bytes} bytes are free; reads, "
            "deletes and commits go on. Free space there, or lower the floor"
        )
        if not before:
            logger.error("writes are refused: %s", self.full, extra=as_event("writes_refused", reason="disk_full"))
            # From every buffer at once: credit granted before would let a fast writer pass the floor.
            for borrower in self._borrowers:
                borrower.revoke()


def _has(space: Space) -> str:
    return f"cannot be measured ({space.error})" if space.error else f"has {space.free_bytes} bytes free"


def _space(what: str, path: Path) -> Space:
    """Measure a place; one that does not exist yet is measured at its nearest existing parent."""
    try:
        while not path.exists() and path != path.parent:
            path = path.parent
        free, total = SPACE.ask(path)
    except OSError as error:
        return Space(what, path, 0, 0, str(error))
    return Space(what, path, free, total)
