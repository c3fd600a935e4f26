"""Values at the edges as in Kafka Streams: ends beyond 2**63-1, a history of 0, sessions over a range of keys."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

import standfast as sf
from standfast.ops.config.store_argument import parse_store, store_spec
from standfast.ops.shared.control_stores import shape_of, spec_of
from standfast.replication.log import Record, TopicPolicy
from standfast.restore.fold import fold_for
from standfast.restore.spark_table.log import split_keys
from standfast.store import session_key, window_key
from standfast.store.results import Windowed
from standfast.store.types.segments import versioned_segment_interval_ms
from standfast.store.window_key import TIME_MAX
from standfast.stream.dsl.windowed_serde import windowed
from support.aggregates import driven, drops, results
from support.stores import TEXT, Open, at, keyvalue, session

HOUR_MS = 3_600_000
LAST_MS = TIME_MAX - 5  # an hour from here on would end beyond the largest time


# -- ends -------------------------------------------------------------------------------------------------------------


def test_store_gives_the_largest_time_for_an_end_beyond_it(open_task: Open) -> None:
    spec = sf.WindowStore("win", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=2 * HOUR_MS)
    store = open_task(spec).store("win")
    store.put("a", "1", TIME_MAX - HOUR_MS, 1)
    store.put("a", "2", LAST_MS, 1)
    store.put("a", "3", TIME_MAX, 1)
    ends = [window.end for window, _ in store.all()]
    assert ends == [TIME_MAX] * 3
    assert list(store.fetch_range("a", LAST_MS, TIME_MAX)) == [(LAST_MS, "2"), (TIME_MAX, "3")]


@pytest.mark.parametrize(
    "windows",
    [
        sf.TumblingWindows(HOUR_MS),
        sf.TumblingWindows(TIME_MAX, TIME_MAX),
        sf.HoppingWindows(HOUR_MS, HOUR_MS // 4),
        sf.SlidingWindows(HOUR_MS),
        sf.UnlimitedWindows(7),
    ],
    ids=lambda windows: type(windows).__name__,
)
def test_windows_end_at_the_largest_time_and_take_its_records(windows: Any) -> None:
    for timestamp in (LAST_MS, TIME_MAX):
        found = windows.windows_for(timestamp)
        assert found
        assert all(0 <= window.start <= window.end <= TIME_MAX for window in found)
        assert any(window.start <= timestamp <= window.end for window in found)
        open_ones = [window for window in found if not windows.is_closed(window, TIME_MAX)]
        assert open_ones, "a record at the end of time would be late for every window"
    assert windows.retention_min_ms <= windows.retention_safe_ms <= TIME_MAX


def test_bounds_of_sessions_stay_within_the_largest_time() -> None:
    assert sf.SessionWindows(HOUR_MS).search_bounds(LAST_MS) == (LAST_MS - HOUR_MS, TIME_MAX)
    assert sf.SlidingWindows(HOUR_MS).search_starts(TIME_MAX) == (TIME_MAX - 2 * HOUR_MS, TIME_MAX)


def test_windowed_serde_reads_the_end_that_was_written() -> None:
    serde = windowed(TEXT, HOUR_MS)
    for start in (0, LAST_MS, TIME_MAX):
        key = Windowed("a", start, window_key.end_of(start, HOUR_MS))
        assert serde.deserialize(serde.serialize(key)) == key


@pytest.mark.parametrize("windows", [sf.HoppingWindows(2**63 - 10, 2**61), sf.SlidingWindows(2**63 - 10)])
@pytest.mark.parametrize("caching", [True, False])
def test_results_of_an_aggregation_end_at_the_largest_time(windows: Any, caching: bool) -> None:
    """Times in a log end at 2**62-1; long windows that begin there end later."""
    with driven(windows, caching=caching) as driver:
        for stamp in (1, 2**62 - 2, 2**62 - 1):
            driver.pipe("in", "a", "x", stamp)
        driver.commit()
        found = results(driver)
        assert max(one.end or 0 for one in found) == TIME_MAX
        assert all(one.end == window_key.end_of(one.start or 0, windows.size_ms) for one in found)
        assert drops(driver) == {}


def test_spark_and_json_tell_the_same_end() -> None:
    import pyarrow as pa

    spec = sf.WindowStore("win", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=HOUR_MS)
    keys = pa.array([window_key.pack(b"a", 0), window_key.pack(b"a", LAST_MS)], pa.binary())
    assert split_keys(spec, keys, "t")["window_end"] == [HOUR_MS, TIME_MAX]


# -- a history of 0 ---------------------------------------------------------------------------------------------------


def test_history_of_0_tells_the_latest_version_only_and_refuses_what_is_older(open_task: Open, tmp_path: Path) -> None:
    """As RocksDBVersionedStore with a history retention of 0: 2 s segments, puts below the stream time refused."""
    assert versioned_segment_interval_ms(0) == 2_000
    store = open_task(spec_of_0()).store("ver")
    assert store.put("a", "1", 10) == sf.VALID_TO_UNDEFINED
    assert store.put("a", "2", 20) == sf.VALID_TO_UNDEFINED
    assert store.put("a", "0", 19) == sf.PUT_NOT_VALID
    assert store.put("b", "0", 19) == sf.PUT_NOT_VALID  # of another key, too: stream time is the store's
    assert store.get("b") is None
    assert store.rows.counters.late_dropped == 2
    assert store.get("a") == sf.VersionedRecord("2", 20, sf.VALID_TO_UNDEFINED)
    assert store.get("a", as_of=19) is None
    assert store.get("a", as_of=20) == store.get("a", as_of=1_000) == store.get("a")
    assert store.put("b", "1", 30) == sf.VALID_TO_UNDEFINED
    assert store.get("a", as_of=25) == store.get("a")  # the latest is returned at any time at which it is valid
    assert store.get("a", as_of=19) is None
    assert store.delete("a", 30) == sf.VersionedRecord("2", 20, sf.VALID_TO_UNDEFINED)
    assert store.get("a") is None
    assert list(store.range("b", 0, 100)) == [store.get("b")]


def spec_of_0() -> sf.VersionedStore:
    return sf.VersionedStore("ver", TEXT, TEXT, history_retention_ms=0)


def test_restore_and_fold_of_a_history_of_0_hold_what_the_live_store_holds(open_task: Open, tmp_path: Path) -> None:
    rng, live = Random(1), open_task(spec_of_0(), directory=tmp_path / "live")
    records: list[Record] = []
    store = live.store("ver")
    for number in range(300):
        key, stamp = rng.choice("abc"), number // 3 + rng.randrange(-2, 4)
        value = None if rng.random() < 0.2 else f"{number}"
        if stamp >= 0 and store.put(key, value, stamp) != sf.PUT_NOT_VALID:
            records.append(Record(len(records), stamp, key.encode(), None if value is None else value.encode()))
    live.commit(at(len(records), "ver"))
    again = open_task(spec_of_0(), directory=tmp_path / "again")
    again.apply({"ver": records}, at(len(records), "ver"))
    fold = fold_for("versioned", retention_ms=0)
    fold.add(records)
    rows = sorted(store.logical_rows())
    assert sorted(again.store("ver").logical_rows()) == rows == sorted(fold.rows())
    assert len(rows) <= 3


def test_every_way_to_declare_a_versioned_store_takes_0_and_refuses_less() -> None:
    spec = spec_of_0()
    assert spec_of(json.loads(json.dumps(shape_of(spec)))).history_retention_ms == 0  # type: ignore[attr-defined]
    assert store_spec(parse_store("ver:versioned:history=0ms"), TopicPolicy()).history_retention_ms == 0  # type: ignore[attr-defined]
    with pytest.raises(sf.BadConfig, match="history_retention_ms must be a whole number of milliseconds from 0"):
        sf.VersionedStore("ver", TEXT, TEXT, history_retention_ms=-1)
    with pytest.raises(sf.InvalidRequest, match="0 ms or more"):
        versioned_segment_interval_ms(-1)


# -- sessions of a range of keys --------------------------------------------------------------------------------------

KEYS = ["", "a", "a\x00", "aa", "ab", "b", "b\xff", "c"]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
def test_sessions_of_a_range_of_keys_are_those_that_a_model_finds(open_task: Open, engine: str, caching: bool) -> None:
    """Some are committed, some buffered, some removed, some of expired segments."""
    rng = Random(7)
    task = open_task(session(engine=engine, caching=caching))
    store = task.store("ses")
    model: dict[tuple[bytes, int, int], str] = {}
    for number in range(400):
        start = rng.randrange(0, 400_000)
        end = start + rng.choice((0, 1, 500, 60_000))
        key = rng.choice(KEYS)
        value = None if rng.random() < 0.2 else f"{number}"
        store.put(key, start, end, value, 1)
        model.pop((key.encode(), start, end), None)
        if value is not None:
            model[key.encode(), start, end] = value
        if number % 90 == 0:
            task.commit(at(number, "ses"))
    visible = store.rows.observed_ms - 120_000 + 1
    for _ in range(200):
        low, high = (rng.choice([None, *KEYS]) for _ in range(2))
        earliest, latest = rng.choice((-1, 0, rng.randrange(500_000))), rng.choice((TIME_MAX, rng.randrange(500_000)))
        expected = [
            (Windowed(key.decode(), start, end), value)
            for (key, start, end), value in sorted(model.items(), key=lambda one: session_key.pack(*one[0]))
            if (low is None or key >= low.encode())
            and (high is None or key <= high.encode())
            and end >= max(earliest, visible)
            and start <= latest
        ]
        found = list(store.find_sessions_key_range(low, high, earliest, latest))
        assert found == expected
        back = list(store.find_sessions_key_range(low, high, earliest, latest, reverse=True))
        assert back == expected[::-1]


def test_plain_keys_are_no_part_of_it(open_task: Open) -> None:
    task = open_task(session(), keyvalue())
    task.store("kv").put("a", "1", 1)
    assert list(task.store("ses").find_sessions_key_range(None, None, 0, TIME_MAX)) == []
