"""The compiled producer of Kafka on a real broker: every shape of record, refusals, no leak, a bounded end, and misuse.

The contract of every log, and the suites of crashes and of fencing, run on it as well. Here are its own promises: it
writes the same records as the client of confluent_kafka, and nothing that a caller or a broker does to it ends the
interpreter.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from standfast.ops.tools.broker import Broker
from standfast.replication.kafka.callbacks import Callbacks
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.kafka.members import MEMBERS_SUFFIX
from standfast.replication.kafka.native_library import native
from standfast.replication.kafka.native_producer import NativeProducer
from standfast.replication.kafka.producer import ProducerClient, PythonProducer
from standfast.replication.kafka.records import Columns
from standfast.replication.kafka.writer import KafkaWriter
from standfast.replication.log import Committed, GroupCommit, Outgoing, Record, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import CommitUnknown, Fenced, InvalidRequest, StandfastError, Unavailable
from standfast.store.native_module import SWITCH
from standfast.store.value_timestamp import TIMESTAMP, RowChanges
from support.kafka import every_shape, left_by_opens

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

WAIT_S = 30.0
LIMIT = 2 << 20  # max.message.bytes of the topic


@pytest.fixture
def log(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log


@pytest.fixture
def part(log: KafkaLog) -> TopicPartition:
    name = f"p-{uuid.uuid4().hex[:8]}"
    log.admin.create_topic(name, 2, TopicPolicy(extra={"max.message.bytes": str(LIMIT)}))
    return TopicPartition(name, 0)


@pytest.fixture(params=["compiled", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both producers, one after the other."""
    if request.param == "python":
        monkeypatch.setenv(SWITCH, "0")
    return str(request.param)


