"""Sources of one's own in the topology, in the log's topics, and in the test driver."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.stream.topology.assembly import assemble
from support.apps import Drive, Running, create, headers_of, text_of, write, written
from support.loops import JSON, TEXT, Seen
from support.own_sources import Numbers, until
from support.sessions import Bench

INT = sf.serde.int64


class Steps(sf.Source):
    """Collects the given records, from its position on: of `n` partitions each has every n-th."""

    def __init__(self, *records: sf.Record) -> None:
        self.records = records

    def run(self, context: sf.SourceContext) -> None:
        mine = self.records[context.partition :: context.partitions]
        for offset, record in enumerate(mine[context.position :], context.position + 1):
            context.collect(record, offset)


def record(key: str | None, value: Any, stamp: int) -> sf.Record:
    return sf.Record(key, value, stamp)


# --- the object of a run ----------------------------------------------------------------------------------------------


def test_each_run_has_an_object_of_its_own_made_with_the_same_arguments() -> None:
    class Flagged(sf.Source):
        def __init__(self, path: str, *, seen: list[str]) -> None:
            self.path = path
            self.seen = seen
            self.running = threading.Event()

    given = Flagged("a", seen=[])
    other = given.another()
    assert other is not given
    assert (other.path, other.seen is given.seen, other.running is given.running) == ("a", True, False)


def test_argument_that_no_init_takes_is_refused() -> None:
    class Plain(sf.Source):
        def run(self, context: sf.SourceContext) -> None: ...

    wrong: Any = Plain
    with pytest.raises(TypeError, match="positional argument"):
        wrong("a")


def test_dataclass_is_a_source_too() -> None:
    @dataclasses.dataclass(frozen=True)
    class Frozen(sf.Source):
        path: str
        every: int = 3

    assert Frozen("a", every=4).another() == Frozen("a", every=4)


def test_source_without_run_says_so() -> None:
    app = sf.App("app")
    with pytest.raises(sf.BadConfig, match=r"source 'nothing': class Source defines no run\(self, context\)"):
        app.stream(sf.Source(), name="nothing")


# --- declaration ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "source Numbers needs a name"),
        ({"name": "a/b"}, "'a/b'"),
        ({"name": "n", "partitions": 0}, "source 'n': partitions must be a whole number from 1, not 0"),
        ({"name": "n", "partitions": True}, "partitions must be a whole number or None, not True"),
        ({"name": "n", "start": "latest"}, "source 'n': start is for topics: its first run begins at position 0"),
        ({"name": "n", "on_error": "dead_letter"}, "source 'n': "),
    ],
)
def test_wrong_declaration_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(sf.InvalidRequest, match=said):
        sf.App("app").stream(Numbers(3), **given)


def test_class_in_place_of_an_object_and_name_of_a_topic_are_refused() -> None:
    app = sf.App("app")
    wrong: Any = Numbers
    with pytest.raises(sf.BadConfig, match=r"give an object of the class, Numbers\(...\)"):
        app.stream(wrong, name="n")
    with pytest.raises(sf.BadConfig, match="source 'flights': name and partitions are for sources of one's own"):
        app.stream("flights", name="n")


def test_one_name_is_one_source() -> None:
    app, numbers = sf.App("app"), Numbers(3)
    app.stream(numbers, name="n")
    app.stream(numbers, name="n")
    with pytest.raises(sf.BadConfig, match="source 'n': it is read already, with other settings"):
        app.stream(numbers, name="n", partitions=2)
    with pytest.raises(sf.BadConfig, match="source 'n': another source has that name"):
        app.stream(Numbers(3), name="n")
    with pytest.raises(sf.BadConfig, match="source 'n': a source of one's own has that name"):
        app.stream("n")
    app.stream("t")
    with pytest.raises(sf.BadConfig, match="source 't': another source has that name"):
        app.stream(Numbers(3), name="t")


def test_text_of_the_topology_names_the_source_and_where_its_offsets_are() -> None:
    app = sf.App("app")
    app.stream(Numbers(3), name="n", partitions=2).to("out")
    text = str(app.topology())
    assert "Source: n-source (own: [n], partitions: 2, offsets: [app-n-source-offsets])" in text
    drawn = app.topology().to_mermaid()
    assert '[/"n-source"/]' in drawn
    assert "source-offsets" not in drawn
    assert app.topology().source_topics == ()


def test_records_of_several_partitions_change_tasks_before_their_keys_are_grouped(bench: Bench) -> None:
    def make(app: sf.App) -> None:
        rows = [record("k", number, 1_000) for number in range(9)]
        app.stream(Steps(*rows), name="n", key=TEXT, value=INT, partitions=3).group_by_key().count("counts")

    running = Running(bench, make, stores=[sf.KeyValueStore("counts", TEXT, INT)])
    assert [group.partitions for group in running.assembled.groups.values()] == [3, 3]
    until(lambda: running.loop.records_total >= 9, running.loop.poll_once)
    running.commit()
    found: dict[str, int] = {}
    for partition in range(3):
        found |= running.rows("counts", partition)
    assert found == {"k": 9}
    committed = bench.log.group("app").committed()
    assert {at.partition: one.offset for at, one in committed.items() if at.topic == "app-n-source-offsets"} == {
        0: 3, 1: 3, 2: 3,
    }  # fmt: skip


def test_topic_beside_a_source_needs_as_many_partitions(bench: Bench) -> None:
    create(bench, 2, "other")
    app = sf.App("app")
    app.stream(Numbers(3), name="n").merge(app.stream("other")).to("other")
    with pytest.raises(sf.BadConfig, match="equal partition counts, but app-n-source-offsets has 1, other has 2"):
        assemble(app.builder, bench.log.admin, bench.address)


def test_source_grows_and_does_not_shrink(bench: Bench) -> None:
    create(bench, 1, "out")

    def made(partitions: int) -> sf.App:
        app = sf.App("app")
        app.stream(Numbers(3), name="n", partitions=partitions).to("out")
        return app

    def count() -> int:
        info = bench.log.admin.describe_topic("app-n-source-offsets")
        assert info is not None
        return info.partitions

    assemble(made(1).builder, bench.log.admin, bench.address)
    assert count() == 1
    assert assemble(made(3).builder, bench.log.admin, bench.address).groups[0].partitions == 3
    assert count() == 3
    with pytest.raises(sf.BadConfig, match=r"source 'n' has partitions=2, but had 3, .* give partitions=3, or"):
        assemble(made(2).builder, bench.log.admin, bench.address)
    assert count() == 3


def test_tasks_of_new_partitions_run_and_the_others_go_on(bench: Bench) -> None:
    stores = [sf.KeyValueStore("seen", TEXT, INT)]

    class Keep(sf.Processor):
        stores = ("seen",)

        def init(self, context: sf.Context) -> None:
            self.seen = context.store("seen")

        def process(self, record: sf.Record) -> None:
            self.seen.put(record.key, record.value)

    class Own(sf.Source):
        def run(self, context: sf.SourceContext) -> None:
            for number in range(context.position, 3):
                context.collect(record(f"p{context.partition}-{number}", number, 1), number + 1)

    for partitions, fresh in ((1, 3), (3, 6)):

        def make(app: sf.App, partitions: int = partitions) -> None:
            app.source(Own(), name="n", value=INT, partitions=partitions)(Keep)

        running = Running(bench, make, stores=stores)
        until(lambda now=running, count=fresh: now.loop.records_total == count, running.loop.poll_once)  # type: ignore[misc]
        running.commit()
        found = [len(running.rows("seen", number)) for number in range(partitions)]
        running.close()
        assert found == [3] * partitions


def test_position_of_a_source_that_is_gone_is_reported(bench: Bench) -> None:
    create(bench, 1, "t")
    bench.log.admin.create_topic("app-old-source-offsets", 1, TopicPolicy())
    app = sf.App("app")
    app.stream("t").to("t")
    notes = assemble(app.builder, bench.log.admin, bench.address).notes
    assert [note for note in notes if "app-old-source-offsets: it keeps the position of a source" in note] == list(
        notes
    )
    assert len(notes) == 1


# --- in a task --------------------------------------------------------------------------------------------------------


def test_context_of_a_record_has_the_name_partition_and_offset_of_its_source() -> None:
    found: list[Any] = []

    class Look(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            context = self.context
            found.append((context.topic, context.partition, context.offset, context.headers, record.timestamp))

    class Headed(sf.Source):
        def run(self, context: sf.SourceContext) -> None:
            context.collect(sf.Record("k", 1, 5, (("h", b"1"),)), 40)

    app = sf.App("app")
    app.source(Headed(), name="n")(Look)
    with sf.testing.Driver(app) as driver:
        assert driver.run_source("n") == 1
    assert found == [("n", 0, 40, (("h", b"1"),), 5)]


def test_timestamp_is_the_records_own_or_as_the_source_says() -> None:
    rows = [record("k", {"at": 70}, 5)]
    stamps = []
    choices: list[Any] = [None, lambda r: r.value["at"], sf.ARRIVAL_TIME]
    for timestamp in choices:
        app = sf.App("app")
        app.stream(Steps(*rows), name="n", timestamp=timestamp).to("out")
        with sf.testing.Driver(app, now_ms=900) as driver:
            driver.run_source("n")
            stamps += [one.timestamp for one in driver.read("out")]
    assert stamps == [5, 70, 900]


def test_failed_record_of_a_source_is_a_dead_letter_by_its_serdes() -> None:
    app = sf.App("app")

    def fail(_key: str, value: int) -> bool:
        if value != 2:
            raise ValueError("odd")
        return True

    rows = (record("a", 1, 5), record("b", 2, 6), record("c", object, 7))
    app.stream(Steps(*rows), name="n", value=INT, on_error="dead_letter", dead_letter="dead").filter(fail).to("out")
    with sf.testing.Driver(app) as driver:
        driver.run_source("n")
        assert [one.key for one in driver.read("out")] == ["b"]
        first, second = driver.read("dead")
        assert (first.key, first.value) == (b"a", INT.serialize(1))
        assert second.value == b"<class 'object'>"
        said = headers_of(first)
        assert (said["__streams.errors.topic"], said["__streams.errors.offset"]) == ("n", "1")
        assert driver.dropped == 2


def test_watermarks_come_from_a_source_and_a_finished_one_holds_none_back(bench: Bench) -> None:
    create(bench, 1, "out", "slow", "late")

    class Fire(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            self.context.timer("t", record.timestamp + 10)

        def on_timer(self, timer: sf.Timer) -> None:
            self.context.forward(sf.Record(timer.key, 1, timer.time))

    def make(app: sf.App) -> None:
        marks: Any = {"watermarks": lambda: sf.BoundedDisorder(0)}
        mine = app.stream(Steps(record("k", 1, 100), record("k", 1, 50)), name="n", late="late", **marks)
        mine.merge(app.stream("slow", **marks)).process(Fire, name="fire").to("out")

    write(bench, "slow", ("k", "1", 100), ("k", "1", 500))
    running = Running(bench, make, watermark_interval_ms=0)
    running.loop.poll_once()
    until(lambda: running.runner().status().inputs[0].idle, running.loop.poll_once)
    for _ in range(5):
        running.loop.poll_once()
    running.commit()
    # The source has not passed 110; it is finished, so that the topic's watermark of 499 decides.
    assert [stamp for _, _, stamp in text_of(written(bench, "out"))] == [60, 110]


def test_stream_time_waits_for_a_source_until_it_has_finished(bench: Bench) -> None:
    create(bench, 1, "slow")

    def make(app: sf.App) -> None:
        processor = Seen().processor()
        app.source(Steps(record("k", 1, 100)), name="n")(processor)
        app.source("slow", key=TEXT, value=JSON)(processor)

    write(bench, "slow", ("k", "1", 900))
    running = Running(bench, make)
    running.loop.poll_once()
    until(lambda: running.runner().stream_time_ms() == 900, running.loop.poll_once)


def test_windows_close_after_silence_of_a_source_that_has_not_ended(bench: Bench) -> None:
    create(bench, 1, "out")
    hold = threading.Event()

    class Quiet(sf.Source):
        def run(self, context: sf.SourceContext) -> None:
            context.collect(record("k", 1, 500), 1)
            hold.wait()

    def make(app: sf.App) -> None:
        closing: Any = {"emit": sf.ON_WINDOW_CLOSE, "close_after_ms": 5_000}
        windows = app.stream(Quiet(), name="n", value=INT).group_by_key().window(sf.TumblingWindows(1_000))
        windows.count("counts", **closing).to("out")

    stores = [sf.WindowStore("counts", TEXT, INT, window_size_ms=1_000, retention_ms=60_000)]
    running = Running(bench, make, stores=stores)
    until(lambda: running.loop.records_total == 1, running.loop.poll_once)
    bench.clock.advance(4_999)
    running.loop.poll_once()
    running.commit()
    assert text_of(written(bench, "out")) == []
    bench.clock.advance(1)
    running.loop.poll_once()
    running.commit()
    assert len(text_of(written(bench, "out"))) == 1
    hold.set()
    running.close()


# --- the driver -------------------------------------------------------------------------------------------------------


def summing(source: sf.Source) -> sf.App:
    app = sf.App("app", stores=[sf.KeyValueStore("sums", TEXT, INT)])
    stream = app.stream(source, name="n", key=TEXT, value=INT)
    stream.group_by_key().aggregate(lambda: 0, lambda _key, value, total: total + value, "sums").to("out")
    return app


def test_driver_runs_a_source_and_again_from_its_position(drive: Drive) -> None:
    driver = drive(summing(Numbers(10)))
    assert driver.run_source("n", records_max=4) == 4
    assert driver.run_source("n", records_max=4) == 4
    driver.restart()
    assert driver.run_source("n") == 2
    assert driver.run_source("n") == 0
    assert sum(value for _, value in driver.store("sums").all()) == 45


def test_driver_ends_a_source_that_waits(drive: Drive) -> None:
    class Polls(sf.Source):
        def run(self, context: sf.SourceContext) -> None:
            context.collect(sf.Record("k", 1, context.wall_clock_ms), context.position + 1)
            while not context.wait(60):
                pass

    driver = drive(summing(Polls()), 77)
    assert [driver.run_source("n"), driver.run_source("n")] == [1, 1]
    driver.commit()
    assert [(one.value, one.timestamp) for one in driver.read("out")] == [(2, 77)]


def test_driver_commits_each_record_of_a_source_where_it_is_to() -> None:
    with sf.testing.Driver(summing(Numbers(3)), commit_each_record=True) as driver:
        driver.run_source("n")
        driver.pipe("n", "k0", 5, 1_000)
        assert [one.value for one in driver.read("out")] == [0, 1, 2, 5]


def test_driver_pipes_to_a_source_by_its_name(drive: Drive) -> None:
    driver = drive(summing(Numbers(10)))
    driver.pipe("n", "k0", 5, 1_000)
    assert driver.run_source("n") == 9  # the piped record was the first
    assert driver.store("sums").get("k0") == 10


@pytest.mark.parametrize("call", ["pipe", "run_source"])
def test_driver_refuses_an_unknown_source_or_partition(drive: Drive, call: str) -> None:
    driver = drive(summing(Numbers(10)))
    rest = ("k", 1) if call == "pipe" else ()
    with pytest.raises(sf.InvalidRequest, match=r"driver: 'm' is not a source of 'app' \(sources: n\)"):
        getattr(driver, call)("m", *rest)
    with pytest.raises(sf.InvalidRequest, match="driver: 'n' has 1 partitions, not one numbered 1"):
        getattr(driver, call)("n", *rest, partition=1)


def test_driver_raises_what_the_source_raises_even_if_it_swallows_it(drive: Drive) -> None:
    class Back(sf.Source):
        def run(self, context: sf.SourceContext) -> None:
            context.collect(sf.Record("k", 1, 1), 5)
            try:
                context.collect(sf.Record("k", 1, 1), 3)
            except sf.InvalidRequest:
                return

    with pytest.raises(sf.InvalidRequest, match="source 'n', partition 0: its offset goes back from 5 to 3"):
        drive(summing(Back())).run_source("n")


def test_committed_offset_is_of_the_topic_that_stands_for_the_source(drive: Drive) -> None:
    driver = drive(summing(Numbers(10)))
    driver.run_source("n")
    driver.commit()
    at = TopicPartition("app-n-source-offsets", 0)
    assert driver._session.log.group("app").committed([at])[at].offset == 10
