"""A replica follows the changelogs of an application without being a member of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.listeners import Listener
from standfast.replication.log import Committed, Outgoing, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.digest import digest_rows
from standfast.store.clock import SystemClock
from support.sessions import Bench, four_stores

HOUR_MS = 3_600_000
STORE_ARGUMENTS = (
    *("kv:keyvalue:value=string", "win:window:size=1h,retention=1d", "ses:session:retention=1d", "ver:versioned"),
)


class Starts(Listener):
    """The offsets where standbys began."""

    def __init__(self) -> None:
        self.at: dict[tuple[str, int], int] = {}

    def on_standby_start(self, task: TaskId, store: str, changelog: TopicPartition, start: int) -> None:
        self.at[store, changelog.partition] = start


def replica_of(bench: Bench, directory: str = "replica", **settings: Any) -> sf.Replica:
    arguments: dict[str, Any] = {
        "log": bench.address,
        "state_dir": bench.root / directory,
        "stores": four_stores(),
        "background": False,
        "clock": bench.clock,
    }
    replica = sf.Replica("app", **{**arguments, **settings})
    bench.opened.append(replica)
    return replica


def fill(session: sf.Session, first: int = 0, count: int = 10) -> None:
    for partition, task in session.tasks().items():
        for number in range(first, first + count):
            task.store("kv").put(f"k{number % 7}", f"v{number}", timestamp=number)
            task.store("win").put(f"w{number % 3}", f"v{number}", HOUR_MS * (number % 4))
            task.store("ses").put("s", 100 * number, 100 * number + 50, f"v{number}")
            task.store("ver").put("v", f"v{number}", number)
        task.commit({("in", partition): first + count})


def digests(read: Callable[[str, int], Any]) -> list[str]:
    return [
        digest_rows(read(spec.name, partition).logical_rows()).hex() for spec in four_stores() for partition in range(2)
    ]


def log_as_it_is(bench: Bench) -> Any:
    group, reader = bench.log.group("app"), bench.log.reader()
    topics = bench.log.admin.topics()
    sources = [TopicPartition(topic.name, partition) for topic in topics for partition in range(topic.partitions)]
    return topics, reader.bounds(sources), group.view(), group.owners(), group.committed()


def test_replica_has_the_rows_of_the_active_at_equal_positions(bench: Bench) -> None:
    active = bench.active(partitions=(0, 1))
    replica = replica_of(bench)
    for first in (0, 10, 20):
        fill(active, first)
        bench.settle(replica)
        assert digests(lambda name, partition: replica.read(name, partition).store) == digests(
            lambda name, partition: active.task(partition).store(name)
        )


def test_reads_carry_the_lag(bench: Bench) -> None:
    active = bench.active(partitions=(0, 1))
    fill(active)
    replica = replica_of(bench)
    bench.settle(replica)
    fill(active, 10, 3)
    view = replica.read("kv", 1)
    assert (view.store.get("k3"), view.lag_records, view.role) == ("v3", 3, "standby")
    bench.settle(replica)
    view = replica.read("kv", 1)
    assert (view.store.get("k3"), view.lag_records) == ("v10", 0)


def test_replica_is_ready_once_every_changelog_was_read_to_its_end(bench: Bench) -> None:
    fill(bench.active(partitions=(0, 1)))
    replica = replica_of(bench)
    assert not replica.ready and not replica.statistics().ready
    assert len(replica.missing()) == 8
    assert "app-kv-changelog-0: at 0 of 7" in replica.missing()
    replica.wait_ready(30)
    assert replica.ready and replica.statistics().ready and replica.missing() == ()


def test_replica_leaves_no_trace_in_the_log(bench: Bench) -> None:
    active = bench.active(partitions=(0, 1))
    fill(active)
    before = log_as_it_is(bench)
    replica = replica_of(bench)
    replica.wait_ready(30)
    replica.close()
    assert log_as_it_is(bench) == before


def test_replica_goes_on_from_its_position(bench: Bench) -> None:
    active = bench.active(partitions=(0, 1))
    fill(active)
    first = replica_of(bench)
    first.wait_ready(30)
    stood = {(one.store, one.partition): one.position for task in first.statistics().tasks for one in task.stores}
    assert len(stood) == 8 and min(stood.values()) > 0
    first.close()
    fill(active, 10)
    starts = Starts()
    replica_of(bench, listeners=[starts]).wait_ready(30)
    assert starts.at == stood


@pytest.mark.parametrize(
    "call",
    [
        lambda replica: replica.assign(active=[0]),
        lambda replica: replica.on_assign(None, []),
        lambda replica: replica.on_revoke(None, []),
        lambda replica: replica.reopen(0),
        lambda replica: replica.commit({}),
        lambda replica: replica.read("kv", 0).store.put("k", "v"),
    ],
)
def test_replica_takes_no_part(bench: Bench, call: Callable[[sf.Replica], Any]) -> None:
    fill(bench.active(partitions=(0, 1)))
    replica = replica_of(bench)
    with pytest.raises(sf.InvalidRequest, match=r"only reads what application 'app' writes|open for reading only"):
        call(replica)


def test_replica_never_takes_a_task_whose_owner_is_gone(bench: Bench) -> None:
    active = bench.active(partitions=(0, 1))
    fill(active)
    replica = replica_of(bench)
    replica.wait_ready(30)
    active.close()
    bench.clock.advance(60_000)
    bench.settle(replica)
    assert {task.role for task in replica.all_tasks().values()} == {"standby"}


def test_stores_of_different_partition_counts_are_followed(bench: Bench) -> None:
    text = sf.serde.string
    for name, partitions in (("one", 1), ("three", 3)):
        bench.log.admin.create_topic(f"app-{name}-changelog", partitions, TopicPolicy(frozenset({"compact"})))
        for partition in range(partitions):
            at = TopicPartition(f"app-{name}-changelog", partition)
            bench.log.producer().append({at: [Outgoing(b"k", name.encode(), 7)]})
    stores = [sf.KeyValueStore("one", text, text), sf.KeyValueStore("three", text, text)]
    replica = replica_of(bench, stores=stores)
    replica.wait_ready(30)
    assert replica.read("one", 0).store.get("k") == "one"
    assert [replica.read("three", partition).store.get("k") for partition in range(3)] == ["three"] * 3


def test_a_table_of_a_source_topic_is_followed_to_what_the_application_committed(bench: Bench) -> None:
    text = sf.serde.string
    bench.log.admin.create_topic("orders", 1, TopicPolicy(frozenset({"compact"})))
    at = TopicPartition("orders", 0)
    bench.log.producer().append({at: [Outgoing(b"a", b"1", 1), Outgoing(b"b", b"2", 2)]})
    table = sf.KeyValueStore("table", text, text, source_topic="orders")
    group = bench.log.group("app")
    group.commit({at: Committed(1)})
    replica = replica_of(bench, stores=[table])
    replica.wait_ready(30)
    view = replica.read("table", 0)
    assert (view.store.get("a"), view.store.get("b"), view.lag_records) == ("1", None, 0)
    group.commit({at: Committed(2)})
    bench.clock.advance(1_000)  # committed offsets are read again at every tick of the standbys
    bench.settle(replica)
    assert replica.read("table", 0).store.get("b") == "2"


def test_a_store_without_changelog_is_refused_with_those_that_have_one(bench: Bench) -> None:
    bench.active(partitions=(0, 1))
    text = sf.serde.string
    with pytest.raises(sf.UnknownStore, match="it has changelogs of kv, ses, ver, win"):
        replica_of(bench, stores=[sf.KeyValueStore("totals", text, text)])
    with pytest.raises(sf.UnknownStore, match="it has none: check the id"):
        sf.Replica("other", log=bench.address, state_dir=bench.root / "other", stores=four_stores())
    with pytest.raises(sf.BadConfig, match="at least one store"):
        replica_of(bench, stores=[])
    with pytest.raises(sf.BadConfig, match="no changelog to follow"):
        replica_of(bench, stores=[sf.KeyValueStore("kv", text, text, logging=False)])


def test_a_changelog_that_was_made_anew_is_followed_again(bench: Bench) -> None:
    text = sf.serde.string
    stores = [sf.KeyValueStore("kv", text, text)]
    topic, at = "app-kv-changelog", TopicPartition("app-kv-changelog", 0)
    policy = TopicPolicy(frozenset({"compact"}))
    bench.log.admin.create_topic(topic, 1, policy)
    bench.log.producer().append({at: [Outgoing(b"old", b"1", 1)]})
    replica = replica_of(bench, stores=stores)
    replica.wait_ready(30)
    bench.log.admin.delete_topic(topic)
    for _ in range(10):
        bench.clock.advance(1_000)
        replica.poll_once()
    assert not replica.look_again()
    assert "there is no changelog 'app-kv-changelog'" in " ".join(replica.missing())
    assert not replica.ready
    bench.log.admin.create_topic(topic, 1, policy)
    bench.log.producer().append({at: [Outgoing(b"new", b"2", 2)]})
    assert replica.look_again()
    replica.wait_ready(30)
    view = replica.read("kv", 0)
    assert (view.store.get("old"), view.store.get("new"), view.lag_records) == (None, "2", 0)


# -- the command ------------------------------------------------------------------------------------------------------


def start(bench: Bench, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "standfast.ops.cli", "replica", "--json", "--app", "app"]
    command += ["--log", bench.address, "--state-dir", str(bench.root / "copy"), *flags]
    stores = [f"--store={text}" for text in STORE_ARGUMENTS]
    return subprocess.Popen([*command, *stores], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    document: dict[str, Any] = json.loads(line)
    return document


def end(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


@pytest.mark.slow
def test_the_command_follows_answers_reads_and_goes_on_after_kill(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.clock = SystemClock()  # type: ignore[assignment]  # the command's own
    active = bench.active(partitions=(0, 1))
    fill(active)
    flags = ["--json", "--state-dir", str(bench.root / "copy")]

    def ask(*words: str) -> Any:
        code = main([*words, *flags])
        assert code == 0
        return json.loads(capsys.readouterr().out)

    process = start(bench)
    try:
        document = ready(process)
        assert document["ready"] is True and sorted(document["stores"]) == ["kv", "ses", "ver", "win"]
        rows = ask("get", "kv", "k3")["rows"]
        assert rows == [{"partition": part, "key": "k3", "timestamp": 3, "value": "v3"} for part in (0, 1)]
        assert [part["lag_records"] for part in ask("scan", "kv")["partitions"]] == [0, 0]
        assert len(ask("fetch", "ver", "v", "--partition", "1")["rows"]) == 10
        assert ask("status")["ready"] is True
        assert main(["health", "--ready", *flags]) == 0
    finally:
        code, _ = end(process, signal.SIGKILL)
    assert code == -signal.SIGKILL
    capsys.readouterr()
    fill(active, 10, 5)
    again = start(bench)
    try:
        ready(again)
        counted = ask("status")["counters"]["standby"]
        assert ask("get", "kv", "k0")["rows"][0]["value"] == "v14"
    finally:
        code, errors = end(again, signal.SIGTERM)
    assert code == 0, errors
    # Five puts of each store in each of two tasks; no record below the stored position was read again.
    assert sum(one["records"] for one in counted) == 5 * 4 * 2


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ([], 2, "which stores of which application?"),
        (["--store", "kv:table"], 78, "unknown kind 'table'"),
        (["--store", "none:keyvalue"], 2, "it has changelogs of kv, ses, ver, win"),
        (["--store", "kv:keyvalue", "--port", "70000"], 2, "--port is 70000"),
    ],
)
def test_the_command_says_what_it_cannot_follow(
    bench: Bench, capsys: pytest.CaptureFixture[str], flags: list[str], code: int, words: str
) -> None:
    bench.active(partitions=(0, 1))
    state = ["--state-dir", str(bench.root / "copy")]
    assert main(["replica", "--app", "app", "--log", bench.address, *state, *flags]) == code
    assert words in capsys.readouterr().err
    assert not (bench.root / "copy").exists()


def test_reads_of_other_states_stay_closed(bench: Bench, tmp_path: Path) -> None:
    bench.active(partitions=(0,))
    with closing(replica_of(bench)) as replica:
        with pytest.raises(sf.NotReady):
            replica.task(0)
        with pytest.raises(sf.NotReady):
            replica.read("kv", 0, allow_stale=False)
