"""An oracle for windows that close as time passes: plain loops over records, sharing nothing with the library.

    Shape      kind and lengths of the windows, as numbers
    Windows    one aggregation: accepted records, results given, close time
    Marks      one task's watermark over its inputs, by the rules of Flink's StatusWatermarkValve

    closed       aligned [s, s + size): s + size <= C - grace      sliding [s, s + size]: s + size < C - grace
                 session [first, last]: last < C - grace - gap     C: the close time
    silence      C becomes the smallest time at which every window that has a record is closed

Rules of this file: slow and obvious. A result is (end, start, key, numbers of its records).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Given = tuple[int, int, str, tuple[int, ...]]


class Shape(NamedTuple):
    """`kind`: tumbling, hopping, sliding or session; `size`: also a difference, or a gap."""

    kind: str
    size: int
    advance: int
    grace: int


class Seen(NamedTuple):
    number: int
    key: str
    time: int


@dataclass
class Windows:
    """One windowed aggregation with results on close."""

    shape: Shape
    close_ms: int = -1
    seen: list[Seen] = field(default_factory=list)  # the accepted records; of sessions, those not given yet
    accepted: dict[tuple[int, str], list[Seen]] = field(default_factory=dict)  # aligned: by start and key
    given: set[tuple[int, int, str]] = field(default_factory=set)
    late: int = 0
    missed: list[int] = field(default_factory=list)  # records that no open window took

    def is_closed(self, end: int) -> bool:
        shape = self.shape
        if shape.kind in ("tumbling", "hopping"):
            return end <= self.close_ms - shape.grace
        if shape.kind == "sliding":
            return end < self.close_ms - shape.grace
        return end < self.close_ms - shape.grace - shape.size

    def record(self, one: Seen) -> list[Given]:
        """Results that the record closes, before it is added itself."""
        given = self.advance(one.time)
        shape = self.shape
        if shape.kind in ("tumbling", "hopping"):
            took = False
            late = 0
            for start in range(
                max(0, one.time - shape.size) // shape.advance * shape.advance, one.time + 1, shape.advance
            ):
                if start <= one.time < start + shape.size:
                    if self.is_closed(start + shape.size):
                        late += 1
                    else:
                        took = True
                        self.accepted.setdefault((start, one.key), []).append(one)
            self.late += late if took else 0
            self.missed += [] if took else [one.number]
        elif shape.kind == "sliding":
            if one.time + shape.size < self.close_ms - shape.grace:
                self.missed.append(one.number)
            else:
                assert one.time >= self.close_ms - shape.grace  # else windows made later may lack it: not generated
                self.seen.append(one)
        else:
            self.seen.append(one)
            (end,) = {end for end, _, _, numbers in self.sessions() if one.number in numbers}
            if self.is_closed(end):
                self.seen.pop()
                self.missed.append(one.number)
        return given

    def advance(self, time_ms: int) -> list[Given]:
        """Results of the windows that close as the close time becomes at least this."""
        self.close_ms = max(self.close_ms, time_ms)
        due = [one for one in self.all() if self.is_closed(one[0]) and one[:3] not in self.given]
        self.given |= {one[:3] for one in due}
        if self.shape.kind == "session":  # a session that was given is joined by no later record
            told = {number for one in due for number in one[3]}
            self.seen = [one for one in self.seen if one.number not in told]
        return sorted(due)

    def silence(self) -> list[Given]:
        """Close every open window."""
        shape, open_ends = self.shape, [one[0] for one in self.all() if one[:3] not in self.given]
        if not open_ends:
            return []
        extra = {"sliding": 1, "session": shape.size + 1}.get(shape.kind, 0)
        return self.advance(max(open_ends) + shape.grace + extra)

    def all(self) -> list[Given]:
        shape = self.shape
        if shape.kind in ("tumbling", "hopping"):
            return [
                (start + shape.size, start, key, tuple(one.number for one in found))
                for (start, key), found in self.accepted.items()
            ]
        return self.slides() if shape.kind == "sliding" else self.sessions()

    def slides(self) -> list[Given]:
        found = []
        for key in {one.key for one in self.seen}:
            own = [one for one in self.seen if one.key == key]
            for start in {max(0, one.time - self.shape.size) for one in own} | {one.time + 1 for one in own}:
                inside = [one.number for one in own if start <= one.time <= start + self.shape.size]
                if inside:
                    found.append((start + self.shape.size, start, key, tuple(sorted(inside))))
        return found

    def sessions(self) -> list[Given]:
        found = []
        for key in {one.key for one in self.seen}:
            session: list[Seen] = []
            for one in sorted((one for one in self.seen if one.key == key), key=lambda one: one.time):
                if session and one.time - session[-1].time > self.shape.size:
                    found.append(session)
                    session = []
                session.append(one)
            found.append(session)
        return [(one[-1].time, one[0].time, one[0].key, tuple(sorted(seen.number for seen in one))) for one in found]


@dataclass
class Input:
    mark_ms: int | None = None
    idle: bool = False
    behind: bool = False  # active again after idleness, and not up to the clock yet


@dataclass
class Marks:
    """The watermark of one task over its inputs."""

    inputs: list[Input]
    clock_ms: int | None = None

    def watermark(self, number: int, mark_ms: int) -> None:
        one = self.inputs[number]
        if one.idle or (one.mark_ms is not None and mark_ms <= one.mark_ms):
            return
        one.mark_ms = mark_ms
        one.behind = one.behind and self.clock_ms is not None and mark_ms < self.clock_ms
        self._settle()

    def idle(self, number: int) -> None:
        one = self.inputs[number]
        if one.idle:
            return
        held = not one.behind and (one.mark_ms is None or one.mark_ms == self.clock_ms)
        one.idle = True
        if held and all(other.idle for other in self.inputs):
            self._to(max((other.mark_ms for other in self.inputs if other.mark_ms is not None), default=None))
        elif held:
            self._settle()

    def active(self, number: int) -> None:
        one = self.inputs[number]
        if one.idle:
            one.idle = False
            one.behind = self.clock_ms is not None and (one.mark_ms is None or one.mark_ms < self.clock_ms)

    def restart(self, marks: list[int | None]) -> None:
        """Every input is active, and sends its watermark again."""
        self.inputs = [Input() for _ in self.inputs]
        for number, mark_ms in enumerate(marks):
            if mark_ms is not None:
                self.watermark(number, mark_ms)

    def _settle(self) -> None:
        counting = [one.mark_ms for one in self.inputs if not one.idle and not one.behind]
        known = [mark_ms for mark_ms in counting if mark_ms is not None]
        if known and len(known) == len(counting):
            self._to(min(known))

    def _to(self, mark_ms: int | None) -> None:
        if mark_ms is not None and (self.clock_ms is None or mark_ms > self.clock_ms):
            self.clock_ms = mark_ms
