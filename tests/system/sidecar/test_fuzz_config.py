"""A fuzzer of settings: files, flags and environments that are nearly right, in a process of its own.

See support.fuzz.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.fuzz import FUZZ_S, SEED, TIMEOUT, fuzzes, seeded
from support.places import SUPPORT, TESTS

pytestmark = [pytest.mark.slow, fuzzes]
WHOLE_MIB = 200  # for a process that also imports the command line


def test_settings_may_be_anything(tmp_path: Path) -> None:
    seeded("config")
    child = SUPPORT / "config_fuzz_child.py"
    command = [sys.executable, "-P", str(child), str(tmp_path), str(SEED), str(FUZZ_S)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(TESTS), "LANG": "C.UTF-8"}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    peak = found["peak_mib"]
    print(f"fuzz config: {found['rounds']} rounds in {FUZZ_S:.0f} s, codes {found['codes']}, {peak:.0f} MiB at most")
    assert found["wrong"] == ""
    assert "Traceback" not in done.stderr, done.stderr
    assert peak < WHOLE_MIB
    assert {"0", "78"} <= set(found["codes"]), "some are right, and some are refused"
