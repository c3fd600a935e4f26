"""Kills at random moments never look like commits that a directory lost.

Rules of this file: processes really killed, at moments that a seed chooses and the machine decides.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).resolve().parents[2] / "support/crash/many_kills.py"
LIVES = 200


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_no_kill_is_taken_for_lost_commits(tmp_path: Path, guarantee: str) -> None:
    address = f"sqlite:///{tmp_path}/log"
    done = subprocess.run(
        [sys.executable, CHILD, address, tmp_path / "state", guarantee, str(LIVES), "38"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"lives {LIVES}, lost 0\n", done.stderr
