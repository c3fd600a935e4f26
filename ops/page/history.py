"""The ops page's memory between two readings of the status: series for its charts, rates, restores that ended.

    total of a counter, once a second  ──Meter──>  records/s, puts/s, commands/s over RATE_MS
    lag, left to restore, records/s    ──Series─>  the highest value of each STEP_MS and the present one, for a line
    restores of the last document      ──────────> those that ended stay for DONE_MS

Rules of this file: pure. Readings come only while the page has a reader, so a series begins with its first one, and
begins again after a pause: a chart shows no value that was not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from standfast.ops.observe.verdict import Json, store_key, stores_of

STEP_MS = 5_000
STEPS = 60  # five minutes
RATE_MS = 10_000
DONE_KEPT = 20
DONE_MS = 60_000
SAMPLE_MS = 900  # a little below a tick of the feed, which may come early
COUNTED = frozenset({"commands", "requests"})  # of the servers' rows; the others are no totals
CALLS = ("put", "get", "scan")


@dataclass(frozen=True, slots=True)
class Bar:
    """A restore: `percent` 0 to 100; `state` running, stuck or done."""

    key: str
    task: str
    store: str
    reason: str
    percent: int
    state: Literal["running", "stuck", "done"]
    position: int
    end: int
    remaining: int
    rate: float
    seconds_left: float | None


@dataclass(slots=True)
class Series:
    """The highest value of each of the last STEPS times STEP_MS; the newest is the present one."""

    values: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
    _step: int = -1
    _highest: float = 0.0

    def add(self, now_ms: int, value: float) -> None:
        """Add a value; after a step without one, the series begins again."""
        step = now_ms // STEP_MS
        if step == self._step:
            self.values[-1], self._highest = value, max(self._highest, value)
            return
        if self.values and step == self._step + 1:
            self.values[-1] = self._highest
        else:
            self.values.clear()
        self.values.append(value)
        self._step, self._highest = step, value


@dataclass(slots=True)
class Meter:
    """The rate of a total over the last RATE_MS."""

    _samples: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, now_ms: int, total: int) -> None:
        """Add a total; a lower one than before is of a new counter."""
        if self._samples and total < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now_ms, total))
        while len(self._samples) > 2 and now_ms - self._samples[0][0] > RATE_MS:
            self._samples.popleft()

    @property
    def rate(self) -> float:
        """A second; 0.0 before the second total."""
        (first_ms, first), (last_ms, last) = self._samples[0], self._samples[-1]
        return (last - first) * 1_000 / (last_ms - first_ms) if last_ms > first_ms else 0.0


@dataclass(slots=True)
class PageHistory:
    """Facts that the page keeps between two readings. Keys of `series` and `meters`: see `_levels` and `_totals`."""

    series: dict[str, Series] = field(default_factory=dict)
    meters: dict[str, Meter] = field(default_factory=dict)
    running: dict[str, Bar] = field(default_factory=dict)
    done: dict[str, tuple[int, Bar]] = field(default_factory=dict)
    at_ms: int = 0

    def look(self, status: Json, now_ms: int) -> None:
        """Add a document; one that comes within SAMPLE_MS of the last only ends restores."""
        self._ended(status, now_ms)
        if now_ms - self.at_ms < SAMPLE_MS:
            return
        self.at_ms = now_ms
        totals = dict(_totals(status))
        for key, total in totals.items():
            self.meters.setdefault(key, Meter()).add(now_ms, total)
        self.meters = {key: self.meters[key] for key in totals}
        levels = dict(_levels(status, self.running.values())) | {"changes": self.changes(status)}
        for name, level in levels.items():
            self.series.setdefault(name, Series()).add(now_ms, level)
        kept = levels.keys() | {restore_key(key) for key in self.done}
        self.series = {name: series for name, series in self.series.items() if name in kept}

    def rate(self, key: str) -> float:
        """Of a total, a second."""
        meter = self.meters.get(key)
        return 0.0 if meter is None else meter.rate

    def chart(self, name: str) -> Sequence[float]:
        """The values of a series, the newest last."""
        series = self.series.get(name)
        return () if series is None else tuple(series.values)

    def changes(self, status: Json) -> float:
        """Changes a second that the active tasks write to changelogs."""
        return sum(self.rate(task_key(task)) for task in status["tasks"])

    def _ended(self, status: Json, now_ms: int) -> None:
        now = {bar.key: bar for bar in map(_bar, status["restores"])}
        whole = {task["task"] for task in status["tasks"] if task["state"] in ("running", "standby")}
        for key, bar in self.running.items():
            # A restore whose task failed or was revoked did not end well, and is not shown as done.
            if key not in now and bar.task in whole:
                self.done[key] = (now_ms, _finished(bar))
        self.running = now
        kept = [(key, one) for key, one in self.done.items() if key not in now and now_ms - one[0] < DONE_MS]
        self.done = dict(kept[-DONE_KEPT:])


def bars(status: Json, history: PageHistory) -> list[Bar]:
    """Running restores, slowest first, then restores that ended."""
    running = [_bar(one) for one in status["restores"]]
    # An unknown remaining time counts as the slowest.
    running.sort(key=lambda bar: (-(bar.seconds_left if bar.seconds_left is not None else 1e12), bar.key))
    keys = {bar.key for bar in running}
    return running + [bar for key, (_, bar) in reversed(history.done.items()) if key not in keys]


def task_key(task: Json) -> str:
    """The meter of a task's changelog positions."""
    return f"task {task['task']}"


