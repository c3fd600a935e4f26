"""A result of the demo, by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from standfast.ops.demo.board import DAY_MS, PARTITIONS
from standfast.ops.demo.compare import compare_finals, differences
from standfast.ops.demo.result import Json, LogUsed, judged


def comparison(counted: int, windowed: int, *, exact: bool = True) -> Json:
    """A comparison of 10 flights, 5 of them in windows."""
    found: Json = {
        "stores": {},
        "flights_counted": counted,
        "flights_expected": 10,
        "windowed_flights_counted": windowed,
        "windowed_flights_expected": 5,
        "aircraft_retired": 2,
        "exact": exact,
    }
    return found | {"differences": differences(found)}


def offsets(committed: int, expected: int) -> Json:
    """Offsets of one partition."""
    return {"committed": {0: committed}, "expected": {0: expected}, "equal": committed == expected}


def good_result(spark_hint: str = "leave --no-spark out", **changes: Any) -> Json:
    """A run in which every row is equal, but for changes."""
    parts: Json = {
        "fed": {
            "data": "sample",
            "source": "x.csv",
            "rows": 12,
            "cancelled": 1,
            "without_aircraft": 1,
            "records": 10,
            "out_of_order": 3,
            "partitions": PARTITIONS,
            "lead_max": 4,
            "grace_ms": 2 * DAY_MS,
            "retention_ms": 7 * DAY_MS,
            "guarantee": "exactly_once",
        },
        "scale_out": {"tasks": 2, "took_ms": 1_300, "longest_pause_ms": 40},
        "takeover": {
            "tasks": 3,
            "processed": 5,
            "committed": 4,
            "waiting": 3,
            "lease_ms": 1_200,
            "to_restoring_ms": 1_150,
            "to_running_ms": 1_200,
            "to_first_record_ms": 1_180,
            "standby_replayed": 8,
            "tail_replayed": 1,
            "gate_waits": 2,
            "gate_wait_ms": 30,
        },
        "processed": {"a": 5, "b": 4, "c": 2},
        "board": board(0),
        "returned": {"standby_replayed": 5, "tasks": 2, "equal": True},
        "comparison": comparison(10, 5),
        "finals": compare_finals([], {}) | {"records": 9, "expected": 9},
        "offsets": offsets(10, 10),
        "verify": {"stores": 8, "rows": 10, "mismatches": 0, "unequal": 0},
        "cold_restore": {"records": 10, "duration_ms": 5, "equal": True, "records_per_s": 2_000},
        "digests": {},
        "metrics": {"address": "http://127.0.0.1:1", "samples": 100},
        "duration_ms": 5_000,
        "kept_in": None,
        "spark": None,
        "log": asdict(LogUsed("embedded", "sqlite:////x/log.db")),
    }
    return judged(parts | changes, spark_hint)


def board(late: int) -> Json:
    """Effects of windows, of which so many refused an update."""
    return {
        "late_windows": late,
        "late_dropped": 0,
        "segments_expired": 4,
        "finals_before": 3,
        "live_records": 5,
        "handed_over": 6,
    }
