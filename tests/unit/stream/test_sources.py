"""Sources: the origin of a record's time, the fate of records that fail, and that these leave no trace."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from standfast.replication.offsets import TopicPartition
from support.apps import Drive, Running, create, headers_of, text_of, write, written
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
ERRORS = "__streams.errors."


class PassOn(sf.Processor):
    """Forwards its records."""

    def init(self, context: sf.Context) -> None:
        self.context = context

    def process(self, record: sf.Record) -> None:
        self.context.forward(record)


def passing(**source: Any) -> sf.App:
    app = sf.App("app")
    settings: dict[str, Any] = {"key": TEXT, "value": JSON, **source}
    app.source("in", **settings)(PassOn)
    app.sink("out", key=TEXT, value=JSON)(PassOn)
    return app


def times(driver: sf.testing.Driver, topic: str = "out") -> list[int]:
    return [record.timestamp for record in driver.read(topic)]


# --- timestamps ---


def test_time_is_the_logs_own_by_default(drive: Drive) -> None:
    driver = drive(passing(), 500)
    driver.pipe("in", "a", 1, 0)
    driver.pipe("in", "a", 1, 77)
    driver.pipe("in", "a", 1)
    assert times(driver) == [0, 77, 500]


def test_time_is_a_field_of_the_value(drive: Drive) -> None:
    driver = drive(passing(timestamp=lambda record: record.value["at"]))
    driver.pipe("in", "a", {"at": 42}, 7)
    assert times(driver) == [42]


def test_extractor_sees_key_value_headers_and_the_logs_own_time(drive: Drive) -> None:
    seen: list[Any] = []

    def extract(record: sf.Record) -> int:
        seen.append(record)
        return record.timestamp + 1

    driver = drive(passing(timestamp=extract))
    driver.pipe("in", "a", [1], 7, headers=(("h", b"x"),))
    assert seen == [sf.Record("a", [1], 7, (("h", b"x"),))]
    assert times(driver) == [8]


def test_arrival_time_is_the_wall_clock(drive: Drive) -> None:
    driver = drive(passing(timestamp=sf.ARRIVAL_TIME), 1_000)
    driver.pipe("in", "a", 1, 7)
    driver.advance_wall_clock(5)
    driver.pipe("in", "a", 1, 7)
    assert times(driver) == [1_000, 1_005]


@pytest.mark.parametrize("stamp", [-1, None, 1.5, "7", True, 2**63])
def test_invalid_time_of_an_extractor_fails_the_task(drive: Drive, stamp: object) -> None:
    driver = drive(passing(timestamp=lambda record: stamp))
    with pytest.raises(sf.InvalidRequest, match=r"record of in-0 at offset 0: timestamp .* is not whole milliseconds"):
        driver.pipe("in", "a", 1, 7)


@pytest.mark.parametrize("stamp", [0, 2**63 - 1])
def test_first_and_last_time_are_valid(drive: Drive, stamp: int) -> None:
    app = sf.App("app")
    seen: list[int] = []
    app.stream("in", timestamp=lambda record: stamp).process(look(seen))
    drive(app).pipe("in", "a", 1, 7)
    assert seen == [stamp]


def look(seen: list[int]) -> type[sf.Processor]:
    class Look(sf.Processor):
        def process(self, record: sf.Record) -> None:
            seen.append(record.timestamp)

    return Look


def test_negative_time_of_the_log_fails_the_task(drive: Drive) -> None:
    driver = drive(passing())
    with pytest.raises(sf.InvalidRequest, match=r"timestamp -1 is not .* give the source a timestamp extractor"):
        driver.pipe("in", "a", 1, -1)


def test_extractor_may_replace_a_negative_time_of_the_log(drive: Drive) -> None:
    driver = drive(passing(timestamp=lambda record: max(record.timestamp, 3)))
    driver.pipe("in", "a", 1, -1)
    assert times(driver) == [3]


def test_invalid_time_is_skipped_and_counted(drive: Drive) -> None:
    app = passing(invalid_timestamp="skip")
    driver = drive(app)
    for stamp in (5, -1, 6):
        driver.pipe("in", "a", 1, stamp)
    assert times(driver) == [5, 6]
    assert app.drops.counts == {"invalid_timestamp": 1}


def test_record_without_a_valid_time_is_no_dead_letter(drive: Drive) -> None:
    driver = drive(passing(invalid_timestamp="skip", on_error="dead_letter", dead_letter="bad"))
    driver.pipe("in", "a", 1, -1)
    assert (driver.read("bad"), driver.dropped) == ([], 1)


def test_skipping_errors_does_not_skip_invalid_times(drive: Drive) -> None:
    driver = drive(passing(on_error="skip"))
    with pytest.raises(sf.InvalidRequest, match="timestamp -1"):
        driver.pipe("in", "a", 1, -1)


def test_invalid_time_becomes_the_largest_of_its_partition(drive: Drive) -> None:
    driver = drive(passing(invalid_timestamp="partition_time"), partitions=2)
    for partition, stamp in ((0, 5), (0, 3), (0, -1), (1, 100), (0, -1), (0, 9), (0, -1)):
        driver.pipe("in", "a", 1, stamp, partition=partition)
    assert times(driver) == [5, 3, 5, 100, 5, 9, 9]


def test_partition_time_is_kept_over_a_restart(drive: Drive) -> None:
    driver = drive(passing(invalid_timestamp="partition_time"))
    driver.pipe("in", "a", 1, 5)
    driver.restart()
    driver.pipe("in", "a", 1, -1)
    assert times(driver) == [5, 5]


def test_partition_time_needs_a_record_before(drive: Drive) -> None:
    driver = drive(passing(invalid_timestamp="partition_time"))
    with pytest.raises(sf.InvalidRequest, match=r"timestamp -1 .* and its partition has had no record yet"):
        driver.pipe("in", "a", 1, -1)


ABSURD = 95_617_584_000_000  # a time in microseconds, or of the year 5000


@pytest.mark.parametrize("stamp", [ABSURD, 1_001])
def test_time_above_the_largest_of_the_source_is_invalid(drive: Drive, stamp: int) -> None:
    app = passing(invalid_timestamp="skip", timestamp_max_ms=1_000)
    driver = drive(app)
    for one in (5, stamp, 1_000):
        driver.pipe("in", "a", 1, one)
    assert times(driver) == [5, 1_000]
    assert app.drops.counts == {"invalid_timestamp": 1}


def test_time_above_the_largest_fails_the_task_unless_the_source_says_otherwise(drive: Drive) -> None:
    driver = drive(passing(timestamp_max_ms=1_000, on_error="skip"))
    with pytest.raises(sf.InvalidRequest, match=r"timestamp 1001 is not .* to 1000 \(timestamp_max_ms\)"):
        driver.pipe("in", "a", 1, 1_001)


def test_time_above_the_largest_becomes_that_of_its_partition(drive: Drive) -> None:
    driver = drive(passing(invalid_timestamp="partition_time", timestamp_max_ms=1_000))
    for stamp in (5, ABSURD, 6):
        driver.pipe("in", "a", 1, stamp)
    assert times(driver) == [5, 5, 6]


def test_extracted_time_above_the_largest_is_invalid_too(drive: Drive) -> None:
    app = passing(timestamp=lambda record: record.value, invalid_timestamp="skip", timestamp_max_ms=1_000)
    driver = drive(app)
    for value in (7, ABSURD, 1_000):
        driver.pipe("in", "a", value, 5)
    assert times(driver) == [7, 1_000]


def test_any_time_is_taken_without_a_largest_one(drive: Drive) -> None:
    driver = drive(passing())
    driver.pipe("in", "a", 1, ABSURD)
    assert times(driver) == [ABSURD]


def test_extractor_that_raises_fails_the_task_and_says_so(drive: Drive) -> None:
    driver = drive(passing(timestamp=lambda record: record.value["at"]))
    with pytest.raises(sf.InvalidRequest, match=r"offset 0: the timestamp extractor failed \(KeyError: 'at'\)"):
        driver.pipe("in", "a", {})


def test_record_whose_extractor_raises_is_left_out_as_one_that_fails(drive: Drive) -> None:
    app = passing(timestamp=lambda record: record.value["at"], on_error="dead_letter", dead_letter="bad")
    driver = drive(app)
    driver.pipe("in", "a", {})
    driver.pipe("in", "a", {"at": 4})
    assert times(driver) == [4]
    assert headers_of(driver.read("bad")[0])[f"{ERRORS}exception"] == "KeyError"
    assert app.drops.counts == {"process": 1}


# --- records that cannot be deserialised ---

DAMAGED = [(b"\xff", b"1"), (b"a", b"{")]


@pytest.mark.parametrize(("key", "value"), DAMAGED, ids=["key", "value"])
def test_damaged_record_fails_the_task(drive: Drive, key: bytes, value: bytes) -> None:
    driver = drive(passing())
    driver.pipe("in", "a", 1, 1)
    with pytest.raises(sf.InvalidRequest, match=r'at offset 1: cannot be deserialised .* or on_error="skip"'):
        driver.pipe("in", key, value)


@pytest.mark.parametrize(("key", "value"), DAMAGED, ids=["key", "value"])
def test_damaged_record_is_skipped_and_counted(drive: Drive, key: bytes, value: bytes) -> None:
    app = passing(on_error="skip")
    driver = drive(app)
    driver.pipe("in", key, value, 1)
    driver.pipe("in", "a", 1, 2)
    assert times(driver) == [2]
    assert app.drops.counts == {"deserialize": 1}


@pytest.mark.parametrize(("key", "value"), DAMAGED, ids=["key", "value"])
def test_damaged_record_goes_to_the_dead_letter_topic_as_it_was_read(drive: Drive, key: bytes, value: bytes) -> None:
    driver = drive(passing(on_error="dead_letter", dead_letter="bad"), partitions=3)
    driver.pipe("in", key, value, 9, headers=(("own", b"1"),), partition=2)
    (letter,) = driver.read("bad")
    assert (letter.key, letter.value, letter.timestamp) == (key, value, 9)
    headers = headers_of(letter)
    assert list(headers) == ["own", *(ERRORS + name for name in ABOUT)]
    assert headers[f"{ERRORS}exception"] in ("UnicodeDecodeError", "JSONDecodeError")
    assert headers[f"{ERRORS}topic"] == "in"
    assert (headers[f"{ERRORS}partition"], headers[f"{ERRORS}offset"]) == ("2", "0")


ABOUT = ("exception", "message", "stacktrace", "topic", "partition", "offset")


def test_null_key_and_value_are_not_deserialised(drive: Drive) -> None:
    driver = drive(passing(key=INT, value=INT))
    driver.pipe("in", None, None, 3)
    assert driver.read("out") == [sf.Record(None, None, 3)]


# --- records that fail in a processor ---

STORES = [sf.KeyValueStore("kv", TEXT, JSON), sf.KeyValueStore("uncached", TEXT, JSON, caching=False)]


class Leaves(sf.Processor):
    """Leaves traces of every kind, then fails on such a value."""

    def init(self, context: sf.Context) -> None:
        self.context = context
        self.stores_ = [context.store(name) for name in ("kv", "uncached")]

    def process(self, record: sf.Record) -> None:
        context = self.context
        for store in self.stores_:
            store.put(record.key, record.value)
        context.progress[f"seen {record.key}"] = record.timestamp
        context.timer(record.key, 10_000, sf.PROCESSING_TIME)
        context.forward(record)
        context.commit()
        if record.value == "bad":
            raise ValueError("a bad value")

    def on_timer(self, timer: sf.Timer) -> None:
        self.context.forward(sf.Record("timer", timer.key, timer.time))


def leaving(**source: Any) -> sf.App:
    app = sf.App("app", stores=STORES)
    app.source("in", key=TEXT, value=JSON, **source)(Leaves)
    app.sink("out", key=TEXT, value=JSON)(Leaves)
    return app


def test_failing_processor_fails_the_task_and_the_error_names_the_record(drive: Drive) -> None:
    driver = drive(leaving())
    with pytest.raises(ValueError, match="a bad value") as failed:
        driver.pipe("in", "a", "bad", 1)
    assert failed.value.__notes__ == ["while task 0_0 processed the record of in-0 at offset 0"]


def test_failing_record_that_is_skipped_leaves_no_trace(drive: Drive) -> None:
    app = leaving(on_error="skip")
    driver = drive(app)
    task = next(iter(driver._runners.values())).task
    before = task.stores.buffer.size_bytes, dict(task.progress)
    driver.pipe("in", "a", "bad", 1)
    assert not task.commit_requested
    assert (task.stores.buffer.size_bytes, dict(task.progress)) == before
    for store in ("kv", "uncached", "Leaves-timers"):
        assert list(driver.store(store).all()) == []
    driver.advance_wall_clock(20_000)
    driver.commit()
    assert driver.read("out") == []
    assert app.drops.counts == {"process": 1}


def test_what_records_before_and_after_a_skipped_one_did_stays(drive: Drive) -> None:
    driver = drive(leaving(on_error="skip"))
    for key, value in (("a", "good"), ("a", "bad"), ("b", "bad"), ("c", "good")):
        driver.pipe("in", key, value, 1)
    assert list(driver.store("kv").all()) == [("a", "good"), ("c", "good")]
    assert [record.key for record in driver.read("out")] == ["a", "c"]
    driver.advance_wall_clock(20_000)
    assert [record.value for record in driver.read("out")] == ["a", "c"]


def test_failing_record_goes_to_the_dead_letter_topic(drive: Drive) -> None:
    driver = drive(leaving(on_error="dead_letter", dead_letter="bad"))
    driver.pipe("in", "a", "bad", 1)
    (letter,) = driver.read("bad")
    headers = headers_of(letter)
    assert (letter.key, letter.value, letter.timestamp) == (b"a", b'"bad"', 1)
    assert headers[f"{ERRORS}exception"] == "ValueError"
    assert headers[f"{ERRORS}message"] == "a bad value"
    assert 'raise ValueError("a bad value")' in headers[f"{ERRORS}stacktrace"]


def test_record_that_fails_far_below_the_source_is_taken_back_whole(drive: Drive) -> None:
    def fail(key: str, value: Any) -> None:
        if value == 3:
            raise ValueError("three")

    app = sf.App("app", stores=[sf.KeyValueStore("sum", TEXT, INT)])
    stream = app.stream("in", key=TEXT, value=JSON, on_error="skip")
    stream.to("copy")
    total = stream.group_by_key().aggregate(lambda: 0, lambda key, value, total: total + value, "sum")
    total.to_stream().to("sums", value=INT)
    stream.peek(fail).to("checked")
    driver = drive(app)
    for value in (1, 3, 5):
        driver.pipe("in", "a", value, value)
    driver.commit()
    assert [record.value for record in driver.read("copy")] == [1, 5]
    assert [record.value for record in driver.read("checked")] == [1, 5]
    assert [record.value for record in driver.read("sums")] == [6]  # suppressed results included


def test_failing_record_moves_stream_time_like_any_other(drive: Drive) -> None:
    app = sf.App("app", stores=STORES)
    app.source("in", key=TEXT, value=JSON, on_error="skip")(Leaves)
    driver = drive(app)
    driver.pipe("in", "a", "bad", 700)
    assert next(iter(driver._runners.values())).stream_time_ms() == 700


@pytest.mark.parametrize("error", [sf.Fenced("taken over"), sf.Unavailable("no log"), sf.Corruption("rotten")])
def test_errors_that_are_not_the_records_doing_are_not_skipped(drive: Drive, error: Exception) -> None:
    class Fails(sf.Processor):
        def process(self, record: sf.Record) -> None:
            raise error

    app = sf.App("app")
    app.source("in", key=TEXT, value=JSON, on_error="skip")(Fails)
    with pytest.raises(type(error)):
        drive(app).pipe("in", "a", 1)


def test_error_that_says_that_a_call_is_wrong_is_skipped(drive: Drive) -> None:
    class Fails(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            self.context.store("none")

    app = sf.App("app")
    app.source("in", key=TEXT, value=JSON, on_error="skip")(Fails)
    driver = drive(app)
    driver.pipe("in", "a", 1)
    assert driver.dropped == 1


def test_value_that_a_sink_cannot_serialise_fails_with_the_record(drive: Drive) -> None:
    app = passing(on_error="skip")
    app.sink("more", key=TEXT, value=INT, name="more")(PassOn)
    driver = drive(app)
    driver.pipe("in", "a", "text", 1)
    driver.pipe("in", "a", 7, 2)
    assert [record.value for record in driver.read("out")] == [7]
    assert [record.value for record in driver.read("more")] == [7]


def test_each_source_of_a_processor_has_its_own_policy(drive: Drive) -> None:
    app = sf.App("app", stores=STORES)
    app.source("strict", key=TEXT, value=JSON)(Leaves)
    app.source("in", key=TEXT, value=JSON, on_error="skip")(Leaves)
    driver = drive(app)
    driver.pipe("in", "a", "bad", 1)
    with pytest.raises(ValueError, match="a bad value"):
        driver.pipe("strict", "a", "bad", 1)


def test_dropped_records_are_logged_once_and_counted_all(drive: Drive, caplog: pytest.LogCaptureFixture) -> None:
    app = passing(on_error="skip")
    driver = drive(app)
    for _ in range(5):
        driver.pipe("in", "a", b"{", 1)
    lines = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert len(lines) == 1
    assert "task 0_0: dropped (deserialize): record of in-0 at offset 0" in lines[0]
    assert driver.dropped == 5


# --- on the real loop: offsets, restart, transactions ---


def declare(app: sf.App) -> None:
    app.source("in", key=TEXT, value=JSON, on_error="dead_letter", dead_letter="bad")(Leaves)
    app.sink("out", key=TEXT, value=JSON)(Leaves)


def running(bench: Bench, directory: str = "a", **given: Any) -> Running:
    create(bench, 1, "in", "out", "bad")
    return Running(bench, declare, directory, stores=STORES, **given)


GOOD, BAD, DAMAGED_VALUE = '"good"', '"bad"', "{"


def offsets(running: Running) -> dict[TopicPartition, int]:
    return running.session.task(0).source_offsets()


def test_offsets_move_past_records_that_were_left_out(bench: Bench) -> None:
    create(bench, 1, "in", "out", "bad")
    write(bench, "in", ("a", GOOD, 1), ("b", BAD, 2), ("c", DAMAGED_VALUE, 3), ("d", GOOD, 4))
    one = running(bench)
    one.run()
    one.commit()
    assert offsets(one) == {TopicPartition("in", 0): 4}
    assert one.rows("kv") == {"a": "good", "d": "good"}
    assert text_of(written(bench, "out")) == [
        ("a", GOOD, 1), ("d", GOOD, 4), ("timer", '"a"', 10_000), ("timer", '"d"', 10_000)
    ]  # fmt: skip
    assert [record.key for record in written(bench, "bad")] == [b"b", b"c"]


@pytest.mark.parametrize("value", [BAD, DAMAGED_VALUE])
def test_offsets_are_committed_even_if_only_left_out_records_came(bench: Bench, value: str) -> None:
    create(bench, 1, "in", "out", "bad")
    write(bench, "in", ("a", value, 1), ("b", value, 2))
    one = running(bench)
    one.run()
    bench.clock.advance(1_000)
    one.run()
    assert offsets(one) == {TopicPartition("in", 0): 2}
    assert len(written(bench, "bad")) == 2
    one.close()
    again = running(bench)
    again.run()
    again.commit()
    assert len(written(bench, "bad")) == 2


def test_dead_letters_of_a_run_that_did_not_commit_are_written_once_exactly_once(bench: Bench) -> None:
    create(bench, 1, "in", "out", "bad")
    write(bench, "in", ("a", DAMAGED_VALUE, 1), ("b", BAD, 2))
    one = running(bench)
    one.run()
    one.close()
    assert written(bench, "bad") == []
    again = running(bench)
    again.run()
    again.commit()
    assert [record.key for record in written(bench, "bad")] == [b"a", b"b"]


def test_damaged_record_in_a_policy_of_failing_restarts_the_task_until_it_gives_up(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("a", GOOD, 1), ("b", DAMAGED_VALUE, 2))

    def strict(app: sf.App) -> None:
        app.source("in", key=TEXT, value=JSON)(Leaves)
        app.sink("out", key=TEXT, value=JSON)(Leaves)

    one = Running(bench, strict, stores=STORES, restart=sf.FixedDelay(attempts=1, delay_ms=100))
    one.loop.poll_once()
    bench.clock.advance(100)
    one.loop.poll_once()
    bench.settle(one.session)
    with pytest.raises(sf.InvalidRequest, match="cannot be deserialised"):
        one.run()
