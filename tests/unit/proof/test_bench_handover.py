"""The benchmark of hand-overs: its arithmetic, and a run at a tiny size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import restarts
from bench.__main__ import main
from bench.feed import measures_ms
from bench.handover import PARTS, Seen
from support.places import BENCHMARKS

KINDS = ("workers", "instance_joins", "instance_leaves")


def test_gap_is_the_longest_time_without_a_record_that_overlaps_the_stretch(tmp_path: Path) -> None:
    (tmp_path / "seen-1").write_bytes(b"3 100\n3 120\n4 100\n3 1000\n4 110\n")
    seen = Seen(tmp_path, 6)
    seen.look()
    assert seen.gap([3], 130, 140) == 880, "a gap counts although both of its ends are outside"
    assert seen.gap([3], 0, 119) == 20
    assert seen.gap([4], 0, 2_000) == 10
    assert seen.gap([3, 4], 0, 2_000) == 880
    assert seen.owner == {3: "seen-1", 4: "seen-1"}


def test_half_a_line_is_read_once_it_is_whole_and_the_newest_record_names_the_owner(tmp_path: Path) -> None:
    seen = Seen(tmp_path, 6)
    (tmp_path / "seen-1").write_bytes(b"3 100\n3 12")
    seen.look()
    assert seen.times[3] == [100]
    (tmp_path / "seen-1").write_bytes(b"3 100\n3 120\n")
    (tmp_path / "seen-2").write_bytes(b"3 150\n")
    seen.look()
    assert (seen.times[3], seen.owner[3]) == ([100, 120, 150], "seen-2")


def test_figures_have_median_extremes_and_the_90th_percentile() -> None:
    (one,) = measures_ms({"pause": [10, 30, 20]}, PARTS, "workers_")
    assert (one["name"], one["median"], one["min"], one["max"], one["p90"]) == ("workers_pause", 20, 10, 30, 28)


@pytest.mark.slow
@pytest.mark.long
def test_bench_handover_moves_tasks_between_workers_and_instances(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS.parent))
    words = ["handover", "--runs", "2", "--records", "240", "--tasks", "6", "--dir", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {one["name"]: one for one in document["measures"]}
    names = [f"{kind}_{part}" for kind in KINDS for part in PARTS]
    assert list(found) == names + [f"restarts_{part}" for part in restarts.PARTS]
    assert found["restarts_moves"]["max"] <= 2, "each task goes and comes back, if its copy elsewhere was ready"
    for one in found.values():
        assert 0 <= one["min"] <= one["median"] <= one["p90"] <= one["max"]
    assert found["workers_pause"]["records"] == 2
    assert found["instance_joins_moved"]["records"] >= 3
    # A task that moves stands still at least from its last commit until it runs.
    assert found["workers_moved"]["max"] >= found["workers_pause"]["min"] > 0
    assert list(tmp_path.iterdir()) == [], "the folder is left as it was"
