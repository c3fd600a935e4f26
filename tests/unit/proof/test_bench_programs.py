"""The benches of the checkout at a tiny size: they run, they report every field.

Rules of this file: no test of speed; the numbers of so few records mean nothing.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.measures import Bench
from bench.step import Step
from standfast.ops.bench.bench import show
from standfast.ops.demo.place import DemoPlace
from standfast.ops.shared.output import Output
from support.bench import topics_of
from support.places import BENCHMARKS

slow = pytest.mark.slow
GOALS = runpy.run_path(str(BENCHMARKS / "bench_goals.py"))
judged, missed = GOALS["judged"], GOALS["missed"]

DEAR = {"standby", "process", "scale"}
MEASURES = {
    "write": ["put_commit"],
    "read": ["get", "get_absent", "scan", "scan_reverse"],
    "standby": ["standby_tail", "take_over_standby", "take_over_cold"],
    "process": ["process_count", "process_idle", "process_calls"],
    "scale": ["scale_workers_1", "scale_workers_2", "scale_bare_1", "scale_bare_2"],
}
TASKS = 3


@pytest.fixture(autouse=True)
def path_of_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make bench` starts it: its processes find their programs there."""
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS.parent))


def records(what: str) -> int:
    """404; for `scale` so many that some are left when all of its processes run."""
    return 16_160 if what == "scale" else 404


def tiny(what: str, folder: Path, *options: str) -> list[str]:
    sizes = ("--records", str(records(what)), "--batch", "100", "--runs", "2")
    return [what, *sizes, "--dir", str(folder), *options]


@slow
@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.long if what in DEAR else ()) for what in MEASURES]
)
def test_bench_reports_every_field(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--tasks", str(TASKS)) if what == "standby" else ()
    assert main(tiny(what, tmp_path, "--json", "--memory", "16MiB", *options)) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["bench"]) == ("standfast.bench/2", what)
    assert document["settings"] == {
        "records": records(what),
        "key_bytes": 16,
        "value_bytes": 100,
        "batch": 100,
        "runs": 2,
        "memory_bytes": 16 << 20,
    } | ({"tasks": TASKS} if what == "standby" else {"workers": []} if what == "scale" else {})
    assert [one["name"] for one in document["measures"]] == MEASURES[what]
    for one in document["measures"]:
        taken_over = one["name"].startswith("take_over")
        assert one["unit"] == ("ms" if taken_over else "records/s") and one["what"]
        assert 0 < one["min"] <= one["median"] <= one["max"]
        if one["name"].startswith("scale_workers"):  # those before the stopwatch started are left out
            assert 0 < one["records"] < records(what)
        else:
            assert one["records"] == (TASKS if taken_over else records(what))
        assert not [name for name in one if "goal" in name], "figures only"
        assert (one["cpu_us"] is None) == (taken_over or what == "scale"), "processor time a record"
        assert len(one["runs"]) == 2
        for run in one["runs"]:
            assert {"records", "elapsed_ms", "rate", "cpu_ms"} <= set(run)
    assert document["log"] == {"kind": "embedded", "kafka": None}
    if what == "scale":
        assert [len(one["rounds"]) for one in document["ratios"]] == [2, 2, 2]
    if what == "standby":
        (ratio,) = document["ratios"]
        assert ratio["name"] == "take_over_standby / take_over_cold" and len(ratio["rounds"]) == 2
    assert list(tmp_path.iterdir()) == [], "the folder is left as it was"


@slow
def test_bench_restore_stands_beside_reading_the_same_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "restore",
        "--records",
        "404",
        "--runs",
        "2",
        "--workers",
        "0,1",
        "--versions",
        "1",
        "--dir",
        str(tmp_path),
    ]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    names = ["restore_distinct_workers_0", "restore_distinct_workers_1", "restore_distinct_log"]
    assert [one["name"] for one in document["measures"]] == names
    ratios = [f"{names[0]} / {names[2]}", f"{names[1]} / {names[2]}", f"{names[1]} / {names[0]}"]
    assert [one["name"] for one in document["ratios"]] == ratios
    assert all(len(one["rounds"]) == 2 and 0 < one["min"] <= one["max"] for one in document["ratios"])
    assert list(tmp_path.iterdir()) == [], "the folder is left as it was"


