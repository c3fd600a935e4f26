"""A process of `test_lease.py` and `test_lease_soak.py`: an application that counts, and prints its status.

    python support/lease_child.py '{"app": ..., "log": ..., "state_dir": ..., "guarantee": ..., settings of a session}'

    stdin    JSON, one a line: {"hold_s": N}    hold the interpreter for so long, as RocksDB or a C extension does
                               {"stick_s": N}   the next record takes so long
                               {"fork_s": N}    fork a child that lives for so long
                               {"exec_s": N}    become another program, which lives for so long
    stdout   JSON, one a line, every 50 ms while it can: see `status`

Topics: `<app>-in` is counted by key into the store `counts`, and each record's value goes on to `<app>-out`.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

import standfast as sf

LIFE_MAX_S = 900
BEAT_S = 0.05


def status(session: sf.Session, processed: int) -> dict[str, Any]:
    """The tasks that this process has and lost."""
    counters = session.counters
    return {
        "ready": session.ready,
        "roles": {str(task_id): f"{task.role} {task.state.value}" for task_id, task in session.all_tasks().items()},
        "lost": dict(counters.leases_lost),
        "gap_ms": counters.lease_gap_ms,
        "fenced": counters.fenced,
        "wipes": dict(counters.wipes),
        "promotions": counters.promotions["completed"],
        "restored": sum(counters.restored_records.values()),
        "processed": processed,
        "keeper": session._keeper.pid,
    }


def main() -> None:
    given = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.WARNING)
    signal.alarm(given.pop("life_s", LIFE_MAX_S))
    name = given.pop("app")
    app = sf.App(
        name,
        stores=[sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)],
        standby_replicas=1,
        commit_interval_ms=50,
        **given,
    )
    stick: list[float] = []
    processed = 0

    def work(value: str) -> str:
        nonlocal processed
        if stick:
            time.sleep(stick.pop())
        processed += 1
        return value

    stream = app.stream(f"{name}-in", key=sf.serde.string, value=sf.serde.string).map_values(work)
    stream.group_by_key().count("counts")
    stream.to(f"{name}-out", key=sf.serde.string, value=sf.serde.string)
    session = app.open()

    def say() -> None:
        while True:
            try:
                print(json.dumps(status(session, processed)), flush=True)
            except sf.Closed:
                return
            time.sleep(BEAT_S)

    def obey() -> None:
        sleep = ctypes.PyDLL(None).usleep  # a PyDLL call keeps the interpreter
        for line in sys.stdin:
            order = json.loads(line)
            if "hold_s" in order:
                sleep(int(order["hold_s"] * 1e6))
            if "stick_s" in order:
                stick.append(order["stick_s"])
            if "fork_s" in order and os.fork() == 0:
                time.sleep(order["fork_s"])  # it holds copies of all descriptors
                os._exit(0)
            if "exec_s" in order:
                os.execv("/bin/sleep", ["sleep", str(order["exec_s"])])

    for run in (say, obey):
        threading.Thread(target=run, daemon=True).start()
    app.run()


if __name__ == "__main__":
    main()
