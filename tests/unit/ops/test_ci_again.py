"""CI runs the few failed tests of a lane once more: a test that passes by itself is named, all else fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# A test that fails in its first runs only, as many as the file beside it says.
UNSTABLE = """
from pathlib import Path

def test_{name}():
    left = Path(__file__).with_suffix(".left")
    runs = int(left.read_text())
    left.write_text(str(runs - 1))
    assert runs <= 0
"""
REPORTED = "unstable in lane: test_{0}.py::test_{0} failed once, passed by itself\n"


def lane(root: Path, repo_root: Path, options: str = "", **failures: int) -> tuple[int, str]:
    """Exit code of a run in CI whose tests fail so many times, and its report."""
    (root / ".ci").mkdir()
    (root / ".ci/again.py").write_text((repo_root / ".ci/again.py").read_text("utf-8"))
    (root / "Makefile").write_text(f"lane:\n\t@{sys.executable} -m pytest -q $(ARGS)\n")
    for name, runs in failures.items():
        (root / f"test_{name}.py").write_text(UNSTABLE.format(name=name))
        (root / f"test_{name}.left").write_text(str(runs))
    report = root / "report"
    script = f"make lane || {sys.executable} .ci/again.py lane {options}"
    # No plugins: to load them took most of the time of these small runs.
    environment = {**os.environ, "STANDFAST_CI_UNSTABLE": str(report), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(["bash", "-c", script], cwd=root, env=environment, capture_output=True, timeout=60)
    return done.returncode, report.read_text() if report.exists() else ""


def test_tests_that_pass_by_themselves_are_named_and_bear_the_run(tmp_path: Path, repo_root: Path) -> None:
    code, report = lane(tmp_path, repo_root, good=0, one=1, two=1)
    assert (code, report) == (0, REPORTED.format("one") + REPORTED.format("two"))


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path, repo_root: Path) -> None:
    code, report = lane(tmp_path, repo_root, good=0, one=1, twice=2)
    assert code != 0 and report == ""


def test_more_than_two_failures_fail_the_run_at_once(tmp_path: Path, repo_root: Path) -> None:
    code, report = lane(tmp_path, repo_root, one=1, two=1, three=1)
    assert code != 0 and report == ""
    assert (tmp_path / "test_one.left").read_text() == "0", "it ran once"


def test_a_lane_that_does_not_begin_fails_the_run(tmp_path: Path, repo_root: Path) -> None:
    (tmp_path / "conftest.py").write_text("raise SystemExit(3)")
    code, report = lane(tmp_path, repo_root, good=0)
    assert code != 0 and report == ""


def test_options_go_to_the_second_run_alone(tmp_path: Path, repo_root: Path) -> None:
    code, report = lane(tmp_path, repo_root, "--junitxml=second.xml", good=0, one=1)
    assert (code, report) == (0, REPORTED.format("one"))
    second = (tmp_path / "second.xml").read_text()
    assert "test_one" in second and "test_good" not in second
