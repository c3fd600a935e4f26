"""The facts of the ops page, from the status document that `/v1/status` and the command line print as well.

    status document (+ a sidecar's additions) and its history ──> tiles, stores, changelogs, facts; texts of numbers

    A sidecar may add: sidecar {draining, ...}, version, health {degraded: [..]}, disk {free_bytes, total_bytes,
    floor_bytes}, servers [{server, what, value}], events [{number, at_ms, event, actor, outcome, fields}], schedules
    [{task, kind, next_ms, missed}], config {name: value}: see `ops/sidecar/page_status.py`. A supervisor of worker
    processes adds worker_processes [{worker, pid, state, starts, active, standby, error}] and paused: see
    `ops/http/supervisor.py`. Absent fields are not shown.

Rules of this file: pure; it decides and formats, and knows no HTML. Times in milliseconds, sizes in bytes. Ages are
coarse, so that a row changes only when there is news.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from standfast.ops.observe.verdict import Json, duration, size, stores_of
from standfast.ops.page.history import PageHistory
from standfast.store.timestamps import duration_text

RISK = 0.1  # this bound and the next are those of the alert StandfastRetentionRisk
RISK_RECORDS = 1_000
STEPS_SHOWN = 12  # of a series, at least: a minute


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


def snapshots_of(status: Json) -> Json:
    """Snapshots in a status; `storage` is empty without a policy of them, and where files are read."""
    known = status.get("counters", {}).get("snapshots", {})
    return {"storage": known.get("storage", ""), "stored": known.get("stored", ()), "errors": known.get("errors", ())}


def log_share(store: Json) -> tuple[int, bool]:
    """Percentage of the log between first offset and end that is applied; whether retention may overtake it."""
    span = store["end"] - store["begin"]
    applied = min(max(store["position"] - store["begin"], 0), max(span, 0))
    share = applied / span if span > 0 else 1.0
    # A log that still begins at 0 has deleted nothing yet.
    risk = store["begin"] > 0 and share < RISK and store["end"] - store["position"] > RISK_RECORDS
    return int(share * 100), risk


class Tile(NamedTuple):
    """One of the most important numbers; `chart`: its last five minutes, described by `about`."""

    name: str
    number: str
    detail: str
    chart: Sequence[float] = ()
    about: str = ""


def tiles(status: Json, history: PageHistory) -> list[Tile]:
    """The most important numbers."""
    tasks = status["tasks"]
    active = [task for task in tasks if task["role"] == "active"]
    whole = sum(task["state"] == "running" for task in active)
    standbys = [store for task, store in stores_of(status) if task["role"] == "standby"]
    left = sum(one["remaining"] for one in status["restores"])
    lag = max((store["lag"] for store in standbys), default=0)
    files = sum(max(store["sst_bytes"], 0) + max(store["memtable_bytes"], 0) for _, store in stores_of(status))
    rows = sum(max(store["keys_estimate"], 0) for _, store in stores_of(status))
    left_text = "records" if left else "nothing is being restored"
    lag_text = f"at most {count(lag)} records behind"
    changes = per_second(history.changes(status)) or "0/s"
    found = [
        Tile("active tasks", f"{whole} of {len(active)}", "whole"),
        Tile("left to restore", count(left), left_text, history.chart("left"), "records left to restore"),
        Tile("standby tasks", count(len(tasks) - len(active)), lag_text, history.chart("lag"), "records behind"),
        Tile("changes", changes, "written to changelogs", history.chart("changes"), "changes a second"),
        Tile("rows", count(rows), f"about, in {size(files)}"),
    ]
    acknowledged = status.get("counters", {}).get("ack_seconds")
    if acknowledged and acknowledged["count"]:
        waiting = sum(task.get("inflight_records", 0) for task in tasks)
        found.append(Tile("99 % of commits", percentile(acknowledged, 0.99), f"{count(waiting)} records in flight"))
    disk = status.get("disk")
    if disk and disk["total_bytes"]:
        share = disk["free_bytes"] * 100 // disk["total_bytes"]
        found.append(Tile("disk free", f"{share} %", f"{size(disk['free_bytes'])} of {size(disk['total_bytes'])}"))
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


def points(values: Sequence[float], width: int, height: int) -> str:
    """The points of an SVG line within a picture of this size; the newest value stands at the right end."""
    shown = values if len(values) > 1 else (*values, *values)  # a line needs two points
    # The picture's width is a minute at least, so that the first points are no full line, and five minutes at most.
    most, steps = max(*shown, 1), max(len(shown), STEPS_SHOWN) - 1
    return " ".join(
        f"{width - (len(shown) - 1 - number) * width / steps:.0f},{height - 1 - value * (height - 2) / most:.0f}"
        for number, value in enumerate(shown)
    )


def promotable(store: Json, rate: float) -> str:
    """The time that a take-over would spend on restoring."""
    if not store["lag"]:
        return "at once"
    return duration(store["lag"] / rate) if rate > 0 else "unknown"


def count(number: int) -> str:
    """`1,234,567`."""
    return f"{number:,}"


def per_second(rate: float) -> str:
    """`1,200/s`, to two digits, so that a steady rate does not change the page each second; empty below 0.1."""
    if rate < 0.1:
        return ""
    if rate < 10:
        return f"{rate:.1f}/s"
    unit = 10 ** (len(str(int(rate))) - 2)
    return f"{count(round(rate / unit) * unit)}/s"


def age(at_ms: int, now_ms: int) -> str:
    """`5 min ago`, coarse: a cell that no commit changes is sent again every few minutes only."""
    if at_ms <= 0:
        return "never"
    return ago(now_ms - at_ms)


def ago(passed_ms: int) -> str:
    """As `age`, of a time that has passed."""
    seconds = max(passed_ms, 0) // 1_000
    if seconds < 60:
        return "just now" if seconds < 10 else "under 1 min ago"
    if seconds < 3_600:
        minutes = seconds // 60
        return f"{minutes if minutes < 5 else minutes // 5 * 5} min ago"
    return f"{seconds // 3_600} h ago" if seconds < 172_800 else f"{seconds // 86_400} d ago"


def fact(name: str, value: Any) -> str:
    """A field of an event: `pause 36 min` for milliseconds of a duration, else its name and value."""
    if name.endswith("_ms") and not name.endswith("at_ms") and isinstance(value, int):
        return f"{name.removesuffix('_ms')} {duration_text(value)}"
    return f"{name} {value}"


def clock_text(at_ms: int | None) -> str:
    """UTC, as `2013-01-01 00:00:00`; empty for none."""
    if at_ms is None or at_ms < 0:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
