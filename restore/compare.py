"""The merge of a verify: rows folded from a changelog against the rows that the store holds, in one order.

    rows of the log by name   ──┐
                                ├─ merged ──> pairs of rows ──> Tally ──> Outcome: counts, digests, the first wrong rows
    rows of the store by name ──┘

A row's name is its key; in a versioned store its key and its timestamp (valid from). Counts cover all rows. Only the
first rows that differ are kept, so that a report stays small however wrong a store is; a kept row is its time, its
size and a hash, unless the caller asks for values, which may be confidential.

Rules of this file: pure; rows are (key, timestamp, raw value) as in `standfast.restore.digest`. The verify of one
process and that of Spark's tasks feed it and read no rows past it; `standfast.restore.verdict` gives each difference
its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from standfast.restore.digest import Digest, LogicalRow, digest_rows, row_hash
from standfast.restore.verdict import UNSURE, Kind, LogFacts, RowVerdict, is_beyond, judge
from standfast.store.errors import InternalError

DIFFERENCES_MAX = 20
UNBOUNDED = 2**62
FOUND_OVERHEAD_BYTES = 512  # memory of a kept difference beside its key and values
DIGEST_ROWS = 4_096  # a digest per row would cost a call each (see digest_rows)
VALUE_MAX_BYTES = 4_096  # bytes kept of one value for a report

Name = TypeVar("Name", bytes, tuple[bytes, int])
Row = TypeVar("Row")


class RowSide(NamedTuple):
    """One side of a wrong row, as kept for the report. `value`: its first bytes, None without values.

    `value_bytes` is the size of the whole value, `hash` that of the row (`standfast.restore.digest.row_hash`).
    """

    timestamp: int
    value: bytes | None
    value_bytes: int
    hash: int

    @property
    def hash_hex(self) -> str:
        """The hash in hex, as reports write it."""
        return f"{self.hash:016x}"


class UnequalRow(NamedTuple):
    """One row that is not equal; a side is None where it lacks the row. `offset` of the log's record, or -1."""

    kind: RowVerdict
    key: bytes
    log: RowSide | None
    store: RowSide | None
    offset: int = -1  # known to tasks of Spark only


@dataclass(slots=True)
class ComparisonOutcome:
    """Result of a merge. `counts` cover all rows; `found` are the first rows that are wrong or need a second look."""

    matched: int = 0
    counts: dict[RowVerdict, int] = field(default_factory=dict)
    found: list[UnequalRow] = field(default_factory=list)
    log_digest: Digest = field(default_factory=Digest)
    store_digest: Digest = field(default_factory=Digest)
    beyond: int = 0  # extra rows whose records lie beyond the position


def merged(
    expected: Iterable[tuple[Name, Row]], actual: Iterable[tuple[Name, Row]]
) -> Iterator[tuple[Name, Row | None, Row | None]]:
    """(name, expected row, actual row) in order of the names, in constant memory; None where a side lacks the row.

    Raises InternalError if a side is not in strictly ascending order of its names: the verdict would be wrong.
    """
    left, right = _ascending("expected", expected), _ascending("actual", actual)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None
            yield one[0], one[1], None
            one = next(left, None)
        elif one is None or other[0] < one[0]:
            yield other[0], None, other[1]
            other = next(right, None)
        else:
            yield one[0], one[1], other[1]
            one, other = next(left, None), next(right, None)


