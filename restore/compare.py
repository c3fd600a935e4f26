"""Compare what a store holds with what its changelog folds to, row by row.

    expected    rows of the changelog, folded         missing    expected, not in the store
    actual      rows of the store                     extra      in the store, not expected
                                                      different  in both, with another timestamp or value

Rules of this file: pure; rows are (key, timestamp, raw value) as in `standfast.restore.digest`. A row is recognised
by its key, in a versioned store by key and timestamp (valid from). Counts are whole; of the differences only the
first are kept, so that a report stays small however wrong a store is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from standfast.restore.digest import LogicalRow
from standfast.store.errors import InternalError

DIFFERENCES_MAX = 20

Kind = Literal["missing", "extra", "different"]
Verdict = Literal["equal", "different"]
Identity: TypeAlias = bytes | tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """One row that differs; the side that lacks it is None."""

    kind: Kind
    key: bytes
    expected: tuple[int, bytes] | None
    actual: tuple[int, bytes] | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two row sets compare. `differences` are the first ones found, `truncated` says that there are more."""

    matched: int
    missing: int
    extra: int
    different: int
    differences: tuple[Difference, ...]

    @property
    def mismatches(self) -> int:
        """All rows that differ in any way."""
        return self.missing + self.extra + self.different

    @property
    def truncated(self) -> bool:
        """More rows differ than `differences` shows."""
        return self.mismatches > len(self.differences)

    @property
    def verdict(self) -> Verdict:
        """Equal only if not one row differs."""
        return "different" if self.mismatches else "equal"


class _Tally:
    """Counts by kind, and the first differences."""

    def __init__(self, differences_max: int) -> None:
        self._max = differences_max
        self._matched = 0
        self._counts: dict[Kind, int] = {"missing": 0, "extra": 0, "different": 0}
        self._differences: list[Difference] = []

    def add(self, expected: LogicalRow | None, actual: LogicalRow | None) -> None:
        row = expected or actual
        assert row is not None, "a pair of rows has at least one side"
        if expected is not None and actual is not None and expected[1:] == actual[1:]:
            self._matched += 1
            return
        kind: Kind = "missing" if actual is None else "extra" if expected is None else "different"
        self._counts[kind] += 1
        if len(self._differences) < self._max:
            sides = (None if side is None else (side[1], side[2]) for side in (expected, actual))
            self._differences.append(Difference(kind, row[0], *sides))

    def result(self) -> Comparison:
        return Comparison(self._matched, **self._counts, differences=tuple(self._differences))


def compare_rows(
    expected: Iterable[LogicalRow],
    actual: Iterable[LogicalRow],
    *,
    versioned: bool = False,
    differences_max: int = DIFFERENCES_MAX,
) -> Comparison:
    """Compare rows in any order; keeps `expected` in memory. Missing ones are reported last.

    Raises InternalError if a side holds a row twice.
    """
    identity = _identity(versioned)
    waiting: dict[Identity, LogicalRow] = {}
    for row in expected:
        name = identity(row)
        if name in waiting:
            raise _twice("expected", row)
        waiting[name] = row
    tally = _Tally(differences_max)
    seen: set[Identity] = set()
    for row in actual:
        name = identity(row)
        if name in seen:
            raise _twice("actual", row)
        seen.add(name)
        tally.add(waiting.pop(name, None), row)
    for row in waiting.values():
        tally.add(row, None)
    return tally.result()


def compare_sorted(
    expected: Iterable[LogicalRow],
    actual: Iterable[LogicalRow],
    *,
    versioned: bool = False,
    differences_max: int = DIFFERENCES_MAX,
) -> Comparison:
    """Compare rows that both come in order of key (and timestamp, if versioned), in constant memory.

    Raises InternalError if a side is not in strictly ascending order.
    """
    identity = _identity(versioned)
    tally = _Tally(differences_max)
    left, right = _ascending("expected", expected, identity), _ascending("actual", actual, identity)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None
            tally.add(one[1], None)
            one = next(left, None)
        elif one is None or other[0] < one[0]:
            tally.add(None, other[1])
            other = next(right, None)
        else:
            tally.add(one[1], other[1])
            one, other = next(left, None), next(right, None)
    return tally.result()


def _identity(versioned: bool) -> Callable[[LogicalRow], Identity]:
    return (lambda row: (row[0], row[1])) if versioned else (lambda row: row[0])


def _ascending(
    side: str, rows: Iterable[LogicalRow], identity: Callable[[LogicalRow], Identity]
) -> Iterator[tuple[tuple[bytes, int], LogicalRow]]:
    """Each row with a sortable name; a side out of order would give a wrong verdict."""
    last: tuple[bytes, int] | None = None
    for row in rows:
        named = identity(row)
        name = named if isinstance(named, tuple) else (named, 0)
        if last is not None and name <= last:
            raise (
                _twice(side, row) if name == last else InternalError(f"compare: {side} rows are not sorted at {row!r}")
            )
        last = name
        yield name, row


def _twice(side: str, row: LogicalRow) -> InternalError:
    return InternalError(f"compare: the {side} rows hold key {row[0].hex()} (timestamp {row[1]}) twice")
