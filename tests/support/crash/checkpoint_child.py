"""A process to be killed: one instance of an application of two groups that makes coordinated checkpoints.

    argv   a JSON object: log, state_dir, app, source, to, every_ms and pause_ms of checkpoints, single_ms between two
           snapshots of a task, keep and storage_grace_ms of its policy, guarantee, workers
    exit   0 after SIGTERM

Rules of this file: started by path with its settings as JSON; it remembers nothing between lives.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

import standfast as sf
from support.checkpoints import stores, two_groups
from support.crash.options import use

LIFE_MAX_S = 240  # an orphan ends by itself
LEASE_MS = 1_000


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.alarm(LIFE_MAX_S)
    app = sf.App(
        settings["app"],
        log=settings["log"],
        state_dir=settings["state_dir"],
        stores=stores(),
        lease_ms=LEASE_MS,
        commit_interval_ms=50,
        cache_max_bytes=0,  # so that each record has a result of its own
        restart_grace_ms=settings.get("grace_ms", 0),
        memory_bytes=32 << 20,
        guarantee=settings.get("guarantee", "exactly_once"),
        restart=sf.FixedDelay(100, 10),  # of worker processes that the test kills
        snapshots=sf.SnapshotPolicy(
            to=settings["to"],
            keep=settings.get("keep", 1_000),  # the test looks at each of them
            every_ms=settings.get("single_ms"),
            checkpoint_every_ms=settings.get("every_ms"),
            checkpoint_pause_ms=settings.get("pause_ms", 10_000),
            grace_ms=settings.get("storage_grace_ms", 3_600_000),
        ),
    )
    two_groups(app, settings["source"], f"{settings['app']}-out")
    app.run(workers=settings.get("workers", 1))


if __name__ == "__main__":
    use()
    main()
