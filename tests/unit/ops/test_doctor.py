"""The doctor's command: its findings on both logs and in files, and fixes by the commands that it names."""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.ops.doctor.local import LocalFacts, local_facts, local_findings
from standfast.ops.tools.broker import JAR_SET
from standfast.ops.tools.jars import ensure_jars, load_jar_set
from standfast.ops.tools.java import ensure_java
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.kafka.reader import KafkaReader
from standfast.replication.log import Committed, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.topics.changelog import changelog_policy
from standfast.replication.topics.fixes import Fixes
from standfast.store.task.state_dir import MARKER
from support.away import stopped
from support.kafka_bench import KafkaBench, transaction
from support.sessions import DAY_MS, HOUR_MS, START_MS, Bench, four_stores

Run = Callable[..., tuple[int, dict[str, Any]]]
COMPACT = TopicPolicy(frozenset({"compact"}))
FOUR = ["--store", "kv:keyvalue", "--store", f"win:window:size=1h,retention={DAY_MS}ms"]
FOUR += ["--store", f"ses:session:retention={DAY_MS}ms", "--store", f"ver:versioned:history={DAY_MS}ms"]


def carry_out(command: str) -> None:
    """Run the line of Python that a finding on the embedded log names."""
    program, *arguments = shlex.split(command)
    assert program == "python"
    subprocess.run([sys.executable, *arguments], check=True, timeout=60)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command with --json; returns exit code and document."""

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def rules(result: tuple[int, dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["rule"], one["where"]) for one in result[1]["findings"] if one["rule"] != "temporary-directory"]


def test_damaged_log_is_found_with_partition_and_offsets(bench: Bench, run: Run) -> None:
    session = bench.active("state", (0,))
    session.task(0).store("kv").put("a", "1")
    session.task(0).commit()
    session.close()
    bench.log.close()
    with closing(sqlite3.connect(bench.root / "log", isolation_level=None)) as connection:
        connection.execute("UPDATE log_records SET value = x'3132'")
    found = run("doctor", "--app", "app", "--log", bench.address)[1]["findings"]
    (damage,) = [one for one in found if one["rule"] == "log-damaged"]
    assert "app-kv-changelog-0: the records at offsets 0 to 0" in damage["what"]


@pytest.mark.parametrize(
    ("where", "what"), [("header", "not a database"), ("empty", "0 bytes"), ("pages", "malformed")]
)
def test_log_that_cannot_be_opened_is_a_finding_with_its_fix(bench: Bench, run: Run, where: str, what: str) -> None:
    session = bench.active("state", (0,))
    session.task(0).store("kv").put("a", "1")
    session.task(0).commit()
    session.close()
    bench.log.close()
    path = bench.root / "log"
    whole = path.read_bytes()
    kept = {"header": b"\xa5" * 100 + whole[100:], "empty": b"", "pages": whole[:8_192] + b"\xa5" * len(whole[8_192:])}
    path.write_bytes(kept[where])
    code, document = run("doctor", "--app", "app", "--log", bench.address)
    assert code == 1
    damage = [one for one in document["findings"] if one["rule"] == "log-damaged"]
    assert what in " ".join(one["what"] for one in damage)
    assert damage[0]["where"] == f"log {path}"
    assert "restore a copy" in damage[0]["fix"]
    assert path.read_bytes() == kept[where]  # it reads, and changes nothing


def test_commits_that_are_lost_in_the_middle_of_the_wal_are_a_finding(bench: Bench, run: Run) -> None:
    session = bench.active("state", (0,))
    bench.embedded._admin_db.checkpoint(truncate=True)
    for number in range(3):
        session.task(0).store("kv").put("a", f"{number}")
        session.task(0).commit()
    killed = bench.root / "killed"
    killed.mkdir()
    for name in ("log", "log-wal"):
        shutil.copy(bench.root / name, killed / name)
    session.close()
    wal = bytearray((killed / "log-wal").read_bytes())
    wal[32 + 24 + 8_000] ^= 1
    (killed / "log-wal").write_bytes(wal)
    code, document = run("doctor", "--app", "app", "--log", f"sqlite:///{killed}/log")
    assert code == 1
    (damage,) = [one for one in document["findings"] if one["rule"] == "log-damaged"]
    assert "log-wal is not as it was written (frame 1, at byte 32), and 3 commits" in damage["what"]
    assert "PRAGMA wal_checkpoint(TRUNCATE)" in damage["what"]
    assert (killed / "log-wal").read_bytes() == wal


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ours", "program"])
def test_locked_log_is_a_finding_that_names_the_process(bench: Bench, run: Run, kind: str) -> None:
    bench.active("state", (0,)).close()
    bench.log.close()
    with stopped(bench.root / "log", kind) as holder:
        code, document = run("doctor", "--app", "app", "--log", bench.address)
    assert code == 1
    (locked,) = [one for one in document["findings"] if one["rule"] == "log-locked"]
    assert f"process {holder.pid}" in locked["what"]


# -- the embedded log -------------------------------------------------------------------------------------------------


def test_application_that_runs_well_has_no_finding_beside_it(bench: Bench, run: Run) -> None:
    bench.log.admin.create_topic("in", 2, TopicPolicy())
    session = bench.active("state", (0, 1))
    session.task(0).store("kv").put("a", "1")
    session.task(0).commit({("in", 0): 1})
    code, document = run("doctor", "--app", "app", "--log", bench.address, "--state-dir", str(bench.root / "state"))
    assert code == 0
    assert [one["rule"] for one in document["findings"]] == ["temporary-directory"]  # tests are in such a directory
    assert document["topics"] == ["in", *(f"app-{name}-changelog" for name in ("kv", "win", "ses", "ver"))]


@pytest.mark.parametrize(("typo", "more"), [("ap", []), ("ap", ["--source", "in"]), ("other-altogether", [])])
def test_application_that_is_not_there_is_an_error_and_not_well(
    bench: Bench, capsys: pytest.CaptureFixture[str], typo: str, more: list[str]
) -> None:
    bench.log.admin.create_topic("in", 1, TopicPolicy())
    bench.active("state", (0,)).close()
    assert main(["doctor", "--app", typo, "--log", bench.address, *more]) == 2
    said = capsys.readouterr().err
    assert f"has nothing of application {typo!r}" in said
    assert ("did you mean" in said and "app" in said) == (typo == "ap")
    assert main(["doctor", "--app", "app", "--log", bench.address]) == 0


def test_application_that_was_not_started_yet_is_looked_at_by_the_stores_that_are_named(bench: Bench, run: Run) -> None:
    bench.log.admin.create_topic("in", 1, TopicPolicy())
    code, document = run("doctor", "--app", "new", "--log", bench.address, "--store", "kv:keyvalue")
    assert (code, [one["rule"] for one in document["findings"] if one["rule"] != "temporary-directory"]) == (
        *(0, ["topic-absent"]),
    )


def test_every_wrong_topic_is_found_and_the_printed_commands_put_it_right(bench: Bench, run: Run) -> None:
    admin = bench.log.admin
    admin.create_topic("in", 2, TopicPolicy())
    admin.create_topic("app-kv-changelog", 1, TopicPolicy())
    admin.create_topic("app-win-changelog", 2, TopicPolicy(frozenset({"compact", "delete"}), retention_ms=HOUR_MS))
    admin.create_topic("app-ses-changelog", 2, COMPACT)
    admin.create_topic("app-ver-changelog", 2, TopicPolicy(frozenset({"compact"}), delete_retention_ms=HOUR_MS))
    doctor = ["doctor", "--app", "app", "--log", bench.address, "--source", "in", *FOUR]
    result = run(*doctor)
    assert result[0] == 1
    assert rules(result) == [
        ("cleanup-policy", "changelog app-kv-changelog of store 'kv'"),
        ("partition-count", "changelog app-kv-changelog of store 'kv'"),
        ("cleanup-policy", "changelog app-ses-changelog of store 'ses'"),
        ("compaction-lag", "changelog app-ver-changelog of store 'ver'"),
        ("retention", "changelog app-win-changelog of store 'win'"),
        ("delete-retention", "changelog app-ver-changelog of store 'ver'"),
        ("retention-clock", "changelog app-win-changelog of store 'win'"),
    ]
    for one in result[1]["findings"]:
        carry_out(one["command"])
    assert run(*doctor) == (0, {**result[1], "errors": 0, "warnings": 0, "findings": []})
    bench.session("state", partitions=2)  # and the application starts


def test_stores_are_known_from_the_state_directory_and_the_command_line_wins(bench: Bench, run: Run) -> None:
    session = bench.active("state", (0,))
    session.task(0).commit({("in", 0): 1})
    session.close()
    bench.log.admin.create_topic("in", 2, TopicPolicy())
    bench.log.admin.change_topic("app-win-changelog", {"retention.ms": str(2 * DAY_MS - 1)})
    flags = ["doctor", "--app", "app", "--log", bench.address, "--state-dir", str(bench.root / "state")]
    by_clock = ("retention-clock", "changelog app-win-changelog of store 'win'")
    assert rules(run(*flags)) == [("retention", "changelog app-win-changelog of store 'win'"), by_clock]
    assert rules(run(*flags, "--store", "win:window:size=1h,retention=2h")) == [by_clock]
    bench.log.admin.change_topic("app-win-changelog", {"retention.ms": str(2**63 - 1)})
    assert rules(run(*flags)) == []
    assert rules(run(*flags[:-2])) == [
        ("store-unknown", f"topic app-{name}-changelog") for name in ("kv", "ses", "ver", "win")
    ]
    bench.log.admin.delete_topic("app-kv-changelog")
    assert rules(run(*flags))[0] == ("topic-absent", "changelog app-kv-changelog of store 'kv'")
    assert run(*flags)[0] == 1


def test_table_is_judged_by_its_source_topic(bench: Bench, run: Run) -> None:
    bench.log.admin.create_topic("in", 2, TopicPolicy(retention_ms=DAY_MS))
    result = run("doctor", "--app", "app", "--log", bench.address, "--store", "table:keyvalue:source=in")
    assert rules(result) == [("cleanup-policy", "source topic in, the changelog of store 'table',")]


def test_changelog_of_another_application_with_a_longer_name_is_not_ours(bench: Bench, run: Run) -> None:
    bench.log.admin.create_topic("app-eu-kv-changelog", 2, COMPACT)
    flags = ["doctor", "--app", "app", "--log", bench.address]
    assert rules(run(*flags)) == [("store-unknown", "topic app-eu-kv-changelog")]
    bench.log.group("app-eu").commit({TopicPartition("in", 0): Committed(0)})
    code, document = run(*flags)
    assert code == 2 and "has nothing of application 'app': did you mean 'app-eu'?" in document["message"]


@pytest.mark.parametrize(
    ("flags", "code", "told"),
    [
        (["--log", "sqlite:///nowhere"], 69, "does not exist"),
        (["--log", "kafka://127.0.0.1:1?timeout.ms=200"], 69, "127.0.0.1:1"),
        (["--log", "sqlite:///{root}/log", "--store", "kv"], 78, "--store 'kv': unknown kind ''"),
        (["--log", "sqlite:///{root}/log", "--source", "a/b"], 2, "topic name 'a/b'"),
        (["--log", "sqlite:///{root}/log", "--state-dir", "{root}"], 2, "holds no state of application 'app'"),
    ],
)
def test_wrong_call_and_unreachable_log_have_their_exit_codes(
    bench: Bench, run: Run, flags: list[str], code: int, told: str
) -> None:
    assert bench.log.admin.topics() == []
    found, document = run("doctor", "--app", "app", *(flag.format(root=bench.root) for flag in flags))
    assert (found, document["exit_code"]) == (code, code)
    assert told in document["message"]


def test_people_read_what_why_and_how(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.log.admin.create_topic("app-kv-changelog", 1, TopicPolicy())
    assert main(["doctor", "--app", "app", "--log", bench.address, "--store", "kv:keyvalue"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "error: changelog app-kv-changelog of store 'kv' has cleanup.policy=delete but a keyvalue store needs compact "
        "[cleanup-policy]",
        "    why: rows whose records are deleted by age are missing after a restore",
        "    fix: set cleanup.policy=compact on the topic",
        f"    run: {Fixes(bench.address).change('app-kv-changelog', {'cleanup.policy': 'compact'})}",
        "app: 1 wrong, 0 warnings, in 1 topics",
    ]


# -- topics by command ------------------------------------------------------------------------------------------------


def test_topic_is_created_by_command(bench: Bench, run: Run) -> None:
    assert bench.log.admin.topics() == []
    log = ["--log", bench.address]
    code, made = run("topic", "create", "t", "--partitions", "2", "--set", "cleanup.policy=compact", *log)
    assert (code, made["partitions"], made["settings"]["cleanup.policy"]) == (0, 2, "compact")
    for wrong, code in (
        (["t", "--partitions", "1"], 2),
        (["u"], 2),
        (["u", "--partitions", "1", "--set", "retention"], 2),
        (["u", "--partitions", "1", "--set", "retention.ms=soon"], 78),
    ):
        assert run("topic", "create", *wrong, *log)[0] == code, wrong
    info = bench.log.admin.describe_topic("t")
    assert info is not None
    assert (info.partitions, bench.log.admin.describe_topic("u")) == (2, None)


def test_topic_create_makes_a_log_that_is_not_there_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "log"
    address = ["--log", f"sqlite:///{path}"]
    for wrong in (
        ["a/b", "--partitions", "1"],
        ["flights", "--partitions", "0"],
        ["flights"],
        ["flights", "--partitions", "1", "--set", "retention.ms=soon"],
        ["flights", "--partitions", "1", "--set", "cleanup.policy=never"],
    ):
        assert main(["topic", "create", *wrong, *address]) in (2, 78), wrong
        assert not path.parent.exists(), wrong
    capsys.readouterr()
    assert main(["topic", "create", "flights", "--partitions", "2", *address]) == 0
    captured = capsys.readouterr()
    assert "flights: 2 partitions" in captured.out and f"created a new log, {path}" in captured.err
    assert main(["topic", "create", "airports", "--partitions", "1", *address]) == 0
    assert "created a new log" not in capsys.readouterr().err
    assert main(["topics", *address]) == 0
    assert "airports" in capsys.readouterr().out


# -- files ------------------------------------------------------------------------------------------------------------


def test_files_of_a_newer_format_and_directories_set_aside_are_found(bench: Bench) -> None:
    session = bench.active("state", (0, 1))
    path = session.state_path
    session.close()
    clean = local_facts(path, "app")
    assert (clean.tasks, clean.unreadable, clean.aside) == (2, (), ())
    (path / "0_1" / MARKER).write_text(json.dumps({"format": 99, "app": "app", "task": "0_1"}), encoding="utf-8")
    old = path / ".aside" / "0_0.corrupt.12345678"
    old.mkdir(parents=True)
    (old / "rows").write_bytes(b"x" * 10)
    facts = local_facts(path, "app")
    assert facts.aside == ((str(old), 10),)
    found = {one.rule: one for one in local_findings(facts)}
    assert sorted(found) == ["set-aside", "state-format", "temporary-directory"]
    assert "has format 99" in found["state-format"].why
    assert found["state-format"].severity == "error"
    assert found["state-format"].where == f"directory {path / '0_1'}"


def test_process_that_is_the_first_of_its_pid_namespace_is_found_with_the_way_out(bench: Bench) -> None:
    session = bench.active("state", (0,))
    path = session.state_path
    assert "first-process" not in {one.rule for one in local_findings(local_facts(path, "app"))}
    session.close()
    (path / "LOCK").write_text("pid 1\n")  # as of an application that a container started without an init
    found = {one.rule: one for one in local_findings(local_facts(path, "app"))}["first-process"]
    assert (found.severity, found.where) == ("warning", f"directory {path}")
    assert "standfast run" in found.fix


def test_instance_id_that_the_next_start_would_refuse_is_found(bench: Bench) -> None:
    session = bench.active("state", (0,))
    path = session.state_path
    session.close()
    (path / "INSTANCE").write_bytes(b"\xff\xfe")
    found = {one.rule: one for one in local_findings(local_facts(path, "app"))}["instance-id"]
    assert (found.severity, found.where) == ("error", f"file {path / 'INSTANCE'}")
    assert found.command == f"rm {path / 'INSTANCE'}"
    (path / "INSTANCE").unlink()
    assert "instance-id" not in {one.rule for one in local_findings(local_facts(path, "app"))}


@pytest.mark.parametrize(
    ("limit", "found"),
    [(0, []), (1_000 + 2 * 64 + 256, []), (1_000 + 2 * 64 + 255, ["warning"]), (1_000, ["warning"]), (999, ["error"])],
)
def test_open_file_limit_is_enough_for_all_files_of_all_tasks(limit: int, found: list[str]) -> None:
    facts = LocalFacts("state/app", tasks=2, sst_files=1_000, files_limit=limit)
    assert [one.severity for one in local_findings(facts)] == found


# -- Kafka ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def kafka(kafka_address: str) -> Iterator[KafkaLog]:
    log = KafkaLog(f"kafka://{kafka_address}")
    yield log
    log.close()


@pytest.mark.kafka
@pytest.mark.slow
def test_transaction_that_stays_open_in_a_changelog_is_found_and_a_commit_under_way_is_not(
    kafka_address: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = KafkaBench(tmp_path, kafka_address)
    bench.write(bench.active(), 2, "good")
    doctor = ["doctor", "--app", bench.app, "--log", bench.address, "--state-dir", str(tmp_path / "a")]
    foreign = transaction(bench, "hidden", "too")
    code, document = run(*doctor)
    (found,) = [one for one in document["findings"] if one["rule"] == "transaction-open"]
    assert (code, found["severity"]) == (1, "error")
    assert found["where"] == f"changelog {bench.changelog.topic} of store 'kv'"
    assert "(partition 0: offsets 4 to 5)" in found["what"]
    assert "find-hanging" in found["fix"]
    written_ends = KafkaReader.written_ends

    def ended_after(self: KafkaReader, partitions: Any) -> Any:
        ends = written_ends(self, partitions)
        if bench.changelog in ends and ends[bench.changelog] == 6:
            foreign.commit_transaction(10)
        return ends

    monkeypatch.setattr(KafkaReader, "written_ends", ended_after)
    assert rules(run(*doctor)) == []
    bench.close()


@pytest.mark.kafka
@pytest.mark.slow
def test_what_is_wrong_on_a_real_broker_is_found(
    kafka: KafkaLog, kafka_address: str, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    app = f"app-{uuid.uuid4().hex[:8]}"
    source = f"{app}-in"
    kafka.admin.create_topic(source, 2, TopicPolicy())
    with sf.Session(
        app, log=kafka.address, state_dir=tmp_path, stores=four_stores(), partitions=2, background=False
    ) as session:
        session.assign(active=[0, 1])
        session.wait_ready(30)
        session.task(0).store("kv").put("a", "1")
        session.task(0).commit({(source, 0): 0})
        doctor = ["doctor", "--app", app, "--log", kafka.address, "--state-dir", str(tmp_path)]
        assert rules(run(*doctor)) == []
    changes = {
        "kv": {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "1000000", "min.insync.replicas": "2"},
        "win": {"cleanup.policy": "compact"},
        "ses": {"retention.ms": "1000", "delete.retention.ms": "86400000"},
        "ver": {"min.compaction.lag.ms": "0"},
    }
    for store, settings in changes.items():
        kafka.admin.change_topic(f"{app}-{store}-changelog", settings)
    kafka.admin.add_partitions(source, 3)
    code, document = run(*doctor)
    found = {(one["rule"], one["where"].split("'")[1]) for one in document["findings"] if "'" in one["where"]}
    assert code == 1
    assert found == {
        ("timestamp-type", "kv"),
        ("message-size", "kv"),
        ("replication", "kv"),
        ("cleanup-policy", "win"),
        ("retention", "ses"),
        ("retention-clock", "ses"),
        ("delete-retention", "ses"),
        ("compaction-lag", "ver"),
        *(("partition-count", store) for store in ("kv", "win", "ses", "ver")),
    }
    commands = {one["command"] for one in document["findings"]}
    fixes = Fixes(kafka.address)
    ours = [
        fixes.change(f"{app}-win-changelog", {"cleanup.policy": "compact,delete"}),
        fixes.grow(f"{app}-kv-changelog", 3),
    ]
    assert commands.issuperset(ours)
    with pytest.raises(sf.BadConfig) as refused:
        sf.Session(app, log=kafka.address, state_dir=tmp_path, stores=four_stores(), partitions=2)
    told = "; ".join(refused.value.problems)
    assert "has 1 replicas of a partition but min.insync.replicas=2: set min.insync.replicas=1 on the topic: " in told
    assert "--add-config 'cleanup.policy=[compact,delete]'" in told
    tool, *arguments = shlex.split(ours[0])
    assert tool == "kafka-configs.sh"  # which calls this class
    java = ensure_java(print)
    jars = ensure_jars(load_jar_set(JAR_SET), java, print)
    words = [str(java.path), "-cp", f"{jars}/*", "kafka.admin.ConfigCommand", *arguments]
    subprocess.run(words, check=True, timeout=120)
    assert {info.policy.cleanup for info in [kafka.admin.describe_topic(f"{app}-win-changelog")] if info} == {
        frozenset({"compact", "delete"})
    }
    capsys.readouterr()


def test_stream_time_behind_the_clock_is_found_where_the_log_goes_by_its_clock(bench: Bench, run: Run) -> None:
    """The clock of these sessions stands in 2013, and the doctor's in the present."""
    for spec in four_stores():
        if spec.logging:
            bench.log.admin.create_topic(spec.changelog_of("app"), 2, changelog_policy(spec))
    session = bench.active("state", (0,))
    task = session.task(0)
    task.store("win").put("k", "v", START_MS, START_MS)
    task.store("ses").put("k", START_MS, START_MS, "v", START_MS)
    task.store("ver").put("k", "v", START_MS)
    task.commit({("in", 0): 1})
    bench.log.admin.create_topic("in", 2, TopicPolicy())
    doctor = ["doctor", "--app", "app", "--log", bench.address, *FOUR]
    code, document = run(*doctor)
    found = [one for one in document["findings"] if one["rule"].endswith("-clock")]
    assert code == 1
    assert [(one["rule"], one["severity"], one["where"].split("'")[1]) for one in found] == [
        ("retention-clock", "error", "win"),
        ("retention-clock", "error", "ses"),
        ("compaction-clock", "warning", "ver"),
    ]
    assert all("and stream time lies" in one["what"] for one in found)
    for one in found:
        carry_out(one["command"])
    assert not [one for one in run(*doctor)[1]["findings"] if one["rule"].endswith("-clock")]
    session.close()
    bench.active("state", (0,))  # and the application starts
