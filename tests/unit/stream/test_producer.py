"""Records written by `app.producer()`, and topics that an application creates for trying."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import Log, LogWriter, Record
from standfast.store.clock import ManualClock
from standfast.store.errors import BadConfig, Closed, InvalidRequest, Unavailable
from standfast.stream.app.producer import Producer, formats_of
from standfast.stream.topology.sinks import partition_of

NOW_MS = 1_000_000


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log?synchronous=normal"


def application(address: str | None, tmp_path: Path, **settings: Any) -> sf.App:
    app = sf.App("app", log=address, state_dir=tmp_path / "s", clock=ManualClock(NOW_MS), **settings)
    clicks = app.stream("clicks", key=sf.serde.string, value=sf.serde.json)
    clicks.to("pages", value=sf.serde.string, partitioner=lambda key, value, partitions: len(value) % partitions)
    return app


def topics(address: str, *names: str, partitions: int = 3, policy: sf.TopicPolicy | None = None) -> None:
    with_log = sf.open_log(address)
    for name in names:
        with_log.admin.create_topic(name, partitions, policy or sf.TopicPolicy())
    with_log.close()


def records(address: str, topic: str, partitions: int = 3) -> dict[int, list[Record]]:
    log = sf.open_log(address)
    reader = log.reader()
    reader.assign({sf.TopicPartition(topic, at): 0 for at in range(partitions)})
    found: dict[int, list[Record]] = {}
    while batches := reader.fetch(1_000):
        if not any(batch.records for batch in batches):
            break
        for batch in batches:
            found.setdefault(batch.source.partition, []).extend(batch.records)
    log.close()
    return found


def test_records_have_the_bytes_and_partitions_that_the_application_reads_and_writes(
    address: str, tmp_path: Path
) -> None:
    topics(address, "clicks", "pages", "other")
    with application(address, tmp_path).producer() as producer:
        producer.send("clicks", "ada", {"page": 7}, 5, (("trace", b"1"), ("none", None)))
        producer.send("clicks", "ada", None)
        producer.send("pages", "ada", "four")
        producer.send("other", "ada", [1])
        producer.send("other", "ada", [2], partition=2)
    at = partition_of(b"ada", 3)
    first, second = records(address, "clicks")[at]
    assert (first.key, first.value, first.timestamp) == (b"ada", b'{"page":7}', 5)
    assert first.headers == (("trace", b"1"), ("none", None))
    assert (second.value, second.timestamp) == (None, NOW_MS)
    assert [one.value for one in records(address, "pages")[4 % 3]] == [b"four"]
    assert {at: b"[1]", 2: b"[2]"} == {
        part: found[-1].value for part, found in records(address, "other").items() if found
    } or at == 2


def test_records_without_a_key_take_turns(address: str, tmp_path: Path) -> None:
    topics(address, "clicks")
    with application(address, tmp_path).producer() as producer:
        for number in range(7):
            producer.send("clicks", None, number)
    values = {at: [one.value for one in found] for at, found in records(address, "clicks").items()}
    assert values == {0: [b"0", b"3", b"6"], 1: [b"1", b"4"], 2: [b"2", b"5"]}


def test_batch_is_written_when_it_is_full_flushed_or_closed(address: str, tmp_path: Path) -> None:
    topics(address, "clicks")
    app = application(address, tmp_path)
    log = sf.open_log(address)
    producer = Producer(log, formats_of(app.builder), (sf.serde.string, sf.serde.json), app.clock, batch_bytes=400)
    for number in range(4):
        producer.send("clicks", "k", "x" * 100)
        assert sum(map(len, records(address, "clicks").values())) == (2 if number > 1 else 0), number
    assert producer.flush() == 2
    assert producer.flush() == 0
    producer.send("clicks", "k", "last")
    producer.close()
    producer.close()
    assert sum(map(len, records(address, "clicks").values())) == 5
    with pytest.raises(Closed, match=r"app\.producer"):
        producer.send("clicks", "k", "later")


@pytest.mark.parametrize(
    ("topic", "given", "words"),
    [
        ("absent", {}, "standfast topic create absent --partitions N --log "),
        ("clicks", {"key": 7}, "key serde 'string' cannot serialise this key for topic clicks"),
        ("clicks", {"value": object()}, "value serde 'json' cannot serialise this value for topic clicks"),
        ("clicks", {"partition": 3}, "it has 3 partitions, none numbered 3"),
        ("clicks", {"partition": True}, "partition True is not valid"),
        ("clicks", {"timestamp": "now"}, "timestamp"),
        ("clicks", {"headers": {"a": b"1"}}, "headers are of type dict"),
        ("clicks", {"headers": (("a", "text"),)}, "header 'a' is of type str with str"),
        ("table", {"key": None}, "which is compacted: give it a key"),
        ("pages", {"value": "v"}, "the partitioner named partition 9 of pages, which has 3"),
    ],
)
def test_wrong_record_is_refused_by_the_call_and_the_others_are_written(
    address: str, tmp_path: Path, topic: str, given: dict[str, Any], words: str
) -> None:
    topics(address, "clicks", "pages")
    topics(address, "table", policy=sf.TopicPolicy(cleanup=frozenset({"compact"})))
    app = sf.App("app", log=address, state_dir=tmp_path / "s", clock=ManualClock(NOW_MS))
    clicks = app.stream("clicks", key=sf.serde.string, value=sf.serde.json)
    clicks.to("pages", value=sf.serde.string, partitioner=lambda key, value, partitions: 9)
    record: dict[str, Any] = {"key": "k", "value": "v", **given}
    with app.producer() as producer:
        producer.send("clicks", "k", 1)
        with pytest.raises(InvalidRequest) as refused:
            producer.send(topic, **record)
        assert words in str(refused.value)
        producer.send("clicks", "k", 2)
    assert [one.value for one in records(address, "clicks")[partition_of(b"k", 3)]] == [b"1", b"2"]


class Refusing:
    """The log's writer, which fails once."""

    def __init__(self, writer: LogWriter, error: sf.StandfastError | None = None) -> None:
        self._writer = writer
        self.error: sf.StandfastError | None = error or Unavailable("the log is away: try again")

    def append(self, batches: Any) -> Any:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self._writer.append(batches)

    def close(self) -> None:
        self._writer.close()


