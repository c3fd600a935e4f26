"""The comparison with Kafka Streams at a tiny size: it runs, its result is whole, both sides hold the right rows.

Rules of this file: no test of speed; the numbers of so few records mean nothing. Quix Streams is skipped, because its
environment is not one of the tests'.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.places import BENCHMARKS

COMPARE = BENCHMARKS / "compare.py"
REPORT = COMPARE.with_name("compare_report.py")
SYSTEMS = ("standfast", "kafka-streams")
RECORDS = 2_000
LIMIT_S = 240  # two Java processes more than other tests, on a machine that may be busy


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S - 10)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(LIMIT_S)
def test_both_sides_restore_the_same_rows_from_their_own_changelogs(streams_classes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--records", RECORDS, "--rounds", 1, "--systems", ",".join(SYSTEMS), "--scenarios", "cold-1"]
    done = run(COMPARE, *options, "--out", out, "--dir", tmp_path, "--no-plots")
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "compare.json").read_text(encoding="utf-8"))
    assert found["schema"] == "standfast.compare/1" and found["correct"] is True
    assert [(one["system"], one["offsets"]) for one in found["changelogs"]] == [(name, RECORDS) for name in SYSTEMS]
    ours, theirs = found["runs"]
    assert ours["restored"] == theirs["restored"] == RECORDS
    assert ours["digest"] == theirs["digest"] and ours["rows"] == RECORDS // 4 + 1
    for one in found["runs"]:
        assert 0 < one["processed_ms"] <= one["elapsed_ms"] < one["from_start_ms"]
        assert one["cpu_from_start_s"] > 0 and one["peak_bytes"] > 1 << 20
    assert {one["goal"] for one in found["ratios"]} == {None}, "a goal is for its own records only"
    assert done.stdout.count("| right |") == 2
    assert list(tmp_path.iterdir()) == [out], "the folder is left as it was"

    page = tmp_path / "page.md"
    page.write_text(
        "a\n<!-- proof/benchmarks/compare_report.py: begin -->\nformer\n"
        "<!-- proof/benchmarks/compare_report.py: end -->\nz\n"
    )
    assert run(REPORT, out / "compare.json", "--into", page).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("a\n<!--") and text.endswith("-->\nz\n") and "former" not in text and "| right |" in text


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("bench_s3_server")
def test_restores_from_snapshots_have_the_right_rows_and_later_snapshots_upload_what_changed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    scenarios = [f"snapshot-{one}" for one in ("folder", "s3", "links", "bytes")]
    options = ["--records", RECORDS, "--rounds", 1, "--systems", "standfast", "--scenarios", ",".join(scenarios)]
    done = run(COMPARE, *options, "--out", out, "--dir", tmp_path, "--no-plots")
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "compare.json").read_text(encoding="utf-8"))
    assert found["correct"] is True
    assert [one["scenario"] for one in found["results"]] == scenarios[:3]
    for one in found["runs"][:3]:
        assert one["rows"] == RECORDS // 4 + 1
        assert RECORDS // 100 <= one["restored"] < RECORDS // 10, "the tail alone is replayed"
        assert 0 < one["processed_ms"] <= one["elapsed_ms"] < one["from_start_ms"]
    steps = {one["step"]: one for one in found["uploads"]}
    assert list(steps) == ["first", "next", "compacted", "taken over", "begun with one"]
    assert steps["first"]["uploaded_bytes"] == steps["first"]["snapshot_bytes"]
    assert steps["next"]["uploaded_bytes"] < steps["next"]["snapshot_bytes"]
    assert {one["goal"] for one in found["uploads"]} == {None}, "a goal is for its own records only"
    assert "| all rows, their first owner |" in done.stdout
    assert list(tmp_path.iterdir()) == [out], "the folder is left as it was"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--records", "99"), "--records must be 100 or more"),
        (("--systems", "nobody"), "nobody: choose from standfast, kafka-streams"),
        (("--scenarios", "hot"), "hot: choose from cold-1"),
        (("--keys", "3000000"), "--keys must be 1 to 2000000"),
    ],
)
@pytest.mark.slow
def test_arguments_that_cannot_be_used_are_refused(options: tuple[str, ...], says: str) -> None:
    done = run(COMPARE, *options)
    assert done.returncode == 2 and says in done.stderr


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = spec_from_file_location("standfast_compare_figures", BENCHMARKS / "compare_figures.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def runs_of(system: str, *figures: tuple[float, float, float]) -> list[dict[str, Any]]:
    """One run a round: time to the first record, time until idle (both ms), processor time (s)."""
    names = ("processed_ms", "elapsed_ms", "cpu_s")
    return [{"scenario": "cold-1", "system": system} | dict(zip(names, one, strict=True)) for one in figures]


def test_the_best_tuned_setting_of_each_measure_is_compared_and_goals_hold_on_both_clocks(figures: ModuleType) -> None:
    systems = ["standfast", "kafka-streams", *(f"kafka-streams{suffix}" for suffix in ("-tuned", "-tuned-reads"))]
    runs = [
        *runs_of("standfast", (1, 2, 1), (1, 2, 1), (1, 2, 1)),
        *runs_of("kafka-streams", (9, 9, 9)),
        *runs_of("kafka-streams-tuned", (5, 6, 8), (5, 7, 8), (50, 6, 8)),
        *runs_of("kafka-streams-tuned-reads", (6, 9, 3), (6, 9, 3), (6, 9, 3)),
    ]
    found = figures.ratios({"scenarios": ["cold-1"], "systems": systems}, runs, comparable=True)
    shown = [(one["system"], one["setting"], one["measure"], one["median"], one["goal_met"]) for one in found]
    tuned = "kafka-streams-tuned"
    assert shown == [
        ("kafka-streams", "kafka-streams", "processed_ms", 9, None),
        ("kafka-streams", "kafka-streams", "elapsed_ms", 4.5, None),
        ("kafka-streams", "kafka-streams", "cpu_s", 9, None),
        (tuned, tuned, "processed_ms", 5, True),
        (tuned, tuned, "elapsed_ms", 3, False),
        (tuned, "kafka-streams-tuned-reads", "cpu_s", 3, False),
    ]
    assert (found[3]["min"], found[3]["max"]) == (5, 50), "the spread of the rounds"


def test_a_restore_from_a_snapshot_is_compared_with_the_best_restore_of_the_same_log(figures: ModuleType) -> None:
    systems = ["standfast", "kafka-streams", "kafka-streams-tuned", "quix"]
    runs = [
        *(one | {"scenario": "snapshot-s3"} for one in runs_of("standfast", (1, 2, 1))),
        *runs_of("kafka-streams", (90, 90, 9)),
        *runs_of("kafka-streams-tuned", (10, 14, 9)),
        *runs_of("quix", (300, 300, 9)),
    ]
    settings = {"scenarios": ["cold-1", "snapshot-s3"], "systems": systems}

    def goals(records: int, comparable: bool = True) -> list[tuple[Any, ...]]:
        found = figures.ratios(settings | {"records": records}, runs, comparable=comparable)
        shown = ("setting", "beside", "measure", "median", "goal", "goal_met")
        return [tuple(one[name] for name in shown) for one in found if one["setting"] == "kafka-streams-tuned"]

    tuned = "kafka-streams-tuned", "cold-1"
    assert goals(2_000_000) == [
        (*tuned, "processed_ms", 10, 8, True),
        (*tuned, "elapsed_ms", 7, 8, False),
        (*tuned, "cpu_s", 9, None, None),
    ]
    assert [(one[4], one[5]) for one in goals(10_000_000)] == [(20, False), (20, False), (None, None)]
    assert {one[4] for one in (*goals(200_000), *goals(2_000_000, comparable=False))} == {None}
    quix = [one for one in figures.ratios(settings, runs, comparable=True) if one["system"] == "quix"]
    assert [(one["median"], one["goal"]) for one in quix][:1] == [(300, None)]


def test_the_share_of_the_uploaded_bytes_is_judged_where_a_goal_is_set(figures: ModuleType) -> None:
    sizes = {"uploaded_files": 2, "snapshot_files": 9, "elapsed_ms": 5, "snapshot_bytes": 1_000}
    steps = [{"step": "first", "uploaded_bytes": 1_000} | sizes, {"step": "next", "uploaded_bytes": 150} | sizes]
    for comparable, met in ((True, False), (False, None)):
        first, after = figures.uploads([{"steps": steps}], comparable=comparable)
        assert (first["share"], first["goal_met"]) == (1, None)
        assert (after["share"], after["goal_met"]) == (0.15, met)
    steps[1]["uploaded_bytes"] = 149
    assert figures.uploads([{"steps": steps}], comparable=True)[1]["goal_met"] is True