def options_of(address: str, **settings: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": address, "enable.idempotence": "true", "linger.ms": "20", "log_level": "2"} | named


def client_of(address: str, **settings: str) -> Any:
    return native().module.Producer(list(options_of(address, **settings).items()))


class Make(Protocol):
    """Opens a producer of the test's way, with settings that have _ for the dots."""

    def __call__(self, address: str, **settings: str) -> ProducerClient: ...


@pytest.fixture
def make(way: str) -> Iterator[Make]:
    opened: list[ProducerClient] = []

    def open_(address: str, **settings: str) -> ProducerClient:
        options = options_of(address, **settings)
        compiled = way == "compiled"
        opened.append(
            NativeProducer(native().module, options, Callbacks({}, print)) if compiled else PythonProducer(options)
        )
        return opened[-1]

    yield open_
    for one in opened:
        if isinstance(one, NativeProducer):
            one.close()


def read(log: KafkaLog, source: TopicPartition, end: int) -> list[Record]:
    """All records below an offset."""
    reader = log.reader()
    reader.assign({source: 0})
    found: list[Record] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while reader.assignment()[source] < end:
            assert time.monotonic() < deadline
            for fetched in reader.fetch(1_000, 200):
                found += fetched.records
    finally:
        reader.close()
    return found


# -- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["append", "transact"])
def test_records_of_every_shape_are_read_as_they_were_written(
    log: KafkaLog, part: TopicPartition, way: str, call: str
) -> None:
    copied = Outgoing(bytearray(b"copied"), memoryview(b"copied"), 9)  # type: ignore[arg-type]
    written = [*every_shape(), copied]
    writer = log.producer()
    ends = getattr(writer, call)({part: written})
    assert ends == {part: len(written)}
    found = read(log, part, len(written))
    assert [record[1:] for record in found] == [
        (
            one.timestamp,
            None if one.key is None else bytes(one.key),
            None if one.value is None else bytes(one.value),
            tuple(one.headers or ()),
        )
        for one in written
    ]
    assert isinstance(writer._transactional or writer._plain, NativeProducer) == (way == "compiled")


def test_refused_row_of_a_store_is_named_by_the_size_of_its_record(
    log: KafkaLog, part: TopicPartition, way: str
) -> None:
    rows = {b"small": TIMESTAMP.pack(1) + b"v", b"key": TIMESTAMP.pack(2) + os.urandom(LIMIT + 1)}
    batch = cast("Sequence[Outgoing]", RowChanges(rows, {}))
    with pytest.raises(InvalidRequest, match=f"a record of {LIMIT + 4} bytes.*larger than the limit"):
        log.producer().append({part: batch})


def test_acknowledged_offsets_are_those_of_each_partition(log: KafkaLog, part: TopicPartition, way: str) -> None:
    other, writer = part._replace(partition=1), log.producer()
    record = Outgoing(b"k", b"v", 1)
    assert writer.append({part: [record] * 3, other: [record]}) == {part: 3, other: 1}
    assert writer.append({other: [record] * 1_000, part: []}) == {other: 1_001, part: 3}
    assert writer.transact({part: [record], other: [record] * 2}) == {part: 4, other: 1_003}
    assert writer.transact({part: [record]}) == {part: 6}, "the marker takes one"


@pytest.mark.parametrize("call", ["append", "transact"])
def test_refused_record_is_named_and_the_writer_goes_on(
    log: KafkaLog, kafka_address: str, part: TopicPartition, way: str, call: str
) -> None:
    small, large = Outgoing(b"k", b"v", 1), Outgoing(b"key", os.urandom(LIMIT + 1), 2)
    writer = log.producer()
    with pytest.raises(InvalidRequest, match=f"a record of {LIMIT + 4} bytes.*larger than the limit"):
        getattr(writer, call)({part: [small, large]})  # the broker's limit
    bounded = KafkaLog(f"kafka://{kafka_address}?message.max.bytes=100000")
    huge = Outgoing(b"key", os.urandom(200_000), 2)
    with pytest.raises(InvalidRequest, match=r"a record of 200003 bytes.*larger than the limit"):
        getattr(bounded.producer(), call)({part: [small, huge]})  # the client's own
    bounded.close()
    end = getattr(writer, call)({part: [small]})[part]
    assert read(log, part, end)[-1][2:] == (b"k", b"v", ())


def test_full_queue_is_waited_for_and_bounded(
    log: KafkaLog, kafka_address: str, part: TopicPartition, make: Make
) -> None:
    keys = tuple(b"%d" % number for number in range(5_000))
    # Rows with their timestamps before them, which a call that goes on in the middle must find as well.
    columns = Columns(keys, tuple(len(key).to_bytes(8, "big") + key for key in keys), None)
    producer = make(kafka_address, queue_buffering_max_messages="100", linger_ms="0")
    at, deadline = 0, time.monotonic() + WAIT_S
    while at < len(keys):
        assert time.monotonic() < deadline
        at = producer.produce(part, columns, at, 10_000)
    producer.flush(WAIT_S)
    assert producer.delivered()[part][:2] == (len(keys), None)
    assert [record[1:] for record in read(log, part, len(keys))] == [(len(key), key, key, ()) for key in keys]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        stuck = make(f"127.0.0.1:{silent.getsockname()[1]}", queue_buffering_max_messages="100")
        began = time.monotonic()
        assert stuck.produce(part, columns, 0, 300) == 100
        assert 0.2 < time.monotonic() - began < 5
        assert len(stuck) == 100


def test_offsets_of_a_group_are_in_the_transaction_with_their_metadata(
    log: KafkaLog, part: TopicPartition, way: str
) -> None:
    group = log.group(f"g-{part.topic}")
    assert group.committed([part]) == {}
    offsets = {part: Committed(7, "caf\u00e9 \u2713"), part._replace(partition=1): Committed(0, "")}
    writer = log.producer()
    writer.transact({part: [Outgoing(b"k", b"v", 1)]}, GroupCommit(f"g-{part.topic}", offsets))
    assert group.committed([part, part._replace(partition=1)]) == offsets
    with pytest.raises(InvalidRequest):
        writer.transact(
            {part: [Outgoing(b"k", os.urandom(LIMIT + 1), 1)]}, GroupCommit(f"g-{part.topic}", {part: Committed(9, "")})
        )
    assert group.committed([part, part._replace(partition=1)]) == offsets, "aborted as a whole"


def test_newer_producer_of_the_id_is_a_fatal_error_of_the_older_one(
    kafka_address: str, part: TopicPartition, make: Make
) -> None:
    name = uuid.uuid4().hex
    older, newer = (make(kafka_address, transactional_id=name) for _ in range(2))
    older.init_transactions(WAIT_S)
    older.begin()
    newer.init_transactions(WAIT_S)
    older.produce(part, Columns((b"k",), (b"v",), (1,)), 0, 1_000)
    with pytest.raises(KafkaException) as found:
        older.flush(WAIT_S)
        older.commit(WAIT_S)
    error: KafkaError = found.value.args[0]
    assert error.fatal() and not error.retriable() and error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    newer.begin()
    newer.abort(WAIT_S)


def test_flags_of_an_error_say_retry_and_abort(kafka_address: str, part: TopicPartition, make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        stuck = make(f"127.0.0.1:{silent.getsockname()[1]}", transactional_id=uuid.uuid4().hex)
        with pytest.raises(KafkaException) as found:
            stuck.init_transactions(0.2)
    assert found.value.args[0].retriable() and not found.value.args[0].txn_requires_abort()
    producer = make(kafka_address, transactional_id=uuid.uuid4().hex, message_max_bytes=str(2 * LIMIT))
    producer.init_transactions(WAIT_S)
    producer.begin()
    producer.produce(part, Columns((b"k",), (os.urandom(LIMIT + 1),), (1,)), 0, 1_000)
    producer.flush(WAIT_S)
    with pytest.raises(KafkaException) as found:
        producer.commit(WAIT_S)
    assert found.value.args[0].txn_requires_abort() and not found.value.args[0].fatal()
    refused = producer.delivered()[part]
    assert refused.error is not None and refused.error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert (refused.next_offset, refused.size) == (None, LIMIT + 2)
    producer.abort(WAIT_S)


# -- brokers that fail ------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("place", ["_deliver", "_commit"])
def test_broker_killed_amid_a_transaction_leaves_all_or_nothing(
    tmp_path: Path, way: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker(tmp_path / "broker") as broker:
        log = KafkaLog(f"kafka://{broker.address}?timeout.ms=4000")
        log.admin.create_topic("t", 1, TopicPolicy())
        part, writer = TopicPartition("t", 0), log.producer()
        writer.transact({part: [Outgoing(b"%d" % number, b"first", 1) for number in range(10)]})
        inner: Any = getattr(KafkaWriter, place)

        def killing(self: KafkaWriter, *given: Any, **named: Any) -> Any:
            broker.kill()
            return inner(self, *given, **named)

        monkeypatch.setattr(KafkaWriter, place, killing)
        with pytest.raises(Unavailable) as found:
            writer.transact({part: [Outgoing(b"k", b"doubt", 1)] * 10})
        assert isinstance(found.value, CommitUnknown) == (place == "_commit")
        monkeypatch.setattr(KafkaWriter, place, inner)
        broker.start()
        deadline = time.monotonic() + 2 * WAIT_S
        while True:
            try:
                ends = writer.transact({part: [Outgoing(b"k", b"last", 1)]})
                break
            except StandfastError:
                assert time.monotonic() < deadline
        values = [record.value for record in read(log, part, ends[part]) if record.value != b"last"]
        assert values in ([b"first"] * 10, [b"first"] * 10 + [b"doubt"] * 10 * (place == "_commit"))
        log.close()


@pytest.mark.parametrize("given", [False, True])
def test_closing_takes_no_answer_of_a_broker(given: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
        client = client_of(f"127.0.0.1:{silent.getsockname()[1]}", transactional_id="t" if given else "")
        if given:
            with pytest.raises(native().module.Error):
                client.init_transactions(200)
        else:
            assert client.produce("t", 0, (b"k",) * 100, (b"v",) * 100, (1,) * 100, None, 0, 10) == 100
            assert client.flush(200) == 100
        began = time.monotonic()
        client.close()
        assert time.monotonic() - began < 5


def test_closing_amid_records_on_their_way_is_bounded(kafka_address: str, part: TopicPartition) -> None:
    client = client_of(kafka_address, linger_ms="0")
    client.learn(part.topic, 10_000)
    assert client.produce(*part, (b"k",) * 2_000, (bytes(1_000),) * 2_000, (1,) * 2_000, None, 0, 0) == 2_000
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 5
    assert len(client) == 0


# -- ends of partitions -----------------------------------------------------------------------------------------------


def test_end_of_a_partition_is_that_after_its_last_record(
    log: KafkaLog, part: TopicPartition, way: str, make: Make, kafka_address: str
) -> None:
    producer = make(kafka_address)
    for count in (1, 1_000):
        end = log.producer().append({part: [Outgoing(b"k", b"v", 1)] * count})[part]
        assert producer.end(part, WAIT_S) == (end if way == "compiled" else None)
    if way == "compiled":
        assert producer.end(part._replace(partition=1), WAIT_S) == 0
        for absent in (part._replace(partition=2), TopicPartition(f"absent-{part.topic}", 0)):
            with pytest.raises(KafkaException):
                producer.end(absent, 2.0)
        assert producer.end(part, WAIT_S) == 1_001, "an error leaves the producer as it was"


def test_end_that_no_broker_tells_is_an_error_in_time(make: Make, way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        producer = make(f"127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        if way == "compiled":
            with pytest.raises(KafkaException):
                producer.end(TopicPartition("t", 0), 0.2)
        assert time.monotonic() - began < 5


def test_claim_of_another_instance_is_seen_by_the_next_append_and_the_next_offsets(
    part: TopicPartition, kafka_address: str, way: str
) -> None:
    """At least once no broker fences: both look at the members topic, through the connection of its writer."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    record = Outgoing(b"k", b"v", 1)
    ours, theirs = KafkaLog(f"kafka://{kafka_address}"), KafkaLog(f"kafka://{kafka_address}")
    try:
        writer = ours.writer("w", group=group, owner="a")
        members = ours.group(group)
        for offset in range(1, 4):
            writer.append({part: [record]})
            members.commit({part: Committed(offset)}, None, writer.claim)
        newer = theirs.writer("w", group=group, owner="b")
        with pytest.raises(Fenced, match="epoch 2"):
            members.commit({part: Committed(9)}, None, writer.claim)
        with pytest.raises(Fenced, match="epoch 2"):
            writer.append({part: [record]})
        newer.append({part: [record]})
        assert ours.reader().bounds([part])[part].end == 4, "three of the older writer, one of the newer"
        assert members.committed([part])[part].offset == 3
    finally:
        ours.close()
        theirs.close()


def test_members_topic_that_is_recreated_is_not_taken_for_the_old_one(
    part: TopicPartition, kafka_address: str, way: str
) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    ours, theirs = KafkaLog(f"kafka://{kafka_address}"), KafkaLog(f"kafka://{kafka_address}")
    try:
        writer = ours.writer("w", group=group, owner="a")
        writer.append({part: [Outgoing(b"k", b"v", 1)]})
        theirs.admin.delete_topic(group + MEMBERS_SUFFIX)
        theirs.writer("w", group=group, owner="b")
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                writer.append({part: [Outgoing(b"k", b"late", 1)]})
            except Fenced:
                break
            except Unavailable:  # as long as brokers and clients still know the deleted topic
                pass
            assert time.monotonic() < deadline, "the newer claim is in the new topic"
    finally:
        ours.close()
        theirs.close()


# -- opening and closing ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_hundred_opens_and_closes_leave_no_memory_thread_or_handle(kafka_address: str, part: TopicPartition) -> None:
    left, files, threads = left_by_opens("Producer", options_of(kafka_address), part.topic)
    assert left < 16 << 20, "each gave a megabyte"
    assert (files, threads) == (0, 0)


# -- misuse -----------------------------------------------------------------------------------------------------------


def calls_of(client: Any) -> list[Callable[[], object]]:
    return [
        lambda: client.produce("t", 0, (b"k",), (b"v",), (1,), None, 0, 0),
        lambda: client.flush(0),
        lambda: client.poll(0),
        lambda: client.delivered(),
        lambda: client.purge(),
        lambda: client.learn("t", 1),
        lambda: client.init_transactions(0),
        lambda: client.begin(),
        lambda: client.offsets([("t", 0, 1, "")], b"", 0),
        lambda: client.commit(0),
        lambda: client.abort(0),
        lambda: client.end("t", 0, 0),
    ]


def test_closed_producer_raises_and_may_be_closed_again(kafka_address: str) -> None:
    client = client_of(kafka_address)
    client.close()
    client.close()
    for call in calls_of(client):
        with pytest.raises(RuntimeError, match="was closed"):
            call()
    assert (len(client), client.said()) == (0, [])


def test_second_thread_is_refused_while_one_waits(kafka_address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = client_of(f"127.0.0.1:{silent.getsockname()[1]}")
        client.produce("t", 0, (b"k",), (b"v",), (1,), None, 0, 0)
        waiting = threading.Thread(target=client.flush, args=(2_000,))
        waiting.start()
        refused = ""
        deadline = time.monotonic() + WAIT_S
        while not refused and time.monotonic() < deadline:
            try:
                client.poll(0)
            except RuntimeError as error:
                refused = str(error)
        assert len(client) == 1, "any thread may ask for that"
        waiting.join()
        client.close()
    assert "another thread" in refused


def test_producer_closed_while_a_thread_waits_ends_with_that_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = client_of(f"127.0.0.1:{silent.getsockname()[1]}")
        client.produce("t", 0, (b"k",), (b"v",), (1,), None, 0, 0)
        waiting = threading.Thread(target=client.flush, args=(1_000,))
        waiting.start()
        time.sleep(0.3)
        client.close()
        with pytest.raises(RuntimeError, match="was closed"):
            client.flush(0)
        waiting.join(WAIT_S)
        assert not waiting.is_alive()
        with pytest.raises(RuntimeError, match="was closed"):
            client.poll(0)


def test_forked_process_is_refused_and_the_parent_goes_on(kafka_address: str, part: TopicPartition) -> None:
    client = client_of(kafka_address)
    client.learn(part.topic, 10_000)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            for call in calls_of(client):
                try:
                    call()
                except RuntimeError as error:
                    code = 0 if "forked" in str(error) else 2
            client.close()  # must not touch threads that are not here
            code = code or len(client)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.produce(*part, (b"k",), (b"v",), (1,), None, 0, 1_000) == 1
    assert client.flush(30_000) == 0
    assert [one[:3] for one in client.delivered()] == [(1, 0, 0)]
    client.close()


@pytest.mark.parametrize(
    "given",
    [
        ("t", 0, [b"k"], (b"v",), (1,), None, 0, 0),
        ("t", 0, (b"k",), (b"v", b"w"), (1,), None, 0, 0),
        ("t", 0, (b"k",), (b"v",), (), None, 0, 0),
        ("t", 0, (b"k",), (b"v",), (1,), (), 0, 0),
        ("t", 0, (b"k",), (b"v",), (1,), [None], 0, 0),
        ("t", 0, ("k",), (b"v",), (1,), None, 0, 0),
        ("t", 0, (b"k",), (bytearray(b"v"),), (1,), None, 0, 0),
        ("t", 0, (b"k",), (b"v",), ("1",), None, 0, 0),
        ("t", 0, (b"k",), (b"v",), (1 << 70,), None, 0, 0),
        ("t", 0, (b"k",), (b"v",), [1], None, 0, 0),
        ("t", 0, (b"k",), (b"1234567",), None, None, 0, 0),
        ("t", 0, (b"k",), (None,), None, None, 0, 0),
        ("t", 0, (b"k",), (bytearray(b"12345678"),), None, None, 0, 0),
        ("t", 0, (b"k",), (b"v",), (1,), (5,), 0, 0),
        ("t", 0, (b"k",), (b"v",), (1,), ((("a",),),), 0, 0),
        ("t", 0, (b"k",), (b"v",), (1,), ((("a", b"b"), ("c", 5)),), 0, 0),
        ("t", 0, (b"k",), (b"v",), (1,), None, 2, 0),
        ("t", 0, (b"k",), (b"v",), (1,), None, -1, 0),
        ("t\0", 0, (b"k",), (b"v",), (1,), None, 0, 0),
        (None, 0, (b"k",), (b"v",), (1,), None, 0, 0),
        ("t", 1 << 40, (b"k",), (b"v",), (1,), None, 0, 0),
        (),
    ],
)
def test_bad_columns_raise_and_give_nothing(kafka_address: str, given: tuple[Any, ...]) -> None:
    client = client_of(kafka_address)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        client.produce(*given)
    assert (len(client), client.delivered()) == (0, [])
    client.close()


def test_bad_calls_raise(kafka_address: str) -> None:
    module = native().module
    client = client_of(kafka_address)
    calls: list[Callable[[], object]] = [
        lambda: client.begin(),  # without a transactional id
        lambda: client.commit(0),
        lambda: client.offsets([("t", 0, 1, "")], b"no group", 0),
        lambda: client.offsets([("t", 0, 1, 5)], b"", 0),
        lambda: client.offsets(5, b"", 0),
        lambda: client.flush("a"),
        lambda: client.end("t", 0, 100),  # there is no such topic
        lambda: client.end("t\0", 0, 100),
        lambda: client.end("t", -1, 100),
        lambda: client.end(None, 0, 100),
        lambda: module.Producer([("no.such.setting", "1")]),
        lambda: module.Producer([("acks", 1)]),
        lambda: module.Producer(),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError, module.Error)):
            call()
    client.close()


def test_complaints_of_the_client_reach_the_callbacks() -> None:
    heard: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    producer = NativeProducer(native().module, options_of(f"127.0.0.1:{port}"), Callbacks({}, heard.append))
    deadline = time.monotonic() + WAIT_S
    while not heard:
        assert time.monotonic() < deadline
        producer.flush(0.05)
        producer.poll()
    assert all(isinstance(one, KafkaError) for one in heard)
    assert "refused" in heard[0].str()
    producer.close()
