"""Applications whose topics and stores use serdes of a schema registry: subjects, failures, a registry that is down."""

from __future__ import annotations

import json
import logging
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import standfast as sf
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.stream.runtime.failures import SERVICE_WAIT_MS
from support.apps import Drive, Running, create, headers_of, written
from support.pages import blocks
from support.registry import SchemaRegistry
from support.sessions import Bench

pytestmark = pytest.mark.slow  # each registry has an HTTP client of its own, which takes a tenth of a second

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": "long"}],
}
IN = TopicPartition("in", 0)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as made:
        yield made


class Serdes:
    """Keys are text, values orders, and totals numbers, all in Avro and with one client."""

    def __init__(self, registry: SchemaRegistry) -> None:
        shared = sf.serde.Registry(registry.url, timeout_ms=1_000)
        self.text = sf.serde.avro('"string"', registry=shared)
        self.order = sf.serde.avro(ORDER, registry=shared)
        self.number = sf.serde.avro('"long"', registry=shared)


def order(item: str, count: int = 1) -> dict[str, Any]:
    return {"item": item, "count": count}


def write_orders(bench: Bench, registry: SchemaRegistry, *keys: str) -> None:
    """Records of another program, with a client of its own."""
    serdes = Serdes(registry)
    key, value = serdes.text.of_topic("in", "key"), serdes.order.of_topic("in", "value")
    batch = [Outgoing(key.serialize(one), value.serialize(order(one)), 1) for one in keys]
    bench.log.producer().append({IN: batch})


def copying(serdes: Serdes, **source: Any) -> Any:
    return lambda app: app.stream("in", key=serdes.text, value=serdes.order, **source).to("out")


# --- subjects ---


def test_subjects_are_those_of_topics_changelogs_and_repartitions(registry: SchemaRegistry, drive: Drive) -> None:
    serdes = Serdes(registry)
    app = sf.App("app", stores=[sf.KeyValueStore("totals", serdes.text, serdes.number)])
    stream = app.stream("in", key=serdes.text, value=serdes.order)
    grouped = stream.group_by(lambda key, value: value["item"], key=serdes.text, value=serdes.order)
    grouped.aggregate(lambda: 0, lambda key, value, total: total + value["count"], "totals").to("out")
    driver = drive(app)
    driver.pipe("in", "a", order("tea", 2), 1)
    driver.pipe("in", "b", order("tea", 3), 2)
    driver.commit()
    assert [(one.key, one.value) for one in driver.read("out")] == [("tea", 5)]
    assert driver.store("totals").get("tea") == 5
    sides = ("in", "app-totals-repartition", "app-totals-changelog", "out")
    assert set(registry.subjects) == {f"{topic}-{part}" for topic in sides for part in ("key", "value")}
    ids = {subject: registry.schemas[found[0]]["schema"] for subject, found in registry.subjects.items()}
    assert json.loads(ids["app-totals-changelog-value"])["type"] == "long"


def test_keys_of_windows_and_timers_use_the_subjects_of_their_topics(registry: SchemaRegistry, drive: Drive) -> None:
    serdes = Serdes(registry)
    app = sf.App("app", stores=[sf.WindowStore("w", serdes.text, serdes.number, window_size_ms=60, retention_ms=600)])

    @app.source("timed", key=serdes.text, value=serdes.order)
    class Timed(sf.Processor):
        def process(self, record: sf.Record) -> None:
            self.context.timer(record.key, 500, sf.PROCESSING_TIME)

        def init(self, context: Any) -> None:
            self.context = context

        def on_timer(self, timer: sf.Timer) -> None:
            fired.append(timer.key)

    fired: list[str] = []
    app.stream("in", key=serdes.text, value=serdes.order).group_by_key().window(sf.TumblingWindows(60)).count("w").to(
        "out"
    )
    driver = drive(app)
    driver.pipe("in", "a", order("tea"), 70)
    driver.pipe("timed", "b", order("tea"), 70)
    driver.advance_wall_clock(1_000)
    driver.commit()
    (result,) = driver.read("out")
    assert (result.key, result.value, fired) == (sf.Windowed("a", 60, 120), 1, ["b"])
    assert {"out-key", "app-w-changelog-key", "app-Timed-timers-changelog-key"} <= set(registry.subjects)


def test_producer_and_http_rows_use_the_subjects_of_topic_and_changelog(
    registry: SchemaRegistry, tmp_path: Any
) -> None:
    serdes = Serdes(registry)
    log = f"sqlite:///{tmp_path}/log"
    app = sf.App("app", log=log, state_dir=tmp_path / "a", create_topics=True)
    copying(serdes)(app)
    with app.producer() as producer:
        producer.send("in", "a", order("tea"))
    assert set(registry.subjects) == {"in-key", "in-value"}
    store = sf.KeyValueStore("kv", serdes.text, serdes.order)
    with sf.Session("own", log=log, state_dir=tmp_path / "s", stores=[store], partitions=1, http_port=0) as session:
        session.assign(active=[0])
        session.wait_ready(30)
        session.task(0).store(store).put("a", order("tea"))
        session.task(0).commit({})
        with urlopen(f"{session.http_address}/v1/stores/kv/get?key=a") as answer:
            (row,) = json.load(answer)["rows"]
    assert (row["key"], row["value"]) == ("a", order("tea"))
    assert {"own-kv-changelog-key", "own-kv-changelog-value"} <= set(registry.subjects)


