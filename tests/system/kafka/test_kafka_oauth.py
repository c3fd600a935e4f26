"""Logins by a function (`kafka={"oauth_cb": f}`) on a real broker: every client has one, tokens expire, functions fail.

Rules of this file: every test has an application and topics of its own. The broker refuses every connection without a
token, so a client that the function did not reach fails the test.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import standfast as sf
from standfast.replication.log import Outgoing, TopicPolicy
from support.bulk import BULK, loader
from support.oauth import Tokens, oauth_broker, settings

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

TEXT, INT = sf.serde.string, sf.serde.int64
WAIT_S = 60.0


@pytest.fixture(scope="module")
def address(kafka_files: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with oauth_broker(tmp_path_factory.mktemp("oauth")) as found:
        yield found


@pytest.fixture
def name() -> str:
    return f"app{uuid.uuid4().hex[:8]}"


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Counting:
    """An application that counts keys, in a thread of its own."""

    def __init__(self, address: str, name: str, root: Path, kafka: dict[str, Any], **given: Any) -> None:
        self.app = sf.App(
            name,
            log=address,
            state_dir=root,
            stores=[sf.KeyValueStore("counts", TEXT, INT)],
            kafka=kafka,
            create_topics=True,
            commit_interval_ms=100,
            **given,
        )
        stream = self.app.stream(f"{name}-in", key=TEXT, value=TEXT)
        stream.group_by(lambda key, value: value, value=TEXT).count("counts").to(f"{name}-out")
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.app.run()
        except BaseException as error:
            self.error = error

    def count(self, key: str) -> int:
        session = self.app.session
        try:
            found = [] if session is None else [session.read("counts", at).store.get(key) for at in range(4)]
        except sf.StandfastError:
            return 0
        return sum(one or 0 for one in found)

    def __enter__(self) -> Counting:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.app.stop()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_application_and_its_producer_log_in_with_every_client_and_refresh_tokens(
    address: str, name: str, tmp_path: Path, guarantee: Any
) -> None:
    tokens = Tokens(life_s=10)  # a client asks for the next one two seconds before, which a busy machine may need
    # A client that came too late with it is refused, and pauses for up to ten seconds before it logs in again.
    address = address.replace("timeout.ms=8000", "timeout.ms=30000")
    one = Counting(address, name, tmp_path / "a", settings(tokens), guarantee=guarantee)
    with one, one.app.producer() as producer:
        sent = 0
        deadline = time.monotonic() + 22  # two lives of a token, so that a client without a new one would be refused
        while time.monotonic() < deadline:
            producer.send(f"{name}-in", "k", "word")
            producer.flush()
            sent += 1
            time.sleep(0.2)
        until(lambda: one.count("word") == sent, "all records are counted")
        session = one.app.session
        assert session is not None and session._keeper.pid is None  # no process that would have no login
        assert session.counters.task_failures == 0
    assert one.error is None
    assert tokens.calls > 10


@pytest.mark.long
def test_second_instance_restores_takes_over_and_is_read_by_a_replica(address: str, name: str, tmp_path: Path) -> None:
    kafka = settings(Tokens())
    store = sf.KeyValueStore("kv", TEXT, INT)
    given: dict[str, Any] = {"log": address, "stores": [store], "partitions": 1, "kafka": kafka}
    with sf.Session(name, state_dir=tmp_path / "a", **given) as first:
        first.assign(active=[0])
        first.wait_ready(WAIT_S)
        for number in range(500):
            first.task(0).store(store).put(str(number), number)
        first.task(0).commit({})
    with sf.Session(name, state_dir=tmp_path / "b", **BULK, **given) as second:
        second.assign(active=[0])
        second.wait_ready(WAIT_S)
        assert loader(second).statistics().runs > 0  # in bulk, whose threads log in by the function, too
        assert second.task(0).store(store).get("499") == 499
    with sf.Replica(name, log=address, state_dir=tmp_path / "r", stores=[store], kafka=kafka) as replica:
        replica.wait_ready(WAIT_S)
        assert replica.read("kv", 0).store.get("499") == 499


@pytest.mark.long
def test_consumer_of_ones_own_gets_the_function_with_its_settings(address: str, name: str, tmp_path: Path) -> None:
    kafka = settings(Tokens())
    log = sf.open_log(address, kafka=kafka)
    log.admin.create_topic(f"{name}-in", 1, TopicPolicy())
    log.producer().append({sf.TopicPartition(f"{name}-in", 0): [Outgoing(b"a", b"1", 1)]})
    log.close()
    store = sf.KeyValueStore("kv", TEXT, TEXT)
    with sf.Session(name, log=address, state_dir=tmp_path / "s", stores=[store], kafka=kafka) as session:
        consumer = Consumer(session.consumer_settings())
        consumer.subscribe([f"{name}-in"], on_assign=session.on_assign, on_revoke=session.on_revoke)
        deadline = time.monotonic() + WAIT_S
        while True:
            assert time.monotonic() < deadline
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                break
            session.look_at_group()
        session.task(message).store(store).put("a", "1")
        session.commit({(f"{name}-in", 0): 1})
        consumer.close()


def test_function_that_raises_at_the_start_is_named(address: str, name: str, tmp_path: Path) -> None:
    tokens = Tokens()
    tokens.broken = ValueError("the vault is shut")
    with pytest.raises(
        sf.Unavailable, match=r"oauth_cb support.oauth.Tokens gave no token .ValueError: the vault is shut"
    ):
        sf.open_log(address, kafka=settings(tokens))


@pytest.mark.long
def test_function_that_raises_for_a_while_is_logged_and_the_application_goes_on_after_it(
    address: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = Tokens(life_s=8)
    one = Counting(address, name, tmp_path / "a", settings(tokens))
    with one:
        until(lambda: one.app.session is not None and bool(one.app.session.open_tasks()), "the tasks run")
        tokens.broken = ConnectionError("the vault is shut")
        calls = tokens.calls
        until(lambda: tokens.calls > calls + 3, "clients ask for tokens")
        time.sleep(10)  # all tokens have expired
        tokens.broken = None
        with one.app.producer() as producer:
            producer.send(f"{name}-in", "k", "word")
        until(lambda: one.count("word") == 1, f"the record is counted: {one.error!r}")
    assert one.error is None
    assert "oauth_cb support.oauth.Tokens gave no token (ConnectionError: the vault is shut)" in caplog.text


def test_errors_of_the_clients_reach_the_users_function() -> None:
    errors: list[Any] = []
    with pytest.raises(sf.Unavailable, match="no answer"):
        sf.open_log("kafka://127.0.0.1:1?timeout.ms=1000", kafka={"error_cb": errors.append})
    assert errors and hasattr(errors[0], "code")
