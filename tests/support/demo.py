"""A result of the demo, by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from standfast.ops.demo.board import DAY_MS
from standfast.ops.demo.check import compare_finals, compare_rows
from standfast.ops.demo.place import DemoPlace
from standfast.ops.demo.result import Json, judged


def good_result(spark_hint: str = "leave --no-spark out", **changes: Any) -> Json:
    """A run in which every row is equal, but for changes."""
    parts: Json = {
        "log": asdict(DemoPlace("embedded", "sqlite:////x/log.db")),
        "fed": {
            "data": "sample",
            "source": "x.csv",
            "records": 10,
            "out_of_order": 3,
            "grace_ms": 2 * DAY_MS,
            "retention_ms": 7 * DAY_MS,
            "guarantee": "exactly_once",
        },
        "joined": {"tasks": 4, "longest_pause_ms": 40},
        "takeover": {
            "tasks": 4,
            "committed": 4,
            "waiting": 3,
            "finals_before": 3,
            "to_decided_ms": 1_150,
            "to_running_ms": 1_200,
            "lacked": 2,
        },
        "returned": {"tasks": 4, "longest_pause_ms": 50},
        "board": {"flights": 10, "aircraft": 2, "retired": 1, "at": DAY_MS},
        "stores": {"aircraft": compare_rows("aircraft", {}, {}) | {"digest": "2d8-1f183f3607f5cef5-17495cf90ed"}},
        "finals": compare_finals([], {}) | {"records": 9, "expected": 9},
        "committed": 10,
        "verify": {"rows": 10, "unequal": 0},
        "cold_restore": {"records": 10, "duration_ms": 5, "digests": {}, "equal": True},
        "duration_ms": 5_000,
        "spark": None,
        "kept_in": None,
    }
    return judged(parts | changes, spark_hint)
