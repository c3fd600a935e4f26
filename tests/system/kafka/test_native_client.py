"""The compiled client of Kafka on a real broker: every shape of record, no leak, bounded closing, and misuse.

The contract of every log runs on it as well (tests/contract). Here are its own promises: it reads the same records as
the client of confluent_kafka, and nothing that a caller, a broker or a file does to it ends the interpreter.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from standfast.replication.kafka.log import KafkaLog
from standfast.replication.kafka.native_library import loaded, native, refused_by, with_library
from standfast.replication.log import Outgoing, Record, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.native_module import SWITCH, Native
from support.kafka import every_shape, left_by_opens

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

WAIT_S = 30.0
SETTINGS = {
    "group.id": "native",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "log_level": "2",
}


@pytest.fixture
def log(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log


@pytest.fixture
def part(log: KafkaLog) -> TopicPartition:
    name = f"n-{uuid.uuid4().hex[:8]}"
    log.admin.create_topic(name, 1, TopicPolicy(extra={"max.message.bytes": str(4 << 20)}))
    return TopicPartition(name, 0)


def client_of(address: str, **settings: str) -> Any:
    given = {"bootstrap.servers": address, **SETTINGS, **settings}
    return native().module.Client(list(given.items()))


def read(log: KafkaLog, source: TopicPartition) -> list[Record]:
    """All records to the end."""
    reader = log.reader()
    reader.assign({source: 0})
    found: list[Record] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < deadline:
            for fetched in reader.fetch(1_000, 200):
                found += fetched.records
                if fetched.at_end:
                    return found
    finally:
        reader.close()
    raise AssertionError(f"no end of {source} after {len(found)} records")


def both(log: KafkaLog, source: TopicPartition, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The records as both clients read them, which must be the same."""
    compiled = read(log, source)
    monkeypatch.setenv(SWITCH, "0")
    assert read(log, source) == compiled
    monkeypatch.delenv(SWITCH)
    return compiled


# -- records ----------------------------------------------------------------------------------------------------------


