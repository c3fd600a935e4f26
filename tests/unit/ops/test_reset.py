"""Reset of an application: the plan, its refusals, and the application's restart from nothing; on both logs."""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.ops.doctor.reset_plan import LocalStep, ResetPlan, Target, make_plan, parse_target
from standfast.replication.log import Committed, Log, Outgoing, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.app_topics import AppTopics, app_topics
from standfast.store.errors import BadConfig

Run = Callable[..., tuple[int, dict[str, Any]]]
TEXT = sf.serde.string
P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)


# -- the owner of a topic ----------------------------------------------------------------------------------------------


def sorted_out(app: str, *names: str, **given: Any) -> AppTopics:
    arguments: dict[str, Any] = {"groups": (), "known": (), "sources": (), **given}
    return app_topics(app, names, **arguments)


def test_only_what_is_named_as_an_internal_topic_is_one() -> None:
    found = sorted_out(
        "app", "app-kv-changelog", "app-x-repartition", "app-y-broadcast", "app-z-subscription-registration-topic",
        "app-changelog", "app--changelog", "app-kv-changelog-old", "apps-kv-changelog", "xapp-kv-changelog", "app-in",
        "kv-changelog", "app",
    )  # fmt: skip
    assert found.changelogs == ("app--changelog", "app-kv-changelog")
    assert found.between == ("app-x-repartition", "app-y-broadcast", "app-z-subscription-registration-topic")
    assert found.members == ("app-standfast-members", "app-standfast-placement", "app-standfast-restoring")


def test_source_topic_is_never_internal_whatever_its_name() -> None:
    found = sorted_out(
        "app", "app-kv-changelog", "app-x-repartition", sources=("app-kv-changelog", "app-x-repartition")
    )
    assert (found.changelogs, found.between) == ((), ())


def test_topic_of_an_application_with_a_longer_name_is_left_to_it() -> None:
    names = ("app-eu-kv-changelog", "app-kv-changelog")
    assert sorted_out("app", *names).changelogs == names
    there = sorted_out("app", *names, groups=("app", "app-eu"))
    assert there.changelogs == ("app-kv-changelog",)
    assert there.others == (("app-eu-kv-changelog", "app-eu"),)
    known = sorted_out("app", *names, groups=("app-eu",), known=("app-eu-kv-changelog",))
    assert known.changelogs == names


def test_topic_that_one_with_a_shorter_name_may_have_is_doubtful() -> None:
    found = sorted_out("app-eu", "app-eu-kv-changelog", "app-eu-x-repartition", groups=("app",))
    assert found.changelogs == found.between == ()
    assert found.doubtful == (("app-eu-kv-changelog", "app"), ("app-eu-x-repartition", "app"))
    known = sorted_out("app-eu", "app-eu-kv-changelog", groups=("app",), known=("app-eu-kv-changelog",))
    assert known.changelogs == ("app-eu-kv-changelog",)


# -- the plan ---------------------------------------------------------------------------------------------------------


def plan(*to: str, **given: Any) -> ResetPlan:
    arguments: dict[str, Any] = {
        "topics": AppTopics(("app-kv-changelog",), ("app-x-repartition",), ("app-standfast-members",)),
        "existing": ["app-kv-changelog", "app-x-repartition", "in"],
        "bounds": {P0: Bounds(3, 10), P1: Bounds(0, 4)},
        "committed": {P0: Committed(7)},
        "targets": [parse_target(text) for text in to],
        "local": None,
    }
    return make_plan("app", **{**arguments, **given})


def test_lines_say_everything_in_its_order() -> None:
    local = LocalStep("/state/app", "aside", "/state/.reset/app.1")
    assert plan(local=local).lines() == [
        "commit in-0 at 3 (was 7)",
        "commit in-1 at 0 (no offset before)",
        "delete changelog topic app-kv-changelog",
        "delete repartition topic app-x-repartition",
        "move directory /state/app to /state/.reset/app.1",
    ]
    assert plan(local=LocalStep("/state/app", "remove")).lines()[-1] == "remove directory /state/app"