def test_table_of_a_topic_uses_the_topics_own_subjects_and_restores(registry: SchemaRegistry, bench: Bench) -> None:
    serdes = Serdes(registry)
    create(bench, 1, "in")
    write_orders(bench, registry, "a", "b")

    def make(app: sf.App) -> None:
        app.table("in", "rows")

    stores = [sf.KeyValueStore("rows", serdes.text, serdes.order)]
    one = Running(bench, make, stores=stores)
    one.run()
    one.commit()
    assert one.rows("rows") == {"a": order("a"), "b": order("b")}
    one.close()
    other = Running(bench, make, "b", stores=[sf.KeyValueStore("rows", Serdes(registry).text, Serdes(registry).order)])
    other.run()
    assert other.rows("rows") == {"a": order("a"), "b": order("b")}
    assert set(registry.subjects) == {"in-key", "in-value"}


def test_program_of_the_guide_counts_what_is_ordered(
    registry: SchemaRegistry, drive: Drive, repo_root: Path, tmp_path: Path
) -> None:
    (program,) = [one for one in blocks(repo_root) if one.page == "docs/guide/schema-registry.md"]
    (tmp_path / "shop.py").write_text(program.text.replace("http://localhost:8081", registry.url))
    driver = drive(runpy.run_path(str(tmp_path / "shop.py"))["app"])
    driver.pipe("orders", "ada", order("tea", 2), 1)
    driver.pipe("orders", "ada", order("milk", 3), 2)
    driver.commit()
    assert [(one.key, one.value) for one in driver.read("order-totals")] == [("ada", 5)]
    assert set(registry.subjects) == {"orders-value", "shop-totals-changelog-value", "order-totals-value"}


# --- failures of records ---


def test_records_that_cannot_be_read_are_skipped_and_counted(registry: SchemaRegistry, drive: Drive) -> None:
    app = sf.App("app")
    copying(Serdes(registry), on_error="skip")(app)
    driver = drive(app)
    driver.pipe("in", "a", order("tea"), 1)
    driver.pipe("in", "b", b"\0\0\0\0\x63unknown", 2)
    driver.pipe("in", "c", b'{"item":"tea"}', 3)
    assert [one.key for one in driver.read("out")] == ["a"]
    assert app.drops.counts == {"deserialize": 2}


def test_dead_letter_of_an_unknown_id_is_the_record_with_the_reason(registry: SchemaRegistry, drive: Drive) -> None:
    app = sf.App("app")
    copying(Serdes(registry), on_error="dead_letter", dead_letter="dead")(app)
    driver = drive(app)
    driver.pipe("in", "b", b"\0\0\0\0\x63unknown", 2)
    (dead,) = driver.read("dead")
    assert dead.value == b"\0\0\0\0\x63unknown"
    assert "no schema has the id 99" in headers_of(dead)["__streams.errors.message"]


def test_record_that_fails_in_a_step_is_a_dead_letter_with_a_subject_of_its_own(
    registry: SchemaRegistry, drive: Drive
) -> None:
    def refuse(key: Any, value: Any) -> None:
        raise ValueError("no")

    app = sf.App("app")
    serdes = Serdes(registry)
    stream = app.stream("in", key=serdes.text, value=serdes.order)
    stream.peek(refuse, on_error="dead_letter", dead_letter="dead").to("out")
    driver = drive(app)
    driver.pipe("in", "a", order("tea"), 1)
    (dead,) = driver.read("dead")
    assert serdes.order.of_topic("dead", "value").deserialize(dead.value) == order("tea")
    assert "dead-value" in registry.subjects


def test_unreadable_record_fails_the_task_with_topic_offset_and_id(registry: SchemaRegistry, drive: Drive) -> None:
    app = sf.App("app")
    copying(Serdes(registry))(app)
    with pytest.raises(sf.InvalidRequest, match=r"record of in-0 at offset 0: cannot be deserialised.*id 99: "):
        drive(app).pipe("in", "b", b"\0\0\0\0\x63unknown", 2)


