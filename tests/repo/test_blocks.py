"""Every Python and console block of README and docs runs, and prints what the page says.

Rules of this file: a page's blocks run in their order in one empty folder, as a reader would run them. Blocks that need
a broker or Spark name the test that runs them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import Block, blocks, commands

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = list(blocks(ROOT))
PAGES = sorted({one.page for one in BLOCKS if one.mark not in ("no-run", "tested-by")})
DEAR = ("docs/operate/instances.md", "docs/operate/snapshots.md")  # several processes each
NO_RUN_MAX = 15
BLOCK_S_MAX = 280  # within the time of a page's test; ten seconds on a quiet machine


def test_blocks_that_do_not_run_are_few_and_say_why() -> None:
    left = [one for one in BLOCKS if one.mark == "no-run"]
    assert len(left) <= NO_RUN_MAX
    assert [one for one in left if one.kind == "python" or len(one.value) < 20] == []
    assert len(BLOCKS) > 8


def test_blocks_that_another_test_runs_are_named_there() -> None:
    for one in BLOCKS:
        if one.mark == "tested-by":
            assert one.page in (ROOT / one.value).read_text(encoding="utf-8"), f"{one.value} does not name {one.page}"


def interrupted(command: list[str], folder: Path, env: dict[str, str], after_s: float) -> tuple[int, str]:
    """Exit code and output of a program that gets Ctrl-C after so long, unless it ends before."""
    running = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output = running.communicate(timeout=after_s)[0]
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGINT)
        output = running.communicate(timeout=60)[0]
    return running.returncode, output.decode()


def run_python(block: Block, folder: Path, env: dict[str, str]) -> None:
    program = folder / f"line_{block.line}.py"
    program.write_text(block.text, encoding="utf-8")
    command = [sys.executable, str(program)]
    if block.mark == "run-for":
        ended, output = interrupted(command, folder, env, float(block.value))
        if ended == -signal.SIGINT:  # it was importing still, on a busy machine
            ended, output = interrupted(command, folder, env, 8 * float(block.value))
        assert ended == 0, output
        assert "Traceback" not in output
        return
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=BLOCK_S_MAX)
    assert ran.returncode == 0, ran.stderr
    if block.prints is not None:
        assert ran.stdout.strip() == block.prints


def run_console(block: Block, folder: Path, env: dict[str, str]) -> None:
    found = list(commands(block.text))
    assert found, f"{block.page}:{block.line}: no line begins with `$ `"
    for command, shown in found:
        words = ["bash", "-c", command]
        ran = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=BLOCK_S_MAX)
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        if shown:
            assert ran.stdout == shown


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.long if page in DEAR else ()) for page in PAGES])
def test_blocks_of_the_page_run_and_print_what_it_says(page: str, tmp_path: Path) -> None:
    scripts = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "TMPDIR": str(tmp_path), "TZ": "UTC"}
    for one in BLOCKS:
        if one.page == page and one.mark not in ("no-run", "tested-by"):
            (run_python if one.kind == "python" else run_console)(one, tmp_path, env)
