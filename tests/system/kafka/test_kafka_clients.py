"""Clients of librdkafka are destroyed by threads of the process's own, whatever the garbage collector does.

Rules of this file: a process of its own, since the fault would end it; it collects garbage where an answer arrives.
"""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from standfast.replication.kafka.address import parse_kafka_address
from standfast.replication.kafka.clients import destroy_left
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.native_producer import NativeProducer
from standfast.replication.kafka.producer import PythonProducer
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import Fenced
from standfast.store.native_module import SWITCH
from support.serve import wait_for

pytestmark = pytest.mark.kafka

CHILD = """
import gc, sys, threading
from standfast.replication.tail.open_log import open_log

class Held:
    "Garbage in a cycle, with the log that it holds."
    def __init__(self, log):
        self.log, self.itself = log, self

def collect(_):
    threads.add(threading.get_ident())
    gc.collect()
    arrived.release()

address, threads, arrived = sys.argv[1], set(), threading.Semaphore(0)
gc.disable()
for number in range(10):
    log = open_log(address)
    reader, writer = log.reader(), log.producer()
    (answer,) = log._cluster.describe_later(["no-such-topic"]).values()
    answer.add_done_callback(collect)
    if number % 2:
        log.close()
    Held(log)
    del log, reader, writer, answer  # garbage before the answer arrives in a thread of its client
    assert arrived.acquire(timeout=30)
assert threads - {threading.get_ident()}, "no answer came in a thread of the library"
print("ended", flush=True)
"""


@pytest.mark.slow
def test_garbage_collected_in_a_thread_of_the_client_library_ends_no_process(kafka_address: str) -> None:
    command = [sys.executable, "-P", "-c", CHILD, f"kafka://{kafka_address}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != -signal.SIGABRT, done.stderr[-2_000:]
    assert (done.returncode, done.stdout.strip()) == (0, "ended"), done.stderr[-2_000:]


def test_log_releases_each_client_when_its_part_is_closed(kafka_address: str, tmp_path: Path) -> None:
    log = open_log(f"kafka://{kafka_address}")
    cluster: Cluster = log._cluster  # type: ignore[attr-defined]
    assert len(cluster._clients) == 1  # that for requests
    topic = f"released-{tmp_path.name}"
    log.admin.create_topic(topic, 1, TopicPolicy())
    source = TopicPartition(topic, 0)
    record = Outgoing(b"k", b"v", 1)
    plain, reader, group = log.producer(), log.reader(), log.group(topic)
    plain.append({source: [record]})
    reader.assign({source: 0})
    log.prepare(["released-0", "released-1"])
    log.prepare(["released-1"])
    writer = log.writer("released-1", group=topic, owner="a")
    writer.transact({source: [record]})
    other = log.writer("released-1", group=topic, owner="b")
    with pytest.raises(Fenced, match="fenced"):
        writer.transact({source: [record]})
    assert group.committed([source]) is not None
    for part in (plain, reader, group, writer, other):
        part.close()
    log.close()
    wait_for(lambda: len(cluster._clients) == 1)  # an unused producer goes once it has connected


def test_clients_of_an_owner_that_is_gone_are_destroyed_by_the_next_one(kafka_address: str) -> None:
    cluster = Cluster(parse_kafka_address(f"kafka://{kafka_address}"))
    admin, consumer, clients = cluster.admin, cluster.consumer(), cluster._clients
    del cluster
    gc.collect()
    assert len(clients) == 2
    destroy_left()
    assert len(clients) == 0
    with pytest.raises(RuntimeError, match="closed"):
        admin.list_topics(timeout=1)
    with pytest.raises(RuntimeError, match="closed"):
        consumer.list_topics(timeout=1)


def test_producer_is_destroyed_once_no_caller_refers_to_it_also_amid_a_transaction(
    kafka_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    cluster = Cluster(parse_kafka_address(f"kafka://{kafka_address}"))
    producer = cluster.connected(cluster.transactional("amid"))
    assert isinstance(producer, PythonProducer)
    producer.init_transactions(30)
    producer.begin()
    known = id(producer.client)

    def is_there() -> bool:
        return known in {id(one) for one in gc.get_objects() if isinstance(one, Producer)}

    cluster.release(producer)
    destroy_left()
    assert is_there()
    del producer
    assert is_there()  # the garbage collector would not find it in any thread
    destroy_left()
    assert not is_there()


@pytest.mark.slow
def test_compiled_producer_is_destroyed_at_once_also_amid_a_transaction(kafka_address: str) -> None:
    cluster = Cluster(parse_kafka_address(f"kafka://{kafka_address}"))
    producer = cluster.connected(cluster.transactional("amid"))
    assert isinstance(producer, NativeProducer)
    producer.init_transactions(30)
    producer.begin()
    cluster.release(producer)
    with pytest.raises(KafkaException, match="was closed"):
        producer.abort(1)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["append", "transact"])
def test_writer_that_another_thread_closes_ends_its_call_and_then_releases_its_producer(
    kafka_address: str, tmp_path: Path, call: str
) -> None:
    log = open_log(f"kafka://{kafka_address}")
    cluster: Cluster = log._cluster  # type: ignore[attr-defined]
    topic = f"closed-{tmp_path.name}"
    log.admin.create_topic(topic, 1, TopicPolicy())
    source = TopicPartition(topic, 0)
    batch = {source: [Outgoing(b"k", b"v" * 100, 1)] * 100_000}
    writer = log.writer("closed", group=topic, owner="a") if call == "transact" else log.producer()
    getattr(writer, call)({source: [Outgoing(b"k", b"v", 1)]})
    ends: list[object] = []
    thread = threading.Thread(target=lambda: ends.append(getattr(writer, call)(batch)))
    thread.start()
    while thread.is_alive() and not len(writer._transactional or writer._plain or ()):  # type: ignore[attr-defined]
        pass
    under_way = thread.is_alive()
    writer.close()
    thread.join()
    assert under_way
    (found,) = ends
    assert found == {source: 100_001 + (call == "transact")}  # the mark of the first transaction has an offset, too
    log.close()
    assert len(cluster._clients) == 1