def lag_key(key: str) -> str:
    """The series of a standby store's lag."""
    return f"lag {key}"


def restore_key(key: str) -> str:
    """The series of a restore's records a second."""
    return f"restore {key}"


def call_key(store: str, call: str) -> str:
    """The meter of a store's puts, gets or scans."""
    return f"{call} {store}"


def server_key(server: str, what: str) -> str:
    """The meter of a server's commands or requests."""
    return f"server {server} {what}"


def _totals(status: Json) -> Iterator[tuple[str, int]]:
    """Totals that only grow."""
    calls: dict[str, int] = {}
    for task in status["tasks"]:
        # Not while it restores: the positions of the log's old records would count as changes that it writes.
        if task["state"] == "running":
            yield task_key(task), sum(store["position"] for store in task["stores"])
        for store in task["stores"]:
            if task["role"] == "standby":
                yield store_key(task, store), store["position"]
            for call in CALLS:
                key = call_key(store["store"], call)
                calls[key] = calls.get(key, 0) + store["ops"].get(call, 0)
    yield from calls.items()
    for one in status.get("servers", ()):
        if one["what"] in COUNTED:
            yield server_key(one["server"], one["what"]), one["value"]


def _levels(status: Json, running: Iterable[Bar]) -> Iterator[tuple[str, float]]:
    """Levels that rise and fall."""
    lags = {store_key(task, store): store["lag"] for task, store in stores_of(status) if task["role"] == "standby"}
    yield "lag", max(lags.values(), default=0)
    yield "left", sum(one["remaining"] for one in status["restores"])
    for key, lag in lags.items():
        yield lag_key(key), lag
    for bar in running:
        yield restore_key(bar.key), bar.rate


def _bar(one: Json) -> Bar:
    percent = 100 if not one["remaining"] else min(int(one["fraction"] * 100), 99)  # never 100 before the end
    return Bar(
        key=f"{one['task']}/{one['store']}",
        task=one["task"],
        store=one["store"],
        reason=one["reason"],
        percent=percent,
        state="done" if not one["remaining"] else "stuck" if one["stuck"] else "running",
        position=one["position"],
        end=one["end"],
        remaining=one["remaining"],
        rate=one["rate"],
        seconds_left=one["seconds_left"],
    )


def _finished(bar: Bar) -> Bar:
    return Bar(bar.key, bar.task, bar.store, bar.reason, 100, "done", bar.end, bar.end, 0, bar.rate, 0.0)
