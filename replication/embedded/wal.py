"""Detection of commits lost in the middle of the embedded log's WAL, which SQLite would drop without an error.

    header    magic, version, page size, round, salts, checksum                                32 bytes
    frame     page, size of the database if it ends a commit or else 0, salts, checksum        24 bytes, then the page

A frame's checksum goes on from that of the frame before it. SQLite takes frames as long as salts and checksums hold, up
to the last that ends a commit, and overwrites the frames behind it. These frames behind it are no damage:

    frames of an earlier round            other salts
    one commit that was not synced        a power loss while it was written, or a kill, or a sync that failed
    leases before that one                they are not synced either, and change a page or two

A commit from which another frame goes on was whole, and synced, before that frame was begun: it lies behind only if a
frame before it has changed since. The checksum of that one frame proves it, so that no other needs to be computed.

Rules of this file: no SQL, and no file is opened. Damage of the very last commit looks like a torn end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Read: TypeAlias = Callable[[int, int], bytes]  # offset and number of bytes

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
INDEX_BYTES = 96  # the header of the -shm file, stored twice
LEASE_FRAMES = 2  # a renewed lease changes a page, one that also removes members another
_MAGIC = 0x377F0682  # the last bit: checksums are of big-endian words
_MASK = 0xFFFFFFFF

Sum: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WalDamage:
    """`commits` acknowledged ones lie at or behind the damaged `frame`; frame 0 is the header."""

    frame: int
    offset: int  # of the frame in the file
    commits: int


def lost_commits(read: Read, size: int, page_bytes: int, index: bytes) -> WalDamage | None:
    """Commits that SQLite would drop of a WAL of `size` bytes; `index`: head of its -shm, after SQLite read the WAL."""
    header = read(0, HEADER_BYTES)
    if len(header) < HEADER_BYTES or len(index) < INDEX_BYTES or index[:48] != index[48:96]:
        return None  # the index's two copies differ while a program writes it
    taken, index_salts = struct.unpack_from("=I", index, 16)[0], index[32:40]
    wal = _Wal(read, page_bytes, header)
    # Between two rounds the index is ahead of the file, and the database has every frame of the file.
    if index_salts != header[16:24] and (wal.whole or any(index_salts)):
        return None
    last = (size - HEADER_BYTES) // wal.frame_bytes
    ends, proven, last_own = [taken], False, taken
    for number in range(taken + 1, last + 1):
        head = wal.head(number)
        if head[8:16] == wal.salts:
            last_own = number
            # Leases are not synced, so a commit of so few frames proves nothing about the commits before it.
            if not proven and ends[-1] == number - 1 > taken and ends[-1] - ends[-2] > LEASE_FRAMES:
                proven = wal.follows(number)
        if head[4:8] != bytes(4):
            ends.append(number)
    if not proven:
        return None
    frame = wal.first_wrong(taken + 1, last) if wal.whole else 0
    return WalDamage(frame, wal.at(frame) if frame else 0, sum(taken < end <= last_own for end in ends))


class _Wal:
    """The WAL file; frames are counted from 1."""

    def __init__(self, read: Read, page_bytes: int, header: bytes) -> None:
        self._read = read
        self.frame_bytes = FRAME_HEADER_BYTES + page_bytes
        magic, self._seed = struct.unpack_from(">I", header)[0], struct.unpack_from(">II", header, 24)
        self._order = ">" if magic & 1 else "<"
        self.whole = magic & ~1 == _MAGIC and self._sum(header[:24], (0, 0)) == self._seed
        self.salts = header[16:24] if self.whole else self.head(1)[8:16]
        if not self.whole:
            self._order = "="  # with the header's magic lost: SQLite writes checksums of the machine's own words

    def at(self, number: int) -> int:
        return HEADER_BYTES + (number - 1) * self.frame_bytes

    def head(self, number: int) -> bytes:
        return self._read(self.at(number), FRAME_HEADER_BYTES)

    def follows(self, number: int) -> bool:
        """Whether a frame continues the one before it, even if the stored checksum of that one is damaged."""
        return self._goes_on(number, self._stored(number - 1)) or self._goes_on(
            number, self._computed(number - 1, self._stored(number - 2))
        )

    def first_wrong(self, first: int, last: int) -> int:
        """The first damaged frame of the range; the frame before the range is whole."""
        for number in range(first, last + 1):
            if self.head(number)[8:16] != self.salts or not self._goes_on(number, self._stored(number - 1)):
                return number
        return last

    def _goes_on(self, number: int, before: Sum) -> bool:
        return self._computed(number, before) == self._stored(number)

    def _stored(self, number: int) -> Sum:
        first, second = struct.unpack_from(">II", self.head(number), 16) if number else self._seed
        return first, second

    def _computed(self, number: int, before: Sum) -> Sum:
        frame = self._read(self.at(number), self.frame_bytes)
        return self._sum(frame[24:], self._sum(frame[:8], before))

    def _sum(self, data: bytes, before: Sum) -> Sum:
        words = struct.unpack(f"{self._order}{len(data) // 4}I", data)
        first, second = before
        for even, odd in zip(words[::2], words[1::2], strict=True):
            first = (first + even + second) & _MASK
            second = (second + odd + first) & _MASK
        return first, second