def test_records_of_a_failed_flush_are_written_by_the_next(address: str, tmp_path: Path) -> None:
    topics(address, "clicks")
    producer = application(address, tmp_path).producer()
    producer._writer = Refusing(producer._writer)  # type: ignore[assignment]
    producer.send("clicks", "k", 1)
    with pytest.raises(Unavailable):
        producer.flush()
    producer.send("clicks", "k", 2)
    assert producer.flush() == 2
    producer.close()
    assert [one.value for one in records(address, "clicks")[partition_of(b"k", 3)]] == [b"1", b"2"]


def test_batch_that_the_log_refuses_for_good_is_given_up_with_a_word(address: str, tmp_path: Path) -> None:
    topics(address, "clicks")
    producer = application(address, tmp_path).producer()
    producer._writer = Refusing(producer._writer, InvalidRequest("too large"))  # type: ignore[assignment]
    producer.send("clicks", "k", 1)
    with pytest.raises(InvalidRequest, match="too large; the batch of 1 records is given up"):
        producer.flush()
    producer.send("clicks", "k", 2)
    producer.close()
    assert [one.value for one in records(address, "clicks")[partition_of(b"k", 3)]] == [b"2"]


def test_record_over_the_limit_is_too_large_as_it_is_sent(address: str, tmp_path: Path) -> None:
    topics(address, "clicks")
    with application(address, tmp_path).producer() as producer:
        with pytest.raises(sf.TooLarge, match="raise value_max_bytes"):
            producer.send("clicks", "k", "x" * 1_100_000)
    with application(address, tmp_path, value_max_bytes=2_000_000).producer() as producer:
        producer.send("clicks", "k", "x" * 1_100_000)
    assert sum(map(len, records(address, "clicks").values())) == 1


