"""Count, reduce and aggregate without windows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.store import serde
from standfast.store.errors import InvalidRequest
from standfast.store.specs import KeyValueStore
from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver
from standfast.stream.dsl.fluent import Table
from standfast.stream.dsl.grouped import GroupedStream
from standfast.stream.emit import EmitStrategy
from support.aggregates import STORE, Result, counted, driven, drops, listed, results


def joined(grouped: GroupedStream, emit: EmitStrategy) -> Table:
    return grouped.reduce(lambda aggregate, value: f"{aggregate}+{value}", STORE)


def keyed(key: Any, value: Any, old: Any, timestamp: int) -> Result:
    return Result(key, None, None, value, old, timestamp)


def test_each_update_is_given_at_once_with_the_value_before() -> None:
    with driven(None, counted, caching=False) as driver:
        for stamp in (5, 6):
            driver.pipe("in", "a", "x", stamp)
        driver.pipe("in", "b", "x", 7)
        assert results(driver) == [keyed("a", 1, None, 5), keyed("a", 2, 1, 6), keyed("b", 1, None, 7)]
        driver.commit()
        assert results(driver) == []


def test_timestamp_of_a_result_is_the_largest_of_its_inputs() -> None:
    with driven(None, counted, caching=False) as driver:
        for stamp in (5, 9, 7, 10):
            driver.pipe("in", "a", "x", stamp)
        assert [one.timestamp for one in results(driver)] == [5, 9, 9, 10]
        assert driver.store(STORE).get_with_timestamp("a") == (4, 10)


def test_cached_updates_come_with_the_flush_once_per_key_by_last_update() -> None:
    with driven(None, counted, caching=True) as driver:
        for key, stamp in (("a", 1), ("b", 2), ("c", 3), ("a", 4)):
            driver.pipe("in", key, "x", stamp)
        assert results(driver) == []
        driver.commit()
        assert results(driver) == [keyed("b", 1, None, 2), keyed("c", 1, None, 3), keyed("a", 2, None, 4)]
        driver.pipe("in", "a", "x", 3)
        driver.pipe("in", "a", "x", 5)
        driver.commit()
        assert results(driver) == [keyed("a", 4, 2, 5)]
        driver.commit()
        assert results(driver) == []


def test_first_value_is_the_aggregate_of_a_reduce() -> None:
    with driven(None, joined, caching=False) as driver:
        for value in ("x", "y", "z"):
            driver.pipe("in", "a", value, 1)
        assert [one.value for one in results(driver)] == ["x", "x+y", "x+y+z"]


@pytest.mark.parametrize("build", [counted, listed, joined])
def test_record_without_key_or_value_is_skipped_and_counted(build: Any) -> None:
    with driven(None, build, caching=False) as driver:
        driver.pipe("in", None, "x", 1)
        driver.pipe("in", "a", None, 2)
        driver.pipe("in", None, None, 2)
        assert results(driver) == []
        assert drops(driver) == {"null_key": 2, "null_value": 1}
        assert driver.store(STORE).get("a") is None


def test_none_removes_the_key_and_the_next_record_begins_anew() -> None:
    with driven(None, listed, caching=False) as driver:
        for value, stamp in (("x", 9), ("none", 3), ("y", 2)):
            driver.pipe("in", "a", value, stamp)
        assert results(driver) == [
            keyed("a", ["x"], None, 9),
            keyed("a", None, ["x"], 9),
            keyed("a", ["y"], None, 2),
        ]


def test_removal_that_a_cache_held_back_has_the_time_of_the_record_that_removed() -> None:
    with driven(None, listed, caching=True) as driver:
        driver.pipe("in", "a", "x", 10)
        driver.commit()
        driver.pipe("in", "a", "none", 3)
        driver.commit()
        assert results(driver) == [keyed("a", ["x"], None, 10), keyed("a", None, ["x"], 3)]


def test_key_made_and_removed_between_two_flushes_gives_nothing() -> None:
    with driven(None, listed, caching=True) as driver:
        driver.pipe("in", "a", "x", 1)
        driver.pipe("in", "a", "none", 2)
        driver.commit()
        assert results(driver) == []
        driver.pipe("in", "a", "x", 3)
        driver.commit()
        driver.pipe("in", "a", "none", 4)
        driver.commit()
        assert results(driver) == [keyed("a", ["x"], None, 3), keyed("a", None, ["x"], 4)]


@pytest.mark.parametrize("caching", [False, True])
def test_function_may_change_the_aggregate_it_is_given(caching: bool) -> None:
    with driven(None, listed, caching=caching) as driver:
        driver.pipe("in", "a", 1, 1)
        driver.commit()
        driver.pipe("in", "a", 2, 2)
        driver.commit()
        assert results(driver) == [keyed("a", [1], None, 1), keyed("a", [1, 2], [1], 2)]


@pytest.mark.parametrize("caching", [False, True])
def test_aggregates_go_on_after_a_restart(caching: bool) -> None:
    with driven(None, counted, caching=caching) as driver:
        driver.pipe("in", "a", "x", 8)
        driver.restart()
        driver.pipe("in", "a", "x", 3)
        driver.commit()
        assert results(driver) == [keyed("a", 1, None, 8), keyed("a", 2, 1, 8)]


@pytest.mark.parametrize("caching", [False, True])
def test_headers_are_those_of_the_last_record(caching: bool) -> None:
    with driven(None, counted, caching=caching) as driver:
        driver.pipe("in", "a", "x", 1, headers=(("h", b"1"),))
        driver.pipe("in", "a", "x", 1, headers=(("h", b"2"),))
        driver.commit()
        assert [record.headers for record in driver.read("out")][-1] == (("h", b"2"),)


def test_changed_keys_come_together_through_a_repartition_topic() -> None:
    app = App("agg-app", stores=[KeyValueStore("seen", serde.string, serde.int64, caching=False)])
    words = app.stream("in", key=serde.string, value=serde.json).flat_map(
        lambda _, text: [(w, w) for w in text.split()]
    )
    words.group_by_key().count("seen").to("out")
    assert list(app.builder.internal) == ["agg-app-seen-repartition"]
    with Driver(app, partitions=3) as driver:
        driver.pipe("in", "one", "a b a", 1)
        driver.pipe("in", "two", "c b a", 2)
        assert sorted((one.key, one.value) for one in driver.read("out")) == [
            ("a", 1),
            ("a", 2),
            ("a", 3),
            ("b", 1),
            ("b", 2),
            ("c", 1),
        ]


def test_stream_whose_key_did_not_change_needs_no_topic_of_its_own() -> None:
    app = App("agg-app", stores=[KeyValueStore("seen", serde.string, serde.int64)])
    app.stream("in").filter(lambda key, value: True).map_values(str).group_by_key().count("seen")
    assert not app.builder.internal


def test_result_is_a_table_that_streams_can_be_joined_with() -> None:
    app = App("agg-app", stores=[KeyValueStore("seen", serde.string, serde.int64)])
    source = app.stream("in", key=serde.string, value=serde.string)
    table = source.group_by_key().count("seen")
    assert (table.store, table.key, table.value) == ("seen", serde.string, serde.int64)
    source.join(table, lambda value, count: [value, count], value=serde.json).to("out")
    with Driver(app) as driver:
        driver.pipe("in", "a", "x", 1)
        driver.pipe("in", "a", "y", 2)
        assert [one.value for one in driver.read("out")] == [["x", 1], ["y", 2]]


@pytest.mark.parametrize(("key", "made", "part"), [(7, "x", "key"), ("a", object(), "value")])
def test_what_the_serdes_of_the_store_refuse_is_told_by_its_name(key: Any, made: Any, part: str) -> None:
    app = App("agg-app", stores=[KeyValueStore("seen", serde.string, serde.json)])
    grouped = app.stream("in", key=serde.json, value=serde.json).group_by_key()
    grouped.aggregate(list, lambda _key, _value, _aggregate: made, "seen")
    with Driver(app) as driver, pytest.raises(InvalidRequest, match=f"store 'seen': the {part} serde"):
        driver.pipe("in", key, "x", 1)


@pytest.mark.slow
@pytest.mark.parametrize("caching", [False, True])
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None, "flush"]), st.sampled_from([1, 2, None, "none"]), st.integers(0, 9)),
        max_size=12,
    )
)
@settings(max_examples=40)
def test_results_are_those_of_a_dictionary(caching: bool, steps: list[tuple[str | None, Any, int]]) -> None:
    rows: dict[str, tuple[list[Any], int]] = {}
    changes: list[tuple[str, tuple[list[Any], int] | None, Any, int]] = []
    expected: list[Result] = []

    def flush() -> None:
        last = {key: number for number, (key, *_) in enumerate(changes)}
        for key in sorted(last, key=lambda key: last[key]):
            own = [change for change in changes if change[0] == key]
            old, new = own[0][1], own[-1][2]
            if old is not None or new is not None:
                expected.append(keyed(key, new, None if old is None else old[0], own[-1][3]))
        changes.clear()

    with driven(None, listed, caching=caching, engine="memory") as driver:
        for key, value, stamp in steps:
            if key == "flush":
                driver.commit()
                flush()
                continue
            driver.pipe("in", key, value, stamp)
            if key is None or value is None:
                continue
            old = rows.get(key)
            told, stamp = stamp, max(stamp, old[1] if old else 0)
            new = None if value == "none" else [*(old[0] if old else []), value]
            # A removal that a cache held back has the time of its record, others the largest.
            changes.append((key, old, new, told if caching and new is None else stamp))
            if new is None:
                rows.pop(key, None)
            else:
                rows[key] = (new, stamp)
            if not caching:
                last = changes.pop()
                expected.append(keyed(key, new, None if old is None else old[0], last[3]))
        driver.commit()
        flush()
        assert results(driver) == expected
        assert {key: (value, at) for key, (value, at) in rows.items()} == {
            key: driver.store(STORE).get_with_timestamp(key) for key, _ in driver.store(STORE).all()
        }
