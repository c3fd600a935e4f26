"""The cache folder for files that are fetched once and used by every checkout: Java, jars, tools.

    $STANDFAST_CACHE_DIR, else $XDG_CACHE_HOME/standfast, else ~/.cache/standfast

Rules of this file: folders and their lock, nothing about their contents. Everything here can be deleted at any time and
is fetched again. Fetched files come into place by one rename, so a folder that exists is whole.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from standfast.store.errors import Unavailable

VARIABLE = "STANDFAST_CACHE_DIR"

Say = Callable[[str], None]


def cache_dir() -> Path:
    """The cache folder; it need not exist yet."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "standfast"


@contextmanager
def fetching(cache: Path, say: Say) -> Iterator[Path]:
    """Lock the cache, and yield an empty folder in it to fetch to. Raises Unavailable if it cannot be written."""
    try:
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(cache / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"cache folder {cache} cannot be used ({error}): name another with {VARIABLE}") from error
    try:
        # One download for all processes: those that waited find the files in place.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process fetches to {cache}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        # In the cache itself, since a rename works within one file system only.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as folder:
            yield Path(folder)
    finally:
        os.close(lock)


def put_in_place(fetched: Path, target: Path) -> None:
    """Rename a whole folder or file to its place and delete the former one. Only inside `fetching`."""
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    fetched.replace(target)
