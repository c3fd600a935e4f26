"""What a database's own files must still be: RocksDB takes a MANIFEST that lost its end for an older one.

    SEAL   {"manifest": "MANIFEST-000005", "bytes": 225, "crc": ..., "log": true}      kept up to date by the owner

A MANIFEST only grows, so what it held when the seal was written must be its beginning. With a part of it missing,
RocksDB opens the database as it was at some other time, or empty, and removes the files that it does not know any more.
`log` says whether the write-ahead log holds rows that no other file has.

Rules of this file: imports nothing of rocksdict. A seal that is not there, not readable, or speaks of a MANIFEST older
than the one in use (another version of standfast, or a tool, opened the database meanwhile) says nothing.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import NamedTuple

from standfast.store.errors import Corruption
from standfast.store.rocks.wal import wal_files

SEAL = "SEAL"
FIRST_MANIFEST = "MANIFEST-000001"


class Seal(NamedTuple):
    """What was written down: a MANIFEST, how long it was at least, the checksum of so much, whether the log counts."""

    manifest: str
    size: int
    crc: int
    log: bool


class Sealer:
    """Keeps the seal of one open database; used by its owner alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._manifest = directory
        self._size = 0
        self._crc = 0
        self.write(log=True)

    def refresh(self) -> None:
        """Take in what was appended to the MANIFEST since; where nothing was, this is one look at its size."""
        try:
            grown = self._manifest.stat().st_size != self._size
        except OSError:
            grown = True  # RocksDB began another one
        if grown:
            self.write(log=True)

    def write(self, *, log: bool) -> None:
        """Say what the files are now; `log` as in the seal. A disk that refuses leaves the seal out."""
        try:
            manifest = self._directory / _in_use(self._directory)
            if manifest != self._manifest:
                self._manifest, self._size, self._crc = manifest, 0, 0
            with manifest.open("rb") as file:
                file.seek(self._size)
                added = file.read()
            self._size, self._crc = self._size + len(added), zlib.crc32(added, self._crc)
            fields = {"manifest": manifest.name, "bytes": self._size, "crc": self._crc, "log": log}
            temporary = self._directory / f"{SEAL}.tmp"
            temporary.write_text(json.dumps(fields), encoding="ascii")
            temporary.replace(self._directory / SEAL)
        except OSError:
            (self._directory / SEAL).unlink(missing_ok=True)


def check_seal(directory: Path) -> None:
    """Raise Corruption, naming the file, if MANIFEST, CURRENT or write-ahead log are not what they were."""
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


def manifest_fault(directory: Path) -> str | None:
    """Why the MANIFEST in use is not what it was; None if nothing speaks against it."""
    sealed = _sealed(directory)
    if sealed is None or _in_use(directory) != sealed.manifest:
        return None
    path = directory / sealed.manifest
    content = path.read_bytes()[: sealed.size] if path.exists() else b""
    if len(content) == sealed.size and zlib.crc32(content) == sealed.crc:
        return None
    return (
        f"{path.name} is damaged: its first {sealed.size} bytes are not what they were when the database was used last"
    )


def _is_unborn(directory: Path) -> bool:
    """Whether a kill met RocksDB as it made the database, so that it never held a row.

    It begins with this MANIFEST, before there are a CURRENT and a write-ahead log, and replaces it in the same opening.
    """
    manifests = [path.name for path in directory.glob("MANIFEST-*")]
    return manifests == [FIRST_MANIFEST] and not any(directory.glob("*.sst")) and not wal_files(directory)


def _sealed(directory: Path) -> Seal | None:
    try:
        fields = json.loads((directory / SEAL).read_text(encoding="ascii"))
        sealed = Seal(str(fields["manifest"]), int(fields["bytes"]), int(fields["crc"]), bool(fields["log"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if "/" in sealed.manifest else sealed


def _in_use(directory: Path) -> str:
    try:
        return (directory / "CURRENT").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
