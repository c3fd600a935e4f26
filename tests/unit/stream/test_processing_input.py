"""Bad input to the processing layer: the refusals, their messages, and that no state changed.

Each row is a wrong call; parts with tests of their own elsewhere (sources, timers, schedules, aggregations, windows)
are not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import TopicPolicy
from support.apps import Drive, Running, create
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
Inside = Callable[[sf.Context], object]


def application(inside: Inside, **given: Any) -> sf.App:
    class Tries(sf.Processor):
        stores = ("mine",)

        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            inside(self.context)

    app = sf.App("app", stores=[sf.KeyValueStore(name, TEXT, INT) for name in ("mine", "other")], **given)
    app.source("in", key=TEXT, value=JSON)(Tries)
    app.sink("out", key=TEXT, value=INT)(Tries)
    return app


INSIDE: dict[str, tuple[Inside, str]] = {
    "a store of another processor": (
        lambda context: context.store("other"),
        r"store 'other' is not connected to processor 'Tries' \(connected: mine\): declare it in",
    ),
    "a store that nobody declared": (
        lambda context: context.store("none"),
        r"store 'none' is not connected to processor 'Tries'",
    ),
    "a null key": (lambda context: context.store("mine").put(None, 1), "None"),
    "a value of another type": (lambda context: context.store("mine").put("a", "text"), "mine"),
    "a record that is none": (
        lambda context: context.forward(("a", 1, 5)),  # type: ignore[arg-type]
        r"'Tries' forwards tuple: give a standfast.Record",
    ),
    "a negative timestamp": (
        lambda context: context.forward(sf.Record("a", 1, -1)),
        "forwards a record with timestamp -1: give whole milliseconds from 0",
    ),
    "a timestamp that is no whole number": (
        lambda context: context.forward(sf.Record("a", 1, 1.5)),  # type: ignore[arg-type]
        "forwards a record with timestamp 1.5",
    ),
    "a timestamp that is a truth value": (
        lambda context: context.forward(sf.Record("a", 1, True)),
        "forwards a record with timestamp True",
    ),
    "no timestamp": (
        lambda context: context.forward(sf.Record("a", 1, None)),  # type: ignore[arg-type]
        "forwards a record with timestamp None",
    ),
    "a child that it has not": (
        lambda context: context.forward(sf.Record("a", 1, 0), to="nobody"),
        r"'Tries' has no child 'nobody' \(it has: out-sink\)",
    ),
    "a value that the sink cannot write": (
        lambda context: context.forward(sf.Record("a", "text", 0)),
        "sink 'out-sink': the value serde 'int64' cannot serialise this value for topic out",
    ),
    "a topic name that is none": (
        lambda context: context.send("no/topic", b"", b"", partition=0),
        "topic name 'no/topic' is not usable",
    ),
    "an interval of 0": (lambda context: context.schedule(0, sf.STREAM_TIME, print), "interval_ms 0"),
    "a timer without on_timer": (lambda context: context.timer("a", 5), "'Tries' has no timers"),
}


@pytest.mark.parametrize(("inside", "told"), INSIDE.values(), ids=INSIDE.keys())
def test_wrong_call_of_a_processor_is_refused_and_changes_nothing(drive: Drive, inside: Inside, told: str) -> None:
    refused: list[str] = []

    def attempt(context: sf.Context) -> None:
        with pytest.raises(sf.InvalidRequest, match=told) as error:
            inside(context)
        refused.append(str(error.value))

    driver = drive(application(attempt))
    driver.pipe("in", "a", 1)
    assert len(refused) == 1
    assert (driver.read("out"), list(driver.store("mine").all())) == ([], [])


DECLARED: dict[str, tuple[Callable[[], object], str]] = {
    "an unknown policy of stream time": (
        lambda: sf.App("app", stream_time="mean"),  # type: ignore[arg-type]
        "stream_time must be one of min, max, not 'mean'",
    ),
    "a commit interval of 0": (lambda: sf.App("app", commit_interval_ms=0), "commit_interval_ms must be .* at least 1"),
    "a negative watermark interval": (
        lambda: sf.App("app", watermark_interval_ms=-1),
        "watermark_interval_ms must be .* at least 0",
    ),
    "an interval that is a truth value": (
        lambda: sf.App("app", commit_interval_ms=True),
        "commit_interval_ms must be .* not True",
    ),
    "a source topic that is no name": (lambda: sf.App("app").stream("a b"), "topic name 'a b' is not usable"),
    "an output topic that is no name": (lambda: sf.App("app").stream("a").to("a b"), "topic name 'a b' is not usable"),
    "a repartition that is no name": (
        lambda: sf.App("app").stream("a").repartition("x/y"),
        "repartition name 'x/y' is not usable",
    ),
    "an internal topic that would be too long": (
        lambda: sf.App("a" * 120).stream("a").repartition("x" * 128),
        "is not usable: use 1 to 249",
    ),
    "a source below something that is no processor": (
        lambda: sf.App("app").source("a")(int),  # type: ignore[type-var]
        "source 'a': decorate a subclass of standfast.Processor",
    ),
    "a sink below an instance": (
        lambda: sf.App("app").sink("a")(sf.Processor()),  # type: ignore[type-var]
        "sink 'a': decorate a subclass of standfast.Processor",
    ),
    "windows that are none": (
        lambda: sf.App("app").stream("a").group_by_key().window(5_000),  # type: ignore[arg-type]
        "5000 are not windows",
    ),
    "an aggregation into a store that nobody declared": (
        lambda: sf.App("app").stream("a").group_by_key().count("none"),
        r"store 'none' is not declared \(declared: none\)",
    ),
    "tumbling windows of size 0": (lambda: sf.TumblingWindows(0), "size_ms"),
    "hopping windows that leave gaps": (lambda: sf.HoppingWindows(1_000, 1_001), "advance_ms"),
    "a negative grace": (lambda: sf.TumblingWindows(1_000, -1), "grace_ms"),
    "a gap below 0": (lambda: sf.SessionWindows(-1), "gap_ms"),
    "a restart strategy that is none": (
        lambda: sf.FixedDelay(attempts=-1),
        "attempts must be a whole number from 0",
    ),
    "negative disorder": (lambda: sf.BoundedDisorder(-1), "max_disorder_ms is -1"),
}


@pytest.mark.parametrize(("declare", "told"), DECLARED.values(), ids=DECLARED.keys())
def test_wrong_declaration_is_refused(declare: Callable[[], object], told: str) -> None:
    with pytest.raises(sf.InvalidRequest, match=told):
        declare()


def test_every_problem_of_an_application_is_told_at_once() -> None:
    with pytest.raises(sf.BadConfig) as refused:
        sf.App("app", stream_time="mean", commit_interval_ms=0, watermark_interval_ms=-1)  # type: ignore[arg-type]
    assert len(refused.value.problems) == 3


# --- an application against a log ---


def test_application_without_log_or_state_directory_does_not_run(tmp_path: Path) -> None:
    app = sf.App("app", state_dir=tmp_path)
    app.stream("in")
    with pytest.raises(sf.BadConfig, match=r"application 'app' needs log=\.\.\. and state_dir=\.\.\. to run"):
        app.run()


def test_every_missing_topic_is_told_and_no_internal_one_is_made(bench: Bench) -> None:
    create(bench, 1, "there")

    def make(app: sf.App) -> None:
        app.stream("there").merge(app.stream("gone")).select_key(lambda key, value: key).repartition("x").to("lost")
        app.stream("away")

    with pytest.raises(sf.BadConfig) as refused:
        Running(bench, make)
    assert [problem.split(" does not")[0] for problem in refused.value.problems] == [
        "source topic 'gone'",
        "source topic 'away'",
        "output topic 'lost'",
    ]
    assert [info.name for info in bench.log.admin.topics()] == ["there"]


def test_output_topics_that_are_missing_are_all_told(bench: Bench) -> None:
    create(bench, 1, "in")

    def make(app: sf.App) -> None:
        stream = app.stream(
            "in", on_error="dead_letter", dead_letter="bad", watermarks=sf.BoundedDisorder(0), late="late"
        )
        stream.to("out")

    with pytest.raises(sf.BadConfig) as refused:
        Running(bench, make)
    assert [problem.split("'")[1] for problem in refused.value.problems] == ["out", "bad", "late"]


def test_internal_topic_with_another_number_of_partitions_is_refused(bench: Bench) -> None:
    create(bench, 2, "in")
    bench.log.admin.create_topic("app-x-repartition", 3, TopicPolicy())
    with pytest.raises(
        sf.BadConfig, match=r"app-x-repartition has 3 partitions but the application needs 2: give \.rep"
    ):
        Running(bench, lambda app: app.stream("in").repartition("x"))


# --- the driver ---


def test_driver_names_the_topics_and_stores_that_there_are(drive: Drive) -> None:
    driver = drive(application(lambda context: None))
    with pytest.raises(sf.InvalidRequest, match=r"'none' is not a source of 'app' \(sources: in\)"):
        driver.pipe("none", "a", 1)
    for topic in ("none", "in"):
        with pytest.raises(sf.InvalidRequest, match=rf"'app' writes no topic '{topic}' \(it writes: out\)"):
            driver.read(topic)
    with pytest.raises(sf.InvalidRequest, match=r"'app' has no store 'none' \(it has: mine, other\)"):
        driver.store("none")


@pytest.mark.parametrize("partition", [-1, 2])
def test_driver_knows_how_many_partitions_there_are(drive: Drive, partition: int) -> None:
    driver = drive(application(lambda context: None), partitions=2)
    with pytest.raises(sf.InvalidRequest, match="driver: 'in' has 2 partitions, not one numbered"):
        driver.pipe("in", "a", 1, partition=partition)


def test_topic_that_is_written_and_read_is_handed_on_and_given_to_the_test(drive: Drive) -> None:
    app = sf.App("app")
    app.stream("in").to("mid")
    app.stream("mid").map_values(lambda value: value + 1).to("out")
    driver = drive(app)
    driver.pipe("in", "a", 1)
    assert [record.value for record in driver.read("mid")] == [1]
    assert [record.value for record in driver.read("out")] == [2]
    driver.pipe("mid", "a", 5)
    assert [record.value for record in driver.read("out")] == [6]


def test_what_caches_hold_back_goes_all_the_way_down_at_a_commit(drive: Drive) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore(name, TEXT, INT) for name in ("first", "second")])
    # The upstream group was declared later, so that it has the larger number.
    early = app.stream("early", value=INT)
    late = app.stream("in").group_by_key().count("second").to_stream().repartition("x", value=INT)
    late.merge(early).group_by_key(value=INT).reduce(lambda one, other: one + other, "first").to("out")
    assert [sorted(group.topics) for group in app.topology().groups] == [["app-x-repartition", "early"], ["in"]]
    driver = drive(app)
    for _ in range(3):
        driver.pipe("in", "a", 1)
    assert driver.read("out") == []
    driver.commit()
    assert [record.value for record in driver.read("out")] == [3]
