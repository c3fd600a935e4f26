"""An application's kept state is found again when a step is added, or the start reports that it is not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from support.apps import Running, create, text_of, write, written
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
Make = Callable[[sf.App], object]


class Timed(sf.Processor):
    """Sets a timer of the wall clock at each record's value; forwards those that fire."""

    stores = ()
    timer_key = TEXT

    def init(self, context: sf.Context) -> None:
        self.context = context

    def process(self, record: sf.Record) -> None:
        self.context.timer(record.key, self.context.wall_clock_ms + record.value, sf.PROCESSING_TIME)

    def on_timer(self, timer: sf.Timer) -> None:
        self.context.forward(sf.Record(timer.key, "fired", timer.time))


def timed(*, before: int = 0, name: str | None = None) -> Make:
    """An application with a step that has timers, `before` steps before it."""

    def make(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=JSON)
        for _ in range(before):
            stream = stream.filter(lambda key, value: True)
        stream.process(Timed, key=TEXT, value=TEXT, name=name).to("out")

    return make


def set_a_timer(bench: Bench, make: Make) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("a", "500", 1))
    one = Running(bench, make)
    one.run()
    one.commit()
    one.close()


def fired(bench: Bench, one: Running) -> list[str | None]:
    bench.clock.advance(500)
    one.run()
    one.commit()
    return [key for key, _, _ in text_of(written(bench, "out"))]


def app_of(bench: Bench, make: Make, **given: Any) -> sf.App:
    app = sf.App("app", log=bench.address, state_dir=bench.root / "run", clock=bench.clock, **given)
    make(app)
    return app


# --- timers ---


def test_timers_of_an_unnamed_step_are_there_when_a_step_was_added_before_it(bench: Bench) -> None:
    set_a_timer(bench, timed())
    assert fired(bench, Running(bench, timed(before=2))) == ["a"]


def test_timers_kept_under_a_counted_name_are_refused_until_the_step_is_named_so(bench: Bench) -> None:
    set_a_timer(bench, timed(name="Timed-1"))  # the earlier name of an unnamed step behind one other step
    with pytest.raises(
        sf.BadConfig, match=r"'Timed': its timers would begin empty, .* app-Timed-1-timers-changelog: .*name='Timed-1'"
    ):
        Running(bench, timed())
    assert bench.log.admin.describe_topic("app-Timed-timers-changelog") is None
    assert fired(bench, Running(bench, timed(before=3, name="Timed-1"))) == ["a"]


def test_every_counted_name_is_offered(bench: Bench) -> None:
    set_a_timer(bench, timed(name="Timed-12"))
    bench.log.admin.create_topic("app-Timed-3-timers-changelog", 1, TopicPolicy())
    with pytest.raises(sf.BadConfig, match=r"name='Timed-3' or 'Timed-12'"):
        Running(bench, timed())


def test_counted_timers_are_left_behind_where_the_user_says_so(bench: Bench) -> None:
    set_a_timer(bench, timed(name="Timed-1"))
    one = Running(bench, timed(name="timed-anew"))
    assert any("app-Timed-1-timers-changelog" in line for line in one.assembled.notes)
    assert fired(bench, one) == []


def test_counted_timers_beside_timers_of_todays_name_are_reported_only(bench: Bench) -> None:
    set_a_timer(bench, timed())
    bench.log.admin.create_topic("app-Timed-1-timers-changelog", 1, TopicPolicy())
    one = Running(bench, timed())
    assert any("app-Timed-1-timers-changelog" in line for line in one.assembled.notes)
    assert fired(bench, one) == ["a"]


def twice(app: sf.App) -> None:
    stream = app.stream("in", key=TEXT, value=JSON)
    stream.process(Timed, key=TEXT, value=TEXT).to("out")
    stream.process(Timed, key=TEXT, value=TEXT).to("out")


