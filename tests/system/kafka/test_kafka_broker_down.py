"""A broker is killed and comes back in the middle of writing, restoring and tailing: no record lost or doubled.

Rules of this file: one broker for all of it, so each test leaves it running; names are the test's own. Waits are for a
condition, with a bound. The kill is SIGKILL, and acknowledged records are in the broker's files.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import standfast as sf
from standfast.ops.tools.broker import Broker
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.listeners import Listener
from standfast.replication.log import Record, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.native_module import SWITCH
from support.bulk import BATCHES, BULK
from support.groups import costly
from support.kafka import light_broker, lost_ends

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

WAIT_S = 40.0
BACK_S = 30.0  # within seconds of its return; a busy machine takes longer to start the broker
DOWN_S = 2.0
OPENINGS, RETURNS, STOPPED_S = 6, 3, 9.0
NOTED_S = 0.5  # in which the broker notes that the end of a commit is written
CLOSE_S = 15.0  # calls to the log that get no answer within five seconds together, and the ends of its clients
TEXT, INT = sf.serde.string, sf.serde.int64
STORES = [sf.KeyValueStore("kv", TEXT, INT)]
# The client fetches far ahead; with these settings hardly.
LEAN = (
    "&queued.min.messages=500&queued.max.messages.kbytes=100&max.partition.fetch.bytes=50000"
    "&fetch.message.max.bytes=50000&fetch.max.bytes=70000&message.max.bytes=60000"
)


@pytest.fixture(scope="module")
@costly()
def broker(kafka_files: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that only this file kills."""
    with light_broker(tmp_path_factory.mktemp("kafka")) as made:
        yield made


@pytest.fixture
def address(broker: Broker) -> str:
    return f"kafka://{broker.address}?timeout.ms=5000"


@pytest.fixture
def app() -> str:
    return f"app-{uuid.uuid4().hex[:8]}"


def until(reached: Callable[[], bool], what: str, within_s: float = WAIT_S) -> float:
    """Wait for a condition; returns the seconds that it took."""
    began = time.monotonic()
    while not reached():
        assert time.monotonic() - began < within_s, f"not within {within_s} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


def records(address: str, source: TopicPartition) -> list[Record]:
    """The committed records of a partition."""
    log = KafkaLog(address)
    reader = log.reader()
    end = reader.bounds([source])[source].end
    reader.assign({source: 0})
    found: list[Record] = []
    deadline = time.monotonic() + WAIT_S
    while reader.assignment()[source] < end:
        assert time.monotonic() < deadline
        found += [record for fetched in reader.fetch(10_000, 100) for record in fetched.records]
    log.close()
    return found


