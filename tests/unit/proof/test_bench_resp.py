"""The benchmark of the RESP server runs, and its figures are there. Its speed is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.long
def test_small_run_measures_sets_gets_and_a_restore(repo_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "server.json"
    command = [
        sys.executable,
        repo_root / "proof/benchmarks/resp.py",
        "--rounds",
        "1",
        "--sets",
        "4000",
        "--singles",
        "100",
    ]
    command += ["--restore", "20000", "--partitions", "2", "--json", out, "--core", "0", "--client-core", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert document["schema"] == "standfast.bench-door/1"
    ours = document["median_least_most"]["standfast"]
    assert {"sets", "sets-spread", "gets", "get", "get-sets", "get-large", "get-restore", "memory"} == set(ours)
    for figures in ours.values():
        assert all(least <= median <= most for median, least, most in figures.values())
    assert ours["sets"]["per_s"][0] > 0
