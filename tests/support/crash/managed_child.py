"""A process to be killed: one instance of a managed application that counts records by key, each count written once.

    argv   a JSON object: log, state_dir, app, guarantee
    exit   0 after SIGTERM

Rules of this file: the cache is off, so that each record has a result of its own.
"""

from __future__ import annotations

import json
import signal
import sys

import standfast as sf

LIFE_MAX_S = 240  # an orphan ends by itself
LEASE_MS = 1_000


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.alarm(LIFE_MAX_S)
    app = sf.App(
        settings["app"],
        log=settings["log"],
        state_dir=settings["state_dir"],
        stores=[sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)],
        guarantee=settings["guarantee"],
        placement="managed",
        standby_replicas=1,
        lease_ms=LEASE_MS,
        cache_max_bytes=0,
        commit_interval_ms=50,
        memory_bytes=32 << 20,
    )
    stream = app.stream(f"{settings['app']}-in", key=sf.serde.string, value=sf.serde.bytes)
    stream.group_by_key().count("counts").to(f"{settings['app']}-out")
    app.run()


if __name__ == "__main__":
    main()
