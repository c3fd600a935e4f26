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
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.demo.place import DemoPlace
from standfast.ops.shared.process_id import identify
from standfast.ops.tools.broker_state import running_broker
from standfast.replication.kafka.log import KafkaLog
from standfast.store.clock import SystemClock

# Whole runs of several processes: on a busy machine the longest takes a minute and a half.
pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]
LIMIT = 800
RUN_S_MAX = 140


def command(*arguments: str) -> list[str]:
    # Longer than a busy machine may stall a process.
    own = ["--lease-ms", "4000", "--no-spark", "--json"]
    return [sys.executable, "-m", "standfast.ops.cli", "demo", *arguments, *own]


def ran(*arguments: str) -> dict[str, Any]:
    """The output of a demo, which ended well."""
    ended = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


@pytest.fixture
def prefix() -> str:
    return f"demo-{uuid.uuid4().hex[:8]}"


def left_on(address: str, prefix: str) -> list[str]:
    """Topics and groups on a broker that begin with the prefix."""
    log = KafkaLog(f"kafka://{address}")
    try:
        return sorted({name for name in [*log._cluster.names(), *log.admin.groups()] if name.startswith(prefix)})
    finally:
        log.close()


@pytest.mark.long
def test_demo_on_somebodys_broker_equals_the_embedded_one_and_leaves_nothing(kafka_address: str, prefix: str) -> None:
    where = ["--log", f"kafka://{kafka_address}", "--prefix", prefix]
    kafka, embedded = ran(*where, "--limit", str(LIMIT)), ran("--limit", str(LIMIT))
    assert kafka["ok"] is embedded["ok"] is True
    for name in ("stores", "finals", "committed"):
        assert kafka[name] == embedded[name]
    assert kafka["finals"]["records"] > 0
    takeover = kafka["takeover"]
    assert takeover["waiting"] > 0 and takeover["tasks"] > 0 and kafka["joined"]["tasks"] > 0
    log = kafka["log"]
    assert (log["kind"], log["kafka"]) == ("kafka", None) and log["prefix"].startswith(f"{prefix}-")
    assert left_on(kafka_address, prefix) == []


@pytest.mark.long
def test_demo_that_keeps_its_folder_keeps_its_topics_on_a_cluster(
    kafka_address: str, prefix: str, tmp_path: Path
) -> None:
    where = ["--log", f"kafka://{kafka_address}", "--prefix", prefix, "--limit", "200", "--dir", str(tmp_path / "kept")]
    own = ran(*where)["log"]["prefix"]
    kept = left_on(kafka_address, prefix)
    names = ("flights", "board", "board-delays-changelog", "board-standfast-members", "board-standfast-placement")
    assert {f"{own}-{name}" for name in names} <= set(kept) and all(name.startswith(f"{own}-") for name in kept)
    # What another run of the same prefix would remove is its own alone.
    DemoPlace("kafka", f"kafka://{kafka_address}", f"{prefix}-other").forget(f"{prefix}-other")
    assert left_on(kafka_address, prefix) == kept
    DemoPlace("kafka", f"kafka://{kafka_address}", own).forget(own)
    assert left_on(kafka_address, prefix) == []


@pytest.mark.long
def test_demo_starts_a_broker_and_at_least_once_loses_nothing(kafka_files: None, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    found = ran("--log", "kafka", "--guarantee", "at_least_once", "--limit", "200", "--dir", str(kept))
    assert (found["ok"], found["fed"]["guarantee"]) == (True, "at_least_once")
    assert found["board"]["flights"] >= found["committed"] == 200
    assert found["verify"]["unequal"] == 0 and found["cold_restore"]["equal"] is True
    assert found["log"]["kafka"]
    assert running_broker(kept / "kafka") is None, "its broker was stopped"
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
        word = "answers at" if number == signal.SIGTERM else "B joined"
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