# --- a registry that is down ---


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead_letter"])
def test_no_record_is_left_out_while_the_registry_is_down(
    registry: SchemaRegistry, bench: Bench, on_error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    create(bench, 1, "in", "out", "dead")
    write_orders(bench, registry, "a", "b")
    dead = {"dead_letter": "dead"} if on_error == "dead_letter" else {}
    one = Running(bench, copying(Serdes(registry), on_error=on_error, **dead))
    registry.stop()
    for _ in range(30):  # longer than the restart strategy would bear failures at one offset
        one.run()
        bench.clock.advance(SERVICE_WAIT_MS)
        bench.settle(one.session)
    assert one.app.drops.counts == {}
    assert one.session.counters.task_failures >= 10  # each failure is counted, and logged:
    lines = [one.getMessage() for one in caplog.records if "is opened again when" in one.getMessage()]
    assert len(lines) >= 10
    assert "opened again when the schema registry answers" in lines[0] and registry.url in lines[0]
    assert written(bench, "out") == written(bench, "dead") == []
    registry.start()
    bench.clock.advance(SERVICE_WAIT_MS)
    one.run()
    bench.settle(one.session)
    one.run()
    one.commit()
    assert len(written(bench, "out")) == 2
    assert one.app.drops.counts == {}


def test_result_of_a_step_waits_for_the_registry_too(registry: SchemaRegistry, bench: Bench) -> None:
    create(bench, 1, "in", "out")
    write_orders(bench, registry, "a")
    serdes = Serdes(registry)
    spoil = [registry.stop]  # once: after the record was read, before its result is written

    def value_of(value: Any) -> Any:
        if spoil:
            spoil.pop()()
        return value

    def make(app: sf.App) -> None:
        stream = app.stream("in", key=serdes.text, value=serdes.order, on_error="skip")
        stream.map_values(value_of).to("out", on_error="skip")

    one = Running(bench, make)
    one.run()
    assert not spoil and written(bench, "out") == []
    registry.start()
    bench.clock.advance(SERVICE_WAIT_MS)
    one.run()
    bench.settle(one.session)
    one.run()
    one.commit()
    assert len(written(bench, "out")) == 1
    assert one.app.drops.counts == {}


def test_schema_that_the_registry_refuses_ends_the_application_and_leaves_nothing_out(
    registry: SchemaRegistry, bench: Bench
) -> None:
    create(bench, 1, "in", "out")
    write_orders(bench, registry, "a")
    registry.frozen.add("out-value")
    one = Running(bench, copying(Serdes(registry), on_error="skip"))
    with pytest.raises(sf.BadConfig, match=r"sink 'out-sink.*subject 'out-value'.*incompatible"):
        one.run()
    assert one.app.drops.counts == {}


def test_put_while_the_registry_is_down_is_unavailable_and_changes_nothing(
    registry: SchemaRegistry, bench: Bench
) -> None:
    serdes = Serdes(registry)
    store = sf.KeyValueStore("kv", serdes.text, serdes.order)
    session = bench.active(stores=[store])
    rows = session.task(0).store(store)
    registry.stop()
    with pytest.raises(
        sf.Unavailable, match=r"store 'kv': the key serde 'registry_avro' cannot serialize: .*'app-kv-changelog-key'"
    ):
        rows.put("a", order("tea"))
    registry.start()
    assert rows.get("a") is None
    rows.put("a", order("tea"))
    assert rows.get("a") == order("tea")


def test_restore_of_a_table_waits_for_the_registry_and_skips_nothing(
    registry: SchemaRegistry, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    create(bench, 1, "in")
    write_orders(bench, registry, "a", "b")
    first = Serdes(registry)
    one = Running(
        bench, lambda app: app.table("in", "rows"), stores=[sf.KeyValueStore("rows", first.text, first.order)]
    )
    one.run()
    one.commit()
    one.close()
    second = Serdes(registry)
    stores = [sf.KeyValueStore("rows", second.text, second.order)]
    registry.stop()
    other = Running(bench, lambda app: app.table("in", "rows"), "b", stores=stores, settle=False)
    for _ in range(10):
        bench.clock.advance(500)
        other.session.poll_once()
    assert "store 'rows': record 0 of in: schema registry" in caplog.text
    assert not other.session.open_tasks()
    registry.start()
    bench.settle(other.session)
    for _ in range(3):
        other.run()
        bench.settle(other.session)
    assert other.rows("rows") == {"a": order("a"), "b": order("b")}


def test_late_records_of_a_source_and_of_a_window_have_the_subjects_of_their_topics(
    registry: SchemaRegistry, drive: Drive
) -> None:
    serdes = Serdes(registry)
    app = sf.App("app", stores=[sf.WindowStore("w", serdes.text, serdes.number, window_size_ms=60, retention_ms=600)])
    stream = app.stream("in", key=serdes.text, value=serdes.order)
    stream.group_by_key().window(sf.TumblingWindows(60)).count("w", late="late").to("out")
    driver = drive(app)
    driver.pipe("in", "a", order("tea"), 5_000)
    driver.pipe("in", "a", order("milk"), 1)
    (late,) = driver.read("late")
    assert "late-value" in registry.subjects
    raw = late.value
    found = raw if isinstance(raw, dict) else serdes.order.of_topic("late", "value").deserialize(raw)
    assert found == order("milk")