@pytest.mark.parametrize(
    ("to", "offsets"),
    [
        ([], [3, 0]),
        (["earliest"], [3, 0]),
        (["latest"], [10, 4]),
        (["in=latest"], [10, 4]),
        (["in-1=latest"], [3, 4]),
        (["in-0=10", "latest"], [10, 4]),
        (["in-0=3", "in=latest", "earliest"], [3, 4]),
    ],
)
def test_nearest_target_counts(to: list[str], offsets: list[int]) -> None:
    assert [step.after for step in plan(*to).offsets] == offsets


@pytest.mark.parametrize(
    ("to", "told"),
    [
        (["in-0=2"], "in-0=2: the log holds 3 to 10"),
        (["in-0=11"], "in-0=11: the log holds 3 to 10"),
        (["in-2=0"], "in-2=...: not a source of the application (sources: in)"),
        (["out=latest"], "out=...: not a source"),
        (["earliest", "latest"], "both given"),
        (["middle"], "write earliest, latest"),
        (["in-0=-1"], "write earliest, latest"),
        (["=4"], "write earliest, latest"),
        (["in=4"], "an offset needs a partition: write in-0=4"),
    ],
)
def test_target_that_does_not_fit_is_refused(to: list[str], told: str) -> None:
    with pytest.raises(BadConfig) as refused:
        plan(*to)
    assert told in str(refused.value)


def test_source_in_another_log_begins_at_the_offset_that_is_given() -> None:
    bounds = {P0: None}
    assert [step.after for step in plan(bounds=bounds).offsets] == [0]
    assert [step.after for step in plan("in-0=99", bounds=bounds).offsets] == [99]
    with pytest.raises(BadConfig, match="in-0 is in another log, so its end is not known"):
        plan("latest", bounds=bounds)


def test_target_reads_topics_with_dashes() -> None:
    assert parse_target("my-topic-12=latest") == Target("my-topic", 12, "latest")
    assert parse_target("my-topic=latest") == Target("my-topic", None, "latest")


# -- both logs --------------------------------------------------------------------------------------------------------


