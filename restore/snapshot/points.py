"""Points in time that a task can be restored to: snapshots, and the tails behind them that no compaction has touched.

    offset   0 ........ base ============ gap - - - - - - witness ============ end
                        snapshot  all there   maybe gone     all there           reachable: base..gap, witness..end

A point is an offset of each changelog (next to apply): the state is the log folded to it. It is reachable from a
snapshot at or below it if every record between that still matters is there. A log does not say how far its cleaner
came, so the records themselves must prove it:

- no gap: every offset from the base on has a record, so none was removed;
- delete only: cleanup removes heads alone, so every record from a base above the begin is there, and a gap is a marker
  of a transaction;
- witness: two records of one key are both there, the first (the anchor) before any gap. A cleaner works from the head
  on, and removes a record only for a later one of its key below the cleaner's end. It would have removed the anchor
  first if its end lay beyond the second record: so its end, and every record for which it removed one, lies below. A
  point at or above the second record lacks nothing;
- the end: no cleaner is beyond the end of the log, so the point at the end lacks nothing.

Removed deletes have no later record of their key. The restore plan refuses a snapshot as old as that before.

Rules of this file: pure. An unprovable point is refused: compaction may have taken a value that it needs. The anchor
must be looked at again after the last read, since a cleaner may have passed between the two reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from standfast.restore.snapshot.names import SnapshotName
from standfast.store.names import few

# Keys of the gapless part that are remembered. A later repeat of one of them is the witness; more keys find it sooner.
ANCHORS_MAX = 100_000


class OffsetSpan(NamedTuple):
    """Offsets that can be reached, both ends included."""

    first: int
    last: int


class Witness(NamedTuple):
    """Two records of one key: the offset of the one before any gap, and that of a later one."""

    anchor: int
    again: int


class TailSeen:
    """The records behind a snapshot, as they are read, in the order of their offsets."""

    def __init__(self, base: int, *, compacted: bool) -> None:
        """`base` is the first offset that the snapshot may lack; `compacted`: whether a cleaner may remove records."""
        self.base = base
        self.position = base  # next to read
        self.gap: int | None = None  # the first offset without a record
        self.witness: Witness | None = None
        self.at_end = False  # whether the position was the end of the log after the last read
        self._compacted = compacted
        self._anchors: dict[bytes, int] = {}

    def add(self, records: Iterable[tuple[int, bytes | None]], next_offset: int) -> None:
        """Take (offset, key) of the next records; `next_offset` is where the next read begins."""
        for offset, key in records:
            if offset != self.position and self.gap is None:
                self.gap = self.position
            self.position = offset + 1
            if key is None or not self._compacted or self.witness is not None:
                continue
            anchor = self._anchors.get(key)
            if anchor is not None:
                self.witness = Witness(anchor, offset)
                self._anchors = {}
            elif self.gap is None and len(self._anchors) < ANCHORS_MAX:
                self._anchors[key] = offset
        if next_offset > self.position:
            if self.gap is None:
                self.gap = self.position
            self.position = next_offset

    @property
    def spans(self) -> tuple[OffsetSpan, ...]:
        """The offsets that can be reached from the base."""
        if not self._compacted or self.gap is None:
            return (OffsetSpan(self.base, self.position),)
        first = OffsetSpan(self.base, self.gap)
        if self.witness is None:
            return (first, OffsetSpan(self.position, self.position)) if self.at_end else (first,)
        if self.witness.again <= self.gap:
            return (OffsetSpan(self.base, self.position),)
        return first, OffsetSpan(self.witness.again, self.position)

    def reaches(self, offset: int) -> bool:
        """Whether a restore from the base can reach this offset."""
        return any(span.first <= offset <= span.last for span in self.spans)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A snapshot with the offsets that can be reached from it, by store; `reason`: why it cannot be used, "" if it can.

    `own` is the snapshot's own point.
    """

    name: SnapshotName
    own: Mapping[str, int]
    spans: Mapping[str, tuple[OffsetSpan, ...]] = field(default_factory=dict)
    reason: str = ""

    def reaches(self, point: Mapping[str, int]) -> bool:
        """Whether every store reaches its offset."""
        return not self.reason and all(
            offset == self.own[store] or any(span.first <= offset <= span.last for span in self.spans.get(store, ()))
            for store, offset in point.items()
        )

    def nearest(self, point: Mapping[str, int], *, below: bool) -> dict[str, int] | None:
        """The nearest point of which no offset lies above (or below) the given one; None if it reaches none."""
        found = {}
        for store, offset in point.items():
            near = _nearest(
                offset, [OffsetSpan(self.own[store], self.own[store]), *self.spans.get(store, ())], below=below
            )
            if near is None:
                return None
            found[store] = near
        return found


