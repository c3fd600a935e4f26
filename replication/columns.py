"""Records of one partition column by column: a Record object is made only when a caller needs one.

    offsets      100   101   104        a range while there is no gap
    timestamps   t     t     t          milliseconds
    keys         b..   b..   None
    values       b..   None  b..
    headers      None: no record has any

A restore folds and writes a million records without needing one of them as an object; a tuple each, and the garbage
collector that walks through them, would cost a fifth of its time. LazyColumns go further: their records stay in the
memory in which a compiled reader left them, and a column becomes a list when a caller first reads one.

Rules of this file: pure values, no log in particular; RecordColumns is a Sequence of Record for every caller.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast, overload

from standfast.replication.log import Headers, Record

T = TypeVar("T")
Cells: TypeAlias = Sequence[bytes | None]

# Record(*row) costs a Python-level call per row; this does not.
_make = cast("Callable[[tuple[Any, ...]], Record]", partial(tuple.__new__, Record))


class RecordColumns(Sequence[Record]):
    """See the header. All columns have one length; `headers` may be None. `payload_bytes`: keys and values."""

    __slots__ = ("headers", "keys", "offsets", "payload_bytes", "timestamps", "values")

    def __init__(
        self,
        offsets: Sequence[int],
        timestamps: Sequence[int],
        keys: Cells,
        values: Cells,
        headers: Sequence[Headers] | None = None,
        payload_bytes: int = -1,
    ) -> None:
        self.offsets = offsets
        self.timestamps = timestamps
        self.keys = keys
        self.values = values
        self.headers = headers
        self.payload_bytes = _size(keys) + _size(values) if payload_bytes < 0 else payload_bytes

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Record]:
        return map(_make, self.rows())

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> RecordColumns: ...

    def __getitem__(self, index: int | slice) -> Record | RecordColumns:
        headers = self.headers
        if isinstance(index, slice):
            return RecordColumns(
                self.offsets[index],
                self.timestamps[index],
                self.keys[index],
                self.values[index],
                None if headers is None else headers[index],
            )
        own = () if headers is None else headers[index]
        return Record(self.offsets[index], self.timestamps[index], self.keys[index], self.values[index], own)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return list(self) == list(other)

    # It equals lists and tuples of the same records, whose hashes it could not match.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RecordColumns({list(self)!r})"

    @property
    def first_offset(self) -> int:
        """Offset of the first record; there must be one."""
        return self.offsets[0]

    @property
    def last_offset(self) -> int:
        """Offset of the last record; there must be one."""
        return self.offsets[-1]

    def index_of(self, offset: int) -> int:
        """Index of the first record at or after an offset."""
        return bisect_left(self.offsets, offset)

    def rows(self) -> Iterator[tuple[int, int, bytes | None, bytes | None, Headers]]:
        """Plain tuples of a Record's shape, for loops that unpack them."""
        headers = repeat(()) if self.headers is None else self.headers
        # Not strict: `repeat` has no end.
        return zip(self.offsets, self.timestamps, self.keys, self.values, headers, strict=False)


class Part(Protocol):
    """Records in the memory of a compiled reader, by index; see `Part` in store/native/pieces.c."""

    payload_bytes: int

    def __len__(self) -> int: ...

    def columns(self, start: int, stop: int) -> tuple[Sequence[int], Sequence[int], Cells, Cells, Any]: ...

    def payload(self, start: int, stop: int) -> int: ...

    def find(self, offset: int) -> int: ...

    def offset(self, index: int) -> int: ...


class Span(NamedTuple):
    """The records start <= index < stop of a part."""

    part: Part
    start: int
    stop: int


