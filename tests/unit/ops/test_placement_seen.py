"""`standfast placement`: a real embedded log whose placement topic a leader of this test writes.

The output in docs/operate/instances.md has the columns and the lines that are checked here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.ops.command.command_line import main
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.replication.placement.records import Report
from standfast.replication.takeover import MemberPlan
from support.placed import PLACED, PlacedLog

SOURCE = TopicPartition("delays-standfast-placement", 0)


@pytest.fixture
def placed(tmp_path: Path) -> Iterator[PlacedLog]:
    made = PlacedLog(f"sqlite:///{tmp_path}/log", "delays")
    made.write_example()
    yield made
    made.close()


def run(capsys: pytest.CaptureFixture[str], made: PlacedLog, *more: str, app: str = "delays") -> tuple[int, str, str]:
    code = main(["placement", "--app", app, "--log", made.address, *more])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_instances_owners_copies_reasons_and_moves_are_shown(
    placed: PlacedLog, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, placed, "--wide")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert "generation 2 of epoch 1" in out and "leader: a" in out
    assert ["a", "live,", "leader", "2", "rack=r-a", "2", "2", "0", "0", "2", "5", "min", "ago"] in lines
    assert ["b", "live", "2", "rack=r-b", "2", "2", "0", "0", "1", "5", "min", "ago"] in lines
    assert ["c", "stopped", "-", "0", "0", "0", "1", "0", "5", "min", "ago"] in lines
    handed = "a has more than its share, and the copy on b lacks only 12 records"
    assert f"\nwhy 1: {handed}\n" in out
    assert any(line[:5] == ["0_0", "b", "running", "a", "(0)"] and line[-1] == "1" for line in lines)
    assert any(line[:7] == ["0_1", "b", "moving", "from", "a", "a", "(7)"] for line in lines)
    assert any(line[:5] == ["0_2", "a", "running", "b", "(41)"] for line in lines)
    assert [line[1:5] for line in lines if "hand-over" in line] == [
        ["hand-over", "0_1", "a", "b"],
        ["hand-over", "0_0", "a", "b"],
    ]


def test_page_of_the_documentation_has_the_columns_of_the_command(
    placed: PlacedLog, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "operate" / "instances.md").read_text(encoding="utf-8")
    _, out, _ = run(capsys, placed)

    def heads(text: str) -> list[list[str]]:
        return [line.split() for line in text.splitlines() if line.startswith(("instance  ", "task  "))]

    assert heads(page) == heads(out)


def test_document_has_every_fact_and_the_assignment(placed: PlacedLog, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, placed, "--json")
    found = json.loads(out)
    assert (code, found["schema"], found["app"]) == (0, "standfast.placement/1", "delays")
    assert (found["generation"], found["epoch"], found["leader"]) == (2, 1, "a")
    first = found["tasks"][0]
    assert (first["task"], first["active"], first["state"], first["code"]) == ("0_0", "b", "running", "HANDED_OVER")
    assert first["since_ms"] == found["moves"][-1]["at_ms"] > 0
    assert [(one["instance"], one["role"], one["lag"]) for one in first["copies"]] == [
        ("a", "standby", 0),
        ("c", "stored", 900),
    ]
    assert "a ran the task until now" in first["copies"][0]["why"]
    moves = [(one["move"], one["task"], one["from"], one["to"]) for one in found["moves"] if one["generation"] == 2]
    assert ("hand-over", "0_0", "a", "b") in moves
    assert (found["assignment"]["generation"], found["assignment"]["active"]["0_0"]) == (2, "b")


def test_one_task_is_shown_with_the_reason_of_each_copy(placed: PlacedLog, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, placed, "--task", "0_0")
    assert code == 0
    assert "a ran the task until now and has all of its rows" in out
    assert "0_2" not in out
    code, _, err = run(capsys, placed, "--task", "0_9")
    assert code == 2 and "no task '0_9': its placement has 0_0, 0_1, 0_2, 0_3" in err


def test_task_without_a_live_instance_is_a_negative_answer(
    placed: PlacedLog, capsys: pytest.CaptureFixture[str]
) -> None:
    placed.log.group("delays").leave("b")
    code, out, err = run(capsys, placed)
    assert code == 1
    assert "2 tasks have no live instance, 0_0 is the first" in err
    lines = [line.split() for line in out.splitlines()]
    assert any(line[:3] == ["0_0", "b", "lost"] for line in lines)
    assert any(line[:2] == ["b", "gone"] for line in lines)


def test_instance_of_another_program_waits(placed: PlacedLog, capsys: pytest.CaptureFixture[str]) -> None:
    placed.join("d", program="other")
    _, out, err = run(capsys, placed)
    assert "note: d: live, with another version, program or placement than the leader's" in err
    assert any(line.split()[:2] == ["d", "waits"] for line in out.splitlines())


def test_application_that_was_never_managed_is_named_with_those_that_were(
    placed: PlacedLog, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [info.name for info in placed.log.admin.topics()]
    code, _, err = run(capsys, placed, app="nix")
    assert code == 2
    assert "application 'nix' was never run with placement=\"managed\"" in err
    assert "it has no topic nix-standfast-placement; applications that have one: delays" in err
    assert [info.name for info in placed.log.admin.topics()] == before, "a look creates nothing"


def test_absent_log_is_unreachable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", "--app", "delays", "--log", f"sqlite:///{tmp_path}/absent"]) == 69
    assert "does not exist" in capsys.readouterr().err
    assert not (tmp_path / "absent").exists()


def test_before_the_first_generation_it_is_not_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = PlacedLog(f"sqlite:///{tmp_path}/log", "delays")
    made.join("a")
    made.topic.claim()
    code, _, err = run(capsys, made)
    made.close()
    assert code == 1
    assert "no generation of the placement of application 'delays' is published yet: 1 instances are live" in err


@pytest.mark.parametrize("key", [b"generation", b"reasons", b"moves/0", b"instance/a", b"other"])
def test_records_of_a_newer_form_are_refused_with_the_topic(
    placed: PlacedLog, capsys: pytest.CaptureFixture[str], key: bytes
) -> None:
    newer = b'{"standfast":2,"epoch":9,"generation":9,"at_ms":0,"leader":"a","instances":[]}'
    placed.log.producer().append({SOURCE: [Outgoing(key, newer, 0)]})
    code, out, err = run(capsys, placed, "--json")
    assert code == 65
    assert json.loads(out)["error"] == "Corruption"
    assert "delays-standfast-placement-0" in err
    if key != b"other":
        assert "format 2, this version reads" in err


@pytest.mark.parametrize(("wrong", "code"), [(["--app", "a/b"], 78), ([], 2)])
def test_wrong_or_absent_name_of_the_application_is_a_usage_error(
    placed: PlacedLog, capsys: pytest.CaptureFixture[str], wrong: list[str], code: int
) -> None:
    assert main(["placement", "--log", placed.address, *wrong]) == code
    assert "app" in capsys.readouterr().err


def test_placement_of_an_application_that_is_managed_no_more_is_shown_as_lost(
    placed: PlacedLog, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        placed.log.group("delays").join(name, MemberPlan(takes_any=True).to_json(), lease_ms=60_000)
    code, out, err = run(capsys, placed)
    assert code == 1
    assert [line.split()[2] for line in out.splitlines() if line.startswith("0_")] == ["lost"] * 4
    assert "note: a, b: live, with another version, program or placement" in err


def test_worker_process_that_has_a_task_or_a_copy_is_shown_behind_its_instance(
    placed: PlacedLog, capsys: pytest.CaptureFixture[str]
) -> None:
    t = PLACED
    lags = {t[2]: 41, t[3]: 0}
    places = (frozenset({t[2]}), frozenset({t[0], t[3]}))
    placed.report("b", Report(frozenset(t[:1]), frozenset(t[1:2]), lags=lags, generation=2, workers=places))
    _, out, _ = run(capsys, placed)
    lines = [line.split() for line in out.splitlines()]
    assert any(line[:5] == ["b", "live", "2", "rack=r-b", "1:"] and line[5:8] == ["1,", "2:", "2"] for line in lines)
    assert any(line[:4] == ["0_0", "b:2", "running", "a"] for line in lines)
    assert any(line[:5] == ["0_1", "b", "moving", "from", "a"] for line in lines), "no worker of b has it yet"
    assert any(line[:5] == ["0_2", "a", "running", "b:1", "(41)"] for line in lines)
    _, out, _ = run(capsys, placed, "--json")
    found = json.loads(out)
    assert {one["id"]: one["workers"] for one in found["instances"]} == {"a": [], "b": [1, 2], "c": []}
    assert [one["worker"] for one in found["tasks"]] == [2, None, None, None]
    copies = {one["task"]: {copy["instance"]: copy["worker"] for copy in one["copies"]} for one in found["tasks"]}
    assert copies["0_2"]["b"] == 1 and copies["0_3"]["b"] == 2 and copies["0_0"] == {"a": None, "c": None}
    _, out, _ = run(capsys, placed, "--task", "0_2")
    assert any(line.split()[:3] == ["b:1", "standby", "41"] for line in out.splitlines())
