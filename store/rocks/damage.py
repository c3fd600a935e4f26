"""Damage that a database's owner has met, remembered until a restore has replaced the damaged file.

    DAMAGED   {"blocks": [{"file": "000012.sst", "at": 12000, "bytes": 853, "crc": ...}]}      absent without any

RocksDB checks a block when it reads it, so without this note each opening would take the file for a sound one until the
next read of that block. `crc` is the generation: a checksum of the damaged bytes as they lie on the disk. A file whose
bytes there are others, such as one that a person copied back, counts as sound and is read again; neither its inode nor
its times decide, since a copy may keep them and a checkpoint's links change them. Where an error names no place in its
file, the block is the whole file. An absent or short file needs no note: RocksDB refuses to open without it.

Rules of this file: imports nothing of rocksdict. A note that cannot be read or written counts for nothing, and the next
read meets the damage again.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from standfast.store import files
from standfast.store.errors import Corruption
from standfast.store.file_errors import told
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.rocks.errors import damaged_file, damaged_place

DAMAGED = "DAMAGED"
TRAILER_BYTES = 5  # behind each block: how it is compressed, and its checksum
_PIECE_BYTES = 1 << 20


class Block(NamedTuple):
    """Damaged bytes of a table file, and their checksum when the damage was met."""

    file: str
    at: int
    bytes: int
    crc: int

    def lies_in(self, directory: Path) -> bool:
        """Whether the file has the same bytes there."""
        try:
            return _crc(directory / self.file, self.at, self.bytes) == self.crc
        except OSError:
            return False


class DamageNotes:
    """Notes the damage that the owner of an open database meets. Any thread may call it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._met: dict[tuple[str, int], bool] = {}  # by file and offset, whether it was noted
        # Held by `close`, since another process may replace the files after it. Reentrant, for a signal handler that
        # closes the database in the middle of a note.
        self._lock = threading.RLock()
        self._closed = False

    def note(self, damage: Corruption) -> None:
        """Note an error's damage if it names a file; `damage.noted` says whether the next opening finds it."""
        place = damaged_place(str(damage))
        if place is None:
            return
        file, at, size = place
        with self._lock:
            if not self._closed and (file, at) not in self._met:
                self._met[file, at] = self._write(file, at, size)
            damage.noted = self._met.get((file, at), False)

    def close(self) -> None:
        """Note nothing from now on."""
        with self._lock:
            self._closed = True

    def _write(self, file: str, at: int, size: int | None) -> bool:
        try:
            size = (self._directory / file).stat().st_size if size is None else size + TRAILER_BYTES
            block = Block(file, at, size, _crc(self._directory / file, at, size))
            if self._closed:  # by a signal handler, just now
                return False
            keep_noted(self._directory, [*noted(self._directory), block])
        except OSError as error:
            logger.warning(
                "damage in %s is forgotten when this process ends, since it cannot be noted: %s",
                self._directory / file,
                error,
                extra=as_event("damage_unnoted"),
            )
            return False
        return True


def refuse_noted(directory: Path, families_of: Callable[[str], frozenset[str]]) -> None:
    """Raise Corruption, naming the families, for noted damage that a database which was opened just now still has.

    `families_of` gives the families that have a table file of this number. RocksDB has removed the files that it uses
    no more, as of a store that was dropped to be restored; their damage, and that of files copied back, is forgotten.
    """
    blocks = noted(directory)
    if not blocks:
        return
    families = {one: families_of(str(damaged_file(one.file))) for one in blocks}
    damaged = [one for one in blocks if families[one] and one.lies_in(directory)]
    if damaged != blocks:
        over = ", ".join(sorted({one.file for one in blocks if one not in damaged}))
        logger.info(
            "%s: noted damage of %s is over: its store was restored, or the file was copied back",
            directory,
            over,
            extra=as_event("damage_over"),
        )
        with told("removing noted damage of", directory):
            keep_noted(directory, damaged)
    if damaged:
        files = few(sorted({one.file for one in damaged}))
        found = Corruption(
            f"opening {directory}: stored bytes of {files} are damaged, as an earlier read found (file {DAMAGED}): "
            "restore this task from its log"
        )
        found.families = frozenset[str]().union(*(families[one] for one in damaged))
        found.noted = True
        raise found


def noted_families(directory: Path, families_of: Callable[[str], frozenset[str]]) -> frozenset[str]:
    """The families with noted damage, as `refuse_noted` would name them; for readers, which forget nothing."""
    damaged = [one for one in noted(directory) if one.lies_in(directory)]
    return frozenset[str]().union(*(families_of(str(damaged_file(one.file))) for one in damaged))


def check_noted(directory: Path) -> None:
    """Raise Corruption for noted damage of a closed database, whose files are to be copied."""
    for one in noted(directory):
        if one.lies_in(directory):
            raise Corruption(
                f"copying {directory}: stored bytes of {one.file} are damaged, as an earlier read found (file "
                f"{DAMAGED}): start the application once, which restores the store from its log"
            )


def noted(directory: Path) -> list[Block]:
    """The noted blocks of a database, whether or not it still has them."""
    try:
        fields = json.loads((directory / DAMAGED).read_bytes())
        found = [
            Block(str(one["file"]), int(one["at"]), int(one["bytes"]), int(one["crc"])) for one in fields["blocks"]
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("%s cannot be read, and counts for nothing: %s", directory / DAMAGED, error,
                       extra=as_event("damage_note_unread"))  # fmt: skip
        return []
    # A damaged note must not lead out of the directory.
    return [one for one in found if "/" not in one.file and one.at >= 0 and one.bytes >= 0]


def keep_noted(directory: Path, blocks: Collection[Block]) -> None:
    """Replace the note of a database; without blocks there is none. Raises OSError."""
    path = directory / DAMAGED
    if not blocks:
        files.remove(path, missing_ok=True)
        return
    # One owner at a time writes it, so one name is enough. O_NOFOLLOW: a planted link would lead the write elsewhere.
    temporary = directory / f"{DAMAGED}.tmp"
    handle = files.open_handle(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        json.dump({"blocks": [one._asdict() for one in blocks]}, file)
        file.flush()
        files.sync(handle, temporary)
    files.rename(temporary, path)
    files.sync_folder(directory)


def _crc(path: Path, at: int, size: int) -> int:
    """The checksum of a part of a file; that of fewer bytes if it ends before."""
    crc = 0
    with path.open("rb") as file:
        file.seek(at)
        while size > 0 and (piece := file.read(min(size, _PIECE_BYTES))):
            crc, size = zlib.crc32(piece, crc), size - len(piece)
    return crc
