"""Tables, and joins of a stream with a table: the joined value, null keys and values, order by timestamps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import standfast as sf
from standfast.stream.dsl.fluent import Stream
from support.apps import Drive, Running, create, text_of, write, written
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
Step = Callable[[Stream], Any]


def internal(app: sf.App) -> list[str]:
    return [one.name for one in app.topology().internal]


def app_with(*names: str) -> sf.App:
    return sf.App("app", stores=[sf.KeyValueStore(name, TEXT, INT) for name in names])


def joined(drive: Drive, *, left: bool, **given: Any) -> tuple[sf.App, sf.testing.Driver]:
    app = sf.App("app", **given)
    join = Stream.left_join if left else Stream.join
    join(app.stream("orders"), app.table("prices"), lambda order, price: [order, price]).to("out")
    return app, drive(app)


def values(driver: sf.testing.Driver) -> list[Any]:
    return [record.value for record in driver.read("out")]


def test_join_gives_the_tables_value_of_that_moment(drive: Drive) -> None:
    _, driver = joined(drive, left=False)
    driver.pipe("prices", "a", 10, 1)
    driver.pipe("orders", "a", 1, 2)
    driver.pipe("prices", "a", 20, 3)
    assert values(driver) == [[1, 10]]  # the table alone gives no result
    driver.pipe("orders", "a", 2, 4)
    assert values(driver) == [[2, 20]]


def test_join_passes_over_keys_that_the_table_has_not(drive: Drive) -> None:
    _, driver = joined(drive, left=False)
    driver.pipe("orders", "a", 1)
    driver.pipe("prices", "a", 10)
    driver.pipe("prices", "a", None)
    driver.pipe("orders", "a", 2)
    assert values(driver) == []
    assert driver.dropped == 0


def test_left_join_passes_none_for_keys_that_the_table_has_not(drive: Drive) -> None:
    _, driver = joined(drive, left=True)
    driver.pipe("orders", "a", 1)
    driver.pipe("prices", "a", 10)
    driver.pipe("orders", "a", 2)
    driver.pipe("prices", "a", None)
    driver.pipe("orders", "a", 3)
    assert values(driver) == [[1, None], [2, 10], [3, None]]


@pytest.mark.parametrize("left", [False, True])
def test_join_takes_time_and_headers_of_the_stream(drive: Drive, left: bool) -> None:
    _, driver = joined(drive, left=left)
    driver.pipe("prices", "a", 10, 100)
    driver.pipe("orders", "a", 1, 7, headers=(("h", b"1"),))
    assert driver.read("out") == [sf.Record("a", [1, 10], 7, (("h", b"1"),))]


def test_null_key_of_the_stream_is_skipped_by_join_and_joined_with_none_by_left_join(drive: Drive) -> None:
    app, driver = joined(drive, left=False)
    driver.pipe("orders", None, 1)
    assert (values(driver), app.drops.counts) == ([], {"null_key": 1})
    app, driver = joined(drive, left=True)
    driver.pipe("orders", None, 1)
    assert (values(driver), app.drops.counts) == ([[1, None]], {})


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("explicit", [False, True])
def test_record_whose_key_became_null_is_dropped_before_a_join_and_goes_through_to_a_left_join(
    drive: Drive, left: bool, explicit: bool
) -> None:
    app = sf.App("app")
    orders = app.stream("orders").select_key(lambda key, order: None)
    join = Stream.left_join if left else Stream.join
    join(orders.repartition("x") if explicit else orders, app.table("prices"), lambda *both: list(both)).to("out")
    driver = drive(app)
    driver.pipe("orders", "a", 1)
    assert (values(driver), app.drops.counts) == (([[1, None]], {}) if left else ([], {"null_key": 1}))


@pytest.mark.parametrize("left", [False, True])
def test_null_value_of_the_stream_is_skipped_and_counted(drive: Drive, left: bool) -> None:
    app, driver = joined(drive, left=left)
    driver.pipe("prices", "a", 10)
    driver.pipe("orders", "a", None)
    driver.pipe("orders", None, None)
    assert values(driver) == []
    assert app.drops.total == 2
    assert app.drops.counts["null_value"] >= 1


def test_null_key_of_the_table_is_skipped_and_counted(drive: Drive) -> None:
    app, driver = joined(drive, left=True)
    driver.pipe("prices", None, 10)
    driver.pipe("orders", "a", 1)
    assert (values(driver), app.drops.counts) == ([[1, None]], {"null_key": 1})


def test_table_gives_updates_with_what_was_before(drive: Drive) -> None:
    seen: list[Any] = []

    class Look(sf.Processor):
        def process(self, record: sf.Record) -> None:
            seen.append((record.value, record.old_value, record.timestamp))

    app = sf.App("app")
    app.table("prices").process(Look)
    driver = drive(app)
    for value, stamp in ((1, 5), (2, 3), (None, 9), (None, 10), (3, 11)):
        driver.pipe("prices", "a", value, stamp)
    assert seen == [(1, None, 5), (2, 1, 3), (None, 2, 9), (3, None, 11)]


@pytest.mark.parametrize("caching", [True, False])
def test_delete_of_a_key_that_is_not_there_is_an_update_only_of_a_table_without_a_cache(
    drive: Drive, caching: bool
) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("prices", TEXT, INT, caching=caching)])
    app.table("prices", "prices").to("out")
    driver = drive(app)
    driver.pipe("prices", "a", None, 5)
    assert [(record.key, record.value) for record in driver.read("out")] == [("a", None)] * (not caching)
    assert driver.dropped == 0


def test_table_survives_a_restart(drive: Drive) -> None:
    _, driver = joined(drive, left=False)
    driver.pipe("prices", "a", 10)
    driver.restart()
    driver.pipe("orders", "a", 1)
    assert values(driver) == [[1, 10]]


def test_stream_is_joined_with_the_result_of_an_aggregation(drive: Drive) -> None:
    app = app_with("seen")
    counted = app.stream("clicks").group_by_key().count("seen")
    app.stream("orders").join(counted, lambda order, clicks: [order, clicks]).to("out")
    driver = drive(app)
    for _ in range(3):
        driver.pipe("clicks", "a", 1)
    driver.pipe("orders", "a", "o")
    assert values(driver) == [["o", 3]]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.to_stream().filter(lambda key, value: True),
        lambda table: table.map_values(lambda value: value),
        lambda table: table.peek(print),
        lambda table: table.process(sf.Processor),
        lambda table: table.to_stream().merge(table.to_stream()),
        lambda table: table.to_stream(),
    ],
)
def test_only_a_table_with_a_store_can_be_joined(change: Step) -> None:
    app = sf.App("app")
    table = app.table("prices")
    orders = app.stream("orders")
    before = dict(app.builder.nodes)
    other = change(table)
    with pytest.raises(sf.BadConfig, match="a stream is joined with a table that has a store"):
        orders.select_key(lambda key, value: value).join(other, lambda value, found: value)
    assert not any(name.startswith("join") for name in app.builder.nodes.keys() - before.keys())
    assert internal(app) == []


def test_joined_topics_need_equal_partition_counts(bench: Bench) -> None:
    create(bench, 2, "orders")
    create(bench, 3, "prices")
    with pytest.raises(sf.BadConfig, match=r"orders has 2, prices has 3: put \.repartition"):
        Running(bench, lambda app: app.stream("orders").join(app.table("prices"), lambda value, price: value))


def test_join_of_a_backlog_follows_the_timestamps_whatever_was_written_first(bench: Bench) -> None:
    create(bench, 1, "orders", "prices", "out")
    write(bench, "orders", *(("a", f'"o{stamp}"', stamp) for stamp in (5, 15, 25)))
    write(bench, "prices", *(("a", str(stamp), stamp) for stamp in (10, 20, 30)))

    def make(app: sf.App) -> None:
        orders, prices = app.stream("orders"), app.table("prices")
        orders.left_join(prices, lambda order, price: [order, price]).to("out")

    one = Running(bench, make)
    one.run()
    one.commit()
    assert [value for _, value, _ in text_of(written(bench, "out"))] == ['["o5",null]', '["o15",10]', '["o25",20]']


def test_table_restored_on_another_directory_is_that_of_the_committed_offset(bench: Bench) -> None:
    create(bench, 1, "orders", "prices", "out")

    def make(app: sf.App) -> None:
        app.stream("orders").join(app.table("prices"), lambda order, price: [order, price]).to("out")

    write(bench, "prices", ("a", "1", 1), ("b", "2", 2))
    one = Running(bench, make)
    one.run()
    one.commit()
    write(bench, "prices", ("a", "3", 3))
    one.run()
    one.close()  # the last price was processed and not committed
    other = Running(bench, make, "b")
    assert other.rows("prices") == {"a": 1, "b": 2}
    write(bench, "orders", ("a", '"o"', 4))
    other.run()
    other.commit()
    assert text_of(written(bench, "out")) == [("a", '["o",3]', 4)]


# --- bad declarations ---


def test_table_needs_a_key_value_store() -> None:
    app = sf.App("app", stores=[sf.SessionStore("s", TEXT, INT, retention_ms=1_000)])
    with pytest.raises(sf.BadConfig, match="table 't': store 's' is a SessionStore, it needs a KeyValueStore"):
        app.table("t", "s")
    with pytest.raises(sf.BadConfig, match="table 't': store 'none' is not declared"):
        app.table("t", "none")
    assert not app.builder.nodes


def test_table_that_is_refused_leaves_the_store_as_it_was_declared() -> None:
    store = sf.KeyValueStore("prices", TEXT, INT)
    app = sf.App("app", stores=[store])
    app.stream("t", key=TEXT, value=JSON)
    with pytest.raises(sf.BadConfig, match="it is read already, with other settings"):
        app.table("t", "prices")
    assert app.builder.specs == {"prices": store}


def test_one_topic_is_one_table() -> None:
    app = sf.App("app")
    app.table("prices")
    with pytest.raises(sf.BadConfig, match="'prices-table' exists already"):
        app.table("prices")
