"""The demo on a real Kafka broker: the same rows and digests as on the embedded log, and no leftovers.

Rules of this file: whole runs over few flights, on the broker that all tests share or on one that the demo starts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.command.command_line import main
from standfast.ops.demo.place import found_topics, names
from standfast.ops.shared.process_id import identify
from standfast.ops.tools.broker_state import running_broker
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import SystemClock

# Whole runs of several processes: on a busy machine the longest takes a minute and a half.
pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]
LIMIT = 800
LEASE_MS = 4_000
RUN_S_MAX = 140
Run = Callable[..., tuple[int, str, str]]


def command(*arguments: str) -> list[str]:
    # Longer than a busy machine may stall a process.
    own = ["--lease-ms", str(LEASE_MS), "--no-spark", "--json"]
    return [sys.executable, "-m", "standfast.ops.cli", "demo", *arguments, *own]


def ran(*arguments: str) -> dict[str, Any]:
    """The output of a demo, which ended well."""
    ended = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["demo", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def prefix() -> str:
    return f"demo-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def taken(kafka_address: str, prefix: str) -> Iterator[str]:
    """A prefix of which the broker has two topics already, one with a record."""
    log = open_log(f"kafka://{kafka_address}")
    for name in (f"{prefix}-flights", f"{prefix}-board-live"):
        log.admin.create_topic(name, 1, TopicPolicy())
    log.producer().append({TopicPartition(f"{prefix}-flights", 0): [Outgoing(b"k", b"mine", 1)]})
    yield prefix
    for one in found_topics(log, prefix):
        log.admin.delete_topic(one.name)
    log.close()


def left_on(address: str, prefix: str) -> list[str]:
    """Topics and groups on a broker that begin with the prefix."""
    log = open_log(f"kafka://{address}")
    try:
        there = [one.name for one in log.admin.topics()] + [one.name for one in found_topics(log, prefix)]
        return sorted({name for name in [*there, *log.admin.groups()] if name.startswith(prefix)})
    finally:
        log.close()


@pytest.mark.long
def test_demo_on_somebodys_broker_equals_the_embedded_one_and_leaves_nothing(kafka_address: str, prefix: str) -> None:
    where = ["--log", f"kafka://{kafka_address}", "--prefix", prefix]
    kafka, embedded = ran(*where, "--limit", str(LIMIT)), ran("--limit", str(LIMIT))
    assert kafka["ok"] is embedded["ok"] is True
    assert kafka["digests"] == embedded["digests"]
    for name in ("stores", "flights_counted", "windowed_flights_counted"):
        assert kafka["comparison"][name] == embedded["comparison"][name]
    assert kafka["finals"] == embedded["finals"] and kafka["finals"]["records"] > 0
    assert kafka["offsets"] == embedded["offsets"]
    takeover = kafka["takeover"]
    assert takeover["standby_replayed"] > 0 and takeover["waiting"] > 0 and takeover["tasks"] > 0
    assert kafka["scale_out"]["tasks"] > 0 and sum(kafka["processed"].values()) >= LIMIT
    log = kafka["log"]
    assert (log["kind"], log["prefix"], log["removed"], log["pid"]) == ("kafka", prefix, True, None)
    assert all(name.startswith(f"{prefix}-") for name in log["topics"])
    assert left_on(kafka_address, prefix) == []


@pytest.mark.long
def test_demo_starts_a_broker_and_at_least_once_loses_nothing(kafka_files: None, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    found = ran("--log", "kafka", "--guarantee", "at_least_once", "--limit", "200", "--dir", str(kept))
    assert (found["ok"], found["fed"]["guarantee"], found["comparison"]["exact"]) == (True, "at_least_once", False)
    assert found["comparison"]["flights_counted"] >= 200
    assert sum(found["offsets"]["committed"].values()) == 200
    assert found["verify"]["mismatches"] == 0 and found["cold_restore"]["equal"] is True
    assert found["log"]["kafka"] and found["log"]["started_ms"] > 0
    assert identify(found["log"]["pid"]) is None, "its broker was stopped"
    assert running_broker(kept / "kafka") is None
    assert (kept / "kafka/data").is_dir(), "what --dir names is kept, the broker's data too"


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_demo_that_is_stopped_stops_its_broker_and_its_processes(
    kafka_files: None, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    kept = tmp_path / "kept"
    process = subprocess.Popen(
        command("--log", "kafka", "--dir", str(kept)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        clock, said = SystemClock(), ""
        deadline_ms = clock.monotonic_ms() + RUN_S_MAX * 1_000
        assert process.stderr is not None
        # In the middle of its start, or with all processes running.
        word = "answers at" if number == signal.SIGTERM else "stands by"
        while word not in said:
            said = process.stderr.readline()
            assert said and clock.monotonic_ms() < deadline_ms
        broker = running_broker(kept / "kafka")
        assert broker is not None
        process.send_signal(number)
        text, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, text) == (code, ""), told
    assert identify(broker.pid) is None
    assert running_broker(kept / "kafka") is None
    assert not _running_below(kept)


def test_topics_that_are_there_already_are_left_alone_and_the_fix_is_told(
    kafka_address: str, taken: str, run: Run
) -> None:
    where = ["--log", f"kafka://{kafka_address}", "--prefix", taken]
    code, text, told = run(*where, "--limit", "10", "--json")
    assert (code, json.loads(text)["error"]) == (2, "InvalidRequest")
    assert f"already has topics {taken}-flights, {taken}-board-live: choose another --prefix" in told
    assert told.strip().endswith(f"standfast demo --log kafka://{kafka_address} --prefix {taken} --remove")
    both = [f"{taken}-board-live", f"{taken}-flights"]
    assert left_on(kafka_address, taken) == both, "nothing was made, nothing removed"
    listed = json.loads(run(*where, "--remove", "--json")[1])
    assert [(one["topic"], one["offsets"]) for one in listed["topics"]] == [(both[1], 1), (both[0], 0)]
    assert (listed["removed"], left_on(kafka_address, taken)) == (False, both)
    assert "add --yes" in run(*where, "--remove")[1]
    code, text, _ = run(*where, "--remove", "--yes")
    assert (code, "removed 2 topics" in text, left_on(kafka_address, taken)) == (0, True, [])
    assert "nothing of a demo" in run(*where, "--remove", "--yes")[1]


def test_names_of_a_demo_are_all_under_its_prefix() -> None:
    found = names("x")
    assert len(found) == len(set(found)) == 10
    assert all(name.startswith("x-") for name in found)
    assert {"x-board-delays-changelog", "x-board-standfast-members", "x-board-standfast-placement"} <= set(found)


def _running_below(folder: Path) -> list[str]:
    """Command lines of live processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        if str(folder) in text and int(path.parent.name) != os.getpid():
            found.append(text)
    return found