class Place:
    """An application that has run on a log: two source records processed, and one more to come."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.address = address
        self.log: Log = open_log(address)
        self.app = f"app-{uuid.uuid4().hex[:8]}"
        self.source = f"{self.app}-in"
        self.out = f"{self.app}-out"
        self.state = root / "state"
        for topic in (self.source, self.out):
            self.log.admin.create_topic(topic, 2, TopicPolicy())
        self.log.producer().append({TopicPartition(self.source, 0): [Outgoing(b"a", b"1", 1), Outgoing(b"b", b"1", 2)]})
        self.flags = ["--app", self.app, "--log", address]

    def application(self, directory: str = "state") -> sf.App:
        app = sf.App(
            self.app, log=self.address, state_dir=self.root / directory, commit_interval_ms=20, lease_ms=500,
            restart_grace_ms=0,  # the next run may have another directory
            stores=[sf.KeyValueStore("seen", TEXT, sf.serde.int64)],
        )  # fmt: skip
        app.stream(self.source, key=TEXT, value=TEXT).repartition("by-key").group_by_key().count("seen").to(self.out)
        return app

    def run(self, rows: dict[str, int], directory: str = "state") -> None:
        """Run until the store holds these rows; processed records are committed at the end."""
        app = self.application(directory)
        session = app.open()
        thread = threading.Thread(target=app.run)
        thread.start()
        deadline = time.monotonic() + 30
        try:
            while self.rows(session) != rows:
                assert time.monotonic() < deadline, self.rows(session)
                time.sleep(0.01)
        finally:
            app.stop()
            thread.join()

    def rows(self, session: sf.Session) -> dict[str, int]:
        found: dict[str, int] = {}
        for partition in range(2):
            try:
                found |= dict(session.read("seen", partition).store.all())
            except sf.StandfastError:
                return {}
        return found

    def topics(self) -> set[str]:
        names = {info.name.removeprefix(f"{self.app}-") for info in self.log.admin.topics() if self.app in info.name}
        members = self.log.admin.describe_topic(f"{self.app}-standfast-members")
        return names | ({"standfast-members"} if members is not None else set())

    def offsets(self) -> dict[int, int]:
        committed = self.log.group(self.app).committed()
        return {at.partition: found.offset for at, found in committed.items() if at.topic == self.source}


KAFKA = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=[*KAFKA, pytest.mark.long])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_address')}"
    else:
        address = f"sqlite:///{tmp_path}/log"
    made = Place(tmp_path, address)
    yield made
    made.log.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_reset_application_processes_everything_again(place: Place, run: Run) -> None:
    place.run({"a": 1, "b": 1})
    assert place.offsets() == {0: 2, 1: 0}
    before = place.topics()
    flags = ["reset", *place.flags, "--state-dir", str(place.state)]
    code, shown = run(*flags, "--dry-run")
    assert (code, shown["done"]) == (0, False)
    assert place.topics() == before
    assert place.offsets() == {0: 2, 1: 0}
    assert (place.state / place.app).is_dir()

    code, done = run(*flags, "--yes")
    assert (code, done["done"]) == (0, True)
    assert [line.split(".reset")[0] for line in done["steps"]] == [line.split(".reset")[0] for line in shown["steps"]]
    assert [(one["partition"], one["before"], one["after"]) for one in done["offsets"]] == [(0, 2, 0), (1, 0, 0)]
    assert place.topics() == {"in", "out"}
    assert place.offsets() == {0: 0, 1: 0}
    assert not (place.state / place.app).exists()
    (aside,) = (place.state / ".reset").iterdir()
    assert aside.name.startswith(f"{place.app}.")

    place.log.producer().append({TopicPartition(place.source, 0): [Outgoing(b"a", b"1", 3)]})
    place.run({"a": 2, "b": 1})
    place.run({"a": 2, "b": 1}, "elsewhere")


@pytest.mark.parametrize("place", ["embedded", pytest.param("kafka", marks=KAFKA)], indirect=True)
def test_reset_to_the_end_forgets_what_was_processed(place: Place, run: Run) -> None:
    place.run({"a": 1, "b": 1})
    flags = ["reset", *place.flags, "--state-dir", str(place.state), "--local", "remove", "--to", "latest", "--yes"]
    assert run(*flags)[0] == 0
    assert not list((place.state / ".reset").iterdir())
    place.log.producer().append({TopicPartition(place.source, 0): [Outgoing(b"a", b"1", 3)]})
    place.run({"a": 1})


def test_reset_is_refused_while_the_application_has_members(place: Place, run: Run) -> None:
    place.run({"a": 1, "b": 1})
    before = place.topics()
    with place.application().open():
        for how in ("--dry-run", "--yes"):
            code, refused = run("reset", *place.flags, how)
            assert code == 1
            assert "is running (instance " in refused["message"]
    assert place.topics() == before
    assert place.offsets() == {0: 2, 1: 0}
    assert run("reset", *place.flags, "--yes")[0] == 0


def test_second_reset_finds_nothing_to_delete(place: Place, run: Run) -> None:
    place.run({"a": 1, "b": 1})
    assert run("reset", *place.flags, "--yes")[0] == 0
    code, again = run("reset", *place.flags, "--yes")
    assert (code, again["delete"]) == (0, [])


# -- confirmation, files, a user's own consumer -----------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, f"sqlite:///{tmp_path}/log")
    made.log.admin.create_topic(f"{made.app}-seen-changelog", 2, TopicPolicy())
    yield made
    made.log.close()


class Terminal(io.StringIO):
    """A person's typing."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_and_without_yes_it_refuses(small: Place, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(small.app + "\n"))
    code, refused = run("reset", *small.flags)
    assert (code, "give --yes" in refused["message"]) == (1, True)
    assert main(["reset", *small.flags, "--yes", "--dry-run"]) == 2
    assert "seen-changelog" in small.topics()


