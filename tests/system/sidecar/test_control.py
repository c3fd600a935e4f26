"""The control API: stores, assignments under generations, leases, events, schedules; it holds against any input."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.ops.observe.verdict import verdict
from support.groups import costly
from support.serve import FOUR, KEYVALUE, Sidecar, Sidecars, wait_for

pytestmark = pytest.mark.slow
NOT_YET = {"RESTORING", "UNAVAILABLE"}
BEYOND_A_SCHEMA = {  # a request that fits the schema may still be wrong here, which is 400
    ("PUT", "/v1/stores"),  # each kind has fields of its own, a retention is not below the window
    ("PUT", "/v1/assignment"),  # a partition below their number, named once
    ("GET", "/v1/stores/{name}/{verb}"),  # each verb has parameters of its own
}
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]


@pytest.fixture(scope="module")
@costly()
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One sidecar for tests that use whole generations of it, each larger than the last."""
    made = Sidecars(tmp_path_factory.mktemp("control"))
    sidecar = made.start(serve__lease="300s")  # no client sends heartbeats, however long a busy machine takes
    sidecar.declare(FOUR)
    yield sidecar
    made.close()


def next_generation(sidecar: Sidecar) -> int:
    return int(sidecar.call("GET", "/v1/assignment")["generation"]) + 1


def test_stores_are_declared_once_and_a_differing_definition_is_a_conflict(shared: Sidecar) -> None:
    again = shared.call("PUT", "/v1/stores", {"partitions": 2, "stores": FOUR})
    assert {one["name"]: one["outcome"] for one in again["stores"]} == dict.fromkeys(
        ("kv", "win", "ses", "ver"), "unchanged"
    )
    assert all(one["topic_id"] for one in again["stores"])
    other = {**KEYVALUE, "timestamped": False}
    refused = shared.call("PUT", "/v1/stores", {"stores": [other]}, status=409)
    assert refused["reason"] == "CONFLICT" and "timestamped" in refused["message"]


def test_stores_cannot_be_added_while_tasks_are_assigned(shared: Sidecar) -> None:
    shared.assign(next_generation(shared), active=(0,))
    more = {"stores": [{"name": "late", "kind": "keyvalue"}]}
    refused = shared.call("PUT", "/v1/stores", more, status=409)
    assert refused["reason"] == "CONFLICT" and "revoke" in refused["message"]
    shared.assign(next_generation(shared))
    assert shared.call("PUT", "/v1/stores", more)["stores"][0]["outcome"] == "created"
    shared.assign(next_generation(shared), active=(0, 1))
    shared.wait_ready()


def test_wrong_definition_is_told_by_its_place(shared: Sidecar) -> None:
    wrong = {"stores": [KEYVALUE, {"name": "w", "kind": "window", "window_size_ms": 1}]}
    assert "needs retention_ms" in shared.call("PUT", "/v1/stores", wrong, status=400)["message"]
    wrong = {"stores": [{"name": "../up", "kind": "keyvalue"}]}
    assert "stores[0].name" in shared.call("PUT", "/v1/stores", wrong, status=400)["message"]


def test_repeated_generation_changes_nothing_and_an_older_one_is_stale(shared: Sidecar) -> None:
    generation = next_generation(shared)
    shared.assign(generation, active=(0,), standby=(1,))
    first = shared.wait_ready()
    shared.assign(generation, active=(0,), standby=(1,))
    assert shared.wait_ready()["tasks"] == first["tasks"]
    body = {"generation": generation - 1, "tasks": []}
    assert shared.call("PUT", "/v1/assignment", body, status=409)["reason"] == "FENCED"
    body = {"generation": generation, "tasks": []}
    assert "larger generation" in shared.call("PUT", "/v1/assignment", body, status=400)["message"]


def test_assignment_is_the_full_set_and_epochs_grow(shared: Sidecar) -> None:
    shared.assign(next_generation(shared), active=(0, 1))
    first = {one["partition"]: one["epoch"] for one in shared.wait_ready()["tasks"]}
    shared.assign(next_generation(shared), active=(1,))
    shared.wait_ready()
    shared.assign(next_generation(shared), active=(0, 1))
    second = {one["partition"]: one["epoch"] for one in shared.wait_ready()["tasks"]}
    assert second[0] > first[0] and second[1] == first[1]