class LazyColumns(RecordColumns):
    """Columns whose records lie in parts, at least one record in each span, until a column is read.

    One thread at a time may use it. `spans` are None once the columns are lists.
    """

    __slots__ = ("_count", "spans")

    def __init__(self, spans: Sequence[Span]) -> None:
        # No call of the base: empty slots are what `__getattr__` fills.
        self.spans: Sequence[Span] | None = spans
        self._count = sum(stop - start for _, start, stop in spans)

    def __getattr__(self, name: str) -> Any:
        if name not in RecordColumns.__slots__:
            raise AttributeError(f"records have no {name!r}")
        spans = self.spans
        assert spans is not None
        if name == "payload_bytes":
            self.payload_bytes = sum(map(_payload_of, spans))
            return self.payload_bytes
        pieces = [RecordColumns(*part.columns(start, stop), part.payload(start, stop)) for part, start, stop in spans]
        found = joined(pieces) if pieces else RecordColumns((), (), (), ())
        for column in RecordColumns.__slots__:
            setattr(self, column, getattr(found, column))
        self.spans = None
        return getattr(self, name)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> RecordColumns: ...

    def __getitem__(self, index: int | slice) -> Record | RecordColumns:
        if self.spans is None or not isinstance(index, slice) or index.step not in (None, 1):
            return super().__getitem__(index)
        start, stop, _ = index.indices(self._count)
        found, at = [], 0
        for part, first, last in self.spans:
            low, high = max(first + start - at, first), min(first + stop - at, last)
            if low < high:
                found.append(Span(part, low, high))
            at += last - first
        return LazyColumns(found)

    @property
    def first_offset(self) -> int:
        """Offset of the first record; there must be one."""
        if not self.spans:
            return super().first_offset
        part, start, _ = self.spans[0]
        return part.offset(start)

    @property
    def last_offset(self) -> int:
        """Offset of the last record; there must be one."""
        if not self.spans:
            return super().last_offset
        part, _, stop = self.spans[-1]
        return part.offset(stop - 1)

    def index_of(self, offset: int) -> int:
        """Index of the first record at or after an offset."""
        if self.spans is None:
            return super().index_of(offset)
        at = 0
        for part, start, stop in self.spans:
            found = min(max(part.find(offset), start), stop)
            at += found - start
            if found < stop:
                break
        return at


def joined(pieces: Sequence[RecordColumns]) -> RecordColumns:
    """The pieces as one, in this order; their offsets must increase."""
    if len(pieces) == 1:
        return pieces[0]
    spans = [piece.spans if isinstance(piece, LazyColumns) else None for piece in pieces]
    if None not in spans:
        return LazyColumns([one for own in spans for one in own or ()])
    headers: list[Headers] | None = None
    if any(piece.headers is not None for piece in pieces):
        headers = [one for piece in pieces for one in (piece.headers or repeat((), len(piece)))]
    return RecordColumns(
        _offsets(pieces),
        _chained([piece.timestamps for piece in pieces]),
        _chained([piece.keys for piece in pieces]),
        _chained([piece.values for piece in pieces]),
        headers,
        sum(piece.payload_bytes for piece in pieces),
    )


def payload_bytes(records: Sequence[Record]) -> int:
    """Bytes of keys and values, summed by column in C: a Python expression per record costs a tenth of a restore."""
    if isinstance(records, RecordColumns):
        return records.payload_bytes
    return sum(_size(list(map(itemgetter(column), records))) for column in (2, 3))


def offsets_of(records: Sequence[Record]) -> Sequence[int]:
    """The offsets of records; a range is known to increase without a look at its offsets."""
    return records.offsets if isinstance(records, RecordColumns) else list(map(itemgetter(0), records))


def gapless(offsets: Sequence[int]) -> Sequence[int]:
    """The same offsets, as a range if they have no gap."""
    if offsets and offsets[-1] - offsets[0] == len(offsets) - 1:
        return range(offsets[0], offsets[-1] + 1)
    return offsets


def _offsets(pieces: Sequence[RecordColumns]) -> Sequence[int]:
    # Usually there is no gap; then the ends alone decide, and no list of a batch's offsets is made.
    first, last = pieces[0].offsets, pieces[-1].offsets
    if first and last and last[-1] - first[0] == sum(map(len, pieces)) - 1:
        return range(first[0], last[-1] + 1)
    return gapless(_chained([piece.offsets for piece in pieces]))


def _payload_of(span: Span) -> int:
    part, start, stop = span
    return part.payload_bytes if stop - start == len(part) else part.payload(start, stop)


def _chained(pieces: Sequence[Sequence[T]]) -> list[T]:
    chained: list[T] = []
    for piece in pieces:
        chained += piece
    return chained


def _size(cells: Cells) -> int:
    try:
        return len(b"".join(cells))  # type: ignore[arg-type]
    except TypeError:  # a None among them; the copy is cheaper than a test of each cell
        return sum(map(len, filter(None, cells)))
