"""A store requested by its definition is the store of that name, and a different definition is refused."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import pytest

import standfast as sf
from support.sessions import Bench

KV = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)
WINDOWS = sf.WindowStore("windows", sf.serde.string, sf.serde.int64, window_size_ms=10, retention_ms=100)
TIMES = {"timestamp", "window_start", "start", "as_of", "time_from", "earliest_end"}
STATES = (sf.KeyValueState, sf.WindowState, sf.SessionState, sf.VersionedState)


def test_a_task_gives_the_same_store_by_definition_and_by_name(bench: Bench) -> None:
    task = bench.active(stores=[KV, WINDOWS], partitions=(0,)).task(0)
    assert task.store(KV) is task.store("kv")
    assert type(task.store(WINDOWS)) is sf.WindowState


def test_settings_that_do_not_change_the_bytes_may_differ_in_a_definition(bench: Bench) -> None:
    session = bench.session(stores=[KV], cache_max_bytes=0)  # declares the store again, without its cache
    session.assign(active=[0])
    session.wait_ready(30)
    session.task(0).store(KV).put("a", "1")
    assert session.task(0).store(replace(KV, engine="memory")).get("a") == "1"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (sf.KeyValueStore("kv", sf.serde.int64, sf.serde.string), "key: 'int64' -> 'string'"),
        (sf.VersionedStore("kv", sf.serde.string, sf.serde.string, history_retention_ms=1), "kind: 'versioned' ->"),
    ],
)
def test_a_definition_that_differs_from_the_declared_one_is_refused(
    bench: Bench, asked: sf.KeyValueStore, why: str
) -> None:
    task = bench.active(stores=[KV], partitions=(0,)).task(0)
    with pytest.raises(sf.InvalidRequest, match=f"store 'kv' was declared with another definition .*{why}"):
        task.store(asked)


def test_a_definition_that_is_not_declared_is_named(bench: Bench) -> None:
    task = bench.active(stores=[KV], partitions=(0,)).task(0)
    with pytest.raises(sf.UnknownStore, match="no store 'windows': it declares kv"):
        task.store(WINDOWS)


def test_processors_and_the_driver_take_definitions_too() -> None:
    app = sf.App("typed", stores=[KV, WINDOWS])
    app.table("names", "kv")  # the store's own declaration gets the source topic, which the definition here lacks

    @app.source("in", key=sf.serde.string, value=sf.serde.string)
    class Put(sf.Processor):
        stores = ("windows",)

        def init(self, context: sf.Context) -> None:
            with pytest.raises(sf.InvalidRequest, match="store 'kv' is not connected to processor 'Put'"):
                context.store(KV)
            self.windows = context.store(WINDOWS)

        def process(self, record: sf.Record) -> None:
            self.windows.put(record.key, len(record.value), 10)

    with sf.testing.Driver(app) as driver:
        driver.pipe("in", "a", "xyz", 10)
        driver.pipe("names", "a", "Ada", 10)
        assert driver.store(WINDOWS, partition=0).fetch("a", 10) == 3
        assert driver.store(KV).get("a") == "Ada"
        with pytest.raises(sf.InvalidRequest, match="has no store 'other'"):
            driver.store(replace(KV, name="other"))


@pytest.mark.parametrize("state", STATES)
def test_help_of_a_state_says_units_errors_and_cost(state: type) -> None:
    text = inspect.getdoc(state) or ""
    for word in (
        "milliseconds",
        "InvalidRequest",
        "Corruption",
        "Closed",
        "Fenced",
        "TooLarge",
        "Backpressure",
        "costs",
    ):
        assert word in text, word


@pytest.mark.parametrize("state", STATES)
def test_each_method_of_a_state_says_what_it_gives_and_the_unit_of_its_times(state: type) -> None:
    for name, method in inspect.getmembers(state, inspect.isfunction):
        if name.startswith("_"):
            continue
        text = inspect.getdoc(method)
        assert text, f"{name} has no description"
        takes = TIMES & set(inspect.signature(method).parameters)
        if takes and "raw" not in name and "row" not in name:  # those are for aggregations, in bytes
            assert re.search(r"\bms\b", text), f"{name} gives no unit of {takes}"