@slow
@pytest.mark.kafka
@pytest.mark.long
def test_bench_restore_on_a_cluster_stands_beside_the_bare_consume_loop(
    kafka_address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["restore", "--records", "404", "--runs", "1", "--versions", "1", "--dir", str(tmp_path)]
    assert main([*words, "--json", "--log", f"kafka://{kafka_address}"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in document["measures"]] == ["restore_distinct", "restore_distinct_bare"]
    assert [one["name"] for one in document["ratios"]] == ["restore_distinct / restore_distinct_bare"]
    assert topics_of(f"kafka://{kafka_address}") == []


def test_ratio_is_the_median_of_the_rounds(tmp_path: Path) -> None:
    step = Step(step="", folder=str(tmp_path), records=4, key_bytes=16, value_bytes=100, memory_bytes=1)
    run = {"records": 4, "elapsed_ms": 1, "cpu_ms": None}
    bench = Bench({"runs": 2}, DemoPlace("kafka", ""), step, Output())
    ours = bench._measure("restore_distinct", "", [run | {"rate": 30.0}, run | {"rate": 50.0}])
    bare = bench._measure("restore_distinct_bare", "", [run | {"rate": 100.0}, run | {"rate": 100.0}])
    ratio = bench._ratio(ours, bare, "")
    assert (ratio["name"], ratio["value"]) == ("restore_distinct / restore_distinct_bare", 0.4)
    assert ratio["rounds"] == [0.3, 0.5]


@slow
@pytest.mark.long
def test_bench_failover_kills_the_owner_and_tells_what_its_standby_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["failover", "--runs", "2", "--lease", "2s", "--dir", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["lease_ms"] == 2_000
    whole, *parts = document["measures"]
    assert [one["name"] for one in parts] == ["detect", "open", "restore", "process"]
    for number, run in enumerate(whole["runs"]):
        assert run["elapsed_ms"] == sum(part["runs"][number]["elapsed_ms"] for part in parts)
    for one in document["measures"]:
        assert one["unit"] == "ms" and one["min"] <= one["median"] <= one["p90"] <= one["max"]
    assert parts[0]["min"] >= 100, "no lease runs out at once"
    assert list(tmp_path.iterdir()) == [], "the folder is left as it was"
    assert main([*words, "--lease", "soon"]) == 2
    assert "--lease: 'soon'" in capsys.readouterr().err


@slow
@pytest.mark.kafka
@pytest.mark.long
def test_bench_standby_on_a_cluster_takes_over_what_it_stood_by_for_and_leaves_no_topic(
    kafka_address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--runs", "1", "--tasks", str(TASKS), "--log", f"kafka://{kafka_address}", "--wide")
    assert main(tiny("standby", tmp_path, *options)) == 0
    shown = capsys.readouterr().out
    assert "404 records" in shown and f"{TASKS} tasks assigned until the gate is open; standbys at the ends" in shown
    assert topics_of(f"kafka://{kafka_address}") == []
    assert list(tmp_path.iterdir()) == [], "the folder is left as it was"


def test_bench_refuses_a_number_of_tasks_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny("standby", tmp_path, "--tasks", "0")) == 2
    assert "--tasks: '0' is not possible: give 1 to 1000" in capsys.readouterr().err


@pytest.mark.long
@slow
@pytest.mark.kafka
def test_bench_write_starts_a_broker_of_its_own_and_stands_both_guarantees_beside_the_bare_produce_loop(
    kafka_files: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--json", "--runs", "1", "--batch", "100", "--log", "kafka")
    assert main(tiny("write", tmp_path, *options)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["log"]["kafka"]
    names = [one["name"] for one in document["measures"]]
    assert names == ["put_commit_exactly_once", "put_commit_at_least_once", "produce_bare", "transact_bare"]
    ratios = [f"{name} / produce_bare" for name in (*names[:2], "transact_bare")]
    assert [one["name"] for one in document["ratios"]] == [*ratios, "put_commit_exactly_once / transact_bare"]
    assert all(one["records"] == 404 and one["cpu_us"] is not None for one in document["measures"])
    assert not judged(document), "goals are for their own sizes only"
    assert list(tmp_path.iterdir()) == [], "the folder is left as it was"


SIZES = {"key_bytes": 16, "value_bytes": 100, "batch": 1_000, "versions": 4, "runs": 2}


def reported(
    what: str, kind: str, figures: Mapping[str, float], ratios: Mapping[str, float], **sizes: int
) -> dict[str, Any]:
    """A document of the command with these medians."""
    return {
        "bench": what,
        "settings": SIZES | sizes,
        "log": {"kind": kind},
        "measures": [{"name": name, "median": figure} for name, figure in figures.items()],
        "ratios": [{"name": name, "value": value} for name, value in ratios.items()],
    }


def test_goals_of_our_reports_count_for_their_own_sizes_and_log_only() -> None:
    shares = {"restore_distinct / restore_distinct_bare": 0.4, "restore_versions_far / restore_versions_far_bare": 0.1}
    figures = {"restore_distinct": 300_000, "restore_distinct_bare": 900_000}
    assert judged(reported("restore", "kafka", figures, shares)) == [("restore_distinct", 0.4, 0.35, True)]
    found = judged(reported("restore", "embedded", figures, shares))
    assert found == [("restore_distinct", 300_000, 350_000, False)] and missed(found)
    assert judged(reported("restore", "embedded", figures, shares, value_bytes=99)) == []
    found = judged(reported("failover", "embedded", {"failover": 1_400, "detect": 1_300}, {}))
    assert found == [("failover", 1_400, 2_000, True)] and not missed(found)


def test_goal_of_writes_to_kafka_is_for_either_guarantee() -> None:
    both = {"put_commit_exactly_once": 91_000, "put_commit_at_least_once": 118_000}
    assert not missed(judged(reported("write", "kafka", both, {})))
    assert missed(judged(reported("write", "kafka", dict.fromkeys(both, 91_000), {})))


def test_goals_of_writes_to_kafka_are_a_share_of_the_bare_loop_and_processor_time() -> None:
    name = "put_commit_at_least_once"
    ratios = {f"{name} / produce_bare": 0.4, "transact_bare / produce_bare": 0.3}
    document = reported("write", "kafka", {name: 118_000}, ratios)
    document["measures"][0]["cpu_us"] = 3.5
    assert judged(document)[1:] == [
        (f"{name} / produce_bare", 0.4, 0.5, False),
        (f"{name}, us of processor time", 3.5, 4, True),
    ]
    assert missed(judged(document))


def test_bench_prints_figures_and_no_goal(capsys: pytest.CaptureFixture[str]) -> None:
    measure = {"name": "put_commit", "what": "put", "unit": "records/s", "median": 130_000, "min": 1, "max": 150_000}
    settings = SIZES | {"records": 1_000_000, "memory_bytes": 256 << 20}
    document = {"bench": "write", "settings": settings, "versions": {}, "ratios": [], "log": {"kind": "embedded"}}
    show({**document, "measures": [measure | {"peak_rss_bytes": 25 << 20, "cpu_us": 11.72}]}, Output(wide=True))
    shown = capsys.readouterr().out
    assert "130,000" in shown and "25" in shown and "11.7" in shown
    assert "goal" not in shown.lower() and "MET" not in shown


def test_bench_refuses_a_batch_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny("write", tmp_path, "--batch", "20000")) == 2
    assert "--batch: '20000' is not possible" in capsys.readouterr().err


def test_workers_are_no_more_than_the_cores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny("scale", tmp_path, "--workers", "1,99")) == 2
    assert "--workers: '99' is not possible: give 1 to " in capsys.readouterr().err