@dataclass(frozen=True, slots=True)
class Chosen:
    """The snapshot to begin with, and the most records to apply after it."""

    name: SnapshotName
    tail: int


@dataclass(frozen=True, slots=True)
class UnreachablePoint:
    """Why a point cannot be reached, and the nearest ones on both sides (None: there is none)."""

    reason: str
    below: Mapping[str, int] | None = None
    above: Mapping[str, int] | None = None

    @property
    def message(self) -> str:
        """The reason and the points to ask for instead."""
        near = [
            f"the nearest point {side} is {point_text(point)}"
            for side, point in (("below", self.below), ("above", self.above))
            if point is not None
        ]
        return f"{self.reason}; {', '.join(near) or 'no other point can be reached either'}"


def choose(point: Mapping[str, int], candidates: Sequence[Candidate]) -> Chosen | UnreachablePoint:
    """The candidate with the least tail that reaches the point (offsets by store), or the reason for none."""
    usable = [one for one in candidates if not one.reason]
    if missing := {store for one in usable for store in point.keys() ^ one.own.keys()}:
        return UnreachablePoint(f"a point needs one offset of each changelog, and {few(sorted(missing))} differs")
    reaching = [one for one in usable if one.reaches(point)]
    if reaching:
        best = min(reaching, key=lambda one: (_tail(point, one), one.name))
        return Chosen(best.name, _tail(point, best))
    below = [near for one in usable if (near := one.nearest(point, below=True)) is not None]
    above = [near for one in usable if (near := one.nearest(point, below=False)) is not None]
    return UnreachablePoint(
        _why(point, candidates),
        max(below, key=lambda near: sum(near.values()), default=None),
        min(above, key=lambda near: sum(near.values()), default=None),
    )


def exact(candidate: Candidate) -> Candidate:
    """The candidate with its own point alone: source offsets are known there, and nowhere behind it."""
    return Candidate(candidate.name, candidate.own, {}, candidate.reason)


def point_text(point: Mapping[str, int]) -> str:
    """The point as `--to-offset` takes it."""
    return " ".join(f"{store}={offset}" for store, offset in sorted(point.items()))


def _tail(point: Mapping[str, int], candidate: Candidate) -> int:
    return sum(max(offset - candidate.own[store], 0) for store, offset in point.items())


def _nearest(offset: int, spans: Iterable[OffsetSpan], *, below: bool) -> int | None:
    if below:
        return max((min(span.last, offset) for span in spans if span.first <= offset), default=None)
    return min((max(span.first, offset) for span in spans if span.last >= offset), default=None)


def _why(point: Mapping[str, int], candidates: Sequence[Candidate]) -> str:
    wanted = point_text(point)
    before = [
        one for one in candidates if not one.reason and all(one.own[store] <= offset for store, offset in point.items())
    ]
    if before:
        names = ", ".join(str(one.name) for one in before[:3])
        return f"{wanted} cannot be proved: compaction may have removed records that it needs behind snapshot {names}"
    unusable = few((f"{one.name}: {one.reason}" for one in candidates if one.reason), "; ")
    return f"no usable snapshot lies at or below {wanted}" + (f" ({unusable})" if unusable else "")
