"""Mistakes of users and operators on a real broker: one clear error that names the place, nothing lost or changed.

    before the first record   no broker, no topic, a refused login or mechanism, no permission
    in a changelog            a record without a key, a record in a format unknown to its store
    on the way out            a value over the limit of the topic, or of the session

Rules of this file: through sessions. One broker with logins and permissions serves the tests that need them. An error's
text is part of the test.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.shared.loopback import HOST, free_port
from standfast.replication.log import LogReader, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from support.kafka_bench import TEXT, WAIT_S, KafkaBench, rows
from support.secured import Secured, secured_broker
from support.waits import until

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]
LAST = sf.KeyValueStore("last", TEXT, TEXT)


@pytest.fixture
def bench(tmp_path: Path, kafka_address: str) -> Iterator[KafkaBench]:
    made = KafkaBench(tmp_path, kafka_address)
    yield made
    made.close()


@pytest.fixture(scope="module")
def secured(kafka_files: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker that requires a login, and has permissions."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as made:
        yield made


def session(address: str, root: Path, app: str = "app", **settings: object) -> sf.Session:
    given: dict[str, object] = {
        "stores": [sf.KeyValueStore("kv", TEXT, TEXT)],
        "partitions": 1,
        "background": False,
    } | settings
    return sf.Session(app, log=address, state_dir=root / "state", **given)  # type: ignore[arg-type]


# -- before the first record ------------------------------------------------------------------------------------------


def test_unreachable_broker_is_named_within_the_time_limit(tmp_path: Path) -> None:
    port = free_port()
    began = time.monotonic()
    with pytest.raises(sf.Unavailable, match=rf"kafka://{HOST}:{port}.*no answer within 500 ms"):
        session(f"kafka://{HOST}:{port}?timeout.ms=500", tmp_path)
    assert time.monotonic() - began < 5
    with pytest.raises(sf.Unavailable):  # and the directory was released
        session(f"kafka://{HOST}:{port}?timeout.ms=500", tmp_path)


def test_unknown_source_topic_of_an_application_is_named(bench: KafkaBench) -> None:
    app = sf.App(bench.app, log=bench.address, state_dir=bench.root / "state")

    @app.source("no-such-topic", key=TEXT, value=TEXT)
    class Nothing(sf.Processor):
        def process(self, record: sf.Record) -> None: ...

    with pytest.raises(sf.BadConfig, match="no-such-topic"):
        app.run()


def test_offsets_of_a_topic_that_does_not_exist_are_refused_and_the_state_is_as_before(bench: KafkaBench) -> None:
    active = bench.active("a")
    bench.write(active, 2, "x")
    active.task(0).store("kv").put("k2", "x")
    with pytest.raises(sf.UnknownStore, match="no-such-topic"):
        active.task(0).commit({("no-such-topic", 0): 1})
    active.reopen(0)
    active.wait_ready(WAIT_S)
    assert rows(active) == {"k0": "x", "k1": "x"}
    assert len(bench.logged()) == 2
    bench.write(active, 3, "x")


@pytest.mark.parametrize(
    ("user", "secret", "mechanism"), [("root", "wrong", "PLAIN"), ("root", "root-secret", "SCRAM-SHA-256")]
)
def test_refused_login_says_what_to_check_and_shows_no_secret(
    secured: Secured, tmp_path: Path, user: str, secret: str, mechanism: str
) -> None:
    with pytest.raises(sf.BadConfig, match=rf"{secured.address}.*sasl\.mechanism") as error:
        session(secured.login(user, secret, mechanism), tmp_path)
    assert secret not in str(error.value)


def test_login_without_permission_is_told_what_it_lacks_and_where(secured: Secured, tmp_path: Path) -> None:
    app = f"app-{uuid.uuid4().hex[:8]}"
    with session(secured.login("root"), tmp_path, app) as owner:
        owner.assign(active=[0])
        owner.wait_ready(WAIT_S)
        owner.task(0).store("kv").put("a", "1")
        owner.task(0).commit()
        with pytest.raises(sf.BadConfig, match=f"User:reader has no permission READ on topic '{app}-kv-changelog'"):
            session(secured.login("reader"), tmp_path / "r", app)
        owner.task(0).store("kv").put("b", "2")
        owner.task(0).commit()
        assert rows(owner) == {"a": "1", "b": "2"}


# -- in a changelog ---------------------------------------------------------------------------------------------------


def spoil(bench: KafkaBench, key: bytes | None, value: bytes | None) -> None:
    """A record of another client in the changelog."""
    bench.log.producer().append({bench.changelog: [Outgoing(key, value, int(time.time() * 1_000))]})


def test_record_without_a_key_is_refused_by_the_broker_itself_for_a_compacted_changelog(bench: KafkaBench) -> None:
    bench.active("a")
    with pytest.raises(sf.InvalidRequest, match=rf"{bench.changelog}.*without a key"):
        spoil(bench, None, b"v")


def windows(bench: KafkaBench) -> sf.WindowStore:
    """A store with one row, in a changelog that takes records without a key; its writer is closed."""
    store = sf.WindowStore(
        "kv", TEXT, TEXT, window_size_ms=60_000, retention_ms=3_600_000, changelog={"cleanup.policy": "delete"}
    )
    first = bench.active("a", stores=[store])
    start = int(time.time() * 1_000) // 60_000 * 60_000
    first.task(0).store("kv").put("good", "1", start)
    first.task(0).commit()
    first.close()
    return store


@pytest.mark.parametrize(
    "how",
    [
        *(pytest.param(one, marks=pytest.mark.long) for one in ("the same directory", "another directory")),
        "standby",
        "bulk",
    ],
)
def test_record_without_a_key_is_skipped_and_counted_by_whoever_restores(bench: KafkaBench, how: str) -> None:
    store = windows(bench)
    spoil(bench, None, b"v")
    spoil(bench, None, None)
    directory = "a" if how == "the same directory" else "cold"
    bulk: dict[str, Any] = {"restore_workers": 1, "bulk_restore_records": 1} if how == "bulk" else {}
    owner = bench.session(directory, stores=[store], take_over=False, **bulk)
    if how == "standby":
        owner.assign(standby=[0])
        until(lambda: owner.poll_once() >= 0 and counted(owner) == 2, "the standby has read them")
        found = owner.read("kv", 0, allow_stale=True).store
    else:
        owner.assign(active=[0])
        owner.wait_ready(WAIT_S)
        found = owner.task(0).store("kv")
    assert [window.key for window, _ in found.all()] == ["good"]
    assert counted(owner) == 2
    owner.close()


def counted(owner: sf.Session) -> int:
    """Records that the store skipped."""
    (task,) = owner.statistics().tasks
    return task.stores[0].skipped


def test_record_of_an_unknown_format_fails_the_restore_naming_its_offset(bench: KafkaBench) -> None:
    """The changelog takes the record; all state stays the same."""
    store = windows(bench)
    spoil(bench, b"short", b"v")
    spoiled = bench.session("a", stores=[store])
    spoiled.assign(active=[0])
    with pytest.raises(sf.NotReady, match=rf"{bench.changelog}.*offset 2"):
        spoiled.wait_ready(0.5)
    found = spoiled.read("kv", 0, allow_stale=True).store
    assert [window.key for window, _ in found.all()] == ["good"]
    assert spoiled.counters.wipes == {}
    spoiled.close()
    standby = bench.session("cold", stores=[store])
    standby.assign(standby=[0])
    until(lambda: standby.poll_once() >= 0 and standby.tasks()[0].error is not None, "the standby fails")
    assert f"{bench.changelog}" in str(standby.tasks()[0].error) and "offset 2" in str(standby.tasks()[0].error)


# -- on the way out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_value_over_the_topics_limit_fails_the_commit_whole_and_is_named(bench: KafkaBench, guarantee: str) -> None:
    stores = [sf.KeyValueStore("kv", TEXT, TEXT, changelog={"max.message.bytes": "20000"})]
    active = bench.active("a", stores=stores, guarantee=guarantee)
    bench.write(active, 2, "x")
    active.task(0).store("kv").put("large", "x" * 50_000)
    with pytest.raises(sf.InvalidRequest, match=rf"{bench.changelog}.*50\d\d\d bytes.*max\.message\.bytes"):
        active.task(0).commit({bench.source: 3})
    with pytest.raises(sf.Closed, match="opened again"):
        active.task(0)
    active.reopen(0)
    active.wait_ready(WAIT_S)
    assert (rows(active), bench.offset(active), bench.committed()) == ({"k0": "x", "k1": "x"}, 2, 2)
    bench.write(active, 4, "y")
    expected = {"k0": "x", "k1": "x", "k2": "y", "k3": "y"}
    until(lambda: dict(bench.logged()) == expected, "what was committed")


def test_value_over_the_sessions_limit_is_refused_at_the_put_and_the_task_goes_on(bench: KafkaBench) -> None:
    active = bench.active("a", value_max_bytes=1_000)
    bench.write(active, 1, "x")
    with pytest.raises(sf.InvalidRequest, match="1000"):
        active.task(0).store("kv").put("large", "x" * 1_001)
    with pytest.raises(sf.InvalidRequest, match="value_max_bytes"):
        active.task(0).send(bench.source.topic, b"k", b"x" * 1_001)
    bench.write(active, 2, "x")
    assert rows(active) == {"k0": "x", "k1": "x"}
    assert active.task(0).source_offsets() == {TopicPartition(*bench.source): 2}


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_timestamp_0_is_refused_where_it_is_given_and_costs_no_commit(bench: KafkaBench, guarantee: str) -> None:
    session = bench.active(guarantee=guarantee)
    task = session.task(0)
    task.store("kv").put("a", "1")
    with pytest.raises(sf.InvalidRequest, match=r"timestamp 0 .* would write the present time in place of 0"):
        task.store("kv").put("b", "2", 0)
    with pytest.raises(sf.InvalidRequest, match=r"timestamp 0 .* would write the present time in place of 0"):
        task.send(bench.source.topic, b"k", b"v", 0)
    task.commit({bench.source: 1})
    assert rows(session) == {"a": "1"}


# -- event time ahead of the clock ------------------------------------------------------------------------------------


def values(bench: KafkaBench, topic: str) -> list[bytes | None]:
    """Values of all committed records of a topic of one partition."""
    source = TopicPartition(topic, 0)
    with closing(bench.log.reader()) as reader:
        end = reader.bounds([source])[source].end
        reader.assign({source: 0})
        found: list[bytes | None] = []
        until(lambda: bool(found.extend(_fetched(reader))) or reader.assignment()[source] >= end, f"{topic} is read")
    return found


def _fetched(reader: LogReader) -> list[bytes | None]:
    return [record.value for fetched in reader.fetch(1_000, 100) for record in fetched.records]


def test_timestamp_far_ahead_is_kept_in_stores_and_left_out_where_the_broker_would_refuse_the_output(
    bench: KafkaBench,
) -> None:
    """A broker refuses such a record, by default from an hour on, and with it the commit; our own topics take any."""
    source, output = f"{bench.app}-in", f"{bench.app}-out"
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    bench.log.admin.create_topic(source, 1, TopicPolicy(extra=any_time))
    bench.log.admin.create_topic(output, 1, TopicPolicy())
    now_ms = int(time.time() * 1_000)
    ahead_ms = now_ms + 10 * 3_600_000
    given = [(b"k", b"old", now_ms), (b"store", b"kept", ahead_ms), (b"k", b"ahead", ahead_ms), (b"k", b"new", now_ms)]
    with closing(bench.log.writer(f"{bench.app}-feed", group=f"{bench.app}-feed", owner="feeder")) as writer:
        writer.append({TopicPartition(source, 0): [Outgoing(*one) for one in given]})
    app = sf.App(bench.app, log=bench.address, state_dir=bench.root / "state", stores=[LAST], commit_interval_ms=50)
    dead = f"{bench.app}-dead"
    bench.log.admin.create_topic(dead, 1, TopicPolicy())
    stream = app.stream(source, key=TEXT, value=TEXT, on_error="dead_letter", dead_letter=dead)
    stream.group_by_key().reduce(lambda _, new: new, "last")
    stream.filter(lambda key, _: key != "store").to(output, key=TEXT, value=TEXT)
    thread = threading.Thread(target=app.run, daemon=True)
    thread.start()
    try:
        until(lambda: values(bench, output) == [b"old", b"new"], "the other records are in the output")
    finally:
        app.stop()
        thread.join(WAIT_S)
    assert values(bench, dead) == [b"ahead"]  # its copy has the latest timestamp that the topic takes
    restored = sf.Session(bench.app, log=bench.address, state_dir=bench.root / "cold", stores=[LAST])
    with closing(restored):
        restored.assign(active=[0])
        restored.wait_ready(WAIT_S)
        store = restored.task(0).store("last")
        rows_of = {key: (store.get(key), store.get_with_timestamp(key).timestamp) for key in ("k", "store")}
    assert rows_of == {"k": ("new", now_ms), "store": ("kept", ahead_ms)}
