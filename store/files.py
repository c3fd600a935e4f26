"""Every change that a session makes to files of its state directory.

    WATCH.ask("rename", path) ──> the change itself        within `WATCH.replaced(function)` a simulation hears of each

Each function first calls the watch with the kind of the change and the path; the watch may raise. Kinds are
"make folder", "create", "write", "rename", "copy", "link", "truncate", "remove", "sync", "lock", "unlock". A rename, a
copy and a link have the path of the new name. Reads and lists are not changes, and files of RocksDB are its own.

Rules of this file: each function does one thing, and OSErrors leave as they are, and callers translate them
(`standfast.store.file_errors`). tests/repo/test_outside.py finds a change elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from standfast.store.outside import Replaceable, new_id

WATCH: Final = Replaceable[Callable[[str, Path], None]](lambda kind, path: None)
FLOCK: Final = Replaceable[Callable[[int, int], None]](fcntl.flock)  # for a world that releases locks of its dead


def make_folder(path: Path, *, mode: int = 0o700, parents: bool = False, exist_ok: bool = False) -> None:
    """Make a folder."""
    WATCH.ask("make folder", path)
    path.mkdir(mode, parents, exist_ok)


def create(path: Path, *, buffering: int = -1) -> IO[bytes]:
    """Open a new file for writing."""
    WATCH.ask("create", path)
    return path.open("xb", buffering)


def open_handle(path: Path, flags: int, mode: int) -> int:
    """Open a file by the flags of the operating system, for writing; it may be new."""
    WATCH.ask("create", path)
    return os.open(path, flags, mode)


def write(path: Path, content: bytes) -> None:
    """Write a file whole; nothing makes it durable."""
    WATCH.ask("write", path)
    path.write_bytes(content)


def truncate(file: Path | int, path: Path) -> None:
    """Empty a file, given by its path or a handle."""
    WATCH.ask("truncate", path)
    os.truncate(file, 0)


def rename(path: Path, target: Path) -> None:
    """Give a file or folder another name; a file replaces one of that name."""
    WATCH.ask("rename", target)
    path.replace(target)


def copy(path: Path, target: Path) -> None:
    """Copy the content of a file."""
    WATCH.ask("copy", target)
    shutil.copyfile(path, target)


def link(path: Path, target: Path) -> None:
    """Give a file one more name."""
    WATCH.ask("link", target)
    os.link(path, target)


def remove(path: Path, *, missing_ok: bool = False) -> None:
    """Remove a file."""
    WATCH.ask("remove", path)
    path.unlink(missing_ok)


def remove_tree(path: Path) -> None:
    """Remove a folder with all that it holds."""
    WATCH.ask("remove", path)
    shutil.rmtree(path)


def clear(path: Path) -> None:
    """Remove as much of a folder as can be removed; an absent one is fine."""
    with contextlib.suppress(OSError):
        WATCH.ask("remove", path)
        shutil.rmtree(path, ignore_errors=True)


def sync(handle: int, path: Path) -> None:
    """Make the bytes written by a handle durable."""
    WATCH.ask("sync", path)
    os.fsync(handle)


def sync_file(path: Path) -> None:
    """Make a file's content durable."""
    _sync_by(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Make names in a folder durable: without that a loss of power may undo a rename."""
    _sync_by(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync_by(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        sync(handle, path)
    finally:
        os.close(handle)


def lock(handle: int, path: Path) -> None:
    """Take the lock of an open file. Raises BlockingIOError if another handle has it."""
    # flock, not fcntl's record locks: it belongs to the handle, so workers inherit it with the handle.
    WATCH.ask("lock", path)
    FLOCK.ask(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(handle: int, path: Path) -> None:
    """Release the lock of an open file, for all handles that share it."""
    WATCH.ask("unlock", path)
    FLOCK.ask(handle, fcntl.LOCK_UN)


def write_atomically(path: Path, text: str, *, mode: int = 0o666, group: str | None = None) -> None:
    """Replace a small file so that a crash leaves the old one or the new one, never half of it.

    `mode` is that of the new file, under the umask; `group` owns it, from before the file has its name.
    """
    # An unpredictable name, and O_EXCL, which follows no link: else a planted link would lead the write elsewhere.
    temporary = path.with_name(f"{path.name}.{new_id('file', 8)}.tmp")
    handle = open_handle(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode if group is None else 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if group is not None:
                shutil.chown(temporary, group=group)
                os.fchmod(handle, mode)  # by the caller's choice of a group, the umask does not apply
            sync(handle, temporary)
        rename(temporary, path)
    except BaseException:
        remove(temporary, missing_ok=True)
        raise
    sync_folder(path.parent)
