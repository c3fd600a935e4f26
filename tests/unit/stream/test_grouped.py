"""Requirements of a windowed or plain aggregation on its store, and refusals at its declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from standfast.replication.topics.changelog import changelog_policy
from standfast.store import serde
from standfast.store.errors import BadConfig
from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, WindowStore
from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver
from standfast.stream.dsl.fluent import Stream, Table
from standfast.stream.dsl.grouped import WindowedStream
from standfast.stream.dsl.windowed_serde import session_windowed, windowed
from standfast.stream.emit import ON_WINDOW_CLOSE
from standfast.stream.windows import (
    TIME_MAX,
    AnyWindows,
    HoppingWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    UnlimitedWindows,
)

TEXT = serde.string
TEN = TumblingWindows(10, 5)


def window_store(size_ms: int = 10, retention_ms: int = 15, **settings: Any) -> WindowStore:
    return WindowStore("agg", TEXT, serde.json, window_size_ms=size_ms, retention_ms=retention_ms, **settings)


def session_store(retention_ms: int = 16) -> SessionStore:
    return SessionStore("agg", TEXT, serde.json, retention_ms=retention_ms)


def stream_with(*stores: StoreSpec) -> Stream:
    return App("agg-app", stores=stores).stream("in", key=TEXT, value=serde.json)


def windowed_with(windows: AnyWindows, *stores: StoreSpec) -> WindowedStream:
    return stream_with(*stores).group_by_key().window(windows)


FITTING = [
    (TEN, window_store(10, 15)),
    (HoppingWindows(10, 3, 5), window_store(10, 15)),
    (SlidingWindows(10, 5), window_store(10, 27)),
    (SessionWindows(10, 5), session_store(16)),
    (UnlimitedWindows(), window_store(TIME_MAX, TIME_MAX)),
    (UnlimitedWindows(5), window_store(TIME_MAX - 5, TIME_MAX)),
]


@pytest.mark.parametrize(("windows", "store"), FITTING)
def test_store_with_exactly_the_retention_that_is_needed_fits(windows: AnyWindows, store: StoreSpec) -> None:
    table = windowed_with(windows, store).count("agg")
    sessions = isinstance(store, SessionStore)
    assert table.key == (session_windowed(TEXT) if sessions else windowed(TEXT, store.window_size_ms))  # type: ignore[attr-defined]
    assert (table.value, table.store) == (serde.json, None)


@pytest.mark.parametrize(("windows", "store"), FITTING[:4])
def test_retention_one_below_is_refused_with_the_one_to_declare(windows: AnyWindows, store: Any) -> None:
    needed = store.retention_ms
    settings = {} if isinstance(store, SessionStore) else {"window_size_ms": store.window_size_ms}
    less = type(store)("agg", TEXT, serde.json, retention_ms=needed - 1, **settings)
    with pytest.raises(
        BadConfig, match=rf"retention_ms {needed - 1} would hide .*: declare retention_ms={needed} or more"
    ):
        windowed_with(windows, less).count("agg")


@pytest.mark.parametrize(
    ("windows", "store", "message"),
    [
        (TEN, window_store(11, 100), "window_size_ms is 11 but the windows are 10 ms long: declare window_size_ms=10"),
        (TEN, window_store(retain_duplicates=True), "retain_duplicates keeps every put"),
        (TEN, window_store(timestamped=False), "keeps no timestamps"),
        (TEN, session_store(), "is a SessionStore, it needs a WindowStore"),
        (TEN, KeyValueStore("agg", TEXT, TEXT), "is a KeyValueStore, it needs a WindowStore"),
        (SessionWindows(10, 5), window_store(), "is a WindowStore, it needs a SessionStore"),
        (UnlimitedWindows(), window_store(), "declare window_size_ms=9223372036854775807"),
        (TEN, KeyValueStore("other", TEXT, TEXT), "'agg' is not declared .*other"),
    ],
)
def test_store_that_does_not_fit_is_refused(windows: AnyWindows, store: StoreSpec, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        windowed_with(windows, store).count("agg")


def test_every_problem_is_told_at_once() -> None:
    store = window_store(11, 12, retain_duplicates=True, timestamped=False)
    with pytest.raises(BadConfig) as caught:
        windowed_with(TEN, store).count("agg", emit="now")  # type: ignore[arg-type]
    for part in ("window_size_ms", "retention_ms", "retain_duplicates", "timestamps", "emit must be"):
        assert part in str(caught.value)


def test_changelog_of_an_unlimited_window_is_kept_as_long_as_a_time_can_say() -> None:
    assert changelog_policy(window_store(TIME_MAX, TIME_MAX)).retention_ms == TIME_MAX


def test_plain_aggregation_needs_a_key_value_store_with_timestamps() -> None:
    for store, message in (
        (window_store(), "needs a KeyValueStore"),
        (KeyValueStore("agg", TEXT, TEXT, timestamped=False), "keeps no timestamps"),
        (KeyValueStore("agg", TEXT, TEXT, source_topic="in"), "holds a source topic"),
    ):
        with pytest.raises(BadConfig, match=message):
            stream_with(store).group_by_key().count("agg")


def test_results_on_close_need_windows_that_close() -> None:
    with pytest.raises(BadConfig, match="needs windows"):
        stream_with(KeyValueStore("agg", TEXT, TEXT)).group_by_key().count("agg", emit=ON_WINDOW_CLOSE)
    with pytest.raises(BadConfig, match="window without end"):
        windowed_with(UnlimitedWindows(), window_store(TIME_MAX, TIME_MAX)).count("agg", emit=ON_WINDOW_CLOSE)


def test_sessions_need_a_merge_and_nothing_else_takes_one() -> None:
    def add(key: Any, value: Any, aggregate: Any) -> Any:
        return aggregate

    with pytest.raises(BadConfig, match="sessions need merge"):
        windowed_with(SessionWindows(10, 5), session_store()).aggregate(list, add, "agg")
    with pytest.raises(BadConfig, match="leave merge out"):
        windowed_with(TEN, window_store()).aggregate(list, add, "agg", merge=add)


@pytest.mark.parametrize(
    "declare",
    [
        lambda stream: stream.group_by_key().window(10),
        lambda stream: stream.group_by_key().reduce(None, "agg"),
        lambda stream: stream.group_by_key().aggregate([], print, "agg"),
        lambda stream: stream.group_by_key().aggregate(list, None, "agg"),
        lambda stream: stream.group_by_key().window(TEN).reduce("agg", "agg"),
        lambda stream: stream.group_by_key().window(TEN).aggregate(list, "agg", "agg"),
    ],
)
def test_what_is_no_function_and_no_windows_is_refused(declare: Callable[[Stream], Table]) -> None:
    with pytest.raises(BadConfig):
        declare(stream_with(window_store()))


def test_each_aggregation_has_a_store_of_its_own() -> None:
    stream = stream_with(KeyValueStore("agg", TEXT, serde.int64))
    stream.group_by_key().count("agg")
    with pytest.raises(BadConfig, match="'agg-count' writes it already"):
        stream.group_by_key().reduce(lambda one, other: one, "agg")


def test_refused_aggregation_adds_nothing_to_the_topology() -> None:
    stream = stream_with(window_store(11, 100)).map(lambda key, value: (value, key))
    before = dict(stream.builder.nodes)
    with pytest.raises(BadConfig):
        stream.group_by_key().window(TEN).count("agg")
    assert (stream.builder.nodes, stream.builder.internal) == (before, {})


def test_windowed_results_of_changed_keys_go_through_a_topic_and_out_by_their_plain_key() -> None:
    app = App("agg-app", stores=[window_store(caching=False)])
    app.stream("in", key=TEXT, value=serde.json).group_by(lambda key, value: value, key=TEXT).window(TEN).count(
        "agg"
    ).to("out")
    assert list(app.builder.internal) == ["agg-app-agg-repartition"]
    with Driver(app, partitions=4) as driver:
        for number in range(8):
            driver.pipe("in", f"k{number}", f"v{number % 2}", number)
        found = driver.read("out")
        assert sorted((one.key.key, one.value) for one in found) == [
            (f"v{n % 2}", n // 2 + 1) for n in (0, 2, 4, 6, 1, 3, 5, 7)
        ]
