"""An owner of a store without a log that is killed at many random moments, each life a fork of one process.

    python tests/support/crash/many_kills.py LOG STATE_DIR GUARANTEE LIVES SEED

    stdout   lives N, lost N    N lives ended by kill, N openings that refused or lacked rows (0)

Rules of this file: nothing is open in the process that forks.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

import standfast as sf
from standfast.replication.embedded import log as embedded_log
from standfast.stream.session.session import Session

LOADED = embedded_log.EmbeddedLog  # before the first fork: loading it in each life took most of its time
TEXT = sf.serde.string
STORES = [sf.KeyValueStore("kv", TEXT, TEXT), sf.KeyValueStore("plain", TEXT, TEXT, logging=False)]
SRC: tuple[str, int] = ("src", 0)
EXIT_LOST = 3
ALIVE_MAX_S = 60


def live(log: str, state_dir: str, guarantee: Any, ready: int) -> None:
    """Open, check the rows, and commit until the kill."""
    signal.alarm(ALIVE_MAX_S)
    session = Session("app", log=log, state_dir=state_dir, stores=STORES, guarantee=guarantee, partitions=1,
                      background=False, lease_ms=60_000)  # fmt: skip
    session.assign(active=[0])
    session.wait_ready(30)
    task = session.task(0)
    at = task.source_offsets().get(sf.TopicPartition(*SRC), 0)
    have = {name: {key for key, _ in task.store(name).all()} for name in ("kv", "plain")}
    wanted = {f"{number:06}" for number in range(at)}
    # A kill between the log's transaction and the batch of the directory costs rows that no log has: of one commit.
    if not wanted <= have["kv"] or (guarantee == "at_least_once" and not wanted <= have["plain"]):
        raise SystemExit(EXIT_LOST)
    os.write(ready, b"!")
    while True:
        for store in ("kv", "plain"):
            task.store(store).put(f"{at:06}", "v")
        at += 1
        task.commit({SRC: at})


def main(log: str, state_dir: str, guarantee: str, lives: int, seed: int) -> None:
    rng = random.Random(seed)
    lost = killed = 0
    for _ in range(lives):
        heard, ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(heard)
            try:
                live(log, state_dir, guarantee, ready)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(EXIT_LOST)
        os.close(ready)
        # Now and then in the middle of an opening, else between the steps of a commit.
        if rng.random() < 0.8:
            os.read(heard, 1)
        time.sleep(rng.random() * 0.02)
        os.kill(pid, signal.SIGKILL)
        os.close(heard)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            lost += 1
        else:
            killed += 1
    print(f"lives {killed}, lost {lost}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
