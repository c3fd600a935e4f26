"""The seal of a database: a checksum that finds a MANIFEST that lost its end, which RocksDB takes for an older one.

    SEAL   {"manifest": "MANIFEST-000005", "bytes": 225, "crc": ..., "log": true}      kept up to date by the owner

A MANIFEST only grows, so its content when the seal was written must still be its beginning. With a part of it missing,
RocksDB opens the database as of some other time, or empty, and removes the files that it does not know any more.
`log` says whether the write-ahead log holds rows that no other file has.

Rules of this file: imports nothing of rocksdict. A seal proves nothing if it is absent, unreadable, or names a
MANIFEST older than the one in use (another version of standfast, or a tool, opened the database meanwhile).
"""

from __future__ import annotations

import errno
import json
import zlib
from pathlib import Path
from typing import NamedTuple

from standfast.store import files
from standfast.store.errors import Corruption
from standfast.store.rocks.wal import wal_files

SEAL = "SEAL"
FIRST_MANIFEST = "MANIFEST-000001"


class Seal(NamedTuple):
    """A seal: the MANIFEST's name, its least size in bytes, the checksum of those bytes, whether the log counts."""

    manifest: str
    size: int
    crc: int
    log: bool


class Sealer:
    """Keeps the seal of one open database; only the owner uses it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._manifest = directory
        self._size = 0
        self._crc = 0
        self.write(log=True)

    def refresh(self) -> None:
        """Include bytes appended to the MANIFEST since the last write; without any, this costs one look at its size."""
        try:
            grown = self._manifest.stat().st_size != self._size
        except OSError:
            grown = True  # RocksDB began another MANIFEST
        if grown:
            self.write(log=True)

    def write(self, *, log: bool) -> None:
        """Write the seal of the present files; `log` as in the seal. If the disk refuses, the seal is removed."""
        try:
            manifest = self._directory / _in_use(self._directory)
            if manifest != self._manifest:
                self._manifest, self._size, self._crc = manifest, 0, 0
            with manifest.open("rb") as file:
                file.seek(self._size)
                added = file.read()
            self._size, self._crc = self._size + len(added), zlib.crc32(added, self._crc)
            fields = {"manifest": manifest.name, "bytes": self._size, "crc": self._crc, "log": log}
            # Not synced: after a loss of power an older seal still fits a grown MANIFEST, a broken one says nothing.
            temporary = self._directory / f"{SEAL}.tmp"
            files.write(temporary, json.dumps(fields).encode("ascii"))
            files.rename(temporary, self._directory / SEAL)
        except OSError as error:
            if error.errno == errno.EROFS:
                return  # no file changes any more, so the last seal still fits
            # The old seal may name a MANIFEST that RocksDB has replaced, or say that the log does not count.
            files.remove(self._directory / SEAL, missing_ok=True)


def check_seal(directory: Path) -> None:
    """Raise Corruption, naming the file, if MANIFEST, CURRENT or write-ahead log do not fit the seal."""
    where, fix = f"opening {directory}", "restore this task from its log"
    if _is_unborn(directory):
        return
    if not (directory / "CURRENT").exists():
        if any(directory.glob("MANIFEST-*")):
            raise Corruption(f"{where}: the file CURRENT is gone, which names the MANIFEST in use: {fix}")
        return
    sealed = _sealed(directory)
    if not wal_files(directory) and (sealed is None or sealed.log):
        raise Corruption(
            f"{where}: its write-ahead log (NUMBER.log) is gone, and with it rows that no other file holds: {fix}"
        )
    why = manifest_fault(directory)
    if why is not None:
        raise Corruption(f"{where}: {why}: {fix}")


def never_opened(directory: Path) -> bool:
    """Whether the database was put here whole and no owner has opened it yet: a snapshot, which has no seal."""
    return (directory / "CURRENT").exists() and not (directory / SEAL).exists()


def manifest_fault(directory: Path) -> str | None:
    """Why the MANIFEST in use does not fit the seal; None if it does, or if no seal speaks of it."""
    sealed = _sealed(directory)
    if sealed is None or _in_use(directory) != sealed.manifest:
        return None
    path = directory / sealed.manifest
    content = path.read_bytes()[: sealed.size] if path.exists() else b""
    if len(content) == sealed.size and zlib.crc32(content) == sealed.crc:
        return None
    return f"{path.name} is damaged: its first {sealed.size} bytes differ from those at the last use of the database"


def _is_unborn(directory: Path) -> bool:
    """Whether a kill met RocksDB while it created the database, which therefore never held a row.

    RocksDB begins with this MANIFEST, before CURRENT and a write-ahead log exist, and replaces it in the same opening.
    """
    manifests = [path.name for path in directory.glob("MANIFEST-*")]
    return manifests == [FIRST_MANIFEST] and not any(directory.glob("*.sst")) and not wal_files(directory)


def _sealed(directory: Path) -> Seal | None:
    try:
        fields = json.loads((directory / SEAL).read_text(encoding="ascii"))
        sealed = Seal(str(fields["manifest"]), int(fields["bytes"]), int(fields["crc"]), bool(fields["log"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if "/" in sealed.manifest else sealed  # a damaged seal must not lead out of the directory


def _in_use(directory: Path) -> str:
    try:
        return (directory / "CURRENT").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