def test_partition_that_does_not_exist_is_refused_and_nothing_changes(shared: Sidecar) -> None:
    generation = next_generation(shared)
    body = {"generation": generation, "tasks": [{"partition": 7, "role": "active"}]}
    assert "partition 7 does not exist" in shared.call("PUT", "/v1/assignment", body, status=400)["message"]


def test_number_of_partitions_must_be_known_before_the_first_task(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    body = {"generation": 1, "tasks": [{"partition": 0, "role": "active"}]}
    assert sidecar.call("PUT", "/v1/assignment", body, status=400)["message"].startswith("the number of partitions")
    sidecar.call("PUT", "/v1/stores", {"stores": [KEYVALUE]})
    sidecar.call("PUT", "/v1/assignment", body, status=400)
    sidecar.declare()
    sidecar.assign(1, active=(0,))
    sidecar.wait_ready()


def test_revoke_gives_final_positions_and_leaves_the_rest(shared: Sidecar) -> None:
    generation = next_generation(shared)
    shared.assign(generation, active=(0, 1))
    shared.wait_ready()
    shared.call("POST", "/v1/revoke", {"partitions": [0]}, status=400)
    stale = {"generation": generation - 1, "partitions": [0]}
    assert shared.call("POST", "/v1/revoke", stale, status=409)["reason"] == "FENCED"
    for mode in ("clean", "lost"):
        partition = 0 if mode == "clean" else 1
        body = {"generation": generation, "partitions": [partition], "mode": mode}
        found = shared.call("POST", "/v1/revoke", body)
        assert set(found["positions"]) == {str(partition)}
        assert set(found["positions"][str(partition)]) >= {"kv", "win", "ses", "ver"}
    assert shared.call("GET", "/v1/assignment")["tasks"] == []
    shared.assign(next_generation(shared), active=(0, 1))
    shared.wait_ready()


def test_lease_that_runs_out_closes_the_tasks_and_only_a_larger_generation_opens_them(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    sidecar.declare()
    sidecar.assign(3, active=(0,), lease_ms=3_000)
    sidecar.wait_ready()
    for _ in range(16):  # longer than the lease in all
        time.sleep(0.25)
        assert sidecar.call("POST", "/v1/heartbeat", {"generation": 3})["lease_ms"] == 3_000
    assert sidecar.call("POST", "/v1/heartbeat", {"generation": 2}, status=409)["reason"] == "FENCED"
    wait_for(lambda: not sidecar.call("GET", "/v1/assignment")["tasks"], told=sidecar.told)
    assert sidecar.call("POST", "/v1/heartbeat", {"generation": 3}, status=409)["reason"] == "FENCED"
    body = {"generation": 3, "tasks": [{"partition": 0, "role": "active"}]}
    assert sidecar.call("PUT", "/v1/assignment", body, status=409)["reason"] == "FENCED"
    sidecar.assign(4, active=(0,))
    sidecar.wait_ready()


def tells_of_a_task_that_was_taken_over(sidecar: Sidecar) -> None:
    """No wait for it, no report of being ready: the application has to join again."""
    assert sidecar.http is not None
    told = sidecar.call("GET", "/v1/ready?wait=30000")
    assert (told["ready"], told["tasks"], list(told["fenced"])) == (False, [], ["0"])
    status, health = sidecar.call("GET", "/v1/status"), sidecar.http.get("/readyz")
    assert (status["ready"], health.status_code, verdict(status).word) == (False, 503, "NOT READY")
    for text in (status["missing"][0], health.text, verdict(status).text):
        assert "task 0_0: another instance has taken it" in text


def test_task_that_another_instance_takes_is_fenced_and_not_taken_back(sidecars: Sidecars) -> None:
    first, second = sidecars.start("a"), sidecars.start("b")
    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
    with (
        sf.connect(first.run_dir, stores=stores, partitions=1) as old,
        sf.connect(second.run_dir, stores=stores, partitions=1) as new,
    ):
        old.assign(active=[0])
        old.wait_ready(30)
        task = old.task(0)
        task.store("kv").put("a", "1")
        task.commit({("in", 0): 1})
        task.store("kv").put("a", "2")
        new.assign(active=[0])
        new.wait_ready(30)
        with pytest.raises(sf.Fenced):
            task.commit({("in", 0): 2})
        wait_for(lambda: "0" in first.call("GET", "/v1/assignment")["fenced"], told=first.told)
        assert new.task(0).source_offsets() == {("in", 0): 1}
        assert new.task(0).store("kv").get("a") == "1"
        new.task(0).commit({("in", 0): 1})  # no instance took it back
        with pytest.raises(sf.Fenced):
            task.store("kv").put("a", "3")
        tells_of_a_task_that_was_taken_over(first)
        with pytest.raises(sf.Fenced, match="task 0_0: another instance has taken it"):
            old.wait_ready(30)
        old.assign(active=[0])  # a new generation claims it on purpose
        old.wait_ready(30)
        assert old.task(0).store("kv").get("a") == "1"


def test_assignment_of_an_open_task_that_another_instance_took_meanwhile_opens_it_again(sidecars: Sidecars) -> None:
    first, second = sidecars.start("a"), sidecars.start("b")
    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
    with (
        sf.connect(first.run_dir, stores=stores, partitions=1) as old,
        sf.connect(second.run_dir, stores=stores, partitions=1) as new,
    ):
        old.assign(active=[0])
        old.wait_ready(30)
        new.assign(active=[0])  # while the first, which commits nothing, meets no newer owner at the log
        new.wait_ready(30)
        new.task(0).store("kv").put("a", "newer")
        new.task(0).commit({("in", 0): 5})
        old.assign(active=[0])
        old.wait_ready(30)
        assert old.task(0).source_offsets() == {("in", 0): 5}
        assert old.task(0).store("kv").get("a") == "newer"
        old.task(0).store("kv").put("a", "newest")
        old.task(0).commit({("in", 0): 6})


def test_task_that_cannot_be_opened_fails_alone_and_says_why(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    sidecar.declare(partitions=2)
    sidecar.assign(1, active=(0,))
    sidecar.wait_ready()
    sidecar.stop()
    sidecar = sidecars.start(app__gate="task")
    sidecar.declare([{**KEYVALUE, "timestamped": False}], partitions=2)  # task 0 has files of another definition
    sidecar.assign(1, active=(0, 1))
    states = {}

    def looked() -> bool:
        found = sidecar.call("GET", "/v1/assignment")["tasks"]
        states.update({one["partition"]: one["state"] for one in found})
        return states == {0: "failed", 1: "running"}

    wait_for(looked, told=sidecar.told)
    assert sidecar.http is not None
    ready = sidecar.http.get("/readyz")
    assert ready.status_code == 503 and "another definition" in ready.text
    assert sidecar.http.get("/livez").status_code == 200


class Stream:
    """Server-Sent Events, read in a thread."""

    def __init__(self, sidecar: Sidecar, **headers: str) -> None:
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self._url = sidecar.info["http"] + "/v1/events"
        self._headers = headers
        self._open = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self._open.wait(10)

    def _read(self) -> None:
        try:
            with httpx.stream("GET", self._url, headers=self._headers, timeout=60, trust_env=False) as response:
                number, name = 0, ""
                for line in response.iter_lines():
                    self._open.set()
                    field, _, value = line.partition(": ")
                    if field == "id":
                        number = int(value)
                    elif field == "event":
                        name = value
                    elif field == "data":
                        self.events.append((number, name, json.loads(value)))
        except httpx.HTTPError:
            pass

    def named(self, name: str) -> list[dict[str, Any]]:
        return [data for _, found, data in self.events if found == name]


def test_events_tell_of_tasks_and_punctuations_and_go_on_from_the_last_id(shared: Sidecar) -> None:
    shared.assign(next_generation(shared))
    stream = Stream(shared)
    shared.assign(next_generation(shared), active=(0,), standby=(1,))
    shared.wait_ready()
    wait_for(lambda: {"partition": 0, "state": "running"} in stream.named("task"))
    body = {"partition": 0, "kind": "wall_clock_time", "interval_ms": 50}
    made = shared.call("POST", "/v1/schedule", body)["id"]
    wait_for(lambda: len(stream.named("punctuate")) >= 3)
    assert {one["id"] for one in stream.named("punctuate")} == {made}
    assert shared.call("DELETE", f"/v1/schedule/{made}") == {"cancelled": True}
    shared.call("DELETE", f"/v1/schedule/{made}", status=404)
    seen = stream.events[1][0]
    again = Stream(shared, **{"Last-Event-ID": str(seen)})
    wait_for(lambda: len(again.events) >= len(stream.events) - 2)
    assert again.events[0] == stream.events[2]


def test_many_uncommitted_writes_are_told_before_the_limit_refuses_them(sidecars: Sidecars) -> None:
    sidecar = sidecars.start(limits__uncommitted_max="2MiB", store__value_max="100KiB")
    stream = Stream(sidecar)
    with sf.connect(
        sidecar.run_dir, stores=[sf.KeyValueStore("kv", sf.serde.string, sf.serde.bytes)], partitions=1
    ) as app:
        app.assign(active=[0])
        app.wait_ready(30)
        task = app.task(0)
        with pytest.raises(sf.Backpressure):
            for number in range(100):
                task.store("kv").put(f"k{number}", b"v" * 50_000)
                time.sleep(0.005)
        wait_for(lambda: stream.named("pressure"), told=sidecar.told)
        assert stream.named("pressure")[0]["limit_bytes"] == 2 << 20
        task.commit()
        task.store("kv").put("more", b"v")


def test_schedule_is_refused_on_a_standby(shared: Sidecar) -> None:
    shared.assign(next_generation(shared), active=(0,), standby=(1,))
    body = {"partition": 1, "kind": "wall_clock_time", "interval_ms": 50}
    assert shared.call("POST", "/v1/schedule", body, status=409)["reason"] == "NOT_ACTIVE"


def test_wipe_needs_the_present_epoch_and_restores_from_the_log(sidecars: Sidecars, tmp_path: Path) -> None:
    sidecar = sidecars.start()
    sidecar.declare()
    sidecar.assign(1, active=(0,))
    (task,) = sidecar.wait_ready()["tasks"]
    refused = sidecar.call("POST", "/v1/wipe", {"partition": 0, "epoch": task["epoch"] + 1}, status=409)
    assert refused["reason"] == "FENCED"
    sidecar.call("POST", "/v1/wipe", {"partition": 0, "epoch": task["epoch"]})
    (again,) = sidecar.wait_ready()["tasks"]
    assert again["epoch"] > task["epoch"]


def test_snapshot_can_be_read_at_rest_and_its_name_is_taken_once(shared: Sidecar) -> None:
    shared.assign(next_generation(shared), active=(0, 1))
    shared.wait_ready()
    with sf.connect(shared.run_dir, stores=[sf.KeyValueStore("kv", sf.serde.bytes, sf.serde.bytes)]) as client:
        client.task(1).store("kv").put(b"a", b"1")
        client.task(1).commit()
    found = shared.call("POST", "/v1/snapshots", {"name": "monday"})
    assert found["positions"]["1"]["kv"] > 0
    folder = shared.run_dir.parent / "snapshots" / "monday" / "0_1"
    command = [sys.executable, "-P", "-m", "standfast.ops.cli", "get", "kv", "a", "--offline", str(folder)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert shown.returncode == 0 and "1" in shown.stdout, shown.stderr
    assert shared.call("POST", "/v1/snapshots", {"name": "monday"}, status=409)["reason"] == "CONFLICT"
    shared.call("POST", "/v1/snapshots", {"name": "../up"}, status=400)


def test_copies_of_a_sidecar_are_stored_and_restored_elsewhere(
    shared: Sidecar, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared.assign(next_generation(shared), active=(0, 1))
    shared.wait_ready()
    with sf.connect(shared.run_dir, stores=[sf.KeyValueStore("kv", sf.serde.bytes, sf.serde.bytes)]) as client:
        client.task(1).store("kv").put(b"stored", b"1")
        client.task(1).commit()
    to, where = str(tmp_path / "snaps"), ["--state-dir", str(shared.state_dir), "--json"]
    assert main(["snapshot", "create", "to-storage", "--to", to, *where]) == 0
    made = {one["task"]: one["snapshot"] for one in json.loads(capsys.readouterr().out)["created"]}
    assert made["0_1"].startswith("0_1/")
    elsewhere = ["--from", to, "--app", "app", "--state-dir", str(tmp_path / "b")]
    assert main(["snapshot", "restore", *elsewhere, "--task", "0_1"]) == 0
    capsys.readouterr()
    assert main(["get", "kv", "stored", "--offline", str(tmp_path / "b/app/0_1")]) == 0
    assert "1" in capsys.readouterr().out


def test_snapshot_is_made_and_listed_by_the_command(shared: Sidecar, capsys: pytest.CaptureFixture[str]) -> None:
    shared.assign(next_generation(shared), active=(1,))
    shared.wait_ready()
    where = ["--state-dir", str(shared.state_dir), "--json"]
    assert main(["snapshot", "create", "by-hand", *where]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["name"] == "by-hand" and list(made["positions"]) == ["1"]
    assert main(["snapshot", "create", "by-hand", *where]) == 2
    assert "already exists" in capsys.readouterr().out
    assert main(["snapshot", "list", *where]) == 0
    newest = json.loads(capsys.readouterr().out)["snapshots"][0]
    assert (newest["name"], newest["tasks"]) == ("by-hand", ["0_1"])
    assert abs(newest["made_ms"] - time.time() * 1_000) < 60_000
    assert main(["snapshot", "list", *where[:2]]) == 0
    assert "by-hand" in capsys.readouterr().out


def test_rows_for_people_and_verify(shared: Sidecar) -> None:
    shared.assign(next_generation(shared), active=(0, 1))
    shared.wait_ready()
    assert shared.call("GET", "/v1/stores/ver/scan?partition=0")["rows"] == []
    assert shared.call("GET", "/v1/stores/kv/get?key=nobody", status=404)["error"] == "NotFound"
    assert "did you mean" in shared.call("GET", "/v1/stores/kw/get?key=nobody", status=404)["message"]
    verdicts = shared.call("POST", "/v1/verify", {"store": "kv"})["verdicts"]
    assert [one["verdict"] for one in verdicts] == ["equal", "equal"]


def test_rows_are_refused_with_the_reason_that_the_partition_has(shared: Sidecar) -> None:
    shared.assign(next_generation(shared), active=(0,))
    shared.wait_ready()
    assert shared.call("GET", "/v1/stores/kv/scan?partition=1", status=409)["reason"] == "NOT_ASSIGNED"
    shared.assign(next_generation(shared), active=(0,), standby=(1,))
    assert shared.call("GET", "/v1/stores/kv/scan?partition=1", status=409)["reason"] == "NOT_ACTIVE"


def test_quit_is_no_path_unless_it_is_set(shared: Sidecar) -> None:
    assert shared.call("POST", "/quitquitquit", status=404)["reason"] == "NOT_FOUND"


def test_body_over_the_limit_is_refused_without_reading_it_all(shared: Sidecar) -> None:
    assert shared.http is not None
    answer = shared.http.put("/v1/stores", content=b" " * ((1 << 20) + 1))
    assert answer.status_code == 413
    assert answer.json()["reason"] == "TOO_LARGE"


def operation_takes(api: Any) -> bool:
    """Whether an operation has parameters or a body."""
    definition = api.definition.raw
    return bool(definition.get("parameters") or definition.get("requestBody"))


@pytest.mark.long
def test_answers_keep_to_the_document_whatever_is_asked(sidecars: Sidecars) -> None:
    """schemathesis over the served document: valid and broken requests, statuses and replies as declared."""
    # Here, since its import takes most of a second and each process of a run imports this file.
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    sidecar = sidecars.start()
    sidecar.declare(FOUR)
    schema = schemathesis.openapi.from_url(sidecar.info["http"] + "/v1/openapi.json")
    left_out = {"/v1/events", "/v1/drain", "/v1/ready"}  # they wait, or end the work

    checked = 0
    for operation in schema.get_all_operations():
        api: Any = operation.ok()  # type: ignore[union-attr]  # raises for an invalid document
        if api.path in left_out:
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            if mode is GenerationMode.NEGATIVE and not operation_takes(api):
                continue  # the operation has no input to break

            @settings(max_examples=15, deadline=None, suppress_health_check=SLOW, phases=[Phase.generate])
            @given(case=api.as_strategy(generation_mode=mode))
            def run(case: Any) -> None:
                response = case.call()
                left_out: list[Any] = []
                if response.status_code == 503:
                    assert response.json()["reason"] in NOT_YET, response.text
                    left_out.append(not_a_server_error)
                if (case.method.upper(), case.path) in BEYOND_A_SCHEMA:
                    left_out.append(positive_data_acceptance)
                case.validate_response(response, excluded_checks=left_out)

            run()
            checked += 1
    assert checked > 20
    assert sidecar.http is not None and sidecar.http.get("/livez").status_code == 200
