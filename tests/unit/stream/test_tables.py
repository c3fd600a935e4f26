"""Tables: their answers, deletes that reach them and their readers, and refusals until an answer can be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import standfast as sf
from standfast.stream.dsl.fluent import Table
from support.apps import Drive, Running, create, text_of, write, written
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64


def prices(**given: Any) -> tuple[sf.App, Table]:
    app = sf.App("app", stores=[sf.KeyValueStore("prices", TEXT, INT, **given)])
    return app, app.table("prices", "prices")


def came(driver: sf.testing.Driver) -> list[tuple[Any, Any, int]]:
    return [(record.key, record.value, record.timestamp) for record in driver.read("out")]


# --- steps that would answer for updates instead of for the table ---


REFUSED: dict[str, Callable[[Table], Any]] = {
    "filter": lambda table: table.filter(lambda key, value: True),
    "filter_not": lambda table: table.filter_not(lambda key, value: True),
    "map": lambda table: table.map(lambda key, value: (key, value)),
    "flat_map": lambda table: table.flat_map(lambda key, value: [(key, value)], name="flat"),
    "select_key": lambda table: table.select_key(lambda key, value: value, key=TEXT),
    "merge": lambda table: table.merge(table.to_stream()),
    "join": lambda table: table.join(table, lambda value, found: value),
    "left_join": lambda table: table.left_join(table, lambda value, found: value, value=JSON),
    "group_by": lambda table: table.group_by(lambda key, value: value, key=TEXT),
    "group_by_key": lambda table: table.group_by_key(),
    "repartition": lambda table: table.repartition("again", partitions=2),
    "broadcast": lambda table: table.broadcast("all"),
}


@pytest.mark.parametrize("step", REFUSED)
def test_step_that_would_answer_wrongly_for_a_table_is_refused_and_adds_nothing(step: str) -> None:
    app, table = prices()
    before = dict(app.builder.nodes), dict(app.builder.internal)
    with pytest.raises(sf.BadConfig, match=rf"{step}: table 'prices' .*write \.to_stream\(\)\.{step}\("):
        REFUSED[step](table)
    assert (app.builder.nodes, app.builder.internal) == before


@pytest.mark.parametrize("change", [lambda table: table.map_values(str), lambda table: table.peek(print)])
def test_what_comes_of_a_table_by_map_values_and_peek_is_a_table_still(change: Callable[[Table], Any]) -> None:
    _, table = prices()
    with pytest.raises(sf.BadConfig, match=r"filter: the table at node .* cannot go through this step"):
        change(table).filter(lambda key, value: True)


def test_results_of_an_aggregation_are_a_table_and_refused_alike() -> None:
    app = sf.App("app", stores=[sf.WindowStore("seen", TEXT, INT, window_size_ms=10, retention_ms=20)])
    counted = app.stream("in").group_by_key().window(sf.TumblingWindows(10)).count("seen")
    with pytest.raises(sf.BadConfig, match="filter: the table at node 'seen-count'"):
        counted.filter(lambda key, value: True)


def test_table_is_not_merged_into_a_stream_unless_it_is_said_to_be_one() -> None:
    app, table = prices()
    with pytest.raises(sf.BadConfig, match=r"merge: table 'prices' .*its deletes would remove"):
        app.stream("in").merge(table)
    app.stream("in").merge(table.to_stream()).to("out")


# --- deletes and old values ---


def test_function_of_map_values_is_never_given_none_and_a_delete_stays_one(drive: Drive) -> None:
    app, table = prices(caching=False)
    table.map_values(lambda value: value + 1).to("out")
    driver = drive(app)
    driver.pipe("prices", "a", None, 1)  # never there: an update of a table without a cache all the same
    driver.pipe("prices", "a", 7, 2)
    driver.pipe("prices", "a", None, 3)
    assert came(driver) == [("a", None, 1), ("a", 8, 2), ("a", None, 3)]


def test_map_values_maps_the_old_value_of_an_update_too(drive: Drive) -> None:
    seen = []

    class Look(sf.Processor):
        def process(self, record: sf.Record) -> None:
            seen.append((record.value, record.old_value))

    app, table = prices()
    table.map_values(str).process(Look)
    driver = drive(app)
    for value in (1, 2, None, 3):
        driver.pipe("prices", "a", value, 1)
    assert seen == [("1", None), ("2", "1"), (None, "2"), ("3", None)]


def test_steps_behind_to_stream_are_given_deletes_as_none(drive: Drive) -> None:
    seen: list[Any] = []
    app, table = prices()
    stream = table.to_stream()
    stream.map_values(lambda value: seen.append(("map_values", value))).to("mapped")
    stream.filter(lambda key, value: value is None or value > 1).to("out")
    table.peek(lambda key, value: seen.append(("peek", value)))
    driver = drive(app)
    for value in (1, 2, None):
        driver.pipe("prices", "a", value, 1)
    assert seen == [(step, value) for value in (1, 2, None) for step in ("map_values", "peek")]
    assert came(driver) == [("a", 2, 1), ("a", None, 1)]


def test_deletes_reach_the_table_its_topic_and_the_next_opening(drive: Drive) -> None:
    app, table = prices()
    table.to("out")
    app.stream("orders").left_join(table, lambda order, price: [order, price]).to("joined")
    driver = drive(app)
    for value in (1, None):
        driver.pipe("prices", "a", value, 1)
    assert driver.store("prices").get("a") is None
    driver.restart()
    assert driver.store("prices").get("a") is None
    driver.pipe("orders", "a", "o", 2)
    assert [record.value for record in driver.read("joined")] == [["o", None]]
    assert came(driver) == [("a", 1, 1), ("a", None, 1)]


# --- inputs of a table's source ---


def bench_table(bench: Bench, directory: str, make: Callable[[sf.App], object]) -> Running:
    one = Running(bench, make, directory, stores=[sf.KeyValueStore("prices", TEXT, INT)])
    one.run()
    one.commit()
    return one


def number(record: sf.Record) -> int:
    return int(record.value) if record.value is not None else record.timestamp


def test_table_skips_what_cannot_be_read_and_a_restore_has_the_same_rows(bench: Bench) -> None:
    create(bench, 1, "prices")
    # INT reads 8 bytes.
    rows = [("a", "\0" * 7 + "\1", 1), ("b", "short", 2), ("c", "\0" * 7 + "\3", 3)]
    write(bench, "prices", *rows)

    def make(app: sf.App) -> None:
        app.table("prices", "prices", on_error="skip")

    one = bench_table(bench, "a", make)
    assert one.rows("prices") == {"a": 1, "c": 3}
    assert one.app.drops.counts == {"deserialize": 1}
    one.close()
    other = Running(bench, make, "b", stores=[sf.KeyValueStore("prices", TEXT, INT)])
    assert other.rows("prices") == {"a": 1, "c": 3}
    assert one.app.topology().source_topics == ("prices",)


def test_row_stays_where_its_change_fails_further_on_so_that_a_restore_has_the_same_rows(bench: Bench) -> None:
    create(bench, 1, "prices", "out", "bad")
    write(bench, "prices", ("a", "1", 1), ("b", "2", 2), ("c", "3", 3))

    def check(key: str, value: int) -> None:
        if key == "b":
            raise ValueError("no b here")

    def make(app: sf.App) -> None:
        app.table("prices", "prices", on_error="dead_letter", dead_letter="bad").peek(check).to("out")

    stores = [sf.KeyValueStore("prices", TEXT, JSON)]
    one = Running(bench, make, "a", stores=stores)
    one.run()
    one.commit()
    assert one.rows("prices") == {"a": 1, "b": 2, "c": 3}
    assert [key for key, _, _ in text_of(written(bench, "out"))] == ["a", "c"]
    assert [(record.key, record.value) for record in written(bench, "bad")] == [(b"b", b"2")]
    assert one.app.drops.counts == {"result": 1}
    one.close()
    assert Running(bench, make, "b", stores=stores).rows("prices") == {"a": 1, "b": 2, "c": 3}


def test_table_with_timestamps_of_its_own_restores_them_from_a_changelog_of_its_own(bench: Bench) -> None:
    create(bench, 1, "prices")
    write(bench, "prices", ("a", "100", 1), ("b", "-5", 2), ("c", "300", 3))

    def make(app: sf.App) -> None:
        app.table("prices", "prices", timestamp=number, invalid_timestamp="skip")

    stores = [sf.KeyValueStore("prices", TEXT, JSON)]
    one = Running(bench, make, "a", stores=stores)
    one.run()
    one.commit()
    assert one.session.read("prices", 0).store.get_with_timestamp("a") == (100, 100)
    assert one.app.drops.counts == {"invalid_timestamp": 1}
    one.close()
    other = Running(bench, make, "b", stores=stores)
    assert other.rows("prices") == {"a": 100, "c": 300}
    assert other.session.read("prices", 0).store.get_with_timestamp("c") == (300, 300)
    assert bench.log.admin.describe_topic("app-prices-changelog") is not None


def test_timestamps_of_its_own_are_refused_for_a_store_that_is_declared_over_its_source_topic() -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("prices", TEXT, INT, source_topic="prices")])
    with pytest.raises(sf.BadConfig, match="leave source_topic out"):
        app.table("prices", "prices", timestamp=number)
    assert not app.builder.nodes


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_topic_of_a_table_that_leaves_records_out_has_no_other_reader(on_error: Any, drive: Drive) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("prices", TEXT, INT)])
    app.table("prices", "prices", on_error=on_error)
    app.stream("prices", key=TEXT, value=INT, on_error=on_error).to("out")
    if on_error == "fail":
        drive(app)
        return
    with pytest.raises(sf.BadConfig, match=r"'prices' has on_error='skip', is read by .* go on from its \.to_stream"):
        drive(app)


def test_store_over_a_source_topic_that_a_processor_of_ones_own_puts_into_leaves_no_record_out(drive: Drive) -> None:
    class Puts(sf.Processor):
        stores = ("prices",)

    app = sf.App("app", stores=[sf.KeyValueStore("prices", TEXT, INT, source_topic="prices")])
    app.source("prices", key=TEXT, value=INT, on_error="skip")(Puts)
    with pytest.raises(sf.BadConfig, match="would be in the store after a restore"):
        drive(app)


@pytest.mark.parametrize("options", [{}, {"timestamp": number}])
def test_store_of_a_table_is_no_aggregations_too(options: Any) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("prices", TEXT, INT)])
    app.table("prices", "prices", **options)
    with pytest.raises(sf.BadConfig, match="'prices-table' writes it already"):
        app.stream("in").group_by_key().count("prices")


def test_option_of_a_table_that_cannot_be_used_is_refused() -> None:
    app = sf.App("app")
    with pytest.raises(sf.BadConfig, match="on_error must be one of"):
        app.table("prices", on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(sf.BadConfig, match="no setting 'late'"):
        app.table("prices", late="late")  # type: ignore[call-arg]
    assert not app.builder.nodes
