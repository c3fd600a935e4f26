"""A user's program is checked by mypy and pyright, each in strict mode, against the wheel: types are public too.

The program has ten lines that name a possible mistake; each checker must find exactly those ten, and no other.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from repo.test_packaging import archives, installed

__all__ = ["archives", "installed"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.packaging, pytest.mark.timeout(300)]

PROGRAM = "tests/support/programs/typed/delays.py"
MISTAKE = re.compile(r"(?P<code>.*)  # mistake: (?P<this>.+) ->(?P<that>.*)")


class Programs(NamedTuple):
    """The program as it stands, the same with all mistakes, and the lines of these."""

    right: Path
    wrong: Path
    lines: list[int]


@pytest.fixture(scope="module")
def programs(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    folder = tmp_path_factory.mktemp("programs")
    text = (repo_root / PROGRAM).read_text(encoding="utf-8").splitlines()
    wrong, lines = list(text), []
    for number, line in enumerate(text, 1):
        found = MISTAKE.fullmatch(line)
        if found is not None:
            code, this, that = found["code"], found["this"], found["that"].strip()
            assert code.count(this) == 1, f"line {number}: {this!r} is not there once"
            wrong[number - 1] = code.replace(this, that)
            lines.append(number)
    (folder / "right.py").write_text("\n".join(text) + "\n")
    (folder / "wrong.py").write_text("\n".join(wrong) + "\n")
    return Programs(folder / "right.py", folder / "wrong.py", lines)


def test_program_has_ten_planted_mistakes(programs: Programs) -> None:
    assert len(programs.lines) == 10


@pytest.mark.long
def test_mypy_strict_finds_exactly_the_planted_mistakes(programs: Programs, installed: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        installed,
        "--cache-dir",
        programs.right.parent / "mypy",
    ]
    command += ["--no-error-summary", "--hide-error-context", "--config-file", "", programs.right, programs.wrong]
    done = subprocess.run(command, cwd=programs.right.parent, capture_output=True, text=True, timeout=280)
    errors = re.findall(r"^(\w+\.py):(\d+): error: ", done.stdout, re.MULTILINE)
    assert [("wrong.py", str(line)) for line in programs.lines] == errors, done.stdout + done.stderr


@pytest.mark.long
def test_pyright_strict_finds_exactly_the_planted_mistakes(programs: Programs, installed: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        installed,
        programs.right,
        programs.wrong,
    ]
    done = subprocess.run(command, cwd=programs.right.parent, capture_output=True, text=True, timeout=280)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found]
    assert [("wrong.py", line) for line in programs.lines] == errors, json.dumps(found, indent=1)