def test_second_unnamed_step_of_a_class_with_timers_must_be_named_before_it_runs(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    with pytest.raises(sf.BadConfig, match=r"process\(Timed\), which has timers: 'Timed' is the name of another step"):
        app_of(bench, twice).open()


def test_step_that_has_the_name_of_a_source_processor_must_be_named_before_it_runs(bench: Bench) -> None:
    create(bench, 1, "in", "more", "out")

    def make(app: sf.App) -> None:
        app.source("more", key=TEXT, value=JSON)(Timed)
        app.stream("in", key=TEXT, value=JSON).process(Timed, key=TEXT, value=TEXT).to("out")

    with pytest.raises(sf.BadConfig, match="give this step a name of its own"):
        app_of(bench, make).open()


def test_steps_without_timers_need_no_name(bench: Bench) -> None:
    create(bench, 1, "in")

    class Plain(sf.Processor):
        stores = ()

    def make(app: sf.App) -> None:
        app.stream("in").process(Plain).process(Plain).process(Plain)

    app = app_of(bench, make)
    bench.opened.append(app.open())


# --- joins ---


def joined(*, before: int = 0, name: str | None = None) -> Make:
    """A stream with a new key, `before` steps before it, joined with a table."""

    def make(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=JSON)
        for _ in range(before):
            stream = stream.filter(lambda key, value: True)
        stream = stream.map(lambda key, value: (key, value), key=TEXT, value=JSON)
        joiner = stream.join if name is None else lambda *given, **named: stream.join(*given, name=name, **named)
        joiner(app.table("t"), lambda value, found: [value, found], value=JSON).to("out")

    return make


def test_records_before_a_join_are_processed_when_a_step_was_added_before_it(bench: Bench) -> None:
    create(bench, 1, "in", "t", "out")
    write(bench, "t", ("a", '"found"', 1))
    write(bench, "in", ("a", "1", 2))
    one = Running(bench, joined())
    reading = TopicPartition("app-t-join-repartition", 0)
    one.loop.poll_once()
    one.loop.commit_all()  # it waits in the topic before the join
    waiting = bench.log.reader().bounds([reading])[reading].end
    one.close()
    assert waiting == 1
    other = Running(bench, joined(before=3))
    other.run()
    other.commit()
    assert [value for _, value, _ in text_of(written(bench, "out"))] == ['[1,"found"]']


def test_join_behind_a_counted_topic_is_refused_until_it_is_named_so(bench: Bench) -> None:
    create(bench, 1, "in", "t", "out")
    write(bench, "t", ("a", '"found"', 1))
    Running(bench, joined(name="t-join-3")).close()
    bench.log.producer().append({TopicPartition("app-t-join-3-repartition", 0): [Outgoing(b"a", b"1", 5)]})
    with pytest.raises(
        sf.BadConfig, match=r"join 't-join': .*app-t-join-repartition, which is new, .* name='t-join-3'; any other"
    ):
        Running(bench, joined())
    other = Running(bench, joined(name="t-join-3"))
    other.run()
    other.commit()
    assert [value for _, value, _ in text_of(written(bench, "out"))] == ['[1,"found"]']


def test_second_unnamed_join_through_a_topic_must_be_named_before_it_runs(bench: Bench) -> None:
    create(bench, 1, "in", "t")

    def make(app: sf.App) -> None:
        table = app.table("t")
        for _ in range(2):
            app.stream("in", key=TEXT, value=JSON).map(lambda key, value: (key, value)).join(
                table, lambda value, found: found
            )

    app = app_of(bench, make)
    assert sorted(app.builder.internal) == ["app-t-join-2-repartition", "app-t-join-repartition"]
    with pytest.raises(sf.BadConfig, match=r"join with table 't'.* 't-join' is the name of another step"):
        app.open()


def test_two_joins_are_named_by_the_user(bench: Bench) -> None:
    app = sf.App("app")
    table = app.table("t")
    for name in ("one", "two"):
        app.stream("in").map(lambda key, value: (key, value)).join(table, lambda value, found: found, name=name)
    assert sorted(app.builder.internal) == ["app-one-repartition", "app-two-repartition"]
    assert app.builder.nameless == []


def test_join_that_would_share_the_topic_of_another_step_is_refused() -> None:
    app = sf.App("app")
    table = app.table("t")
    stream = app.stream("in").map(lambda key, value: (key, value))
    stream.repartition("by-place")
    with pytest.raises(sf.BadConfig, match=r"a repartition topic has the name 'by-place' already"):
        stream.join(table, lambda value, found: found, name="by-place")


# --- leftovers ---


def test_store_that_no_processor_claims_any_more_is_reported_at_the_start(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    create(bench, 1, "in")

    def counted(app: sf.App) -> None:
        app.stream("in", key=TEXT, value=JSON).group_by_key().count("seen")

    def renamed(app: sf.App) -> None:
        app.stream("in", key=TEXT, value=JSON).group_by_key().count("counted")

    Running(bench, counted, stores=[sf.KeyValueStore("seen", TEXT, INT)]).close()
    bench.log.admin.create_topic("app-old-repartition", 1, TopicPolicy())
    app = app_of(bench, renamed, stores=[sf.KeyValueStore("counted", TEXT, INT), sf.KeyValueStore("idle", TEXT, INT)])
    with caplog.at_level(logging.WARNING, logger="standfast"):
        bench.opened.append(app.open())
    assert "changelog app-seen-changelog: no processor of application 'app' claims store 'seen'" in caplog.text
    assert "topic app-old-repartition: no step of application 'app' writes or reads it" in caplog.text
    assert "store 'idle' is declared, but no processor is connected to it" in caplog.text


def test_topics_of_an_application_with_a_longer_name_are_not_reported(bench: Bench) -> None:
    create(bench, 1, "in")

    def counted(app: sf.App) -> None:
        app.stream("in", key=TEXT, value=JSON).group_by_key().count("seen")

    stores = [sf.KeyValueStore("seen", TEXT, INT)]
    write(bench, "in", ("a", "1", 1))
    other = Running(bench, counted, name="app-eu", stores=stores)
    other.run()
    other.commit()
    one = Running(bench, counted, "b", stores=stores)
    assert one.assembled.notes == ()


# --- numbers of sub-topologies ---


def numbered(*, before: bool, **store: Any) -> Make:
    """An application whose one aggregation is behind a source that is added first, or not."""

    def make(app: sf.App) -> None:
        if before:
            app.stream("added", key=TEXT, value=JSON, watermarks=sf.BoundedDisorder(0)).to("out")
        app.stream("in", key=TEXT, value=JSON, watermarks=sf.BoundedDisorder(0)).group_by_key().count("seen")

    return make


def count_some(bench: Bench, **store: Any) -> list[sf.KeyValueStore]:
    create(bench, 1, "in", "added", "out")
    write(bench, "in", ("a", "1", 1_000_000), ("a", "1", 1_000_001))
    stores = [sf.KeyValueStore("seen", TEXT, INT, **store)]
    one = Running(bench, numbered(before=False), stores=stores, watermark_interval_ms=0)
    one.run()
    one.commit()
    one.close()
    return stores


def test_source_that_is_added_first_loses_no_state_and_takes_over_no_clock(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    stores = count_some(bench)
    with caplog.at_level(logging.WARNING, logger="standfast"):
        other = Running(bench, numbered(before=True), stores=stores, watermark_interval_ms=0)
    assert "task 0_0: this directory was left by a sub-topology that read in" in caplog.text
    assert "task 0_0: store 'seen' is no longer declared: its rows are dropped here" in caplog.text
    write(bench, "in", ("a", "1", 2_000_000))
    write(bench, "added", ("old", "1", 7))  # far below the clock of the sub-topology that was number 0 before
    other.run()
    other.commit()
    assert dict(other.session.read("seen", 0).store.all()) == {"a": 3}
    assert [key for key, _, _ in text_of(written(bench, "out"))] == ["old"]
    assert other.app.drops.total == 0
    other.close()
    write(bench, "in", ("a", "1", 5_000_000))
    back = Running(bench, numbered(before=False), stores=stores, watermark_interval_ms=0)  # it is number 0 again
    write(bench, "in", ("a", "1", 5_000_001))
    back.run()
    back.commit()
    assert dict(back.session.read("seen", 0).store.all()) == {"a": 5}
    assert back.app.drops.total == 0


def test_source_that_is_added_first_is_refused_where_rows_have_no_changelog(bench: Bench) -> None:
    stores = count_some(bench, logging=False)
    with pytest.raises(
        sf.InvalidRequest, match=r"store 'seen' of task 0_0 .* the only copy, and no processor of this task claims it"
    ):
        Running(bench, numbered(before=True), stores=stores)
    bench.opened[-1].close()
    other = Running(bench, numbered(before=False), stores=stores)
    assert other.rows("seen") == {"a": 2}
