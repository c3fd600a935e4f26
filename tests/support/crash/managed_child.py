"""A process to be killed: one instance of a managed application that counts records by key, each count written once.

    argv   a JSON object: log, state_dir, app, guarantee, and workers for worker processes
           `poison`: a key whose record kills the process; `raises`: one whose record raises;
           `held_s`: for how long the record of key HOLD keeps the interpreter, or (`sleeps`) its task alone
           `lease_ms`; `replicas`: standbys of a task
           `restart`: a name of RESTARTS; `discovery_ms`; `other`: it also counts in a store of that name; `replace`
           `max_tasks`; `gate`; `slow`: a task whose restore begins SLOW_S later; `grace_ms`
    exit   0 after SIGTERM

Rules of this file: the cache is off, so that each record has a result of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

import standfast as sf
from standfast.replication.offsets import TaskId, TopicPartition
from support.crash.options import use

LIFE_MAX_S = 240  # an orphan ends by itself
LEASE_MS = 1_000
HOLD = "hold"
SLOW_S = 4
RESTORED = "restored"  # begins a line: the word, task and number of records
RESTARTS = {"default": None, "never": sf.NoRestart(), "twice": sf.FixedDelay(2, 100)}


class Restores(sf.Listener):
    """Reports each restore to the test, and delays that of one task."""

    def __init__(self, slow: str | None) -> None:
        self._slow = slow

    def on_restore_start(
        self, task: TaskId, store: str, changelog: TopicPartition, start: int, end: int, reason: str
    ) -> None:
        if str(task) == self._slow:
            time.sleep(SLOW_S)

    def on_restore_end(self, task: TaskId, store: str, changelog: TopicPartition, records: int) -> None:
        print(RESTORED, task, records, file=sys.stderr, flush=True)


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.alarm(LIFE_MAX_S)
    other = settings.get("other")
    names = ["counts", *([] if other is None else [other])]
    app = sf.App(
        settings["app"],
        log=settings["log"],
        state_dir=settings["state_dir"],
        stores=[sf.KeyValueStore(name, sf.serde.string, sf.serde.int64) for name in names],
        replace=settings.get("replace", False),
        guarantee=settings["guarantee"],
        standby_replicas=settings.get("replicas", 1),
        lease_ms=settings.get("lease_ms", LEASE_MS),
        cache_max_bytes=0,
        commit_interval_ms=50,
        memory_bytes=32 << 20,
        discovery_interval_ms=settings.get("discovery_ms", 60_000),
        restart=RESTARTS[settings.get("restart", "default")],
        listeners=[Restores(settings.get("slow"))],
        max_tasks=settings.get("max_tasks"),
        restart_grace_ms=settings.get("grace_ms", 30_000),
        **{name: settings[name] for name in ("gate",) if name in settings},  # else as the options of the run say
    )
    poison, raises = settings.get("poison"), settings.get("raises")

    def passes(key: str | None, value: object) -> bool:
        if key == poison:
            print("the poison was met", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if key == HOLD:
            (time.sleep if settings.get("sleeps") else ctypes.PyDLL(None).sleep)(settings["held_s"])
            return False
        if key == raises:
            raise ValueError(f"no {key} here")
        return True

    stream = app.stream(f"{settings['app']}-in", key=sf.serde.string, value=sf.serde.bytes).filter(passes)
    stream.group_by_key().count("counts").to(f"{settings['app']}-out")
    if other is not None:
        stream.group_by_key().count(other)
    app.run(workers=settings.get("workers", 1))


if __name__ == "__main__":
    use()
    main()