def test_threads_may_send_and_flush_at_once(address: str, tmp_path: Path) -> None:
    topics(address, "clicks")
    with application(address, tmp_path).producer() as producer:

        def work(name: int) -> None:
            for number in range(50):
                producer.send("clicks", f"{name}-{number}", number)
                if number % 10 == 0:
                    producer.flush()

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    keys = [one.key for found in records(address, "clicks").values() for one in found]
    assert len(keys) == 200 == len(set(keys))


def test_close_that_cannot_write_says_so_and_releases_the_log(address: str, tmp_path: Path) -> None:
    topics(address, "clicks")
    producer = application(address, tmp_path).producer()
    producer._writer = Refusing(producer._writer)  # type: ignore[assignment]
    producer.send("clicks", "k", 1)
    with pytest.raises(Unavailable):
        producer.close()
    with pytest.raises(Closed):
        producer.send("clicks", "k", 2)


def test_topic_that_grew_gets_records_in_its_new_partitions(address: str, tmp_path: Path) -> None:
    topics(address, "clicks", partitions=1)
    app = application(address, tmp_path)
    key = next(key for key in map(str, range(100)) if partition_of(key.encode(), 2) == 1)
    with app.producer() as producer:
        producer.send("clicks", key, 1)
        log: Log = sf.open_log(address)
        log.admin.add_partitions("clicks", 2)
        log.close()
        assert isinstance(app.clock, ManualClock)
        app.clock.advance(30_000)
        producer.send("clicks", key, 2)
    assert {at: [one.value for one in found] for at, found in records(address, "clicks", 2).items()} == {
        0: [b"1"],
        1: [b"2"],
    }


def test_producer_needs_a_log(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"needs log=\.\.\. for a producer"):
        application(None, tmp_path).producer()


def test_all_absent_topics_are_named_at_once_with_the_commands_that_create_them(address: str, tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as refused:
        application(address, tmp_path).open()
    first, second = refused.value.problems
    assert first.startswith("source topic 'clicks' does not exist in sqlite:")
    assert second.startswith("output topic 'pages' does not exist in sqlite:")
    for text, topic in ((first, "clicks"), (second, "pages")):
        assert f"standfast topic create {topic} --partitions N --log " in text


@pytest.mark.parametrize(("there", "partitions"), [((), 4), (("clicks",), 3)])
def test_absent_topics_are_created_for_trying_with_the_partitions_of_the_sources(
    address: str, tmp_path: Path, there: tuple[str, ...], partitions: int, caplog: pytest.LogCaptureFixture
) -> None:
    topics(address, *there)
    app = application(address, tmp_path, create_topics=True)
    with caplog.at_level("WARNING", "standfast"):
        app.open().close()
    log = sf.open_log(address)
    assert {info.name: info.partitions for info in log.admin.topics() if info.name in ("clicks", "pages")} == {
        "clicks": partitions,
        "pages": partitions,
    }
    log.close()
    assert f"topic pages was absent and is created with {partitions} partitions" in caplog.text


def test_producer_of_an_application_that_creates_topics_creates_them(address: str, tmp_path: Path) -> None:
    with application(address, tmp_path, create_topics=True).producer() as producer:
        producer.send("clicks", "ada", 1)
    assert [one.value for found in records(address, "clicks", 4).values() for one in found] == [b"1"]


def test_wrong_create_topics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="create_topics must be True or False, not 4"):
        sf.App("app", create_topics=4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_headers_pass_through_processors_repartition_and_sinks(tmp_path: Path) -> None:
    app = sf.App("app")
    app.stream("in", value=sf.serde.string).map(lambda key, value: (value, key)).repartition("turned").to("out")
    with sf.testing.Driver(app) as driver:
        driver.pipe("in", "k", "v", 5, headers=(("trace", b"1"),))
        assert [(one.key, one.value, one.headers) for one in driver.read("out")] == [("v", "k", (("trace", b"1"),))]
