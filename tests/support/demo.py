"""A result of the demo, by hand."""

from __future__ import annotations

from standfast.ops.demo.board import DAY_MS, PARTITIONS, BoardSettings
from standfast.ops.demo.compare import BoardComparison, FinalsComparison
from standfast.ops.demo.result import (
    Board,
    ColdRestore,
    DemoResult,
    Fed,
    LogUsed,
    Metrics,
    Offsets,
    Returned,
    ScaleOut,
    TakeOver,
    Verified,
)

SETTINGS = BoardSettings(grace_ms=2 * DAY_MS, retention_ms=7 * DAY_MS)


def good_result() -> DemoResult:
    """A run in which every row is equal."""
    return DemoResult(
        fed=Fed("sample", "x.csv", 12, 1, 1, 10, 3, PARTITIONS, 4, SETTINGS.grace_ms, SETTINGS.retention_ms),
        scale_out=ScaleOut(2, 1_300, 40),
        takeover=TakeOver(3, 5, 4, 3, 1_200, 1_150, 1_200, 1_180, 8, 1, 2, 30),
        processed={"a": 5, "b": 4, "c": 2},
        board=Board(0, 0, 4, 3, 5, 6),
        returned=Returned(5, 2, equal=True),
        comparison=BoardComparison((), 10, 10, 5, 5, 2),
        finals=FinalsComparison(9, 9, 0, 0, 0, 0, 0, ()),
        offsets=Offsets({0: 10}, {0: 10}),
        verified=Verified(8, 10, 0, 0),
        cold=ColdRestore(10, 5, equal=True),
        metrics=Metrics("http://127.0.0.1:1", 100),
        duration_ms=5_000,
        kept_in=None,
        log=LogUsed("embedded", "sqlite:////x/log.db"),
        spark_left_out="leave --no-spark out",
    )