class Tally:
    """Counts, digests and the first differences of a merge; call `outcome()` after the last row.

    `facts` may be completed before the first row that differs. `last`: no second look at rows follows. The tally keeps
    at most `differences_max` rows and about `found_bytes` of them, with `value_max` bytes of each value (0: none,
    None: all).
    """

    def __init__(
        self,
        facts: LogFacts,
        *,
        versioned: bool,
        last: bool,
        differences_max: int = DIFFERENCES_MAX,
        found_bytes: int = UNBOUNDED,
        value_max: int | None = 0,
    ) -> None:
        self.facts = facts
        self._versioned = versioned
        self._last = last
        self._differences_max = differences_max
        self._left_bytes = found_bytes
        self._value_max = value_max
        self._outcome = ComparisonOutcome()
        self._equal: list[LogicalRow] = []  # equal rows that are not in the digests yet

    def differing(
        self, expected: Iterable[tuple[Name, LogicalRow]], actual: Iterable[tuple[Name, LogicalRow]]
    ) -> Iterator[tuple[Name, LogicalRow | None, LogicalRow | None]]:
        """Merge, count the equal rows, and yield the others for `differs`."""
        equal = self._equal
        for name, one, other in merged(expected, actual):
            if one is None or one != other:
                yield name, one, other
                continue
            equal.append(one)
            if len(equal) >= DIGEST_ROWS:
                self._digest_equal()

    def match_all(self, digest: Digest) -> None:
        """Count rows that are equal on both sides, by their digest."""
        outcome = self._outcome
        outcome.matched += digest.count
        outcome.log_digest += digest
        outcome.store_digest += digest

    def differs(
        self, log: LogicalRow | None, store: LogicalRow | None, *, below: bool, later: bool, offset: int = -1
    ) -> None:
        """Count two unequal rows of a name. `below`, `later`: the key has a record below, at or above the position."""
        row = log or store
        assert row is not None, "a pair of rows has at least one side"
        kind: Kind = "missing" if store is None else "extra" if log is None else "different"
        verdict = judge(kind, self.facts, below=below, later=later, versioned=self._versioned, last=self._last)
        outcome = self._outcome
        outcome.counts[verdict] = outcome.counts.get(verdict, 0) + 1
        outcome.beyond += is_beyond(verdict, below=below, later=later)
        # The log cannot speak for these rows: in a digest they would make the two sides differ for no fault.
        if verdict in UNSURE:
            return
        if log is not None:
            outcome.log_digest += digest_rows([log])
        if store is not None:
            outcome.store_digest += digest_rows([store])
        if len(outcome.found) < self._differences_max and self._left_bytes > 0:
            one = UnequalRow(verdict, row[0], row_side(log, self._value_max), row_side(store, self._value_max), offset)
            outcome.found.append(one)
            values = sum(len(side.value or b"") for side in (one.log, one.store) if side is not None)
            self._left_bytes -= FOUND_OVERHEAD_BYTES + len(row[0]) + values

    def outcome(self) -> ComparisonOutcome:
        """The result so far."""
        self._digest_equal()
        return self._outcome

    def _digest_equal(self) -> None:
        self.match_all(digest_rows(self._equal))
        self._equal.clear()


def named(rows: Iterable[LogicalRow], versioned: bool) -> Iterator[tuple[Any, LogicalRow]]:
    """Each row with its name: the key, or (key, timestamp) if `versioned`."""
    return ((row[:2], row) for row in rows) if versioned else ((row[0], row) for row in rows)


def row_side(row: LogicalRow | None, value_max: int | None) -> RowSide | None:
    """A row as kept for a report, with `value_max` bytes of the value: 0 for none of it, None for all."""
    if row is None:
        return None
    key, timestamp, value = row
    kept = value if value_max is None else value[:value_max] if value_max else None
    return RowSide(timestamp, kept, len(value), row_hash(key, timestamp, value))


def _ascending(side: str, rows: Iterable[tuple[Name, Row]]) -> Iterator[tuple[Name, Row]]:
    last: Any = None
    for name, row in rows:
        # A side out of order would make missing and extra rows of equal ones.
        if last is not None and name <= last:
            key, *at = name if isinstance(name, tuple) else (name,)
            which = f"key {key.hex()}" + (f" (timestamp {at[0]})" if at else "")
            raise InternalError(
                f"compare: the {side} rows hold {which} twice"
                if name == last
                else f"compare: {side} rows are not sorted at {which}"
            )
        last = name
        yield name, row
