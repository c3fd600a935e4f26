"""Checks of the embedded log's files from outside of SQLite: conditions that prevent writes or reads.

    place        path and lock still name the opened files            commits to a removed log would be lost
    header       the first bytes are those of a database              SQLite looks at them only when it opens the file
    WAL          no commits in it behind damage                       SQLite would drop them, and overwrite them
    writer       the process that has SQLite's own write lock         a program that does not know our lock

Rules of this file: no SQL, and nothing here waits for a lock. The database file is read by a descriptor that is never
closed: closing one drops SQLite's POSIX locks of the whole process, so one is kept for each file, for good. SQLite
removes the WAL's index with the last connection; its descriptor is kept until then.
"""

from __future__ import annotations

import os
import shlex
import threading
from pathlib import Path
from typing import NamedTuple

from standfast.replication.embedded.wal import INDEX_BYTES, WalDamage, lost_commits
from standfast.store.errors import Corruption, Unavailable

WRITE_LOCK_BYTE = 120  # of the -shm file: WAL_WRITE_LOCK in SQLite's file format
HEADER_BYTES = 100
KERNEL_LOCKS = Path("/proc/locks")
_MAGIC = b"SQLite format 3\x00"
_GONE = (
    "later writes would be lost with it. Put the file back (it is still open here), or end every process "
    "that uses the log, restore a copy, and start them again"
)
_ACCEPT = "python3 -c 'import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute(\"PRAGMA wal_checkpoint(TRUNCATE)\")'"

_readers: dict[tuple[int, int], int] = {}  # descriptors by device and file, never closed
_indexes: dict[tuple[int, int], int] = {}  # descriptors of -shm files, closed once the file is removed
_mutex = threading.Lock()


class OpenFiles(NamedTuple):
    """Files that a connection has open, as (device, inode): the database, its lock, its WAL and the WAL's index.

    SQLite removes the last two only with the last connection, so that they stay while one is open.
    """

    file: tuple[int, int]
    lock: tuple[int, int]
    wal: tuple[int, int]
    shm: tuple[int, int]


def place_of(path: str) -> OpenFiles:
    """The files at this path now. Raises OSError."""
    return OpenFiles(_number(path), _number(f"{path}.lock"), _number(f"{path}-wal"), _number(f"{path}-shm"))


def in_place(path: str, lock: str, opened: OpenFiles) -> bool:
    """Whether database and lock still have their inodes; a quick look (4 us) before each write."""
    try:
        file, held = os.stat(path), os.stat(lock)  # noqa: PTH116  a Path costs as much again
    except OSError:
        return False
    return (file.st_ino, held.st_ino) == (opened.file[1], opened.lock[1])


def _number(path: str) -> tuple[int, int]:
    found = Path(path).stat()
    return found.st_dev, found.st_ino


def check_place(path: str, opened: OpenFiles) -> None:
    """Raise Corruption if the log's path has other files, or none; Unavailable if the path cannot be read."""
    try:
        if place_of(path) == opened:
            return
        what = "was replaced by another file"
    except FileNotFoundError as error:
        other = Path(str(error.filename)).name
        what = "was removed" if other == Path(path).name else f"lost its file {other}, which was removed"
    except OSError as error:
        raise Unavailable(f"log {path} cannot be read ({error}): check path and modes, then retry") from error
    gone = damaged(path, f"{what} while it was open: {_GONE}")
    gone.unwritten = True  # every write checks the place before it begins
    raise gone


def check_header(path: str, opened: OpenFiles) -> None:
    """Raise Corruption if the file does not begin like a database: no process could open it any more."""
    try:
        header = os.pread(_reader(path, opened.file), HEADER_BYTES, 0)
    except OSError as error:
        raise Unavailable(f"log {path} cannot be read ({error}): check the disk, then retry") from error
    # Only these bytes: the WAL may have a newer version of the rest of the first page.
    if len(header) < HEADER_BYTES or not header.startswith(_MAGIC):
        raise damaged(
            path,
            "is damaged: its first bytes are not those of a log (cut off or written over), and no other process can "
            "open it. End every process that uses it, restore a copy, and check the disk",
        )


