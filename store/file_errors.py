"""Errors of the operating system about files, translated into errors of standfast with a fix.

    EMFILE, ENFILE               Unavailable     the limit, how many are open, `ulimit -n`
    ENOSPC, EDQUOT               Unavailable     free space
    EROFS, EACCES, EPERM         InvalidRequest  our user, the folder's owner
    ENOTDIR, EEXIST, ELOOP ...   InvalidRequest  something else is at the path
    anything else                Unavailable     the system's own words
    no write by RocksDB          NoRoom          by the words of its error: ENOSPC, EDQUOT, EROFS, and EIO of a write

Rules of this file: it inspects the machine to say more, leaves nothing open, and never raises an error of its own
in place of the one that it explains.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from standfast.store.errors import InvalidRequest, StandfastError, Unavailable
from standfast.store.outside import Replaceable

NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
NO_DESCRIPTORS_TEXT = "Too many open files"  # the text of EMFILE and ENFILE in errors of libraries that keep no errno
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_OTHER_THING = frozenset({errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT})

FIXES: Final = {
    errno.ENOSPC: "free space on its volume",
    errno.EDQUOT: "free space, or raise the quota",
    errno.EROFS: "mount it for writing",
    errno.EIO: "check the disk",
}
# RocksDB and its binding keep no number of an error.
_TEXTS: Final = {os.strerror(number): number for number in FIXES}
# Calls that write, as RocksDB names them: EIO of any other call is damage.
_WRITES: Final = re.compile(
    r"while (append|pwrite|writ|fsync|fdatasync|ftruncat|truncat|closing file after writ|fallocat|sync_file_range"
    r"|renam|mkdir|unlink|link|open a file for (append|renam))",
    re.IGNORECASE,
)


class NoRoom(Unavailable):
    """The file system of the state directory takes no writes. `number` is the errno."""

    service = "the disk"
    of_task = True  # the log is well
    event = "task_waits_for_room"
    number = errno.ENOSPC


def errno_of_text(text: str) -> int | None:
    """The errno for which a file system takes no writes, by the text of an error of RocksDB; None for another error."""
    for words, number in _TEXTS.items():
        if words in text and (number != errno.EIO or _WRITES.search(text)):
            return number
    return None


def no_room(where: str, number: int, path: Path | None = None) -> NoRoom:
    """The error for a write at `where` that failed with this errno; it says disk, bytes and the fix."""
    at = "" if path is None else f"{has_text(path)}; "
    found = NoRoom(f"{where}: its file system takes no writes ({os.strerror(number)}): {at}{FIXES[number]}")
    found.number = number
    return found


def file_error(error: OSError, doing: str, path: Path) -> StandfastError:
    """Our error for an OSError about `path`, while `doing`."""
    if error.errno in NO_DESCRIPTORS:
        return no_descriptors(f"{doing}: {path}")
    why = error.strerror or str(error)
    if error.errno in _FULL:
        return Unavailable(f"{doing}: {path}: {why}: free space on its volume, then retry")
    if error.errno == errno.EROFS:
        return InvalidRequest(
            f"{doing}: {path} is on a file system that is mounted read-only: mount it for writing, or name a folder "
            "that can be written"
        )
    if error.errno in _FORBIDDEN:
        return InvalidRequest(
            f"{doing}: {path} cannot be written by user {os.geteuid()}{_owner(path)}: give the folder to that user "
            "(chown), or name another one"
        )
    if error.errno in _OTHER_THING:
        return InvalidRequest(
            f"{doing}: {path} cannot be a folder or a file of standfast ({why}): something else is at that path or "
            "above it; name another folder, or move the other thing away"
        )
    return Unavailable(f"{doing}: {path}: {why}: check disk and mounts, then retry")


@contextlib.contextmanager
def told(doing: str, path: Path) -> Iterator[None]:
    """Raise OSErrors of the block as ours. An error that names its own file is reported about that file."""
    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error.filename, str) and error.filename else None
        raise file_error(error, doing, path if named is None else Path(named)) from error


def no_descriptors(doing: str) -> Unavailable:
    """The error for a process that can open no more files and sockets; it names the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Unavailable(
        f"{doing}: out of file descriptors: this process may have {soft} files and sockets open at once (ulimit -n"
        f"{_most(hard)}): raise it, as with `ulimit -n 65536` or LimitNOFILE=65536 of a unit, and start again; or give "
        "this instance fewer tasks and stores"
    )


def out_of_descriptors(wanted: int) -> bool:
    """Whether opening `wanted` more files fails now; for callers that learn only that some file did not open."""
    # SQLite does not say why it cannot open a file, so the only proof of this cause is to open some.
    opened: list[int] = []
    try:
        while len(opened) < wanted:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in NO_DESCRIPTORS
    finally:
        for one in opened:
            os.close(one)
    return False


def _most(hard: int) -> str:
    return "" if hard == resource.RLIM_INFINITY else f", at most {hard}"


def _owner(path: Path) -> str:
    """Owner and mode of the nearest existing folder, as text; "" if none can be read."""
    for one in (path, *path.parents):
        try:
            found = one.stat()
        except OSError:
            continue
        return f" ({one} is of user {found.st_uid}, mode {found.st_mode & 0o7777:04o})"
    return ""


def _space(path: Path) -> tuple[int, int]:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


SPACE: Final = Replaceable[Callable[[Path], tuple[int, int]]](_space)  # may raise OSError


def space_of(path: Path) -> tuple[int, int]:
    """Free and all bytes of a volume; (0, 0) if it cannot be measured."""
    try:
        return SPACE.ask(path)
    except OSError:
        return 0, 0


def has_text(path: Path) -> str:
    free, total = space_of(path)
    return f"{path} has {free} of {total} bytes free"
