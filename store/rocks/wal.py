"""Checks of RocksDB's write-ahead log for damage that RocksDB's own reader does not report.

    block of 32 KiB   record, record, ... , up to 6 zero bytes
    record            crc32c (masked, of type and payload), length, type: 7 bytes; then the payload

RocksDB takes a record that reaches beyond the end of the file for one whose write was cut short, and ends there. With a
flipped byte in its length any record of the last block looks so, and RocksDB would drop the records behind it silently:
this file distinguishes the two by the bytes that follow. With `every_byte` it also checks each checksum, for readers
that ignore them.

Rules of this file: `damaged_at` is pure, bytes in, offset out; the other functions read files of RocksDB, and only
`cut_off` writes, in a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from standfast.store import files
from standfast.store.errors import Corruption

BLOCK_BYTES = 32 << 10
HEADER_BYTES = 7
TYPES = frozenset((1, 2, 3, 4))  # full, first, middle, last
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


def wal_files(directory: Path) -> list[Path]:
    """The write-ahead logs of a database, oldest first."""
    return sorted(path for path in directory.glob("*.log") if path.stem.isdigit())


def wal_damage(directory: Path, *, every_byte: bool) -> tuple[Path, int] | None:
    """The first log with a damaged record, and its offset; None if there is none."""
    files = wal_files(directory)
    for path in files:
        at = damaged_at(path.read_bytes(), every_byte=every_byte)
        if at is not None:
            return path, at
    return None


def refuse_damaged_wal(directory: Path, *, every_byte: bool) -> None:
    """Raise Corruption, naming file and offset, for a damaged record."""
    found = wal_damage(directory, every_byte=every_byte)
    if found is not None:
        path, at = found
        raise Corruption(
            f"opening {directory}: the write-ahead log {path.name} is damaged at byte {at}: restore this task from its "
            "log"
        )


def cut_off(directory: Path, path: Path, at: int) -> None:
    """Cut a copy's log off before the record at `at`, and delete later logs; recreate the file, which may be a link."""
    content = path.read_bytes()[:at]
    for later in wal_files(directory):
        if int(later.stem) >= int(path.stem):
            files.remove(later)
    files.write(path, content)


def damaged_at(raw: bytes, *, every_byte: bool) -> int | None:
    """Offset of the first damaged record; None if all are whole, or the log ends within its last one."""
    for at, length in records(raw):
        if at + HEADER_BYTES > len(raw):
            return None
        if at + HEADER_BYTES + length > _block_end(at):  # a writer never crosses a block: it splits the record there
            return at
        if at + HEADER_BYTES + length > len(raw):
            return at if _is_whole(raw, at, len(raw) - at - HEADER_BYTES) or _goes_on(raw, at) else None
        if raw[at + 6] == 0:  # type 0 is space that was allocated in advance and not written
            return at if raw[at:].strip(b"\0") else None
        if every_byte and not _is_whole(raw, at, length):
            return at
    return None


def records(raw: bytes) -> Iterator[tuple[int, int]]:
    """(offset of the header, payload bytes by the header's length field) of each record."""
    at = 0
    while at < len(raw):
        if _block_end(at) - at < HEADER_BYTES:  # no header fits, so the writer has filled the block with zeros
            at = _block_end(at)
            continue
        length = int.from_bytes(raw[at + 4 : at + 6], "little")
        yield at, length
        at += HEADER_BYTES + length


def _block_end(at: int) -> int:
    return (at // BLOCK_BYTES + 1) * BLOCK_BYTES


def _goes_on(raw: bytes, at: int) -> bool:
    """Whether a whole record follows anywhere: then no write was cut short here."""
    # Byte by byte, since the damaged length does not say where the next record begins.
    for other in range(at + HEADER_BYTES, len(raw) - HEADER_BYTES + 1):
        length = int.from_bytes(raw[other + 4 : other + 6], "little")
        fits = raw[other + 6] in TYPES and length and other + HEADER_BYTES + length <= len(raw)
        if fits and _is_whole(raw, other, length):
            return True
    return False


def _is_whole(raw: bytes, at: int, length: int) -> bool:
    crc = _crc32c(raw[at + 6 : at + HEADER_BYTES + length])
    masked = (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
    return masked == int.from_bytes(raw[at : at + 4], "little")


def unmasked(raw: bytes, at: int) -> int:
    """The checksum of the record's header, without RocksDB's mask."""
    rotated = (int.from_bytes(raw[at : at + 4], "little") - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


TABLE = _table()


# In Python: the standard library has CRC-32 only, whose polynomial is another.
def _crc32c(data: bytes) -> int:
    crc, table = 0xFFFFFFFF, TABLE
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
