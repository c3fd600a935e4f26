"""An aggregation with nothing downstream keeps the rows and counts that it has with a step behind it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.store import serde
from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver
from standfast.stream.dsl.suppression import Unheard
from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE, EmitStrategy
from standfast.stream.windows import AnyWindows, HoppingWindows, SessionWindows, SlidingWindows, TumblingWindows
from support.aggregates import STORE, drops, listed, store_for

WINDOWS = [
    None,
    TumblingWindows(10, grace_ms=5),
    HoppingWindows(10, 4, grace_ms=5),
    SlidingWindows(6, grace_ms=5),
    SessionWindows(3, grace_ms=5),
]
FIRST = (HoppingWindows, SessionWindows)  # the most involved ones
# "bad" fails in the aggregation and is skipped, "none" removes the aggregate.
RECORDS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([1, 2, "bad", "none"]), st.integers(0, 60))
    | st.just("commit"),
    max_size=25,
)


def driven(windows: AnyWindows | None, emit: EmitStrategy, caching: bool, heard: bool) -> Driver:
    app = App("agg-app", stores=[store_for(windows, caching=caching)])
    grouped = app.stream("in", key=serde.string, value=serde.json, on_error="skip").group_by_key()
    table = listed(grouped if windows is None else grouped.window(windows), emit)
    if heard:
        table.to_stream().peek(lambda key, value: None)
    return Driver(app)


def rows_and_drops(driver: Driver, records: list[Any]) -> tuple[Any, ...]:
    for one in records:
        if one == "commit":
            driver.commit()
        else:
            driver.pipe("in", *one)
    driver.commit()
    return list(driver.store(STORE).logical_rows()), drops(driver)


@pytest.mark.parametrize(
    "windows",
    [pytest.param(one, marks=() if isinstance(one, FIRST) else pytest.mark.long) for one in WINDOWS],
    ids=lambda one: type(one).__name__,
)
@settings(max_examples=10, deadline=None)
@given(records=RECORDS, caching=st.booleans(), emit=st.sampled_from([ON_WINDOW_UPDATE, ON_WINDOW_CLOSE]))
def test_rows_and_counts_are_those_of_an_aggregation_that_is_heard(
    windows: AnyWindows | None, records: list[Any], caching: bool, emit: EmitStrategy
) -> None:
    emit = ON_WINDOW_UPDATE if windows is None else emit
    with driven(windows, emit, caching, heard=True) as heard, driven(windows, emit, caching, heard=False) as unheard:
        assert rows_and_drops(unheard, records) == rows_and_drops(heard, records)


def test_no_result_is_held_back_for_nothing() -> None:
    with driven(None, ON_WINDOW_UPDATE, caching=True, heard=False) as driver:
        driver.pipe("in", "a", 1, 0)
        (runner,) = driver._runners.values()
        (aggregate,) = runner._processors
        assert isinstance(aggregate.held, Unheard) and not aggregate.held._held  # type: ignore[attr-defined]