def test_records_of_every_shape_are_read_alike(
    log: KafkaLog, part: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [*every_shape(), Outgoing(b"last", b"v", 9)]
    for one in written:  # one batch each, with its marker behind it
        log.producer().transact({part: [one]})
    found = both(log, part, monkeypatch)
    assert [record[1:] for record in found] == [
        (one.timestamp, one.key, one.value, tuple(one.headers or ())) for one in written
    ]
    assert [record.offset for record in found] == list(range(0, 2 * len(written), 2)), "markers take offsets"


def test_narrow_reader_reads_all_but_the_headers(log: KafkaLog, part: TopicPartition) -> None:
    log.producer().append({part: [Outgoing(b"k", b"v", 1, (("a", b"1"),)), Outgoing(b"l", b"", 2)]})
    reader = log.reader(narrow=True)
    reader.assign({part: 0})
    found: list[Record] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < 2 and time.monotonic() < deadline:
        found += [record for fetched in reader.fetch(10, 200) for record in fetched.records]
    reader.close()
    assert [(record.offset, record.timestamp, record.key, record.value, record.headers) for record in found] == [
        (0, 1, b"k", b"v", ()),
        (1, 2, b"l", b"", ()),
    ]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_and_one_that_grows_a_thousandfold_are_read_alike(
    log: KafkaLog, kafka_address: str, part: TopicPartition, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    settings = {"bootstrap.servers": kafka_address, "compression.type": codec, "linger.ms": 100}
    producer = Producer(settings | {"message.max.bytes": 4 << 20})
    for number in range(20):
        producer.produce(part.topic, bytes(1_000_000), b"%d" % number, part.partition)
    assert producer.flush(30) == 0
    found = both(log, part, monkeypatch)
    assert [len(record.value or b"") for record in found] == [1_000_000] * 20


def test_records_of_an_aborted_transaction_are_left_out(
    log: KafkaLog, kafka_address: str, part: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer({"bootstrap.servers": kafka_address, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(10)
    for text, end in (("lost", producer.abort_transaction), ("kept", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(part.topic, text.encode(), b"k", part.partition)
        assert producer.flush(10) == 0
        end(10)
    assert [record.value for record in both(log, part, monkeypatch)] == [b"kept"]


# -- opening and closing ----------------------------------------------------------------------------------------------


def test_hundred_opens_and_closes_leave_no_memory_thread_or_handle(
    log: KafkaLog, kafka_address: str, part: TopicPartition
) -> None:
    log.producer().append({part: [Outgoing(b"k", bytes(100_000), 1)] * 20})
    left, files, threads = left_by_opens("Client", {"bootstrap.servers": kafka_address, **SETTINGS}, part.topic)
    assert left < 8 << 20, "each read two megabytes"
    assert (files, threads) == (0, 0)


@pytest.mark.parametrize("assigned", [False, True])
def test_closing_takes_no_answer_of_a_broker(assigned: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
        client = client_of(f"127.0.0.1:{silent.getsockname()[1]}")
        if assigned:
            client.assign([("t", 0, 0)])
        assert not [one for one in client.consume(10, 300) if not isinstance(one, tuple)]
        began = time.monotonic()
        client.close()
        assert time.monotonic() - began < 5


def test_parts_outlive_their_client(log: KafkaLog, kafka_address: str, part: TopicPartition) -> None:
    log.producer().append({part: [Outgoing(b"k", b"v", 1)]})
    client = client_of(kafka_address)
    client.assign([(*part, 0)])
    deadline = time.monotonic() + WAIT_S
    while not (parts := [one for one in client.consume(10, 100) if not isinstance(one, tuple)]):
        assert time.monotonic() < deadline
    client.close()
    assert parts[0].columns(0, 1) == (range(1), [1], [b"k"], [b"v"], None)


# -- misuse -----------------------------------------------------------------------------------------------------------


def test_closed_client_raises_and_may_be_closed_again(kafka_address: str) -> None:
    client = client_of(kafka_address)
    client.close()
    client.close()
    calls = (
        lambda: client.consume(1, 0),
        lambda: client.assign([("t", 0, 0)]),
        lambda: client.end("t", 0),
        lambda: client.learn("t", 1),
    )
    for call in calls:
        with pytest.raises(RuntimeError, match="was closed"):
            call()


def test_second_thread_is_refused_while_one_waits(kafka_address: str) -> None:
    client = client_of(kafka_address)
    waiting = threading.Thread(target=client.consume, args=(1, 2_000))
    waiting.start()
    refused = ""
    deadline = time.monotonic() + WAIT_S
    while not refused and time.monotonic() < deadline:
        try:
            client.end("t", 0)
        except RuntimeError as error:
            refused = str(error)
    waiting.join()
    client.close()
    assert "another thread" in refused


def test_client_closed_while_a_thread_waits_ends_with_that_call(kafka_address: str) -> None:
    client = client_of(kafka_address)
    waiting = threading.Thread(target=client.consume, args=(1, 1_000))
    waiting.start()
    time.sleep(0.3)
    client.close()
    with pytest.raises(RuntimeError, match="was closed"):
        client.consume(1, 0)
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    with pytest.raises(RuntimeError, match="was closed"):
        client.end("t", 0)


def test_forked_process_is_refused_and_the_parent_goes_on(
    log: KafkaLog, kafka_address: str, part: TopicPartition
) -> None:
    log.producer().append({part: [Outgoing(b"k", b"v", 1)]})
    client = client_of(kafka_address)
    client.assign([(*part, 0)])
    pid = os.fork()
    if not pid:
        code = 1
        try:
            client.consume(1, 0)
        except RuntimeError as error:
            client.close()  # must not touch threads that are not here
            code = 0 if "forked" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    deadline = time.monotonic() + WAIT_S
    while not [one for one in client.consume(10, 100) if not isinstance(one, tuple)]:
        assert time.monotonic() < deadline
    client.close()


@pytest.mark.parametrize(
    "given",
    [
        (),
        (1,),
        ([("no.such.setting", "1")],),
        ([("group.id", 1)],),
        ([("group.id",)],),
        ("text",),
        ([("bootstrap.servers", "\ud800")],),
    ],
)
def test_bad_settings_raise(given: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError, IndexError, native().module.Error)):
        native().module.Client(*given)


def test_bad_arguments_raise(kafka_address: str) -> None:
    client = client_of(kafka_address)
    calls: list[Any] = [
        lambda: client.consume(0, 0),
        lambda: client.consume(1 << 40, 0),
        lambda: client.consume("a", 0),
        lambda: client.assign([("t",)]),
        lambda: client.assign(5),
        lambda: client.assign([(None, 0, 0)]),
        lambda: native().module.part_of("t", 0, [1], [1], [b""], []),
        lambda: native().module.part_of("t", 0, [1], [1], ["text"], [b""]),
        lambda: native().module.part_of("t", 0, ["a"], [1], [b""], [b""]),
        lambda: native().module.Fold(True, 4),
        lambda: native().module.Fold(True).add(object(), 0, 1),
        lambda: native().module.merged_rows((), native().module.Fold(True), 0, None, 1),
        lambda: native().module.part_of("t", 0, [1], [1], [b"k"], [b"v"]).columns(0, 2),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError, RuntimeError, IndexError)):
            call()
    client.close()


# -- the library ------------------------------------------------------------------------------------------------------


def test_only_a_loaded_and_fitting_library_is_used(tmp_path: Path) -> None:
    module = native().module
    (path,) = loaded()
    cut = tmp_path / "librdkafka.so.1"
    cut.write_bytes(Path(path).read_bytes()[:10_000])
    for given, why in (
        ([str(cut)], "is not a library that this process has loaded"),
        ([str(tmp_path / "absent")], "is not a library that this process has loaded"),
        ([next(name for name in _maps() if "/libc.so" in name)], "has no function rd_kafka_"),
        ([], "none of its own"),
        ([path, str(cut)], "several copies"),
    ):
        found = with_library(module, given)
        assert found.module is None and why in found.reason
        assert found.text.startswith("Python, since ")
    assert with_library(module, [path]).module is module, "the one in use stays"


def _maps() -> list[str]:
    return [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]


def test_reasons_against_the_compiled_reader_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused_by(frozenset()) == refused_by(frozenset({"error_cb"})) == ""
    assert "'oauth_cb'" in refused_by(frozenset({"oauth_cb", "error_cb"}))
    monkeypatch.setenv(SWITCH, "0")
    assert native() == Native(None, reason=f"{SWITCH}=0 is set")