def _reader(path: str, number: tuple[int, int]) -> int:
    with _mutex:
        fd = _readers.get(number)
        if fd is None:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(fd)
            # A file that replaced ours just now is kept as well; the next `check_place` reports it.
            _readers[found.st_dev, found.st_ino] = fd
        return fd


def check_wal(path: str, page_bytes: int, *, synced: bool) -> WalDamage | None:
    """Raise Corruption if SQLite, which must have read the WAL by now, would drop acknowledged commits of it.

    Unless every commit is `synced`, a power loss may cause the same; then the loss is returned. Raises OSError.
    """
    try:
        fd = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size, index = os.fstat(fd).st_size, _index(path)
        lost = lost_commits(lambda at, count: os.pread(fd, count, at), size, page_bytes, index) if size else None
        if lost is not None and _index(path) != index:  # a program without our lock wrote in between
            lost = None
    finally:
        os.close(fd)
    if lost is None or not synced:
        return lost
    where = f"frame {lost.frame}, at byte {lost.offset}" if lost.frame else "its header"
    wal = Path(f"{path}-wal").name
    raise damaged(
        path,
        f"is damaged: {wal} is not as it was written ({where}), and {lost.commits} commits from there on would be "
        f"dropped by SQLite. Nothing was changed. With every process that uses the log ended, keep a copy of "
        f"the file and of {wal}, and restore a copy of the log; or go on without those commits with "
        f"{_ACCEPT} {shlex.quote(path)} and check with standfast doctor. Check the disk",
    )


def _index(path: str) -> bytes:
    with _mutex:
        for number, fd in list(_indexes.items()):
            if not os.fstat(fd).st_nlink:
                del _indexes[number]
                os.close(fd)
        try:
            number = _number(f"{path}-shm")
            if number not in _indexes:
                _indexes[number] = os.open(f"{path}-shm", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        return os.pread(_indexes[number], INDEX_BYTES, 0)


class KernelLocks(NamedTuple):
    """Processes that have our lock and SQLite's write lock; 0: the kernel shows none. `writer` None: it is free."""

    holder: int
    writer: int | None


def kernel_locks(path: str) -> KernelLocks | None:
    """The locks of the log at `path`, from the kernel's list; None where there is no such list."""
    lock, index = _inode(f"{path}.lock"), _inode(f"{path}-shm")
    try:
        lines = KERNEL_LOCKS.read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    holder, writer = 0, None
    # "12: POSIX  ADVISORY  WRITE 4711 08:01:131234 120 120"; a process that waits has "->" as its second word
    for words in map(str.split, lines):
        if len(words) != 8 or words[3] != "WRITE":
            continue
        inode = words[5].rpartition(":")[2]
        if words[1] == "FLOCK" and inode == lock:
            holder = max(int(words[4]), 0)
        if words[1] != "POSIX" or inode != index:
            continue
        first, last = int(words[6]), words[7]
        if first <= WRITE_LOCK_BYTE and (last == "EOF" or int(last) >= WRITE_LOCK_BYTE):
            writer = max(int(words[4]), 0)
    return KernelLocks(holder, writer)


def _inode(path: str) -> str:
    try:
        return str(Path(path).stat().st_ino)
    except OSError:
        return ""


def sqlite_writer(path: str) -> int | None:
    """Id of the process that has SQLite's write lock, from the kernel's list; None if it is free or cannot be seen."""
    locks = kernel_locks(path)
    return None if locks is None else locks.writer


def held_by_program(path: str, pid: int | None, held_ms: int | None = None) -> Unavailable:
    """The error of a write while a program without our lock has a write transaction on the file."""
    who = f"process {pid}" if pid else "it"
    since = "" if held_ms is None else f" for {held_ms / 1_000:.1f} s"
    error = Unavailable(
        f"log {path} is locked by another program: {who} has had a transaction open on it{since}, and nothing can be "
        "written. End that transaction or the program (sqlite3, a backup, a file browser), then retry"
    )
    error.unwritten = True
    return error


def damaged(path: str, how: str) -> Corruption:
    """The error for a damaged log, which must not be used as it is."""
    error = Corruption(f"log {path} {how}")
    error.of_log = True
    return error
