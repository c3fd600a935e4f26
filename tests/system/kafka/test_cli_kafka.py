"""The command line over a real Kafka log: the same answers as over the embedded one, and those of Kafka alone."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.ops.http.server import OpsServer
from standfast.ops.shared.loopback import HOST, free_port
from standfast.ops.tools.kafka_probe import refusals
from standfast.replication.log import TopicPolicy
from standfast.replication.tail.open_log import open_log
from support.placed import PlacedLog

kafka = pytest.mark.kafka
slow = pytest.mark.slow
HOUR_MS = 3_600_000
Run = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True)
class Place:
    """An application that runs on Kafka, and its addresses."""

    app: str
    log: str
    state_dir: Path

    @property
    def live(self) -> list[str]:
        """Flags that find the instance."""
        return ["--state-dir", str(self.state_dir)]


@pytest.fixture(scope="module")
def place(kafka_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One task with rows in two stores; the HTTP server is open."""
    app, root = f"cli-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("cli-kafka")
    text = sf.serde.string
    stores: list[Any] = [
        sf.KeyValueStore("kv", text, sf.serde.json),
        sf.WindowStore("win", text, text, window_size_ms=HOUR_MS, retention_ms=24 * HOUR_MS),
    ]
    place = Place(app, f"kafka://{kafka_address}", root)
    source = f"{app}-in"
    log = open_log(place.log)
    log.admin.create_topic(source, 1, TopicPolicy())
    log.close()
    with sf.Session(app, log=place.log, state_dir=root, stores=stores, partitions=1) as session:
        session.assign(active=[0])
        session.wait_ready(60)
        task = session.task(0)
        for number in range(3):
            task.store("kv").put(f"k{number}", {"n": number}, timestamp=1 + number)
            task.commit({(source, 0): number + 1})
        task.store("kv").delete("k0")
        task.store("win").put("k", "w1", HOUR_MS)
        task.commit()
        with OpsServer(session):
            yield place


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def document(result: tuple[int, str, str]) -> dict[str, Any]:
    assert result[0] == 0, result
    (line,) = result[1].splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@kafka
@slow
def test_instance_on_kafka_tells_its_tasks_lag_and_rows(run: Run, place: Place) -> None:
    status = document(run("status", *place.live, "--json"))
    assert (status["app"], status["ready"], status["tasks"][0]["state"]) == (place.app, True, "running")
    assert status["tasks"][0]["sources"] == {f"{place.app}-in/0": 3}
    tasks = document(run("tasks", *place.live, "--json"))
    assert {store["store"] for store in tasks["tasks"][0]["stores"]} == {"kv", "win"}
    lags = document(run("lag", *place.live, "--json"))["lags"]
    # Four transactions wrote to kv, and the mark of the last one is the active's only lag.
    assert [(one["store"], one["lag"] <= 1) for one in lags] == [("kv", True), ("win", True)]
    assert document(run("get", "kv", "k1", *place.live, "--json"))["rows"][0]["value"] == {"n": 1}
    assert run("get", "kv", "k0", *place.live)[0] == 1
    assert run("health", "--ready", *place.live)[0] == 0


@kafka
@slow
def test_changelog_on_kafka_shows_records_and_not_the_marks_of_transactions(run: Run, place: Place) -> None:
    where = ["--log", place.log, "--app", place.app, "--store", "kv"]
    head = document(run("changelog", "head", *where, "--json"))["records"]
    assert [(one["key"], one["value"]) for one in head] == [
        ("k0", '{"n":0}'),
        ("k1", '{"n":1}'),
        ("k2", '{"n":2}'),
        ("k0", None),
    ]
    assert head[-1]["offset"] > 3, "each transaction has taken an offset of its own"
    tail = document(run("changelog", "tail", *where, "--limit", "2", "--json"))["records"]
    assert tail == head[-2:]
    (counted,) = document(run("changelog", "stats", *where, "--json"))["counted"]
    assert (counted["records"], counted["tombstones"], counted["distinct_keys"]) == (4, 1, 3)
    assert counted["end"] > counted["records"]


@kafka
@slow
def test_topics_on_kafka_are_listed_without_kafkas_own(run: Run, place: Place) -> None:
    found = {one["topic"]: one for one in document(run("topics", "--log", place.log, "--json"))["topics"]}
    changelog = found[f"{place.app}-kv-changelog"]
    assert (changelog["partitions"], changelog["cleanup"], changelog["span"] >= 4) == (1, ["compact"], True)
    assert not [name for name in found if name.startswith("__") or name.endswith("-standfast-members")]
    code, _, told = run("changelog", "head", f"{place.app}-kw-changelog", "--log", place.log)
    assert code == 2 and f"did you mean '{place.app}-kv-changelog'?" in told


@kafka
@slow
def test_stores_are_verified_against_kafka(run: Run, place: Place) -> None:
    code, text, noted = run("verify", *place.live, "--log", place.log, "--json")
    verdicts = json.loads(text)
    assert (code, verdicts["verdict"], len(verdicts["stores"])) == (0, "equal", 2), text
    assert "owns these files and is running" in noted
    stores = {one["store"]: one for one in verdicts["stores"]}
    assert (stores["kv"]["matched"], stores["win"]["matched"]) == (2, 1)


@pytest.mark.parametrize("command", [["topics"], ["changelog", "head", "t"], ["demo", "--prefix", "x"]])
def test_log_without_a_broker_is_told_at_once(run: Run, command: list[str]) -> None:
    port = free_port()
    code, text, told = run(*command, "--log", f"kafka://{HOST}:{port}", "--json")
    assert (code, json.loads(text)["error"]) == (69, "Unavailable")
    assert f"{HOST}:{port}: Connection refused" in told
    assert ("--log kafka" if command[0] == "demo" else "standfast broker up") in told


def test_one_server_that_listens_is_enough() -> None:
    with socket.create_server((HOST, 0)) as server:
        there, gone = server.getsockname()[1], free_port()
        assert refusals(f"{HOST}:{gone},{HOST}:{there}", 5) is None
    assert refusals(f"{HOST}:{gone}", 5) == [f"{HOST}:{gone}: Connection refused"]


@kafka
@slow
def test_placement_of_an_application_is_read_from_the_log(
    kafka_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"kafka://{kafka_address}"
    app = f"placed-{uuid.uuid4().hex[:8]}"
    made = PlacedLog(address, app)
    made.write_example()
    try:
        assert main(["placement", "--app", app, "--log", address, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["leader"], found["generation"]) == ("a", 2)
        states = [(one["task"], one["active"], one["state"]) for one in found["tasks"]]
        assert states[:2] == [("0_0", "b", "running"), ("0_1", "b", "moving")]
        assert {one["id"]: one["state"] for one in found["instances"]} == {"a": "live", "b": "live", "c": "stopped"}
        assert main(["placement", "--app", f"{app}-nix", "--log", address]) == 2
        assert f"{app}-nix-standfast-placement; applications that have one: " in capsys.readouterr().err
        assert made.log.admin.describe_topic(f"{app}-nix-standfast-placement") is None
        assert made.log.admin.describe_topic(f"{app}-nix-standfast-members") is None
    finally:
        made.close()
