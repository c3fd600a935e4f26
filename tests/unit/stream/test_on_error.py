"""`on_error` of a source or a step covers all effects of a record: held and final results, topics, timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import standfast as sf
from standfast.replication.log import TopicPolicy
from standfast.stream.dsl.fluent import Stream
from standfast.stream.dsl.windowed_serde import windowed
from standfast.stream.topology.policy import StepOptions
from support.apps import Drive, Running, create, headers_of, text_of, write, written
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
ERRORS = "__streams.errors."
MINUTE = sf.TumblingWindows(60)


def fail_for(*bad: Any) -> Callable[[Any, Any], None]:
    """A function of key and value that fails for these keys; of a windowed key, its plain one counts."""

    def check(key: Any, value: Any) -> None:
        if getattr(key, "key", key) in bad:
            raise ValueError(f"no {key!r} here")

    return check


def came(driver: sf.testing.Driver, topic: str = "out") -> list[tuple[Any, Any]]:
    return [(getattr(record.key, "key", record.key), record.value) for record in driver.read(topic)]


def counting(caching: bool = True, **source: Any) -> tuple[sf.App, Stream]:
    app = sf.App(
        "app",
        stores=[
            sf.KeyValueStore("seen", TEXT, INT, caching=caching),
            sf.WindowStore("final", TEXT, INT, window_size_ms=60, retention_ms=600),
        ],
    )
    return app, app.stream("in", key=TEXT, value=JSON, **source)


def pipe(driver: sf.testing.Driver, *keys: str, stamp: int = 1) -> None:
    for key in keys:
        driver.pipe("in", key, 1, stamp)


# --- results that a cache held back ---


def test_held_result_that_fails_is_left_out_by_itself_and_the_others_go_on(drive: Drive) -> None:
    app, stream = counting(on_error="skip")
    stream.group_by_key().count("seen").peek(fail_for("bad")).to("out")
    driver = drive(app)
    pipe(driver, "a", "bad", "b", "bad")
    driver.commit()
    assert came(driver) == [("a", 1), ("b", 1)]
    assert app.drops.counts == {"result": 1}
    assert dict(driver.store("seen").all()) == {"a": 1, "b": 1, "bad": 2}  # counted records stay counted
    pipe(driver, "a", "bad")
    driver.commit()
    assert came(driver) == [("a", 2)]
    assert app.drops.counts == {"result": 2}


def test_held_result_that_fails_fails_the_task_unless_something_says_otherwise(drive: Drive) -> None:
    app, stream = counting()
    stream.group_by_key().count("seen").peek(fail_for("bad")).to("out")
    driver = drive(app)
    pipe(driver, "a", "bad")
    with pytest.raises(ValueError, match="no 'bad' here"):
        driver.commit()


def test_what_a_held_result_did_before_it_failed_is_taken_back(drive: Drive) -> None:
    app, stream = counting(on_error="skip")
    table = stream.group_by_key().count("seen")
    table.to("first")
    table.peek(fail_for("bad")).to("out")
    driver = drive(app)
    pipe(driver, "a", "bad")
    driver.commit()
    assert came(driver, "first") == came(driver, "out") == [("a", 1)]


def test_held_result_that_a_sink_cannot_serialise_is_left_out_and_kept_as_a_dead_letter(drive: Drive) -> None:
    app, stream = counting(on_error="dead_letter", dead_letter="bad")
    names = stream.group_by_key().count("seen").map_values(lambda count: count if count < 2 else "many")
    names.to("out", value=INT)
    driver = drive(app)
    pipe(driver, "a", "b", "b")
    driver.commit()
    assert came(driver) == [("a", 1)]
    (letter,) = driver.read("bad")
    assert (letter.key, letter.value, letter.timestamp) == (b"b", INT.serialize(2), 1)
    headers = headers_of(letter)
    assert headers[f"{ERRORS}step"] == "seen-count"
    assert headers[f"{ERRORS}exception"] == "InvalidRequest"


def test_what_a_processor_of_ones_own_held_back_is_left_out_one_by_one(drive: Drive) -> None:
    class Holds(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.held: list[sf.Record] = []
            self.context = context
            context.on_flush(self.flush)

        def process(self, record: sf.Record) -> None:
            self.held.append(record)

        def flush(self) -> None:
            for record in self.held:
                self.context.forward(record, to="check")
            self.held.clear()

    app, stream = counting(on_error="dead_letter", dead_letter="bad")
    stream.process(Holds, key=TEXT, value=JSON).peek(fail_for("bad"), name="check").to("out")
    driver = drive(app)
    pipe(driver, "a", "bad", "b")
    driver.commit()
    assert came(driver) == [("a", 1), ("b", 1)]
    assert [(letter.key, letter.value) for letter in driver.read("bad")] == [(b"bad", b"1")]
    assert app.drops.counts == {"result": 1}


def test_chain_of_aggregations_loses_only_what_fails(drive: Drive) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore(name, TEXT, INT) for name in ("seen", "again")])
    first = app.stream("in", key=TEXT, value=JSON, on_error="skip").group_by_key().count("seen").to_stream()
    first.group_by_key().reduce(lambda old, new: new, "again").peek(fail_for("bad")).to("out", value=INT)
    driver = drive(app)
    pipe(driver, "a", "bad", "b")
    driver.commit()
    assert came(driver) == [("a", 1), ("b", 1)]
    assert app.drops.counts == {"result": 1}


# --- final results ---


def test_final_result_that_fails_is_left_out_once_and_later_records_go_on(drive: Drive) -> None:
    app, stream = counting(on_error="skip")
    final = stream.group_by_key().window(MINUTE).count("final", emit=sf.ON_WINDOW_CLOSE)
    final.peek(fail_for("bad")).to("out")
    driver = drive(app)
    pipe(driver, "a", "bad", "c")
    pipe(driver, "late", stamp=70)
    pipe(driver, "later", stamp=71)
    assert came(driver) == [("a", 1), ("c", 1)]
    pipe(driver, "last", stamp=130)
    assert came(driver) == [("late", 1), ("later", 1)]
    assert app.drops.counts == {"result": 1}


def test_final_result_counts_once_though_the_record_that_closed_its_window_fails_too(drive: Drive) -> None:
    app, stream = counting(on_error="dead_letter", dead_letter="bad")
    final = stream.group_by_key().window(MINUTE).count("final", emit=sf.ON_WINDOW_CLOSE)
    final.peek(fail_for("bad")).to("out")
    stream.peek(fail_for("closer"))
    driver = drive(app)
    pipe(driver, "bad", "a")
    pipe(driver, "closer", stamp=70)
    assert (came(driver), app.drops.counts) == ([], {"process": 1})  # the closing was rolled back with its record
    assert [letter.key for letter in driver.read("bad")] == [b"closer"]
    pipe(driver, "next", stamp=71)
    assert came(driver) == [("a", 1)]
    assert app.drops.counts == {"process": 1, "result": 1}
    (letter,) = driver.read("bad")
    assert letter.key == windowed(TEXT, 60).serialize(sf.Windowed("bad", 0, 60))


# --- rows that their serde cannot read ---


def unreadable(raw: bytes) -> Any:
    if raw == b'"bad"':
        raise ValueError("no bad here")
    return JSON.deserialize(raw)


PICKY = sf.serde.Serde("picky", JSON.serialize, unreadable)  # it cannot read all that it writes


@pytest.mark.parametrize("caching", [True, False])
def test_row_that_cannot_be_read_fails_its_record_and_its_result_alone(drive: Drive, caching: bool) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("last", TEXT, PICKY, caching=caching)])
    stream = app.stream("in", key=TEXT, value=JSON, on_error="skip")
    stream.group_by_key().reduce(lambda old, new: new, "last").to("out", value=JSON)
    driver = drive(app)
    for key, value in (("a", 1), ("x", "bad"), ("x", 2), ("b", 3)):
        driver.pipe("in", key, value, 1)
    driver.commit()
    results = [("a", 1), ("b", 3)] if caching else [("a", 1), ("x", "bad"), ("b", 3)]
    assert came(driver) == results
    assert app.drops.counts == ({"process": 1, "result": 1} if caching else {"process": 1})


def test_final_result_that_cannot_be_read_takes_no_later_record_with_it(drive: Drive) -> None:
    app = sf.App("app", stores=[sf.WindowStore("final", TEXT, PICKY, window_size_ms=60, retention_ms=600)])
    grouped = app.stream("in", key=TEXT, value=JSON, on_error="skip").group_by_key().window(MINUTE)
    grouped.reduce(lambda old, new: new, "final", emit=sf.ON_WINDOW_CLOSE).to("out", value=JSON)
    driver = drive(app)
    for key, value, stamp in (("a", 1, 1), ("x", "bad", 1), ("b", 2, 1), ("c", 3, 70), ("d", 4, 130)):
        driver.pipe("in", key, value, stamp)
    assert came(driver) == [("a", 1), ("b", 2), ("c", 3)]
    assert app.drops.counts == {"result": 1}


# --- topics between tasks ---


def test_record_that_fails_behind_a_repartition_is_skipped_as_its_source_says(drive: Drive) -> None:
    app, stream = counting(on_error="skip")
    stream.repartition("x").peek(fail_for("bad")).to("out")
    driver = drive(app)
    pipe(driver, "a", "bad", "b")
    assert came(driver) == [("a", 1), ("b", 1)]
    assert app.drops.counts == {"process": 1}


def test_dead_letter_from_behind_a_repartition_is_the_record_as_it_stood_there(drive: Drive) -> None:
    app, stream = counting(on_error="dead_letter", dead_letter="bad")
    stream.map_values(lambda value: [value]).repartition("x").peek(fail_for("bad")).to("out")
    driver = drive(app)
    pipe(driver, "a", "bad")
    (letter,) = driver.read("bad")
    assert (letter.key, letter.value) == (b"bad", b"[1]")
    headers = headers_of(letter)
    assert (headers[f"{ERRORS}topic"], headers[f"{ERRORS}offset"]) == ("app-x-repartition", "1")


def test_record_that_cannot_be_read_behind_a_repartition_is_skipped(drive: Drive) -> None:
    app, stream = counting(on_error="skip")
    picky = sf.serde.Serde("picky", JSON.serialize, lambda raw: 1 / (len(raw) - 1))  # fails for one byte
    stream.repartition("x", value=picky).to("out", value=JSON)
    driver = drive(app)
    driver.pipe("in", "a", 1, 1)
    driver.pipe("in", "b", 22, 1)
    assert came(driver) == [("b", 1.0)]
    assert app.drops.counts == {"deserialize": 1}


def test_results_behind_an_implied_repartition_are_covered_too(drive: Drive) -> None:
    app, stream = counting(on_error="skip")
    counted = stream.group_by(lambda key, value: key).count("seen")
    counted.peek(fail_for("bad")).to("out")
    driver = drive(app)
    pipe(driver, "a", "bad")
    driver.commit()
    assert (came(driver), app.drops.counts) == ([("a", 1)], {"result": 1})


@pytest.mark.parametrize(("other", "covered"), [("skip", True), ("fail", False)])
def test_of_several_sources_the_strictest_holds_for_what_they_cause_together(
    drive: Drive, other: Any, covered: bool
) -> None:
    app, stream = counting(on_error="skip")
    both = stream.merge(app.stream("more", key=TEXT, value=JSON, on_error=other))
    both.group_by_key().count("seen").peek(fail_for("bad")).to("out")
    driver = drive(app)
    pipe(driver, "a", "bad")
    if covered:
        driver.commit()
        assert came(driver) == [("a", 1)]
    else:
        with pytest.raises(ValueError, match="no 'bad' here"):
            driver.commit()


def test_broadcast_is_covered_in_every_task(drive: Drive) -> None:
    app, stream = counting(on_error="skip")
    stream.broadcast("all").peek(fail_for("bad")).to("out")
    driver = drive(app, partitions=2)
    pipe(driver, "a", "bad")
    assert [key for key, _ in came(driver)] == ["a", "a"]
    assert app.drops.counts == {"process": 2}  # one in each task


# --- steps ---


STEPS: dict[str, Callable[[Stream, Any], Any]] = {
    "filter": lambda s, on: s.filter(lambda key, value: fail_for("bad")(key, value) is None, **on),
    "filter_not": lambda s, on: s.filter_not(lambda key, value: fail_for("bad")(key, value) is not None, **on),
    "map": lambda s, on: s.map(lambda key, value: (key, 1 // (key != "bad")), **on),
    "map_values": lambda s, on: s.peek(lambda *_: None).map_values(lambda value: 1 // (value != 9), **on),
    "flat_map": lambda s, on: s.flat_map(lambda key, value: [(key, 1), (key, 1 // (key != "bad"))][1:], **on),
    "select_key": lambda s, on: s.select_key(lambda key, value: key[: 9 // (key != "bad")], **on),
    "peek": lambda s, on: s.peek(fail_for("bad"), **on),
    "merge": lambda s, on: s.merge(s.filter(lambda key, value: False), **on).peek(fail_for("bad")),
}


@pytest.mark.parametrize("step", STEPS)
def test_step_with_on_error_skips_what_fails_in_it_and_counts_it_by_its_name(drive: Drive, step: str) -> None:
    app, stream = counting()
    STEPS[step](stream, {"on_error": "skip", "name": "my-step"}).to("out")
    driver = drive(app)
    for key in ("a", "bad", "b"):
        driver.pipe("in", key, 9 if key == "bad" else 1, 1)
    assert came(driver) == [("a", 1), ("b", 1)]
    assert app.drops.counts == {"my-step": 1}
    assert driver.dropped == 1


def test_step_takes_back_only_what_a_record_did_from_there_on(drive: Drive) -> None:
    app, stream = counting()
    stream.to("all")
    stream.peek(fail_for("bad"), on_error="skip", name="check").to("out")
    driver = drive(app)
    pipe(driver, "a", "bad")
    assert came(driver, "all") == [("a", 1), ("bad", 1)]
    assert came(driver) == [("a", 1)]


def test_step_covers_what_its_records_cause_in_caches_and_behind_topics(drive: Drive) -> None:
    app, stream = counting()
    passed = stream.map(lambda key, value: (key, value), on_error="skip", name="step")
    counted = passed.repartition("x").group_by_key().count("seen")
    counted.peek(fail_for("bad")).to("out")
    driver = drive(app)
    pipe(driver, "a", "bad")
    driver.commit()
    assert (came(driver), app.drops.counts) == ([("a", 1)], {"step": 1})


def test_step_inside_a_source_that_skips_may_insist_on_failing(drive: Drive) -> None:
    app, stream = counting(on_error="skip")
    stream.peek(fail_for("worse")).peek(fail_for("bad"), on_error="fail").to("out")
    driver = drive(app)
    pipe(driver, "worse", "a")
    assert (came(driver), app.drops.counts) == ([("a", 1)], {"process": 1})
    with pytest.raises(ValueError, match="no 'bad' here"):
        pipe(driver, "bad")


def test_dead_letter_of_a_step_is_the_record_as_it_came_there(drive: Drive) -> None:
    app, stream = counting()
    mapped = stream.map(lambda key, value: (key.upper(), [value]))
    mapped.peek(fail_for("BAD"), on_error="dead_letter", dead_letter="bad", name="check").to("out")
    driver = drive(app)
    pipe(driver, "a", "bad")
    (letter,) = driver.read("bad")
    headers = headers_of(letter)
    assert (letter.key, letter.value, letter.timestamp) == (b"BAD", b"[1]", 1)
    assert headers[f"{ERRORS}step"] == "check"
    assert (headers[f"{ERRORS}topic"], headers[f"{ERRORS}partition"], headers[f"{ERRORS}offset"]) == ("in", "0", "1")
    assert headers[f"{ERRORS}exception"] == "ValueError"


def test_dead_letter_of_a_sink_that_cannot_serialise_is_kept_as_text(drive: Drive) -> None:
    app, stream = counting()
    stream.map_values(lambda value: {1, value}).to("out", on_error="dead_letter", dead_letter="bad", name="sink")
    driver = drive(app)
    pipe(driver, "a")
    (letter,) = driver.read("bad")
    assert (letter.key, letter.value) == (b"a", b"{1}")
    assert headers_of(letter)[f"{ERRORS}value.text"] == "repr"
    assert app.drops.counts == {"sink": 1}


@pytest.mark.parametrize("caching", [True, False])
def test_aggregation_takes_on_error_and_a_name_as_any_step(drive: Drive, caching: bool) -> None:
    def add(key: str, value: Any, total: int) -> int:
        return total + value

    app, stream = counting(caching)
    grouped = stream.group_by(lambda key, value: key)
    grouped.aggregate(int, add, "seen", on_error="skip", name="sum").peek(fail_for("bad")).to("out")
    driver = drive(app)
    for key, value in (("a", 1), ("a", "x"), ("bad", 1), ("a", 2)):
        driver.pipe("in", key, value, 1)
    driver.commit()
    assert came(driver)[-1] == ("a", 3)
    assert app.drops.counts == {"sum": 2}
    assert dict(driver.store("seen").all()) == ({"a": 3, "bad": 1} if caching else {"a": 3})


def test_join_and_process_take_on_error_and_a_name(drive: Drive) -> None:
    class Picky(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            fail_for("worse")(record.key, record.value)
            self.context.forward(record)

    app, stream = counting()
    joined = stream.left_join(
        app.table("t"), lambda value, found: 1 // (value != 9), on_error="skip", name="joined", value=JSON
    )
    joined.process(Picky, on_error="skip", name="picky", key=TEXT, value=JSON).to("out")
    driver = drive(app)
    for key, value in (("a", 1), ("bad", 9), ("worse", 1), ("b", 1)):
        driver.pipe("in", key, value, 1)
    assert came(driver) == [("a", 1), ("b", 1)]
    assert app.drops.counts == {"joined": 1, "picky": 1}


def test_counts_of_a_record_that_is_skipped_in_the_end_are_those_of_the_record_alone(drive: Drive) -> None:
    app, stream = counting(on_error="skip")
    pairs = stream.flat_map(lambda key, value: [(None, 1), (key, 1)])
    pairs.repartition("x").to("copy")
    pairs.peek(fail_for("bad")).to("out")
    driver = drive(app)
    pipe(driver, "bad")
    assert app.drops.counts == {"process": 1}
    pipe(driver, "a")
    assert app.drops.counts == {"process": 1, "null_key": 1}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"on_error": "ignore"}, "step 'my': on_error must be one of fail, skip, dead_letter"),
        ({"on_error": "dead_letter"}, "step 'my': .* belong together"),
        ({"dead_letter": "bad"}, "step 'my': .*on_error must be"),
        ({"on_error": "skip", "name": "null_key"}, "the name is that of another count"),
    ],
)
def test_on_error_of_a_step_that_cannot_be_used_is_refused(step: Any, message: str) -> None:
    app, stream = counting()
    before = dict(app.builder.nodes)
    with pytest.raises(sf.BadConfig, match=message):
        stream.peek(print, **cast("StepOptions", {"name": "my", **step}))
    assert app.builder.nodes == before


def test_option_that_no_step_has_is_refused() -> None:
    _, stream = counting()
    with pytest.raises(sf.BadConfig, match="no setting 'on_eror': did you mean 'on_error'"):
        stream.peek(print, on_eror="skip")  # type: ignore[call-arg]


# --- timers and punctuations ---


class Alarm(sf.Processor):
    def init(self, context: sf.Context) -> None:
        self.context = context

    def process(self, record: sf.Record) -> None:
        self.context.timer(record.key, 100, sf.PROCESSING_TIME)
        self.context.timer("late", 200, sf.PROCESSING_TIME)

    def on_timer(self, timer: sf.Timer) -> None:
        self.context.store("seen").put(timer.key, 1, 1)
        self.context.forward(sf.Record(timer.key, 1, timer.time))
        fail_for("bad")(timer.key, 1)


@pytest.mark.parametrize("where", ["source", "step"])
def test_timer_that_fails_is_taken_back_counted_and_does_not_fire_again(drive: Drive, where: str) -> None:
    app, stream = counting(on_error="skip" if where == "source" else "fail")
    stream.process(Alarm, "seen", name="alarm", on_error="skip" if where == "step" else None).to("out", value=JSON)
    driver = drive(app)
    pipe(driver, "a", "bad", "c")
    driver.advance_wall_clock(150)
    assert came(driver) == [("a", 1), ("c", 1)]
    assert dict(driver.store("seen").all()) == {"a": 1, "c": 1}
    driver.restart()
    driver.advance_wall_clock(100)
    assert came(driver) == [("late", 1)]
    assert app.drops.counts == {"timer" if where == "source" else "alarm": 1}


def test_punctuation_that_fails_is_covered_by_its_step_alone(drive: Drive) -> None:
    class Ticks(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context
            context.schedule(10, sf.WALL_CLOCK_TIME, self.tick)

        def tick(self, now_ms: int) -> None:
            self.context.forward(sf.Record("tick", now_ms, now_ms))
            if now_ms == 20:
                raise ValueError("no 20 here")

    app, stream = counting()
    stream.process(Ticks, on_error="skip", name="ticks").to("out", key=TEXT, value=JSON)
    driver = drive(app)
    for _ in range(3):
        driver.advance_wall_clock(10)
    assert came(driver) == [("tick", 10), ("tick", 30)]
    assert app.drops.counts == {"ticks": 1}

    app, stream = counting(on_error="skip")
    stream.process(Ticks)
    driver = drive(app)
    with pytest.raises(ValueError, match="no 20 here"):
        driver.advance_wall_clock(20)


# --- watermarks ---


def test_watermark_crosses_a_repartition_where_a_record_was_left_out(drive: Drive) -> None:
    fired = []

    class Once(Alarm):
        def process(self, record: sf.Record) -> None:
            fail_for("bad")(record.key, 1)
            self.context.timer(record.key, record.timestamp)

        def on_timer(self, timer: sf.Timer) -> None:
            fired.append((timer.key, timer.time))

    app, stream = counting(on_error="skip", watermarks=lambda: sf.BoundedDisorder(0))
    stream.repartition("x").process(Once)
    app.watermark_interval_ms = 0
    driver = drive(app)
    for key, stamp in (("a", 10), ("bad", 20), ("c", 30), ("d", 40)):
        driver.pipe("in", key, 1, stamp)
    assert fired == [("a", 10), ("c", 30)]
    assert app.drops.counts == {"process": 1}


# --- on the real loop ---


def test_app_goes_on_past_a_held_result_that_fails_and_commits_it_once(bench: Bench) -> None:
    create(bench, 1, "in", "out", "bad")

    def make(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=JSON, on_error="dead_letter", dead_letter="bad")
        stream.group_by(lambda key, value: key).count("seen").peek(fail_for("bad")).to("out")

    write(bench, "in", *((key, "1", 1) for key in ("a", "bad", "b")))
    one = Running(bench, make, stores=[sf.KeyValueStore("seen", TEXT, INT)])
    one.run()
    one.commit()
    assert {key for key, _, _ in text_of(written(bench, "out"))} == {"a", "b"}
    assert [record.key for record in written(bench, "bad")] == [b"bad"]
    assert one.app.drops.counts == {"result": 1}
    one.close()
    other = Running(bench, make, "b", stores=[sf.KeyValueStore("seen", TEXT, INT)])
    write(bench, "in", ("a", "1", 2))
    other.run()
    other.commit()
    assert len(written(bench, "bad")) == 1
    assert other.rows("seen") == {"a": 2, "b": 1, "bad": 1}


def test_record_of_a_large_key_and_a_large_value_fails_alone(drive: Drive) -> None:
    app, stream = counting(on_error="skip")
    stream.map(lambda key, value: (key * value, "v" * value), key=TEXT, value=TEXT).to("out")
    driver = drive(app)
    for size in (1, 600_000, 500_000):
        driver.pipe("in", "k", size, 1)
    assert [len(key) for key, _ in came(driver)] == [1, 500_000]
    assert app.drops.counts == {"process": 1}


def test_record_without_a_key_for_a_compacted_topic_fails_alone(bench: Bench) -> None:
    create(bench, 1, "in")
    bench.log.admin.create_topic("latest", 1, TopicPolicy(frozenset({"compact"})))

    def make(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=JSON, on_error="skip")
        stream.map(lambda key, value: (None if key == "bad" else key, value)).to("latest", key=TEXT, value=JSON)

    write(bench, "in", *((key, "1", 1) for key in ("a", "bad", "b")))
    one = Running(bench, make)
    one.run()
    one.commit()
    assert [key for key, _, _ in text_of(written(bench, "latest"))] == ["a", "b"]
    assert one.app.drops.counts == {"process": 1}


def test_dead_letter_is_kept_though_what_is_said_of_the_error_is_too_large(drive: Drive) -> None:
    def fail(key: str, value: Any) -> None:
        raise ValueError("x" * 2_000_000)

    app, stream = counting(on_error="dead_letter", dead_letter="bad")
    stream.peek(fail).to("out")
    driver = drive(app)
    pipe(driver, "a")
    (letter,) = driver.read("bad")
    assert (letter.key, letter.value) == (b"a", b"1")
    assert headers_of(letter)[f"{ERRORS}message"] == "x" * 4_096


def test_dead_letter_above_the_limit_has_less_of_its_value_and_says_how_much_there_was(drive: Drive) -> None:
    app, stream = counting(on_error="dead_letter", dead_letter="bad")
    stream.to("out")
    driver = drive(app)
    driver.pipe("in", b"a", b"{" + b"x" * 1_000_000, 1)
    pipe(driver, "b")
    (letter,) = driver.read("bad")
    assert letter.key == b"a" and letter.value is not None and letter.value.startswith(b"{xxx")
    assert 900_000 < len(letter.value) <= 1_000_000
    assert headers_of(letter)[f"{ERRORS}value.bytes"] == "1000001"
    assert came(driver) == [("b", 1)] and app.drops.counts == {"deserialize": 1}


def test_dead_letter_that_cannot_be_cut_below_the_limit_is_counted(drive: Drive) -> None:
    app, stream = counting(on_error="dead_letter", dead_letter="bad")
    stream.to("out")
    driver = drive(app)
    driver.pipe("in", b"k" * 1_000_001, b"{", 1)
    pipe(driver, "b")
    assert driver.read("bad") == [] and came(driver) == [("b", 1)]
    assert app.drops.counts == {"deserialize": 1, "dead_letter": 1}


def test_sink_of_a_class_takes_on_error_as_a_step(drive: Drive) -> None:
    class PassOn(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            self.context.forward(record)

    app = sf.App("app")
    app.source("in", key=TEXT, value=JSON)(PassOn)
    app.sink("out", key=TEXT, value=INT, on_error="skip", name="numbers")(PassOn)
    driver = drive(app)
    for value in (1, "x", 2):
        driver.pipe("in", "a", value, 1)
    assert came(driver) == [("a", 1), ("a", 2)]
    assert app.drops.counts == {"numbers": 1}