@pytest.mark.parametrize(("typed", "done"), [("", False), ("yes\n", False), ("{app}x\n", False), ("{app}\n", True)])
def test_person_types_the_name_of_the_application(
    small: Place, run: Run, monkeypatch: pytest.MonkeyPatch, typed: str, done: bool
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed.format(app=small.app)))
    code, document = run("reset", *small.flags)
    assert (code, document["done"]) == (0 if done else 1, done)
    assert ("seen-changelog" in small.topics()) != done


def test_dry_run_and_earnest_print_the_same_lines(small: Place, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["reset", *small.flags, "--source", small.source]
    assert main([*flags, "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        f"commit {small.source}-0 at 0 (no offset before)",
        f"commit {small.source}-1 at 0 (no offset before)",
        f"delete changelog topic {small.app}-seen-changelog",
    ]
    assert main([*flags, "--yes"]) == 0
    assert capsys.readouterr().out.splitlines()[: len(shown)] == shown


def test_directory_with_an_owner_is_left_alone_and_so_is_the_log(small: Place, run: Run) -> None:
    session = sf.Session(
        small.app, log=f"sqlite:///{small.root}/other", state_dir=small.state, background=False,
        stores=[sf.KeyValueStore("seen", TEXT, TEXT)], partitions=1,
    )  # fmt: skip
    with session:
        code, held = run("reset", *small.flags, "--state-dir", str(small.state), "--yes")
        assert (code, held["error"]) == (73, "Held")
    assert "seen-changelog" in small.topics()


def test_directories_that_a_reset_does_not_reach_are_told_of(small: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reset", *small.flags, "--yes"]) == 0
    assert "clear its state directories, here and on other machines, before it starts there" in capsys.readouterr().err


def test_local_keep_leaves_the_directory(small: Place, run: Run) -> None:
    sf.Session(small.app, log=small.address, state_dir=small.state, background=False, stores=[], partitions=1).close()
    flags = ["reset", *small.flags, "--state-dir", str(small.state), "--local", "keep", "--yes"]
    code, document = run(*flags)
    assert (code, document["local"]) == (0, None)
    assert (small.state / small.app).is_dir()


def test_topic_of_another_application_is_left_alone_and_said_so(
    small: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    other = f"{small.app}-eu"
    small.log.admin.create_topic(f"{other}-seen-changelog", 1, TopicPolicy())
    small.log.group(other).commit({TopicPartition(small.source, 0): Committed(1)})
    assert main(["reset", *small.flags, "--yes"]) == 0
    assert "eu-seen-changelog" in small.topics()
    assert f"topic {other}-seen-changelog is left alone: it belongs to application '{other}'" in capsys.readouterr().err
    assert main(["reset", *small.flags, "--store", "eu-seen:keyvalue", "--yes"]) == 0
    assert "eu-seen-changelog" not in small.topics()


def test_unknown_source_and_missing_name_are_usage_errors(small: Place, run: Run) -> None:
    assert run("reset", *small.flags, "--source", "nowhere", "--yes")[0] == 2
    assert run("reset", "--log", small.address, "--yes")[0] == 2
    assert run("reset", *small.flags, "--to", "middle", "--yes")[0] == 78


@pytest.mark.kafka
@pytest.mark.slow
def test_live_consumer_of_the_users_own_is_seen(kafka_address: str, tmp_path: Path, run: Run) -> None:
    place = Place(tmp_path, f"kafka://{kafka_address}")
    consumer = Consumer({"bootstrap.servers": kafka_address, "group.id": place.app, "client.id": "the-app"})
    consumer.subscribe([place.source])
    deadline = time.monotonic() + 20
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    try:
        assert place.log.admin.consumers(place.app) == ("the-app at 127.0.0.1",)
        code, refused = run("reset", *place.flags, "--source", place.source, "--yes")
        assert code == 1
        assert "is running (consumer the-app at 127.0.0.1)" in refused["message"]
    finally:
        consumer.close()
    assert run("reset", *place.flags, "--source", place.source, "--to", "latest", "--yes")[0] == 0
    assert place.offsets() == {0: 2, 1: 0}
    place.log.close()
