"""The facts of the ops page, from the status document that `/v1/status` and the command line print as well.

    status document (+ a sidecar's additions) ──> restores, tasks, standbys, stores, changelogs

    A sidecar may add: sidecar {draining, ...}, version, health {degraded: [..]}, disk {free_bytes, total_bytes,
    floor_bytes}, servers [{server, what, value}], events [{number, at_ms, event, actor, outcome, fields}], schedules
    [{task, kind, next_ms, missed}], config {name: value}: see `ops/sidecar/page_status.py`. Absent fields are not
    shown.

Rules of this file: pure; it decides and formats, and knows no HTML. Times in milliseconds, sizes in bytes. Ages are
coarse, so that a row changes only when there is news.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from standfast.ops.observe.verdict import Json, duration, size, store_key, stores_of

BEHIND_MS = 60_000
RISK = 0.1  # this bound and the next are those of the alert StandfastRetentionRisk
RISK_RECORDS = 1_000
LAGS_KEPT = 60  # a minute, at a sample a second
DONE_KEPT = 20
DONE_MS = 60_000
SAMPLE_MS = 900  # a little below a tick of the feed, which may come early


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
class History:
    """Facts that the page keeps between two readings: lags of standbys, and restores that ended."""

    lags: dict[str, deque[int]] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)  # records per second that a standby applies
    running: dict[str, Bar] = field(default_factory=dict)
    done: dict[str, tuple[int, Bar]] = field(default_factory=dict)
    at_ms: int = 0
    positions: dict[str, int] = field(default_factory=dict)

    def look(self, status: Json, now_ms: int) -> None:
        """Add a document; one that comes within SAMPLE_MS of the last only ends restores."""
        self._ended(status, now_ms)
        if now_ms - self.at_ms < SAMPLE_MS:
            return
        seconds, self.at_ms = (now_ms - self.at_ms) / 1_000, now_ms
        seen = {}
        for task, store in stores_of(status):
            if task["role"] == "standby":
                key = store_key(task, store)
                seen[key] = store["position"]
                self.lags.setdefault(key, deque(maxlen=LAGS_KEPT)).append(store["lag"])
                self.rates[key] = max(store["position"] - self.positions.get(key, store["position"]), 0) / seconds
        for gone in self.lags.keys() - seen.keys():
            del self.lags[gone]
            self.rates.pop(gone, None)
        self.positions = seen

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


def bars(status: Json, history: History) -> list[Bar]:
    """Running restores, slowest first, then restores that ended."""
    running = [_bar(one) for one in status["restores"]]
    # An unknown remaining time counts as the slowest.
    running.sort(key=lambda bar: (-(bar.seconds_left if bar.seconds_left is not None else 1e12), bar.key))
    keys = {bar.key for bar in running}
    return running + [bar for key, (_, bar) in reversed(history.done.items()) if key not in keys]


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


@dataclass(slots=True)
class StoreSum:
    """One store, summed over its partitions in this instance."""

    kind: str
    partitions: int = 0
    keys: int = 0
    sst_bytes: int = 0
    memtable_bytes: int = 0
    pending_compaction_bytes: int = 0
    segments: int = 0
    puts: int = 0
    gets: int = 0
    scans: int = 0
    open_iterators: int = 0
    late: int = 0
    corruptions: int = 0
    write_stopped: bool = False


def store_sums(status: Json) -> dict[str, StoreSum]:
    """Each store by name."""
    found: dict[str, StoreSum] = {}
    for _, store in stores_of(status):
        one = found.setdefault(store["store"], StoreSum(store["kind"]))
        # A size of -1 is unknown, which must not lower the sum.
        one.partitions += 1
        one.keys += max(store["keys_estimate"], 0)
        one.sst_bytes += max(store["sst_bytes"], 0)
        one.memtable_bytes += max(store["memtable_bytes"], 0)
        one.pending_compaction_bytes += max(store["pending_compaction_bytes"], 0)
        one.segments += store["segments"]
        one.puts += store["ops"].get("put", 0)
        one.gets += store["ops"].get("get", 0)
        one.scans += store["ops"].get("scan", 0)
        one.open_iterators += store["open_iterators"]
        one.late += store["late_dropped"]
        one.corruptions += store["corruptions"]
        one.write_stopped = one.write_stopped or bool(store.get("write_stopped"))
    return dict(sorted(found.items()))


def log_share(store: Json) -> tuple[int, bool]:
    """Percentage of the log between first offset and end that is applied; whether retention may overtake it."""
    span = store["end"] - store["begin"]
    applied = min(max(store["position"] - store["begin"], 0), max(span, 0))
    share = applied / span if span > 0 else 1.0
    # A log that still begins at 0 has deleted nothing yet.
    risk = store["begin"] > 0 and share < RISK and store["end"] - store["position"] > RISK_RECORDS
    return int(share * 100), risk


def tiles(status: Json) -> list[tuple[str, str, str]]:
    """The most important numbers: (name, number, detail)."""
    tasks = status["tasks"]
    active = [task for task in tasks if task["role"] == "active"]
    whole = sum(task["state"] == "running" for task in active)
    standbys = [store for task, store in stores_of(status) if task["role"] == "standby"]
    left = sum(one["remaining"] for one in status["restores"])
    lag = max((store["lag"] for store in standbys), default=0)
    files = sum(max(store["sst_bytes"], 0) + max(store["memtable_bytes"], 0) for _, store in stores_of(status))
    rows = sum(max(store["keys_estimate"], 0) for _, store in stores_of(status))
    found = [
        ("active tasks", f"{whole} of {len(active)}", "whole"),
        ("left to restore", count(left), "records" if left else "nothing is being restored"),
        ("standby tasks", count(len(tasks) - len(active)), f"at most {count(lag)} records behind"),
        ("rows", count(rows), f"about, in {size(files)}"),
    ]
    acknowledged = status.get("counters", {}).get("ack_seconds")
    if acknowledged and acknowledged["count"]:
        waiting = sum(task.get("inflight_records", 0) for task in tasks)
        found.append(("99 % of commits", percentile(acknowledged, 0.99), f"{count(waiting)} records in flight"))
    disk = status.get("disk")
    if disk and disk["total_bytes"]:
        share = disk["free_bytes"] * 100 // disk["total_bytes"]
        found.append(("disk free", f"{share} %", f"{size(disk['free_bytes'])} of {size(disk['total_bytes'])}"))
    return found


def percentile(histogram: Json, share: float) -> str:
    """The bound within which this share of the durations lies: `in 5 ms`."""
    wanted = histogram["count"] * share
    bound_s = next((one["le"] for one in histogram["buckets"] if one["count"] >= wanted), None)
    if bound_s is None:
        return f"over {duration(histogram['buckets'][-1]['le'])}"
    return f"in {bound_s * 1_000:g} ms" if bound_s < 1 else f"in {duration(bound_s)}"


def restore_phases(status: Json) -> str:
    """`fetch 40 %, decode 20 %, write 40 % of 12 s`: the phases of all restores so far; empty before the first."""
    phases = dict(status.get("counters", {}).get("restore_phases_ns", {}))
    phases.pop("idle", None)  # waiting for the log with nothing to do, which is no share of the work
    whole = sum(phases.values())
    shares = [f"{name} {spent * 100 // whole} %" for name, spent in phases.items() if whole and spent * 100 >= whole]
    return f"{', '.join(shares)} of {duration(whole / 1e9)}" if shares else ""


def facts(status: Json) -> list[tuple[str, object]]:
    """The facts at the end of the page: (name, value), without unknown ones."""
    disk = status.get("disk")
    room = f"{size(disk['free_bytes'])} free of {size(disk['total_bytes'])}" if disk else ""
    floor = f", writes are refused below {size(disk['floor_bytes'])}" if disk and disk.get("floor_bytes") else ""
    found: list[tuple[str, object]] = [
        ("application", status["app"]),
        ("instance", status["instance"]),
        ("version", status.get("version", "")),
        ("disk", room + floor),
        ("members", ", ".join(map(str, status["members"]))),
        ("time of restores", restore_phases(status)),
        *((name.replace("_", " "), value) for name, value in (status.get("sidecar") or {}).items()),
        *(status.get("config") or {}).items(),
    ]
    return [(name, value) for name, value in found if value not in ("", None)]


def points(lags: Sequence[int], width: int, height: int) -> str:
    """The points of an SVG line of lags within a picture of this size."""
    most, step = max(*lags, 1), width / (LAGS_KEPT - 1)
    return " ".join(
        f"{number * step:.0f},{height - 1 - lag * (height - 2) / most:.0f}" for number, lag in enumerate(lags)
    )


def promotable(store: Json, rate: float) -> str:
    """The time that a take-over would spend on restoring."""
    if not store["lag"]:
        return "at once"
    return duration(store["lag"] / rate) if rate > 0 else "unknown"


def count(number: int) -> str:
    """`1,234,567`."""
    return f"{number:,}"


def age(at_ms: int, now_ms: int) -> str:
    """The time since `at_ms`, coarse."""
    if at_ms <= 0:
        return "never"
    for limit, text in ((10_000, "under 10 s"), (60_000, "under 1 min"), (300_000, "under 5 min")):
        if now_ms - at_ms < limit:
            return text
    return duration((now_ms - at_ms) // 300_000 * 300)  # steps of 5 minutes


def clock_text(at_ms: int | None) -> str:
    """UTC, as `2013-01-01 00:00:00`; empty for none."""
    if at_ms is None or at_ms < 0:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
