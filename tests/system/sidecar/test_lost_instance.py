"""A sidecar whose file INSTANCE is damaged: refused at its start, with the id that the log has for its tasks."""

from __future__ import annotations

import signal
import subprocess

import pytest

from support.serve import Sidecars

pytestmark = pytest.mark.slow


def test_sidecar_without_its_id_names_the_one_that_the_log_has(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    sidecar.declare()
    sidecar.assign(1, active=(0, 1))
    sidecar.wait_ready()
    sidecar.stop(signal.SIGKILL)
    path = sidecar.state_dir / "app" / "INSTANCE"
    former = path.read_text().strip()
    path.write_bytes(b"\xff\xfe")
    ended = subprocess.run(sidecar.command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, text=True)
    assert ended.returncode == 2
    assert f"last owner by the log: '{former}' of task 0_0, 0_1" in ended.stderr
    path.write_bytes(former.encode() + b"\n\0\0\0")
    sidecar.start()
    assert sidecar.call("GET", "/v1/status")["instance"] == former
