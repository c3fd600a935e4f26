"""The verdict on a status document: one word and the reason, the first line of command line and page.

    status document (+ a sidecar's additions) ──> Verdict: READY, RESTORING, FAILED, ...

Rules of this file: pure; it decides and formats, and knows neither page nor terminal. Sizes in bytes, durations in
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from standfast.store.timestamps import duration_text, seconds_text

Json = Mapping[str, Any]
Level = Literal["ok", "busy", "warn", "bad"]
LAG_HIGH = 10_000  # the bound of the alert StandfastStandbyLagHigh
REASONED = frozenset({"NOT READY", "DEGRADED"})  # words whose text is the first reasons; commands list all of them
DISK_LOW = 0.1  # the bound of the alert StandfastDiskSpaceLow


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first line of the page."""

    word: str
    level: Level
    text: str = ""


def verdict(status: Json) -> Verdict:
    """The verdict; the worst condition comes first."""
    tasks = status["tasks"]
    failed = [task["task"] for task in tasks if task["state"] == "failed"]
    active = [task for task in tasks if task["role"] == "active"]
    whole = sum(task["state"] == "running" for task in active)
    if not status.get("live", True):
        return Verdict("DOWN", "bad", "the instance is not running; these values come from its files")
    if status.get("draining") or status.get("sidecar", {}).get("draining"):
        return Verdict("DRAINING", "busy", f"{len(tasks)} tasks to close")
    # Before readiness: a sidecar without tasks, because its application fell silent, must not be READY.
    idle = status.get("sidecar", {}).get("idle")
    if idle:
        return Verdict("IDLE", "warn", idle)
    if failed:
        return Verdict("FAILED", "bad", _some("task", failed))
    if whole < len(active):
        return Verdict("RESTORING", "busy", f"{whole} of {len(active)} tasks whole{_progress(status)}")
    if not status["ready"]:
        # The log's error first: the tasks that wait for it are only its consequence.
        if status.get("log_error"):
            return Verdict("NOT READY", "bad", status["log_error"])
        return Verdict("NOT READY", "bad", "; ".join(status["missing"][:3]) or "see /readyz?verbose")
    why = list(degraded(status))
    if why:
        return Verdict("DEGRADED", "warn", "; ".join(why[:3]))
    return Verdict("READY", "ok", f"{len(active)} active, {len(tasks) - len(active)} standby" if tasks else "no tasks")


def degraded(status: Json) -> Iterable[str]:
    """Each condition that is worth a look, ready or not."""
    yield from status.get("health", {}).get("degraded", ())
    yield from (one["error"] for one in status.get("worker_processes", ()) if one["error"])
    if status.get("paused"):
        yield "the application is paused: nothing is processed until resume()"
    if status.get("standbys_missing"):
        yield f"no live instance can hold {status['standbys_missing']} standbys"
    placement = status.get("placement")
    if placement and placement["error"]:
        yield f"placement: {placement['error']}"
    elif placement and placement["slots_missing"]:
        yield f"WAITING_FOR_SLOTS: {placement['slots_missing']} more are needed"
    # The lock's holder explains the log's error, so only one of the two is named.
    lock = status.get("log_lock")
    if lock:
        yield f"process {lock['pid']} has kept all others from writing to the log for {duration_text(lock['held_ms'])}"
    elif status.get("log_error"):
        yield f"the log: {status['log_error']}"
    disk = status.get("disk")
    if disk and disk.get("no_room"):
        yield disk["no_room"]
    elif disk and disk.get("full"):
        yield f"writes are refused: {disk['full']}"
    elif disk and disk["free_bytes"] < max(disk["total_bytes"] * DISK_LOW, disk.get("floor_bytes", 0)):
        yield f"{size(disk['free_bytes'])} free on the disk"
    far = [store_key(task, store) for task, store in stores_of(status) if task["role"] == "standby" and _far(store)]
    if far:
        yield _some("standby", far) + " far behind"


def _far(store: Json) -> bool:
    # A paused standby waits for the active's commit, which is as it should be.
    return bool(store["lag"] > LAG_HIGH and not store.get("paused"))


def _progress(status: Json) -> str:
    restores = status["restores"]
    # Over all restores by records, since tasks differ in size by orders of magnitude.
    total = sum(max(one["end"] - one["start"], 0) for one in restores)
    if not total:
        return ""
    done = sum(max(min(one["position"], one["end"]) - one["start"], 0) for one in restores)
    left = [one["seconds_left"] for one in restores if one["remaining"]]
    eta = f", {duration(max(left))} left" if left and None not in left else ""
    return f", {done * 100 // total} %{eta}"


def stores_of(status: Json) -> Iterable[tuple[Json, Json]]:
    """(task, store) of each store of each task."""
    for task in status["tasks"]:
        for store in task["stores"]:
            yield task, store


def store_key(task: Json, store: Json) -> str:
    """`0_3/aircraft`."""
    return f"{task['task']}/{store['store']}"


def size(number: int) -> str:
    """`1.5 GiB`."""
    if number < 0:
        return "unknown"
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(seconds: float | None) -> str:
    """`38 s`, `4 min`, `2.0 h`, `7 d`."""
    return "unknown" if seconds is None else seconds_text(seconds)


def _some(what: str, names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{what}{'s' if len(names) > 1 else ''} {shown}"
