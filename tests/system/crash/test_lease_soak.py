"""No lease is lost beside four busy loops while a long WAL is reopened.

A few seconds and a short WAL by default; `make soak-lease` takes 10 minutes and 256 MB.

Rules of this file: a real session with the default lease; another member reads the group all the time and would see a
lease run out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from support.lease import Leases
from support.places import SUPPORT
from support.waits import until

CHILD = SUPPORT / "lease_soak_child.py"
SOAK_S = int(os.environ.get("STANDFAST_LEASE_SOAK_S", "6"))
WAL_MB = int(os.environ.get("STANDFAST_LEASE_WAL_MB", "16"))
BUSY = int(os.environ.get("STANDFAST_LEASE_BUSY", "2"))  # the lane's other processes are busy, too
END_S = 1_800


@pytest.fixture
def busy() -> Iterator[None]:
    """Loops that use all the processor time they get."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(SOAK_S + END_S)
@pytest.mark.parametrize("leases", ["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True)
def test_no_lease_is_lost_beside_busy_loops_while_a_long_wal_is_reopened(
    leases: Leases, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"app": leases.app, "log": leases.address, "state_dir": str(leases.root / "state")}
    given |= {"wal_mb": WAL_MB, "soak_s": SOAK_S}
    subprocess.run([sys.executable, str(CHILD), "prepare", json.dumps(given)], check=True, timeout=END_S)
    group = leases.log.group(leases.app)
    until(lambda: not group.view().members, "the lease of the process that prepared runs out")
    request.getfixturevalue("busy")
    process = subprocess.Popen([sys.executable, str(CHILD), "run", json.dumps(given)], stdout=subprocess.PIPE)
    while process.poll() is None:
        group.view()  # removes expired members: the session would find itself outside
        time.sleep(0.1)
    assert process.stdout is not None
    with process.stdout:
        said = json.loads(process.stdout.read())
    assert process.returncode == 0
    with capsys.disabled():
        print(f"\n{leases.address.partition(':')[0]}: {SOAK_S} s, {WAL_MB} MB of WAL beside {BUSY} busy loops: {said}")
    assert said["lost"] == {}
    assert said["rounds"] >= 1
