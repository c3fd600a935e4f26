"""A real broker with logins and permissions: each missing permission is named, at once, and not retried.

    left out      an application with every permission but one names it, its user, its resource
    taken away    the same while it runs
    the page      its table has the permissions that the application of these tests runs with, no more and no less

Rules of this file: every test has a user and topics of its own. The error's text is part of the test.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import standfast as sf
from standfast.ops.doctor.claims import claim_findings
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import GROUP, TOPIC, TRANSACTIONAL_ID, Need, lack
from standfast.replication.shapes import dump
from standfast.replication.topics import rules
from standfast.replication.topics.changelog import changelog_need, changelog_policy
from standfast.replication.topics.claims import CLAIM, claim_of
from standfast.stream.task import purge as purge_module
from support.secured import WAIT_S, Secured, secured_broker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TEXT, INT = sf.serde.string, sf.serde.int64
KV = sf.KeyValueStore("x", TEXT, TEXT)
AT_ONCE_S = 15.0  # a loaded machine meets it; a retry would go on for ever
OWN = "READ WRITE CREATE DESCRIBE_CONFIGS"
TABLE = {
    ("source", TOPIC, "SOURCE"): "READ DESCRIBE_CONFIGS",
    ("output", TOPIC, "OUTPUT"): "WRITE DESCRIBE_CONFIGS",
    ("changelog", TOPIC, "APP-STORE-changelog"): OWN,
    ("between", TOPIC, "APP-NAME-repartition"): f"{OWN} DELETE",
    ("members", TOPIC, "APP-standfast-members"): OWN,
    ("placement", TOPIC, "APP-standfast-placement"): OWN,
    ("group", GROUP, "APP"): "READ",
    ("writer", TRANSACTIONAL_ID, "APP-GROUP-PARTITION"): "WRITE",
    ("leader", TRANSACTIONAL_ID, "APP-leader"): "WRITE",
    ("commits", TRANSACTIONAL_ID, "APP-standfast-commits-ID"): "WRITE",
}
OF_OWN_CONSUMER = "commits"
ALL = [
    *(
        (part, operation)
        for (part, _, _), operations in TABLE.items()
        for operation in operations.split()
        if part != OF_OWN_CONSUMER
    ),
]
# Topics of the application itself, with the permissions of a changelog.
LIKE_A_CHANGELOG = {"between", "members", "placement"}
# Permissions in constant use; the others are needed at a start, or when a topic is created.
WHILE_RUNNING = [
    *(("source", "READ"), ("output", "WRITE"), ("changelog", "WRITE"), ("between", "READ"), ("between", "WRITE")),
    *(("members", "READ"), ("members", "WRITE"), ("group", "READ")),
]

TAKEN = [("group", "READ")]  # away in `make test`, too


@pytest.fixture(scope="module")
def secured(kafka_files: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as made:
        yield made


class Application:
    """Counts words, through a repartition topic, in a thread of its own; keeps the error that ended it."""

    def __init__(self, secured: Secured, root: Path, guarantee: Any = "exactly_once") -> None:
        self.secured, self._root, self._guarantee = secured, root, guarantee
        self.name = f"app-{uuid.uuid4().hex[:8]}"
        self.user = secured.new_user()
        for topic in ("in", "out"):
            secured.root.admin.create_topic(f"{self.name}-{topic}", 1, TopicPolicy())
        self._out = TopicPartition(f"{self.name}-out", 0)
        self._feeder, self._reader = secured.root.producer(), secured.root.reader()

    @property
    def needs(self) -> dict[tuple[str, str], list[Need]]:
        """The needed permissions, by part and operation of the table."""
        names = {
            "source": [f"{self.name}-in"],
            "output": [f"{self.name}-out"],
            "changelog": [f"{self.name}-counts-changelog"],
            "between": [f"{self.name}-counts-repartition"],
            "members": [f"{self.name}-standfast-members"],
            "placement": [f"{self.name}-standfast-placement"],
            "group": [self.name],
            "writer": [f"{self.name}-0-0", f"{self.name}-1-0"],
            "leader": [f"{self.name}-leader"],
        }
        kinds = {part: kind for part, kind, _ in TABLE}
        return {(part, op): [Need(kinds[part], name, op) for name in names[part]] for part, op in ALL}

    def allow(self, *but: tuple[str, str]) -> None:
        needs = [need for key, found in self.needs.items() if key not in but for need in found]
        self.secured.allow(self.user, needs)

    def start(self) -> None:
        self.app = sf.App(
            self.name,
            log=self.secured.login(self.user),
            state_dir=self._root / self.name,
            stores=[sf.KeyValueStore("counts", TEXT, INT)],
            guarantee=self._guarantee,
            commit_interval_ms=100,
            restart=sf.FixedDelay(attempts=1_000_000, delay_ms=100),  # a retry would go on for ever
        )
        stream = self.app.stream(f"{self.name}-in", key=TEXT, value=TEXT)
        stream.group_by(lambda _, word: word).count("counts").to(f"{self.name}-out")
        self.ended: list[BaseException | None] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def feed(self) -> None:
        self._feeder.append({TopicPartition(f"{self.name}-in", 0): [Outgoing(b"k", b"word", 1)]})

    def outputs(self) -> int:
        return self._reader.bounds([self._out])[self._out].end

    def until_output(self) -> None:
        before, deadline = self.outputs(), time.monotonic() + WAIT_S
        self.feed()
        while self.outputs() == before:
            assert not self.ended, self.ended
            assert time.monotonic() < deadline, "nothing comes out"
            time.sleep(0.02)

    def end(self) -> sf.BadConfig:
        """The error that ended it; it is fed meanwhile, so that it uses the missing permission."""
        deadline = time.monotonic() + AT_ONCE_S
        while not self.ended:
            assert time.monotonic() < deadline, "it goes on, or tries again"
            self.feed()
            time.sleep(0.1)
        error = self.ended[0]
        assert isinstance(error, sf.BadConfig), repr(error)
        return error

    def stop(self) -> None:
        self.app.stop()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.app.run()
        except BaseException as error:
            self.ended.append(error)
        else:
            self.ended.append(None)


def said(secured: Secured, need: Need, user: str) -> str:
    return re.escape(lack(need, f"User:{user}", secured.address))


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_application_with_the_permissions_of_the_table_runs(
    secured: Secured, tmp_path: Path, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_module, "PURGE_INTERVAL_MS", 50)
    application = Application(secured, tmp_path, guarantee)
    application.allow()
    application.start()
    between = TopicPartition(f"{application.name}-counts-repartition", 0)
    reader, deadline = secured.root.reader(), time.monotonic() + WAIT_S
    application.until_output()
    while not reader.bounds([between])[between].begin:  # processed records are deleted
        assert not application.ended and time.monotonic() < deadline
        application.until_output()
    application.stop()
    assert application.ended == [None]


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("part", "operation"),
    [pytest.param(*one, marks=pytest.mark.long if one[0] in LIKE_A_CHANGELOG else ()) for one in ALL],
)
def test_permission_left_out_is_named_at_once(
    secured: Secured, tmp_path: Path, part: str, operation: str, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_module, "PURGE_INTERVAL_MS", 50)
    application = Application(secured, tmp_path, guarantee)
    application.allow((part, operation))
    application.start()
    error = application.end()
    application.stop()
    assert any(
        re.search(said(secured, need, application.user), str(error)) for need in application.needs[part, operation]
    )
    # A permission that implies DESCRIBE hides nothing else: unnamed resources are there.
    others = [need for key, found in application.needs.items() if key != (part, operation) for need in found]
    assert not [need for need in others if re.search(said(secured, need, application.user), str(error))]


@pytest.mark.parametrize(
    ("part", "operation", "guarantee"),
    [pytest.param(*one, "at_least_once", marks=() if one in TAKEN else pytest.mark.long) for one in WHILE_RUNNING]
    + [pytest.param(*one, "exactly_once", marks=pytest.mark.long) for one in WHILE_RUNNING]
    + [("writer", "WRITE", "exactly_once")],
)
def test_permission_taken_away_while_it_runs_is_named_and_given_back_it_goes_on(
    secured: Secured, tmp_path: Path, part: str, operation: str, guarantee: str
) -> None:
    application = Application(secured, tmp_path, guarantee)
    application.allow()
    application.start()
    application.until_output()
    need = application.needs[part, operation][-1]
    secured.take_away(application.user, need)
    error = application.end()
    application.stop()
    assert re.search(said(secured, need, application.user), str(error))
    secured.allow(application.user, [need])
    application.start()
    application.until_output()
    application.stop()
    assert application.ended == [None]


def test_session_of_a_user_who_may_write_nowhere_names_every_topic(secured: Secured, tmp_path: Path) -> None:
    app, user = f"app-{uuid.uuid4().hex[:8]}", secured.new_user()
    changelog, members = f"{app}-kv-changelog", f"{app}-standfast-members"
    own = [Need(TOPIC, topic, operation) for topic in (changelog, members) for operation in OWN.split()]
    secured.allow(user, [need for need in own if need.operation != "WRITE"])

    def session() -> sf.Session:
        given: dict[str, Any] = {"stores": [sf.KeyValueStore("kv", TEXT, TEXT)], "partitions": 1, "background": False}
        return sf.Session(app, log=secured.login(user), state_dir=tmp_path, **given)

    for topic in (changelog, members):
        need = Need(TOPIC, topic, "WRITE")
        with pytest.raises(sf.BadConfig, match=said(secured, need, user)):
            session()
        secured.allow(user, [need])
    session().close()


@pytest.mark.parametrize("hidden", [(), ("DESCRIBE",)])
def test_claims_that_this_login_may_not_read_count_as_none_until_it_may(
    secured: Secured, tmp_path: Path, hidden: tuple[str, ...]
) -> None:
    app, user = f"app{uuid.uuid4().hex[:8]}", secured.new_user()
    other, members = f"{app}-eu", Need(TOPIC, f"{app}-standfast-members", "READ")
    changelog = f"{other}-x-changelog"
    claim = claim_of(changelog, secured.root.admin.create_topic(changelog, 1, changelog_policy(KV)).topic_id)
    secured.root.group(app).note({(CLAIM, changelog): dump(claim).decode()})
    own = (changelog, f"{other}-standfast-members")
    secured.allow(user, [Need(TOPIC, topic, operation) for topic in own for operation in OWN.split()])
    secured.allow(user, [Need(TOPIC, members.name, operation) for operation in hidden])
    log = secured.login(user)

    def session() -> sf.Session:
        return sf.Session(other, log=log, state_dir=tmp_path, stores=[KV], partitions=1, background=False)

    session().close()
    with closing(KafkaLog(log)) as opened:
        need = rules.Application(other, (changelog_need(other, KV),))
        found = list(claim_findings(opened, need, opened.admin.survey([changelog]).topics))
    assert [one.rule for one in found] == ["claims-unreadable"] and members.name in found[0].fix
    secured.allow(user, [members])
    with pytest.raises(sf.BadConfig, match=f"belongs to application '{app}'"):
        session()


def test_writer_without_permission_names_topic_and_operation(secured: Secured) -> None:
    user, topics = secured.new_user(), [f"t-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for topic in topics:
        secured.root.admin.create_topic(topic, 1, TopicPolicy())
    secured.allow(user, [Need(TOPIC, topic, "DESCRIBE") for topic in topics])
    log = KafkaLog(secured.login(user))
    batches = {TopicPartition(topic, 0): [Outgoing(b"k", b"v", 1)] for topic in topics}
    with pytest.raises(sf.BadConfig) as refused:  # the brokers report only that it may not number its records
        log.producer().append(batches)
    for topic in topics:
        assert re.search(said(secured, Need(TOPIC, topic, "WRITE"), user), str(refused.value))
    secured.allow(user, [Need(TOPIC, topics[0], "WRITE")])
    secured.allow(user, [Need(TRANSACTIONAL_ID, "standfast-producer-", "WRITE")], prefixed=True)
    for write in (log.producer().append, log.producer().transact):  # ... only that all of it was given up
        with pytest.raises(sf.BadConfig) as refused:
            write(batches)
        assert re.search(said(secured, Need(TOPIC, topics[1], "WRITE"), user), str(refused.value))
        assert not re.search(said(secured, Need(TOPIC, topics[0], "WRITE"), user), str(refused.value))
    log.close()


def test_error_on_a_topic_without_any_permission_names_the_one_that_the_work_needs(secured: Secured) -> None:
    user, topic = secured.new_user(), f"t-{uuid.uuid4().hex[:8]}"
    secured.root.admin.create_topic(topic, 1, TopicPolicy())
    secured.root.producer().append({TopicPartition(topic, 0): [Outgoing(b"k", b"v", 1)]})
    log = KafkaLog(secured.login(user))
    source = TopicPartition(topic, 0)
    steps: list[tuple[str, Any]] = [
        ("WRITE", lambda: log.producer().append({source: [Outgoing(b"k", b"v", 1)]})),
        ("READ", lambda: log.reader().bounds([source])),
        ("READ", lambda: read_one(log, topic)),
    ]
    for operation, step in steps:
        need = Need(TOPIC, topic, operation)
        with pytest.raises(sf.BadConfig, match=said(secured, need, user)):
            step()
        secured.allow(user, [need])
        step()
        secured.take_away(user, need)
    log.close()


def test_admin_without_permission_names_what_it_takes(secured: Secured) -> None:
    user, topic = secured.new_user(), f"t-{uuid.uuid4().hex[:8]}"
    secured.root.admin.create_topic(topic, 1, TopicPolicy())
    secured.root.producer().append({TopicPartition(topic, 0): [Outgoing(b"k", b"v", 1)]})
    log = KafkaLog(secured.login(user))
    steps: list[tuple[str, Any]] = [
        ("DESCRIBE", lambda: log.admin.describe_topic(topic)),
        ("DESCRIBE_CONFIGS", lambda: log.admin.describe_topic(topic)),
        ("ALTER", lambda: log.admin.add_partitions(topic, 2)),
        ("ALTER_CONFIGS", lambda: log.admin.change_topic(topic, {"retention.ms": "-1"})),
        ("READ", lambda: read_one(log, topic)),
        ("DELETE", lambda: log.admin.delete_records({TopicPartition(topic, 0): 1})),
    ]
    for operation, step in steps:
        need = Need(TOPIC, topic, operation)
        with pytest.raises(sf.BadConfig, match=said(secured, need, user)):
            step()
        secured.allow(user, [need])
    log.admin.delete_topic(topic)
    group = Need(GROUP, f"g-{topic}", "DESCRIBE")
    with pytest.raises(sf.BadConfig, match=said(secured, group, user)):
        log.group(group.name).committed([TopicPartition(topic, 0)])
    log.close()


def read_one(log: KafkaLog, topic: str) -> None:
    reader, deadline = log.reader(), time.monotonic() + WAIT_S
    reader.assign({TopicPartition(topic, 0): 0})
    while not reader.fetch(1, 100):
        assert time.monotonic() < deadline
    reader.close()


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_permissions_by_prefix_are_enough_for_a_consumer_of_ones_own(
    secured: Secured, tmp_path: Path, guarantee: Any
) -> None:
    app, user = f"app-{uuid.uuid4().hex[:8]}", secured.new_user()
    source = TopicPartition(f"in-{app}", 0)
    secured.root.admin.create_topic(source.topic, 1, TopicPolicy())
    secured.root.producer().append({source: [Outgoing(b"k", b"v", 1)]})
    secured.allow(user, [Need(TOPIC, source.topic, "READ"), Need(GROUP, app, "READ")])
    secured.allow(user, [Need(TOPIC, f"{app}-", operation) for operation in OWN.split()], prefixed=True)
    own = Need(TRANSACTIONAL_ID, f"{app}-", "WRITE")
    secured.allow(user, [own, Need(TOPIC, source.topic, "DESCRIBE_CONFIGS")], prefixed=True)
    given: dict[str, Any] = {"stores": [sf.KeyValueStore("kv", TEXT, TEXT)], "placement": "group"}
    with sf.Session(app, log=secured.login(user), state_dir=tmp_path, guarantee=guarantee, **given) as session:
        consumer: Any = Consumer(session.consumer_settings())
        consumer.subscribe([source.topic], on_assign=session.on_assign, on_revoke=session.on_revoke)
        deadline, offsets = time.monotonic() + WAIT_S, dict[tuple[str, int], int]()
        while not offsets:
            assert time.monotonic() < deadline
            for message in consumer.consume(10, 0.1):
                assert message.error() is None
                session.task(0).store("kv").put("k", "v")
                offsets[source] = message.offset() + 1
            session.commit(offsets)
        consumer.close()
    assert secured.root.group(app).committed([source])[source].offset == 1


def test_standby_that_may_not_read_its_changelog_any_more_says_so_at_each_round_and_active_tasks_commit(
    secured: Secured, tmp_path: Path
) -> None:
    app, user = f"app-{uuid.uuid4().hex[:8]}", secured.new_user()
    given: dict[str, Any] = {"stores": [sf.KeyValueStore("kv", TEXT, TEXT)], "partitions": 2, "background": False}
    changelog, members = f"{app}-kv-changelog", f"{app}-standfast-members"
    own = [Need(TOPIC, topic, operation) for topic in (changelog, members) for operation in OWN.split()]
    writers = [Need(TRANSACTIONAL_ID, f"{app}-0-{number}", "WRITE") for number in range(2)]
    secured.allow(user, [*own, *writers, Need(GROUP, app, "READ")])
    with sf.Session(app, log=secured.login(user), state_dir=tmp_path, **given) as session:
        session.assign(active=[0], standby=[1])
        session.wait_ready(WAIT_S)
        session.poll_once()
        need = Need(TOPIC, changelog, "READ")
        secured.take_away(user, need)
        deadline = time.monotonic() + WAIT_S
        with pytest.raises(sf.BadConfig, match=said(secured, need, user)):
            while time.monotonic() < deadline:
                session.poll_once()
        with pytest.raises(sf.BadConfig, match=said(secured, need, user)):
            session.poll_once()
        session.task(0).store("kv").put("k", "v")
        session.task(0).commit()


def test_page_of_permissions_has_the_table_that_these_tests_run_by(repo_root: Path) -> None:
    text = (repo_root / "docs/operate/permissions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z-]+) `?([^`|]+?)`? \| ([A-Z_ `]+) \|", text, re.MULTILINE)
    found = {(kind, name): operations.replace("`", "") for kind, name, operations in rows}
    assert found == {(kind, name): operations for (_, kind, name), operations in TABLE.items()}


def test_login_that_may_not_remove_records_gets_a_changelog_by_the_clock_and_a_line_about_it(
    secured: Secured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, user = f"app-{uuid.uuid4().hex[:8]}", secured.new_user()
    store = sf.WindowStore("win", TEXT, TEXT, window_size_ms=3_600_000, retention_ms=86_400_000)
    changelog, members = store.changelog_of(app), f"{app}-standfast-members"
    secured.allow(user, [Need(TOPIC, topic, operation) for topic in (changelog, members) for operation in OWN.split()])
    secured.allow(user, [Need(GROUP, app, "READ"), Need(TRANSACTIONAL_ID, f"{app}-0-0", "WRITE")])
    given: dict[str, Any] = {"stores": [store], "partitions": 1, "background": False}

    def policy() -> TopicPolicy:
        info = secured.root.admin.describe_topic(changelog)
        assert info is not None
        return info.policy

    sf.Session(app, log=secured.login(user), state_dir=tmp_path / "a", **given).close()
    assert policy().retention_ms == changelog_policy(store).retention_ms == 2 * 86_400_000
    assert "segment.bytes" not in policy().extra
    assert "is kept by the log's clock (retention.ms=172800000)" in caplog.text
    for operation in ("DELETE", "ALTER_CONFIGS"):
        assert said(secured, Need(TOPIC, changelog, operation), user)
    # A topic that an operator keeps for ever: its owner says once that it may not remove records.
    secured.root.admin.change_topic(changelog, {"retention.ms": str(2**63 - 1)})
    session = sf.Session(app, log=secured.login(user), state_dir=tmp_path / "b", **given)
    session.assign(active=[0])
    session.wait_ready(WAIT_S)
    for day in range(5):
        session.task(0).store("win").put("k", "v", day * 86_400_000, 1)
        session.task(0).commit()
    caplog.clear()
    for _ in range(2):
        session._heads.trim(session.clock.monotonic_ms())
    assert caplog.text.count("that no live row needs are not removed, so that it grows") == 1
    secured.allow(user, [Need(TOPIC, changelog, "DELETE")])
    session.close()
    session = sf.Session(app, log=secured.login(user), state_dir=tmp_path / "b", **given)
    session.assign(active=[0])
    session.wait_ready(WAIT_S)
    session._heads.trim(session.clock.monotonic_ms())
    session.close()
    with closing(secured.root.reader()) as reader:
        assert reader.bounds([TopicPartition(changelog, 0)])[TopicPartition(changelog, 0)].begin > 0


def test_login_that_may_remove_records_gets_a_changelog_that_its_owner_keeps(secured: Secured, tmp_path: Path) -> None:
    app, user = f"app-{uuid.uuid4().hex[:8]}", secured.new_user()
    store = sf.WindowStore("win", TEXT, TEXT, window_size_ms=3_600_000, retention_ms=86_400_000)
    own = [Need(TOPIC, f"{app}-standfast-members", operation) for operation in OWN.split()]
    own += [Need(TOPIC, store.changelog_of(app), operation) for operation in (*OWN.split(), "DELETE", "ALTER_CONFIGS")]
    secured.allow(user, own)
    sf.Session(app, log=secured.login(user), state_dir=tmp_path, stores=[store], partitions=1, background=False).close()
    info = secured.root.admin.describe_topic(store.changelog_of(app))
    assert info is not None and info.policy.retention_ms == 2**63 - 1
    assert info.policy.extra["segment.bytes"] == str(64 << 20)
