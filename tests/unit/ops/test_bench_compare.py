"""The comparison with Kafka Streams at a tiny size: it runs, its result is whole, both sides hold the right rows.

Rules of this file: no test of speed; the numbers of so few records mean nothing. Quix Streams is skipped, because its
environment is not one of the tests'.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
        "a\n<!-- benchmarks/compare_report.py: begin -->\nformer\n<!-- benchmarks/compare_report.py: end -->\nz\n"
    )
    assert run(REPORT, out / "compare.json", "--into", page).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("a\n<!--") and text.endswith("-->\nz\n") and "former" not in text and "| right |" in text


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
