"""The files of a RocksDB directory: checks before an open, the scratch of a read-only one, and the bound of LOG.

RocksDB can roll its LOG by itself (`max_log_file_size`), but then it keeps the description of every family it ever made
in memory, to begin each new file with it: 55 KB a family, and a window store makes a family for each segment of time.
RocksDB goes on writing at its old offset, so the removed part becomes a hole.

Rules of this file: imports nothing of rocksdict; changes only LOG in the directory that it is given. Every open of the
binding, read-only too, rewrites `rocksdict-config.json` and starts a new LOG in its directory, so a read-only open
gets a scratch directory of links.
"""

from __future__ import annotations

from pathlib import Path

from standfast.store import files
from standfast.store.errors import InvalidRequest, Unavailable

CONFIG_FILE = "rocksdict-config.json"
COPIED = ("STANDFAST", "STORES", "SEAL", "CURRENT", CONFIG_FILE, "MANIFEST-*", "OPTIONS-*", "IDENTITY")
_LINKED = ("MANIFEST-*", "OPTIONS-*", "IDENTITY", "*.sst", "*.log", "*.blob")
INFO_LOG_BYTES = 4 << 20
_BLOCK_BYTES = 512  # the unit of st_blocks, on every file system


def link(path: Path, scratch: Path) -> None:
    """Fill `scratch`. CURRENT is copied first, because the owner replaces it; LOG files stay behind."""
    for name in ("CURRENT", CONFIG_FILE):
        if (path / name).exists():
            files.copy(path / name, scratch / name)
    for pattern in _LINKED:
        for found in path.glob(pattern):
            (scratch / found.name).symlink_to(found.resolve())


def copy_closed(path: Path, target: Path) -> None:
    """Copy a closed database: files that RocksDB never changes as links where the disk allows, the others as copies.

    Raises Unavailable if the disk refuses.
    """
    # A MANIFEST grows in place, so a link to it would change with the original.
    try:
        files.make_folder(target, parents=True)
        for pattern in ("*.sst", "*.blob", "*.log"):
            for found in path.glob(pattern):
                try:
                    files.link(found, target / found.name)
                except OSError:
                    files.copy(found, target / found.name)
        for pattern in COPIED:
            for found in path.glob(pattern):
                files.copy(found, target / found.name)
    except OSError as error:
        files.clear(target)
        raise Unavailable(f"copying {path} to {target}: {error}: make room, and check the rights") from error


def refuse_foreign(path: Path) -> None:
    """Raise InvalidRequest for a directory in the binding's pickling mode: one open in raw mode spoils it."""
    try:
        content = (path / CONFIG_FILE).read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unavailable(f"opening {path}: {error}: check that this user may read it") from error
    if b'"raw_mode":false' in content.replace(b" ", b""):
        raise InvalidRequest(f"{path} was not written by standfast (it holds pickled rows): choose another directory")


def bound_info_log(path: Path) -> None:
    """Empty the LOG of the database at `path` if it takes more than INFO_LOG_BYTES of the disk."""
    log = path / "LOG"
    try:
        # Blocks, not the size: a truncated LOG keeps its size, since RocksDB goes on writing behind the hole.
        if log.stat().st_blocks * _BLOCK_BYTES > INFO_LOG_BYTES:
            files.truncate(log, log)
    except FileNotFoundError:
        return  # RocksDB could not make one
