"""The files of a RocksDB directory: what to check before an open, and the scratch of a read-only one.

Rules of this file: imports nothing of rocksdict; never changes the directory that it is shown. Every open of the
binding, read-only too, rewrites `rocksdict-config.json` and starts a new log for people in the directory it is
given, so a read-only open is given a scratch directory of links.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from standfast.store.errors import InvalidRequest, Unavailable

CONFIG_FILE = "rocksdict-config.json"
_LINKED = ("MANIFEST-*", "OPTIONS-*", "IDENTITY", "*.sst", "*.log", "*.blob")


def link(path: Path, scratch: Path) -> None:
    """Fill `scratch`. CURRENT is copied first, because the owner replaces it; logs for people stay behind."""
    for name in ("CURRENT", CONFIG_FILE):
        if (path / name).exists():
            shutil.copyfile(path / name, scratch / name)
    for pattern in _LINKED:
        for found in path.glob(pattern):
            (scratch / found.name).symlink_to(found.resolve())


def refuse_foreign(path: Path) -> None:
    """Refuse a directory that the binding wrote in its pickling mode: one open in the wrong mode spoils it."""
    try:
        content = (path / CONFIG_FILE).read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unavailable(f"opening {path}: {error}: check that this user may read it") from error
    if b'"raw_mode":false' in content.replace(b" ", b""):
        raise InvalidRequest(f"{path} was not written by standfast (it holds pickled rows): choose another directory")
