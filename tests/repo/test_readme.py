"""The README's promises: its programs print the output that it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import blocks

pytestmark = pytest.mark.slow


def python_blocks(repo_root: Path) -> list[str]:
    return [one.text for one in blocks(repo_root) if (one.page, one.kind) == ("README.md", "python")]


def run(program: Path) -> str:
    """The output of a program, run in its own folder."""
    folder = program.parent
    ran = subprocess.run(
        [sys.executable, program], cwd=folder, capture_output=True, text=True, timeout=60,
        env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_first_program_is_killed_and_goes_on_from_its_standby(repo_root: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(python_blocks(repo_root)[0], encoding="utf-8")
    for _ in range(2):  # readers run it more than once
        printed = run(program)
        assert printed == "{'airport': 'JFK'} {TopicPartition(topic='flights', partition=0): 4712}"
        assert printed in (repo_root / "README.md").read_text(encoding="utf-8")


def test_windows_on_the_test_driver_print_what_the_readme_says(repo_root: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(python_blocks(repo_root)[1], encoding="utf-8")
    for _ in range(2):
        printed = run(program)
        assert printed == "Windowed(key='JFK', start=0, end=60000) 2 dropped: 1"
        assert printed in (repo_root / "README.md").read_text(encoding="utf-8")
