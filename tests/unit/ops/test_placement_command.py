"""`standfast placement explain`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.cli.command_line import main
from standfast.replication.placement.document import read_view

DOCUMENT: dict[str, Any] = {
    "standfast_placement": 1,
    "settings": {"standby_replicas": 1},
    "groups": [{"group": 0, "partitions": 3}],
    "instances": [
        {"id": "a", "rack": "east", "tasks": {"0_0": {"state": "running"}, "0_1": {"state": "standby", "lag": 1200}}},
        {"id": "c", "rack": "west", "waits": "topology differs in store counts"},
    ],
    "away": {"b": {"for_ms": 1200, "stopped": True}},
    "previous": {"generation": 7, "active": {"0_0": "a", "0_1": "b", "0_2": "b"}, "standbys": {"0_1": ["a"]}},
}


def document(folder: Path, **change: Any) -> str:
    path = folder / "placement.json"
    path.write_text(json.dumps({**DOCUMENT, **change}), encoding="utf-8")
    return str(path)


def test_explain_prints_owners_moves_and_a_reason_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", "explain", "--file", document(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "b is gone, and a is its most caught-up standby: it lacks 1,200 records" in out
    assert "b stopped cleanly 1.2 s ago and is expected back within 30 s; no standby is ready" in out
    assert "waits: topology differs in store counts" in out
    assert "looked at again after 29 s" in out


def test_explain_as_json_has_codes_facts_and_an_assignment_that_can_be_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["placement", "explain", "--file", document(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "standfast.placement-explain/1" and found["changed"] is True
    tasks = {one["task"]: one for one in found["tasks"]}
    assert (tasks["0_0"]["active"], tasks["0_0"]["code"]) == ("a", "RUNS")
    assert tasks["0_1"]["facts"] == {"instance": "a", "lag": 1200, "source": "b"}
    assert tasks["0_1"]["copies"][0]["instance"] == "b"
    assert tasks["0_2"]["active"] is None
    assert [(move["move"], move["task"]) for move in found["moves"] if move["move"] == "take-over"] == [
        ("take-over", "0_1")
    ]
    previous = read_view(json.dumps({**DOCUMENT, "previous": found["assignment"]})).previous
    assert previous is not None and previous.generation == 8


def test_explain_of_one_task_shows_only_that_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", "explain", "--file", document(tmp_path), "--task", "0_1"]) == 0
    out = capsys.readouterr().out
    assert "0_1" in out and "0_2" not in out
    assert "b left a moment ago and is expected back" in out


def test_explain_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(DOCUMENT).encode())))
    assert main(["placement", "explain", "--file", "-"]) == 0
    assert "a is its most caught-up standby" in capsys.readouterr().out


def test_explain_of_too_few_slots_is_a_negative_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    instances = [{**one, "max_tasks": 1} for one in DOCUMENT["instances"]]
    assert main(["placement", "explain", "--file", document(tmp_path, instances=instances)]) == 1
    out = capsys.readouterr().out
    assert "WAITING_FOR_SLOTS: 1 more slots are needed; until then the tasks without an owner wait." in out
    assert "max tasks" in out and "this one starts on the next that comes free" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "0_9"], "no task '0_9': name one of its tasks, such as 0_0"),
        (["--task", "x"], "no task 'x'"),
    ],
)
def test_unknown_task_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["placement", "explain", "--file", document(tmp_path), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_wrong_or_absent_document_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", "explain", "--file", str(tmp_path / "absent")]) == 2
    assert "absent cannot be read: No such file or directory" in capsys.readouterr().err
    assert main(["placement", "explain", "--file", document(tmp_path, standfast_placement=9)]) == 2
    assert "format 9" in capsys.readouterr().err
