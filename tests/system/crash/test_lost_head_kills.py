"""Kill -9 while state that has not read a removed head gives way to a snapshot: every row is there again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from standfast.restore.verify.at_rest import open_task
from support.lost_head import ROWS, behind_with_snapshot
from support.sessions import Bench

CHILD = """
import sys
import standfast as sf
from standfast.store.clock import ManualClock
stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
policy = sf.SnapshotPolicy(to=sys.argv[3])
session = sf.Session("app", log=sys.argv[1], state_dir=sys.argv[2], stores=stores, partitions=2, background=False,
                     snapshots=policy, clock=ManualClock(int(sys.argv[4])))
session.assign(active=[0])
session.wait_ready(60)
session.close()
"""
PLACES = ("opener.exchanged", "snapshot.download", "snapshot.fetched", "snapshot.placed", "restore.apply")
pytestmark = [pytest.mark.crash, pytest.mark.slow]


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_on_the_way_to_the_snapshot_loses_no_row(bench: Bench, place: str) -> None:
    settings = behind_with_snapshot(bench)
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            CHILD,
            bench.address,
            str(bench.root / "b"),
            settings["snapshots"].to,
            str(bench.clock.wall_ms()),
        ],
        env={**os.environ, "STANDFAST_FAILPOINT": f"{place}=kill:1"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()

    again = bench.active("b", **settings)
    with again.task(0).store("kv").all() as found:
        assert [key for key, _ in found] == [f"{number:05}" for number in range(ROWS + 20)]
    # The state from before, whole, for a person.
    (kept,) = (again.state_path / ".kept").glob("*/0_0/CURRENT")
    with open_task(kept.parent) as engine, engine.scan("kv") as rows:
        assert sum(1 for _ in rows) == ROWS
