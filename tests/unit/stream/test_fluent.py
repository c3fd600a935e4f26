"""The fluent layer: every step, topics between steps, and joins of a stream with a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import standfast as sf
from standfast.stream.dsl.fluent import Stream
from standfast.stream.topology.sinks import partition_of
from support.apps import Drive, Running, create, text_of, write, written
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
Step = Callable[[Stream], Any]


def through(drive: Drive, step: Step, *records: tuple[Any, Any, int], **given: Any) -> list[sf.Record]:
    """The results of one step."""
    app = sf.App("app", **given)
    step(app.stream("in")).to("out")
    driver = drive(app)
    for key, value, stamp in records:
        driver.pipe("in", key, value, stamp, headers=(("h", b"1"),))
    driver.commit()
    found = driver.read("out")
    assert all(record.headers == (("h", b"1"),) for record in found)
    return [sf.Record(*record[:3]) for record in found]


def plain(*records: tuple[Any, Any, int]) -> list[sf.Record]:
    return [sf.Record(*record) for record in records]


# --- steps without state: key, value and time in, headers go along ---


def test_filter_lets_through_what_is_true(drive: Drive) -> None:
    found = through(drive, lambda s: s.filter(lambda key, value: value > 1), ("a", 1, 5), ("b", 2, 6))
    assert found == plain(("b", 2, 6))


def test_filter_not_lets_through_what_is_false(drive: Drive) -> None:
    found = through(drive, lambda s: s.filter_not(lambda key, value: value > 1), ("a", 1, 5), ("b", 2, 6))
    assert found == plain(("a", 1, 5))


@pytest.mark.parametrize("answer", [0, "", None, []])
def test_filter_takes_any_false_value_for_no(drive: Drive, answer: Any) -> None:
    assert through(drive, lambda s: s.filter(lambda key, value: answer), ("a", 1, 5)) == []


def test_map_gives_key_and_value(drive: Drive) -> None:
    found = through(drive, lambda s: s.map(lambda key, value: (key + "!", value * 2)), ("a", 1, 5))
    assert found == plain(("a!", 2, 5))


def test_map_values_keeps_the_key(drive: Drive) -> None:
    found = through(drive, lambda s: s.map_values(lambda value: value * 2), ("a", 1, 5), (None, 2, 6))
    assert found == plain(("a", 2, 5), (None, 4, 6))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_flat_map_gives_any_number(drive: Drive, count: int) -> None:
    found = through(drive, lambda s: s.flat_map(lambda key, value: [(key, n) for n in range(value)]), ("a", count, 5))
    assert found == plain(*(("a", number, 5) for number in range(count)))


def test_flat_map_takes_a_generator(drive: Drive) -> None:
    found = through(
        drive, lambda s: s.flat_map(lambda key, value: ((word, 1) for word in value.split())), ("", "x y", 5)
    )
    assert found == plain(("x", 1, 5), ("y", 1, 5))


def test_select_key_gives_the_key(drive: Drive) -> None:
    assert through(drive, lambda s: s.select_key(lambda key, value: value), ("a", "b", 5)) == plain(("b", "b", 5))


def test_peek_sees_and_lets_through(drive: Drive) -> None:
    seen: list[Any] = []
    found = through(drive, lambda s: s.peek(lambda key, value: seen.append((key, value))), ("a", 1, 5))
    assert (seen, found) == ([("a", 1)], plain(("a", 1, 5)))


def test_merge_joins_two_streams_of_one_task(drive: Drive) -> None:
    app = sf.App("app")
    app.stream("in").merge(app.stream("more")).to("out")
    driver = drive(app)
    driver.pipe("in", "a", 1, 9)
    driver.pipe("more", "b", 2, 1)
    assert [record.key for record in driver.read("out")] == ["a", "b"]


def test_stream_merged_with_itself_has_each_record_twice(drive: Drive) -> None:
    """As in Kafka Streams, Flink and Spark."""
    for step in (
        lambda s: s.merge(s),
        lambda s: s.filter(lambda key, value: True).merge(s.filter(lambda key, value: True)),
        lambda s: s.peek(print).merge(s),
    ):
        found = through(drive, step, ("a", 1, 5), ("b", 2, 6))
        assert found == plain(("a", 1, 5), ("a", 1, 5), ("b", 2, 6), ("b", 2, 6))
    assert len(through(drive, lambda s: s.merge(s).merge(s), ("a", 1, 5))) == 3


def test_process_runs_a_processor_with_its_stores(drive: Drive) -> None:
    class Sum(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context, self.store = context, context.store("sum")

        def process(self, record: sf.Record) -> None:
            total = (self.store.get(record.key) or 0) + record.value
            self.store.put(record.key, total)
            self.context.forward(record._replace(value=total))

    stores = [sf.KeyValueStore("sum", TEXT, INT), sf.KeyValueStore("other", TEXT, INT)]
    found = through(drive, lambda s: s.process(Sum, "sum"), ("a", 1, 5), ("a", 2, 6), stores=stores)
    assert found == plain(("a", 1, 5), ("a", 3, 6))


def test_processor_without_named_stores_is_connected_to_none(drive: Drive) -> None:
    class Looks(sf.Processor):
        def init(self, context: sf.Context) -> None:
            context.store("sum")

    app = sf.App("app", stores=[sf.KeyValueStore("sum", TEXT, INT)])
    app.stream("in").process(Looks)
    with pytest.raises(
        sf.InvalidRequest, match=r"store 'sum' is not connected to processor 'Looks-1' \(connected: none"
    ):
        drive(app)


def test_one_stream_may_branch(drive: Drive) -> None:
    app = sf.App("app")
    stream = app.stream("in")
    stream.filter(lambda key, value: value > 1).to("large")
    stream.filter_not(lambda key, value: value > 1).to("small")
    driver = drive(app)
    for value in (1, 2):
        driver.pipe("in", "a", value)
    assert [record.value for record in driver.read("large")] == [2]
    assert [record.value for record in driver.read("small")] == [1]


def test_children_are_called_in_the_order_in_which_they_were_added(drive: Drive) -> None:
    order: list[str] = []
    app = sf.App("app")
    stream = app.stream("in")
    for name in ("first", "second", "third"):
        stream.peek(lambda key, value, name=name: order.append(name))
    drive(app).pipe("in", "a", 1)
    assert order == ["first", "second", "third"]


def test_function_that_raises_fails_the_task(drive: Drive) -> None:
    with pytest.raises(ZeroDivisionError):
        through(drive, lambda s: s.map_values(lambda value: 1 / value), ("a", 0, 5))


def test_serdes_of_the_source_serve_until_a_step_changes_the_type(drive: Drive) -> None:
    app = sf.App("app")
    stream = app.stream("in", key=INT, value=INT)
    stream.filter(lambda key, value: True).to("same")
    stream.map_values(lambda value: value + 1, value=INT).to("mapped")
    stream.map(lambda key, value: (str(key), [value])).to("default")
    driver = drive(app)
    driver.pipe("in", 1, 2)
    assert [driver.read(topic)[0][:2] for topic in ("same", "mapped", "default")] == [(1, 2), (1, 3), ("1", [2])]


# --- topics between steps ---


def internal(app: sf.App) -> list[str]:
    return [one.name for one in app.topology().internal]


def app_with(*names: str) -> sf.App:
    return sf.App("app", stores=[sf.KeyValueStore(name, TEXT, INT) for name in names])


SAME_KEY: list[Step] = [
    lambda s: s,
    lambda s: s.filter(lambda key, value: True),
    lambda s: s.filter_not(lambda key, value: False),
    lambda s: s.map_values(lambda value: value),
    lambda s: s.peek(lambda key, value: None),
    lambda s: s.merge(s.filter(lambda key, value: False)),
    lambda s: s.select_key(lambda key, value: value).repartition("x"),
]
NEW_KEY: list[Step] = [
    lambda s: s.map(lambda key, value: (value, key)),
    lambda s: s.flat_map(lambda key, value: [(value, key)]),
    lambda s: s.select_key(lambda key, value: value),
    lambda s: s.process(sf.Processor),
    lambda s: s.select_key(lambda key, value: value).filter(lambda key, value: True),
    lambda s: s.merge(s.select_key(lambda key, value: value)),
    lambda s: s.select_key(lambda key, value: value).merge(s),
]


@pytest.mark.parametrize("step", SAME_KEY)
def test_stream_with_its_own_key_is_grouped_without_a_topic(step: Step) -> None:
    app = app_with("seen")
    step(app.stream("in")).group_by_key().count("seen")
    assert "app-seen-repartition" not in internal(app)


@pytest.mark.parametrize("step", NEW_KEY)
def test_stream_whose_key_may_have_changed_is_grouped_through_a_topic(step: Step) -> None:
    app = app_with("seen")
    step(app.stream("in")).group_by_key().count("seen")
    assert internal(app) == ["app-seen-repartition"]


@pytest.mark.parametrize("step", NEW_KEY)
def test_stream_whose_key_may_have_changed_is_joined_through_a_topic(step: Step) -> None:
    app = sf.App("app")
    step(app.stream("in")).join(app.table("t"), lambda value, found: value)
    (topic,) = internal(app)
    assert topic == "app-t-join-repartition"


def test_stream_with_its_own_key_is_joined_without_a_topic() -> None:
    app = sf.App("app")
    app.stream("in").map_values(lambda value: value).join(app.table("t"), lambda value, found: value)
    assert internal(app) == []
    assert len(app.topology().groups) == 1


def test_group_by_goes_through_a_topic_and_brings_equal_keys_together(drive: Drive) -> None:
    app = app_with("seen")
    app.stream("in").group_by(lambda key, value: value).count("seen").to("out", value=INT)
    driver = drive(app, partitions=3)
    for number, word in enumerate(["x", "y", "x", "z", "x"]):
        driver.pipe("in", f"key {number}", word)
    assert {driver.store("seen", partition).get("x") for partition in range(3)} == {3, None}
    driver.commit()
    assert sorted((record.key, record.value) for record in driver.read("out")) == [("x", 3), ("y", 1), ("z", 1)]


def test_key_change_alone_makes_no_topic(drive: Drive) -> None:
    app = sf.App("app")
    app.stream("in").select_key(lambda key, value: value).to("out")
    assert internal(app) == []


def test_explicit_break_puts_a_topic_and_a_task_between(drive: Drive) -> None:
    seen: list[str] = []

    class Look(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            seen.append(f"{self.context.task_id} {self.context.topic}")

    app = sf.App("app")
    stream = app.stream("in")
    stream.process(Look, name="before")
    stream.repartition("x").process(Look, name="after")
    driver = drive(app)
    driver.pipe("in", "a", 1, 5, headers=(("h", b"1"),))
    assert seen == ["0_0 in", "1_0 app-x-repartition"]


def test_record_keeps_key_value_time_and_headers_through_a_topic(drive: Drive) -> None:
    found = through(drive, lambda s: s.repartition("x"), ("a", [1], 5), ("b", None, 6))
    assert found == plain(("a", [1], 5), ("b", None, 6))


def test_repartition_drops_and_counts_records_without_a_key(drive: Drive) -> None:
    app = sf.App("app")
    app.stream("in").select_key(lambda key, value: value["to"]).repartition("x").to("out")
    driver = drive(app)
    for to in ("a", None, "b"):
        driver.pipe("in", "k", {"to": to}, 1)
    assert [record.key for record in driver.read("out")] == ["a", "b"]
    assert app.drops.counts == {"null_key": 1}


def test_record_without_a_key_is_counted_once_before_an_aggregation_of_changed_keys(drive: Drive) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("seen", TEXT, INT)])
    app.stream("in").group_by(lambda key, value: None).count("seen").to("out")
    driver = drive(app)
    driver.pipe("in", "k", 1, 1)
    assert app.drops.counts == {"null_key": 1}


def test_broadcast_passes_on_records_without_a_key(drive: Drive) -> None:
    assert through(drive, lambda s: s.broadcast("x"), (None, 1, 5)) == plain((None, 1, 5))


def test_repartition_may_have_more_partitions_than_its_source(drive: Drive) -> None:
    tasks: set[str] = set()

    class Look(sf.Processor):
        def init(self, context: sf.Context) -> None:
            tasks.add(context.task_id)

    app = sf.App("app")
    app.stream("in").repartition("x", partitions=3).process(Look)
    drive(app)
    assert tasks == {"1_0", "1_1", "1_2"}


@pytest.mark.parametrize("partitions", [-1, 1.5, True, "3"])
def test_number_of_partitions_is_checked(partitions: Any) -> None:
    with pytest.raises(sf.BadConfig, match="partitions must be a whole number"):
        sf.App("app").stream("in").repartition("x", partitions=partitions)


def test_broadcast_reaches_every_task_behind_it(drive: Drive) -> None:
    seen: list[tuple[str, Any]] = []

    class Look(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.task = context.task_id

        def process(self, record: sf.Record) -> None:
            seen.append((self.task, record.value))

    app = sf.App("app")
    app.stream("in").broadcast("rules").process(Look)
    driver = drive(app, partitions=3)
    driver.pipe("in", "a", 1)
    driver.pipe("in", None, 2, partition=2)
    assert sorted(seen) == [(f"1_{partition}", value) for partition in range(3) for value in (1, 2)]


def test_sink_chooses_the_partition_of_the_serialised_key(bench: Bench) -> None:
    create(bench, 1, "in")
    create(bench, 4, "out")
    keys = [f"key {number}" for number in range(20)]
    write(bench, "in", *((key, "1", 0) for key in keys))
    one = Running(bench, lambda app: app.stream("in").to("out"))
    one.run()
    one.commit()
    for partition in range(4):
        expected = [key for key in keys if partition_of(key.encode(), 4) == partition]
        assert [key for key, _, _ in text_of(written(bench, "out", partition))] == expected


def test_record_without_a_key_stays_with_the_tasks_own_partition(bench: Bench) -> None:
    create(bench, 3, "in", "out")
    create(bench, 2, "fewer")
    for partition in range(3):
        write(bench, "in", (None, str(partition), 0), partition=partition)

    def make(app: sf.App) -> None:
        stream = app.stream("in")
        stream.to("out")
        stream.to("fewer")

    one = Running(bench, make)
    one.run()
    one.commit()
    assert [text_of(written(bench, "out", partition))[0][1] for partition in range(3)] == ["0", "1", "2"]
    assert [[value for _, value, _ in text_of(written(bench, "fewer", partition))] for partition in range(2)] == [
        ["0", "2"],
        ["1"],
    ]


def test_partitioner_sees_key_value_and_number_of_partitions(bench: Bench) -> None:
    create(bench, 1, "in")
    create(bench, 3, "out")
    write(bench, "in", ("a", "2", 0), ("b", "0", 0))
    seen: list[Any] = []

    def choose(key: str, value: int, partitions: int) -> int:
        seen.append((key, value, partitions))
        return value

    one = Running(bench, lambda app: app.stream("in").to("out", partitioner=choose))
    one.run()
    one.commit()
    assert seen == [("a", 2, 3), ("b", 0, 3)]
    assert [len(written(bench, "out", partition)) for partition in range(3)] == [1, 0, 1]


@pytest.mark.parametrize("partition", [-1, 1, None, True, 0.0])
def test_partitioner_that_names_no_partition_is_told(drive: Drive, partition: Any) -> None:
    app = sf.App("app")
    app.stream("in").to("out", partitioner=lambda key, value, partitions: partition, name="sink")
    with pytest.raises(sf.InvalidRequest, match=r"sink 'sink': the partitioner named partition .* of out, which has 1"):
        drive(app).pipe("in", "a", 1)


def test_sink_names_the_serde_that_does_not_fit(drive: Drive) -> None:
    app = sf.App("app")
    app.stream("in").map_values(len).to("out", value=TEXT, name="sink")
    with pytest.raises(
        sf.InvalidRequest, match="sink 'sink': the value serde 'string' cannot serialise this value for"
    ):
        drive(app).pipe("in", "a", [1])


@pytest.mark.parametrize("windows", [sf.TumblingWindows(1_000), sf.SessionWindows(1_000)])
def test_windowed_key_goes_where_its_plain_key_would(bench: Bench, windows: Any) -> None:
    create(bench, 1, "in")
    create(bench, 5, "out")
    keys = [f"key {number}" for number in range(20)]
    write(bench, "in", *((key, "1", 10_000) for key in keys))
    if isinstance(windows, sf.SessionWindows):
        store: Any = sf.SessionStore("seen", TEXT, INT, retention_ms=10_000)
    else:
        store = sf.WindowStore("seen", TEXT, INT, window_size_ms=1_000, retention_ms=10_000)
    one = Running(
        bench, lambda app: app.stream("in").group_by_key().window(windows).count("seen").to("out"), stores=[store]
    )
    one.run()
    one.commit()
    suffix = 16 if isinstance(windows, sf.SessionWindows) else 8
    for partition in range(5):
        found = sorted((record.key or b"")[:-suffix].decode() for record in written(bench, "out", partition))
        assert found == sorted(key for key in keys if partition_of(key.encode(), 5) == partition)
