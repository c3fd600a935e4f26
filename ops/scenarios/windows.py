"""The scenario `windows`: which windows a record belongs to, when they close, and what comes out.

    where windows lie; hopping, sliding, sessions; grace; results on update and on close, with restarts between

Rules of this file: it plays `standfast.stream.windows` and counts over real window stores on the test driver; the
numbers expected stand in the calls of `stage.step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from standfast.ops.scenarios.stage import Stage
from standfast.store import serde
from standfast.store.results import Windowed
from standfast.store.specs import SessionStore, StoreSpec, WindowStore
from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver
from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE, EmitStrategy
from standfast.stream.windows import AnyWindows, HoppingWindows, SessionWindows, SlidingWindows, TumblingWindows

TOPIC = "clicks"
SIZE_MS = 90_000
STAMP_MS = 1_667_200_780_479


def play(stage: Stage) -> None:
    """Every part in turn."""
    _starts(stage)
    _hopping(stage)
    _sliding(stage)
    _sessions(stage)
    _grace(stage)
    _update_and_close(stage)


def counting(windows: AnyWindows, outputs: dict[str, EmitStrategy]) -> App:
    """An application that counts by key and window into each output topic; no cache, so every update is seen."""
    app = App("windows", stores=[_store(f"counts-{topic}", windows) for topic in outputs])
    clicks = app.stream(TOPIC).group_by_key()
    for topic, emit in outputs.items():
        clicks.window(windows).count(f"counts-{topic}", emit=emit).to(topic)
    return app


def came(driver: Driver, topic: str = "updates") -> list[dict[str, Any]]:
    """The results since the last look: key, window, and the count, None for a window that is gone."""
    found = []
    for record in driver.read(topic):
        assert isinstance(record.key, Windowed)
        found.append(result(record.key.key, record.key.start, record.key.end, record.value))
    return found


def result(key: str, start: int, end: int, count: int | None) -> dict[str, Any]:
    """One result as a JSON value."""
    return {"key": key, "start": start, "end": end, "count": count}


def _results(*given: tuple[str, int, int, int | None]) -> list[dict[str, Any]]:
    return [result(*one) for one in given]


def _store(name: str, windows: AnyWindows) -> StoreSpec:
    kept = windows.retention_safe_ms
    if isinstance(windows, SessionWindows):
        return SessionStore(name, serde.string, serde.int64, retention_ms=kept, caching=False)
    return WindowStore(
        name, serde.string, serde.int64, window_size_ms=windows.size_ms, retention_ms=kept, caching=False
    )


def _starts(stage: Stage) -> None:
    stage.part("Where a window lies: 90 seconds, aligned to 0, start included, end excluded")
    windows = TumblingWindows(SIZE_MS)
    start = 1_667_200_770_000
    for stamp, expected, why in (
        (STAMP_MS, start, "first start = max(0, time - size + advance) // advance * advance"),
        (start - 1, start - SIZE_MS, "one millisecond before the start: the window before"),
        (start, start, "exactly at the start"),
        (start + SIZE_MS - 1, start, "the last millisecond"),
        (start + SIZE_MS, start + SIZE_MS, "exactly at the end: the next window"),
        (0, 0, "no window begins before 0"),
    ):
        seen = _bounds(windows.windows_for(stamp))
        stage.step(f"record at {stamp}", seen, _bounds([(expected, expected + SIZE_MS)]), why)


def _hopping(stage: Stage) -> None:
    stage.part("Hopping windows of 10 that advance by 4")
    windows = HoppingWindows(10, 4)
    for stamp, expected, why in (
        (3, [(0, 10)], "0 <= 3 < 10; a window that began at -4 does not exist"),
        (9, [(0, 10), (4, 14), (8, 18)], "the last millisecond of 0..10"),
        (10, [(4, 14), (8, 18)], "exactly at the end of 0..10"),
        (12, [(4, 14), (8, 18), (12, 22)], "exactly at the start of 12..22"),
    ):
        stage.step(f"record at {stamp}", _bounds(windows.windows_for(stamp)), _bounds(expected), why)
    tumbling = HoppingWindows(SIZE_MS).windows_for(STAMP_MS)
    expected_bounds = _bounds([(1_667_200_770_000, 1_667_200_860_000)])
    stage.step(f"size {SIZE_MS}, no advance given", _bounds(tumbling), expected_bounds, "the advance is the size")


def _sliding(stage: Stage) -> None:
    stage.part("Sliding windows: records at most 10 apart share one; both ends included")
    with Driver(counting(SlidingWindows(10, grace_ms=50), {"updates": ON_WINDOW_UPDATE})) as driver:
        for stamp, expected, why in (
            (20, _results(("a", 10, 20, 1)), "the window left of it"),
            (25, _results(("a", 15, 25, 2), ("a", 21, 31, 1)), "left of it; and right of 20, which now holds a record"),
            (31, _results(("a", 21, 31, 2), ("a", 26, 36, 1)), "31 - 21 is 10: still in; and right of 25"),
            (
                24,
                _results(("a", 14, 24, 2), ("a", 15, 25, 3), ("a", 21, 31, 3), ("a", 25, 35, 2)),
                "out of order: its own left window, those that hold it, and right of it 25 and 31",
            ),
        ):
            driver.pipe(TOPIC, "a", "x", stamp)
            stage.step(f"record a at {stamp}", came(driver), expected, why)


def _sessions(stage: Stage) -> None:
    stage.part("Sessions: no pause longer than 10; results of a removed session are taken back")
    with Driver(counting(SessionWindows(10, grace_ms=50), {"updates": ON_WINDOW_UPDATE})) as driver:
        for stamp, expected, why in (
            (0, _results(("a", 0, 0, 1)), "a session of its own"),
            (10, _results(("a", 0, 0, None), ("a", 0, 10, 2)), "exactly the gap: the same session"),
            (21, _results(("a", 21, 21, 1)), "one more than the gap: a new one"),
            (
                15,
                _results(("a", 0, 10, None), ("a", 21, 21, None), ("a", 0, 21, 4)),
                "out of order, within the gap of both: it joins them",
            ),
        ):
            driver.pipe(TOPIC, "a", "x", stamp)
            stage.step(f"record a at {stamp}", came(driver), expected, why)


def _grace(stage: Stage) -> None:
    stage.part("Grace: 0..10 takes records while its end > observed - 5; observed is the largest time seen, of any key")
    for observed, expected, dropped, why in (
        (14, _results(("a", 0, 10, 1)), 0, "one before: 10 > 9"),
        (15, [], 1, "exactly at: 10 > 10 is false, so it is dropped and counted"),
        (16, [], 1, "one after"),
    ):
        with Driver(counting(TumblingWindows(10, grace_ms=5), {"updates": ON_WINDOW_UPDATE})) as driver:
            driver.pipe(TOPIC, "b", "x", observed)
            driver.read("updates")
            driver.pipe(TOPIC, "a", "x", 9)
            seen = {"updated": came(driver), "dropped": driver.dropped}
            stage.step(f"b at {observed}, then a at 9", seen, {"updated": expected, "dropped": dropped}, why)
    with Driver(counting(HoppingWindows(10, 2), {"updates": ON_WINDOW_UPDATE})) as driver:
        driver.pipe(TOPIC, "b", "x", 15)
        driver.read("updates")
        driver.pipe(TOPIC, "a", "x", 9)
        seen = {"updated": came(driver), "dropped": driver.dropped}
        wanted = {"updated": _results(("a", 6, 16, 1), ("a", 8, 18, 1)), "dropped": 3}
        why = "the drop is per window: 0..10, 2..12 and 4..14 are closed, two are not"
        stage.step("size 10, advance 2, no grace: b at 15, then a at 9", seen, wanted, why)


def _update_and_close(stage: Stage) -> None:
    stage.part("Results on update and on close: windows of 10, grace 5, with restarts between")
    outputs = {"updates": ON_WINDOW_UPDATE, "finals": ON_WINDOW_CLOSE}
    with Driver(counting(TumblingWindows(10, grace_ms=5), outputs)) as driver:

        def see(given: str, updates: Sequence[Any], finals: Sequence[Any], why: str) -> None:
            seen = {topic: came(driver, topic) for topic in outputs}
            expected = {"updates": _results(*updates), "finals": _results(*finals)}
            stage.step(given, {**seen, "dropped": driver.dropped}, {**expected, "dropped": dropped}, why)

        def pipe(stamp: int, updates: Sequence[Any], finals: Sequence[Any], why: str) -> None:
            driver.pipe(TOPIC, "a", "x", stamp)
            see(f"record a at {stamp}", updates, finals, why)

        dropped = 0
        pipe(1, [("a", 0, 10, 1)], [], "every update is a result; a final one only when its window closes")
        pipe(4, [("a", 0, 10, 2)], [], "the same window")
        driver.restart()
        see("restart", [], [], "nothing is told again")
        pipe(9, [("a", 0, 10, 3)], [], "counts go on where they stood")
        pipe(14, [("a", 10, 20, 1)], [], "observed 14: 0..10 is still open")
        pipe(15, [("a", 10, 20, 2)], [("a", 0, 10, 3)], "observed 15: 0..10 closes, once")
        driver.restart()
        see("restart", [], [], "a closed window is not told again")
        dropped = 2
        pipe(8, [], [], "late: 0..10 is final; each of the two counts drops it")
        pipe(25, [("a", 20, 30, 1)], [("a", 10, 20, 2)], "observed 25: 10..20 closes")


def _bounds(windows: Iterable[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"start": start, "end": end} for start, end in windows]
