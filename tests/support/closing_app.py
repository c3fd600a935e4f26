"""An application of one windowed aggregation, and the same application in plain terms; see `support.closing`.

    direct     source ──> window                    as many tasks as partitions, each with a watermark of its own
    through    source ──> repartition ──> window    each task follows the smallest watermark of the tasks before it

Rules of this file: a record has {"n": its number}; one with {"mark": w} carries a watermark and is filtered out.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import standfast as sf
from support.closing import Given, Input, Marks, Seen, Shape, Windows

TEXT, JSON = sf.serde.string, sf.serde.json
KEYS = ["a", "b", "c"]
IDLE_MS, SILENT_MS = 1_000, 3_000
LATE = "late"


class Plan(NamedTuple):
    """One application: its windows, and the ways in which they close."""

    shape: Shape
    partitions: int
    through: bool
    marks: bool
    silence: bool
    late: bool
    engine: Any = "memory"
    least_ms: int = 0  # the least timestamp
    prefix: str = ""  # of its topics

    def topic(self, name: str) -> str:
        return self.prefix + name


def windows_of(shape: Shape) -> Any:
    if shape.kind == "tumbling":
        return sf.TumblingWindows(shape.size, shape.grace)
    if shape.kind == "hopping":
        return sf.HoppingWindows(shape.size, shape.advance, shape.grace)
    if shape.kind == "sliding":
        return sf.SlidingWindows(shape.size, shape.grace)
    return sf.SessionWindows(shape.size, shape.grace)


def carried(value: Any, _timestamp_ms: int) -> int | None:
    mark: int | None = value.get("mark")
    return mark


def application(plan: Plan, name: str = "app", **settings: Any) -> sf.App:
    """The application; `settings` go to App."""
    windows = windows_of(plan.shape)
    kept: dict[str, Any] = {"retention_ms": windows.retention_safe_ms, "engine": plan.engine}
    store: Any = (
        sf.SessionStore("counts", TEXT, JSON, **kept)
        if plan.shape.kind == "session"
        else sf.WindowStore("counts", TEXT, JSON, window_size_ms=windows.size_ms, **kept)
    )
    app = sf.App(name, stores=[store], **settings)
    source: dict[str, Any] = {"watermarks": sf.Punctuated(carried), "idle_after_ms": IDLE_MS} if plan.marks else {}
    stream = app.stream(plan.topic("in"), key=TEXT, value=JSON, **source).filter(lambda _key, value: "n" in value)
    if plan.through:
        stream = stream.repartition("x")
    merging: dict[str, Any] = {"merge": lambda _key, one, other: one + other} if plan.shape.kind == "session" else {}
    (
        stream.group_by_key()
        .window(windows)
        .aggregate(
            list,
            lambda _key, value, numbers: [*numbers, value["n"]],
            "counts",
            emit=sf.ON_WINDOW_CLOSE,
            close_after_ms=SILENT_MS if plan.silence else None,
            late=plan.topic(LATE) if plan.late else None,
            **merging,
        )
        .to(plan.topic("out"))
    )
    return app


class Model:
    """The whole application in plain terms."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        count = plan.partitions
        self.windows = [Windows(plan.shape) for _ in range(count)]
        self.sources: list[int | None] = [None] * count  # the watermark of each source partition
        self.idle = [False] * count
        self.heard = [0] * count  # the last record of each source partition
        self.silent_since: list[int | None] = [0] * count  # of each aggregation
        self.marks = [Marks([Input() for _ in range(count if plan.through else 1)]) for _ in range(count)]
        self.now_ms = 0
        self.late_records = 0

    def task_of(self, key: str, partition: int) -> int:
        return zlib.crc32(key.encode()) % self.plan.partitions if self.plan.through else partition

    def record(self, one: Seen, partition: int, mark_ms: int | None, *, counted: bool) -> list[Given]:
        clock_ms, found = self.sources[partition], list[Given]()
        self.heard[partition] = self.now_ms
        if self.plan.marks and clock_ms is not None and one.time <= clock_ms:
            self.late_records += 1
        elif counted:
            task = self.task_of(one.key, partition)
            self.silent_since[task] = self.now_ms
            found += self.windows[task].record(one)
        if self.plan.marks:
            self._signal("active", partition)
            self.idle[partition] = False
            if mark_ms is not None and (clock_ms is None or mark_ms > clock_ms):
                self.sources[partition] = mark_ms
                self._signal("watermark", partition, mark_ms)
            found += self._follow()
        return found

    def wait(self, duration_ms: int) -> list[Given]:
        self.now_ms += duration_ms
        found: list[Given] = []
        # As the driver: one task after the other; each asks its source first, and then for silence.
        for partition in range(self.plan.partitions):
            if self.plan.marks and not self.idle[partition] and self.now_ms - self.heard[partition] > IDLE_MS:
                self.idle[partition] = True
                self._signal("idle", partition)
                found += [] if self.plan.through else self._follow()
        for task in range(self.plan.partitions):
            since = self.silent_since[task]
            if self.plan.silence and since is not None and self.now_ms - since >= SILENT_MS:
                self.silent_since[task] = None
                found += self.windows[task].silence()
        return [*found, *self._follow()]

    def restart(self) -> list[Given]:
        self.heard = [self.now_ms] * self.plan.partitions
        self.silent_since = [self.now_ms] * self.plan.partitions
        self.idle = [False] * self.plan.partitions
        for task, marks in enumerate(self.marks):
            marks.restart(self.sources if self.plan.through else [self.sources[task]])
        return self._follow()

    def _signal(self, what: str, partition: int, *given: int) -> None:
        for task, marks in enumerate(self.marks):
            if self.plan.through:
                getattr(marks, what)(partition, *given)
            elif task == partition:
                getattr(marks, what)(0, *given)

    def _follow(self) -> list[Given]:
        found: list[Given] = []
        for windows, marks in zip(self.windows, self.marks, strict=True):
            if marks.clock_ms is not None:
                found += windows.advance(marks.clock_ms)
        return found


def stamp_of(model: Model, plan: Plan, key: str, partition: int, step: int) -> int:
    """A time about the close time of the record's windows; for sliding windows none that is late for some only."""
    windows = model.windows[model.task_of(key, partition)]
    stamp = max(windows.close_ms + step, plan.least_ms)
    edge = windows.close_ms - plan.shape.grace
    if plan.shape.kind == "sliding" and edge - plan.shape.size <= stamp < edge:
        return (
            max(edge, plan.least_ms)
            if step % 2 or edge - plan.shape.size <= plan.least_ms
            else edge - plan.shape.size - 1
        )
    return stamp


def edge_of(model: Model, plan: Plan, key: str, partition: int, step: int) -> int:
    """The boundary of the record's open windows, and the times beside it."""
    shape = plan.shape
    pause = shape.size if shape.kind == "session" else 0
    return stamp_of(model, plan, key, partition, step - shape.grace - pause)


def mark_of(model: Model, plan: Plan, key: str, partition: int, step: int) -> int:
    """A watermark about the close time of the key's windows."""
    return max(model.windows[model.task_of(key, partition)].close_ms + step, plan.least_ms)