@pytest.mark.long
@pytest.mark.parametrize("wrote", [True, False])
def test_broker_that_comes_back_without_its_last_records_is_found_out_by_owner_and_standby(
    broker: Broker, address: str, app: str, tmp_path: Path, wrote: bool
) -> None:
    """As after a power loss, or an unclean election: acknowledged offsets are assigned again.

    The client detects it by itself if its own records are gone, but not before it has written.
    """
    given: dict[str, Any] = {"log": address, "stores": STORES, "partitions": 1, "guarantee": "at_least_once"}
    given |= {"background": False, "take_over": False}
    owner = sf.Session(app, state_dir=tmp_path / "a", **given)
    standby = sf.Session(app, state_dir=tmp_path / "b", **given)
    owner.assign(active=[0])
    owner.wait_ready(WAIT_S)
    standby.assign(standby=[0])

    def put(*numbers: int) -> None:
        for number in numbers:
            owner.task(0).store("kv").put(f"k{number}", number)
            owner.task(0).commit()

    def rows(session: sf.Session) -> dict[str, int]:
        """Committed rows; none while the broker does not answer."""
        try:
            session.poll_once()
            return dict(session.read("kv", 0, allow_stale=True).store.all())
        except sf.Unavailable:
            return {}

    [segment] = (broker.directory / "data" / f"{app}-kv-changelog-0").glob("*.log")
    put(*range(5))
    kept_bytes = segment.stat().st_size
    put(*range(5, 8))
    until(lambda: len(rows(standby)) == 8, "the standby has all")
    if not wrote:
        owner.assign()
        owner.assign(active=[0])
        owner.wait_ready(WAIT_S)
    broker.kill()
    os.truncate(segment, kept_bytes)
    for name in ("*.index", "*.timeindex", "*.snapshot"):
        for path in segment.parent.glob(name):
            path.unlink()
    broker.start()
    first_five = {f"k{number}": number for number in range(5)}
    until(lambda: "k0" in rows(standby), "the broker answers")
    with pytest.raises(sf.Unavailable if wrote else sf.StateLost, match=None if wrote else "offset 5, .* below 8"):
        put(100)
    if wrote:
        owner.reopen(0)
    expected = first_five if wrote else first_five | {"k100": 100}
    until(lambda: rows(owner) == expected and owner.ready, "the owner has what the log has")
    assert owner.counters.wipes == {"position-ahead" if wrote else "diverged": 1}
    if not wrote:  # the failed commit's rows went with the state: the caller acknowledges that before it goes on
        with pytest.raises(sf.StateLost, match="source_offsets"):
            put(9)
        assert owner.task(0).source_offsets() == {}
        assert owner.task(0).store("kv").get("k9") is None
    put(101, 102, 103)
    expected |= {f"k{number}": number for number in (101, 102, 103)}
    until(lambda: rows(standby) == rows(owner) == expected, "the standby has what the log has")
    assert sum(standby.counters.wipes.values()) == 1 and set(standby.counters.wipes) <= {"position-ahead", "diverged"}
    for session in (owner, standby):
        session.close()


class Counting(sf.Processor):
    stores = ("kv",)

    def init(self, context: sf.Context) -> None:
        self.context, self.kv = context, context.store("kv")

    def process(self, record: sf.Record) -> None:
        count = (self.kv.get(record.key) or 0) + 1
        self.kv.put(record.key, count)
        self.context.forward(sf.Record(record.key, record.value, record.timestamp))


class Feeder:
    """Writes numbers to `<app>-in`, each once, through any state of the broker."""

    def __init__(self, broker: Broker, app: str) -> None:
        self.topic = f"{app}-in"
        self.count = 0
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "log_level": 0,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
            }
        )

    def feed(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            self._producer.produce(self.topic, INT.serialize(number), f"k{number % 50}".encode(), 0)
        self.count += count

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0


def running_app(address: str, app: str, root: Path, guarantee: Any) -> tuple[sf.App, threading.Thread]:
    """An application in a thread of its own that counts records by key, and forwards them."""
    made = sf.App(
        app,
        log=address,
        state_dir=root / "state",
        stores=STORES,
        guarantee=guarantee,
        commit_interval_ms=100,
        restart=sf.FixedDelay(attempts=2, delay_ms=200),
    )
    made.sink(f"{app}-out", key=TEXT, value=INT)(made.source(f"{app}-in", key=TEXT, value=INT)(Counting))
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    return made, thread


@pytest.mark.timeout(240)
@pytest.mark.parametrize("guarantee", [pytest.param("exactly_once", marks=pytest.mark.long), "at_least_once"])
def test_application_loses_nothing_and_goes_on_within_seconds(
    broker: Broker, address: str, app: str, tmp_path: Path, guarantee: str
) -> None:
    try:
        goes_through_a_restart(broker, address, app, tmp_path / "first", guarantee)
    except AssertionError:
        # Only where the broker itself says that it did not end this application's transaction: no client can then.
        if not lost_ends(broker, f"{app}-0-0"):
            raise
        goes_through_a_restart(broker, address, f"{app}-again", tmp_path / "again", guarantee)


def goes_through_a_restart(broker: Broker, address: str, app: str, root: Path, guarantee: str) -> None:
    log = KafkaLog(address)
    for topic in ("in", "out"):
        log.admin.create_topic(f"{app}-{topic}", 1, TopicPolicy())
    out, reader = TopicPartition(f"{app}-out", 0), log.reader()

    def outputs() -> int:
        return reader.bounds([out])[out].end

    feeder = Feeder(broker, app)
    feeder.feed(2_000)
    made, thread = running_app(address, app, root, guarantee)
    try:
        until(lambda: outputs() > 1_000, "the application runs")
        broker.kill()
        feeder.feed(5_000)  # they are written once the broker is back
        time.sleep(DOWN_S)
        broker.start()
        # More than the first 2,000 records could give, each twice and with the markers of their commits.
        took_s = until(lambda: outputs() > 4_500, "progress", BACK_S)
        feeder.feed(1_000)
        feeder.flush()
        session = made.session
        assert session is not None
        until(lambda: session.open_tasks() != {}, "the task runs")
        until(
            lambda: sum(dict(session.read("kv", 0, allow_stale=True).store.all()).values()) >= feeder.count,
            "all processed",
        )
        time.sleep(0.3)
    finally:
        made.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()
    numbers = [INT.deserialize(record.value or b"") for record in records(address, out)]
    rows = {key: INT.deserialize(value) for key, value in state(address, app).items()}
    if guarantee == "exactly_once":
        assert numbers == list(range(feeder.count))
        assert rows == Counter(f"k{number % 50}" for number in range(feeder.count))
    else:
        assert set(numbers) == set(range(feeder.count))
    log.close()
    print(f"first result {took_s:.1f} s after the broker's return")


def state(address: str, app: str) -> dict[str, bytes]:
    """The changelog, folded."""
    rows: dict[str, bytes] = {}
    for record in records(address, TopicPartition(f"{app}-kv-changelog", 0)):
        assert record.key is not None and record.value is not None
        rows[record.key.decode()] = record.value
    return rows


def filled(address: str, app: str, root: Path, count: int) -> None:
    """An application of one task, with so many rows of 200 bytes in its changelog."""
    with sf.Session(app, log=address, state_dir=root / "a", stores=STORES, partitions=1, background=False) as first:
        first.assign(active=[0])
        first.wait_ready(WAIT_S)
        for number in range(count):
            first.task(0).store("kv").put(f"{number:>200}", number)
            if number % 2_000 == 1_999:
                first.task(0).commit()


class Stops(Listener):
    """Stops the broker, as if it hung, in the thread that restores: at its start in bulk, or after its first batch."""

    def __init__(self, broker: Broker, how: str) -> None:
        self._broker = broker
        self._how = how
        self.stopped = threading.Event()

    def _stop(self) -> None:
        if not self.stopped.is_set():
            os.kill(self._broker.running.pid, signal.SIGSTOP)
            self.stopped.set()

    def on_restore_start(self, *_: object, **__: object) -> None:
        if self._how == "bulk":
            self._stop()

    def on_batch_restored(self, *_: object, **__: object) -> None:
        self._stop()


@pytest.mark.parametrize("how", ["bulk", pytest.param("batches", marks=pytest.mark.long)])
@pytest.mark.parametrize("compiled", ["1", pytest.param("0", marks=pytest.mark.long)], ids=["compiled", "python"])
def test_session_that_restores_closes_in_time_while_the_broker_hangs_and_the_next_one_has_every_row(
    broker: Broker,
    address: str,
    app: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    compiled: str,
) -> None:
    monkeypatch.setenv(SWITCH, compiled)
    count = 8_000
    monkeypatch.setattr("standfast.restore.replay.restorer.BATCH_RECORDS_MAX", 500)
    patient = address.replace("timeout.ms=5000", "timeout.ms=30000")  # a broker that wakes up takes its time
    filled(patient, app, tmp_path, count)
    given: dict[str, Any] = {"state_dir": tmp_path / "cold", "stores": STORES, "partitions": 1}
    given |= BULK if how == "bulk" else BATCHES
    stops = Stops(broker, how)
    try:
        session = sf.Session(app, log=address + LEAN, listeners=[stops], **given)
        with suppress(sf.Unavailable):  # where the restore began before the call had published its task
            session.assign(active=[0])
        assert stops.stopped.wait(WAIT_S)
        assert not session.ready
        began = time.monotonic()
        session.close()
        took_s = time.monotonic() - began
    finally:
        os.kill(broker.running.pid, signal.SIGCONT)
    assert took_s < CLOSE_S
    with sf.Session(app, log=patient, **given) as again:
        again.assign(active=[0])
        again.wait_ready(WAIT_S)
        assert list(again.task(0).store("kv").all()) == [(f"{number:>200}", number) for number in range(count)]
        assert again.counters.wipes == {}


def test_calls_before_a_close_share_one_time_out_while_the_broker_hangs(broker: Broker) -> None:
    log = KafkaLog(f"kafka://{broker.address}?timeout.ms=3000")
    group = log.group("none")
    os.kill(broker.running.pid, signal.SIGSTOP)
    try:
        log.hasten()
        began = time.monotonic()
        for _ in range(3):
            with pytest.raises(sf.Unavailable):
                log.admin.describe_topic("none")
            with pytest.raises(sf.Unavailable):
                group.committed([TopicPartition("none", 0)])
        took_s = time.monotonic() - began
    finally:
        os.kill(broker.running.pid, signal.SIGCONT)
    log.close()
    assert took_s < 2 * 3  # six calls, each of which may take three seconds alone


@pytest.mark.long
def test_restore_goes_on_where_it_was_and_lacks_nothing(
    broker: Broker, address: str, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 8_000
    given: dict[str, Any] = {"stores": STORES, "partitions": 1, "background": False}
    filled(address, app, tmp_path, count)
    monkeypatch.setattr("standfast.restore.replay.restorer.BATCH_RECORDS_MAX", 500)
    with sf.Session(app, log=address + LEAN, state_dir=tmp_path / "cold", **given) as cold:
        cold.assign(active=[0])

        def restored() -> int:
            try:
                cold.poll_once()
            except sf.Unavailable:
                pass
            return sum(cold.counters.restored_records.values())

        until(lambda: restored() > count // 4, "a part")
        broker.kill()
        until(lambda: restored() == restored(), "what was fetched before is applied")
        assert not cold.ready
        before = restored()
        broker.start()
        took_s = until(lambda: restored() > before, "progress", BACK_S)
        until(lambda: restored() == count, "everything, each record once")
        until(lambda: (restored(), cold.ready)[1], "the gate opens")
        assert list(cold.task(0).store("kv").all()) == [(f"{number:>200}", number) for number in range(count)]
        assert cold.counters.wipes == {}
    print(f"restore went on {took_s:.1f} s after the broker's return")


@pytest.mark.long
def test_standby_follows_again_and_the_writer_is_opened_again_by_its_owner(
    broker: Broker, address: str, app: str, tmp_path: Path
) -> None:
    log = KafkaLog(address)
    source = (f"{app}-in", 0)
    log.admin.create_topic(source[0], 1, TopicPolicy())
    given: dict[str, Any] = {"log": address, "stores": STORES, "partitions": 1, "lease_ms": 2_000}
    writer = sf.Session(app, state_dir=tmp_path / "a", **given)
    standby = sf.Session(app, state_dir=tmp_path / "b", **given)
    writer.assign(active=[0])
    writer.wait_ready(WAIT_S)
    standby.assign(standby=[0])

    failures = []

    def write(upto: int) -> bool:
        """Write one record of the source; after a failure reopen the task, which gives the next offset."""
        try:
            offset = writer.task(0).source_offsets().get(TopicPartition(*source), 0)
            if offset == upto:
                return True
            writer.task(0).store("kv").put(f"k{offset}", offset)
            writer.task(0).commit({source: offset + 1})
        except (sf.Unavailable, sf.Closed) as error:
            failures.append(error)
            try:
                writer.reopen(0)
            except sf.Unavailable:
                pass
        except sf.NotReady:
            pass
        return False

    def followed() -> dict[str, int]:
        return dict(standby.read("kv", 0, allow_stale=True).store.all())

    until(lambda: write(20), "twenty")
    until(lambda: len(followed()) == 20, "the standby follows")
    broker.kill()
    until(lambda: write(21) or bool(failures), "a commit fails")
    broker.start()
    took_s = until(lambda: write(21), "progress", 2 * BACK_S)
    until(lambda: write(40), "forty")
    until(lambda: len(followed()) >= 40, "the standby follows again", 2 * BACK_S)
    assert followed() == {f"k{number}": number for number in range(40)}
    assert standby.tasks()[0].role == "standby"
    assert standby.counters.wipes == writer.counters.wipes == {}
    assert standby.counters.standby_records == {("kv", 0): 40}
    assert len(records(address, TopicPartition(f"{app}-kv-changelog", 0))) == 40
    for session in (writer, standby):
        session.close()
    log.close()
    print(f"first commit {took_s:.1f} s after the broker's return")


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_sessions_that_open_while_the_broker_comes_back_wait_for_it_within_their_time(
    broker: Broker, app: str, tmp_path: Path, how: str
) -> None:
    """The client ends requests at once that are on a connection from before: none of them may fail an opening.

    After a stop of more than nine seconds the broker's own metadata names no live broker for a moment.
    """
    given: dict[str, Any] = {"log": f"kafka://{broker.address}?timeout.ms=90000", "stores": STORES, "partitions": 1}
    failures: list[BaseException] = []
    opened: Counter[int] = Counter()
    names = {number: f"{app}-{number}" for number in range(OPENINGS)}

    def open_one(number: int) -> None:
        directory = tmp_path / f"{names[number]}-{opened[number]}"
        try:
            with sf.Session(names[number], state_dir=directory, **given) as session:
                session.assign(active=[0])
                session.wait_ready(WAIT_S)
                task = session.task(0)
                task.store("kv").put(f"k{opened[number]}", number)
                task.commit()
                assert len(list(task.store("kv").all())) == opened[number] + 1
            opened[number] += 1
        except BaseException as error:
            # Only where the broker itself says that it did not end this application's transaction: no client can then.
            if isinstance(error, sf.Unavailable) and lost_ends(broker, f"{names[number]}-0-0"):
                names[number], opened[number] = f"{names[number]}-again", 0
                open_one(number)
            else:
                failures.append(error)

    def ended() -> bool:
        """Whether each commit has its end: a broker that is killed before that may lose it."""
        with closing(KafkaLog(given["log"])) as log, closing(log.reader()) as reader:
            changelogs = [TopicPartition(f"{name}-kv-changelog", 0) for name in names.values()]
            written = reader.written_ends(changelogs)
            return {at: one.end for at, one in reader.bounds(changelogs).items()} == written

    def open_all(rest_s: float = 0) -> list[threading.Thread]:
        threads = [threading.Thread(target=open_one, args=(number,)) for number in range(OPENINGS)]
        for thread in threads:
            thread.start()
            time.sleep(rest_s)
        return threads

    for thread in open_all():
        thread.join()
    for _ in range(RETURNS):
        until(ended, "the commits have their ends")
        time.sleep(NOTED_S)
        if how == "killed":
            broker.kill()
        else:
            os.kill(broker.running.pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
        threads = open_all(DOWN_S / OPENINGS)
        if how == "killed":
            broker.start()
        else:
            os.kill(broker.running.pid, signal.SIGCONT)
        for thread in threads:
            thread.join()
    assert not failures, [f"{type(one).__name__}: {one}" for one in failures]
    whole = [name for number, name in names.items() if opened[number] == 1 + RETURNS]
    assert whole and all(name in whole for name in names.values() if not name.endswith("-again")), (names, opened)


ASKS_FOR_CONSUMERS = """
import sys, threading, time
from contextlib import suppress
from standfast.replication.kafka.log import KafkaLog
from standfast.store.errors import Unavailable

def ask(log):
    for _ in range(3):
        with suppress(Unavailable):
            log.admin.consumers("no-such-group")

logs = [KafkaLog(sys.argv[1]) for _ in range(6)]
for log in logs:
    ask(log)  # each has a coordinator
print("ready", flush=True)
sys.stdin.readline()
threads = [threading.Thread(target=ask, args=[log]) for log in logs]
for thread in threads:
    thread.start()
print("asks", flush=True)
for thread in threads:
    thread.join()
print("done", flush=True)
"""


def test_process_that_asks_for_the_consumers_of_a_group_outlives_a_broker_that_is_down(
    broker: Broker, address: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASKS_FOR_CONSUMERS, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        broker.kill()
        try:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "asks\n"
            time.sleep(DOWN_S)
        finally:
            broker.start()
        assert process.stdout.readline() == "done\n"
    assert process.returncode == 0
