"""Kill -9 of a sidecar's server and worker at random under load: what a commit acknowledged is there, as one cut.

    loader ──RESP──> server ──> state + source offset        operation n of a partition is known by its number, so the
       ^                │ kill -9, server or worker          offset that is found says what the state must be: the fold
       └── new server ──┘                                    of the operations below it, no more and no less

Rules of this file: it prints the seed of each run; `STANDFAST_CRASH_SEED=<seed> make crash SERVE_RUNS=8
ARGS="-k sidecar[7]"` makes every choice again, but a kill after a delay still hits where it hits.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from typing import Any

import pytest
from fix_serve import Sidecar, Sidecars

import standfast as sf
from standfast.store.errors import Fenced, InvalidRequest, NotReady, StandfastError, Unavailable

RUNS = int(os.environ.get("STANDFAST_CRASH_SERVE_RUNS", "5"))
GUARANTEES = ("exactly_once", "at_least_once")
LIVES = 4
LIFE_S = (0.3, 1.6)
KEYS = 40
BATCH = 25
PARTITIONS = 2
STORES = [
    sf.KeyValueStore("kv", sf.serde.string, sf.serde.int64),
    sf.WindowStore("win", sf.serde.string, sf.serde.int64, window_size_ms=1_000, retention_ms=3_600_000),
]
ERRORS = (Unavailable, Fenced, NotReady, InvalidRequest)


def operation(partition: int, number: int) -> tuple[str, int | None]:
    """Operation `number` of a partition: a key and its new value."""
    rng = random.Random(partition * 1_000_003 + number)
    return f"k{rng.randrange(KEYS)}", None if rng.random() < 0.1 else number


def folded(partition: int, offset: int) -> tuple[dict[str, int], dict[tuple[str, int], int]]:
    """What both stores hold once the operations below `offset` are done."""
    keys: dict[str, int] = {}
    windows: dict[tuple[str, int], int] = {}
    for number in range(offset):
        key, value = operation(partition, number)
        if value is None:
            keys.pop(key, None)
        else:
            keys[key] = value
            windows[key, number // 100 * 1_000] = value
    return keys, windows


class Load:
    """One application over its sidecar, which is killed from time to time."""

    def __init__(self, sidecar: Sidecar, rng: random.Random, *, exactly_once: bool) -> None:
        self.sidecar = sidecar
        self.exactly_once = exactly_once
        self.rng = rng
        self.acknowledged = dict.fromkeys(range(PARTITIONS), 0)
        self.attempted = dict.fromkeys(range(PARTITIONS), 0)
        self.repeated_to = dict.fromkeys(range(PARTITIONS), 0)
        self.commits = 0
        self.looks = 0

    def live(self, seconds: float) -> None:
        """Write and commit until the time is over, going on after whatever fails."""
        end = time.monotonic() + seconds
        client = self._connect()
        try:
            while time.monotonic() < end:
                try:
                    self._spell(client, end)
                except ERRORS:
                    if self.sidecar.process is not None and self.sidecar.process.poll() is not None:
                        client.close()
                        self.sidecar.start()
                        client = self._connect()
        finally:
            client.close()

    def _connect(self) -> Any:
        return sf.connect(self.sidecar.run_dir, stores=STORES, partitions=PARTITIONS)

    def _spell(self, client: Any, end: float) -> None:
        """One assignment: one partition or both are active, the rest stands by in the worker."""
        active = self.rng.choice(((0,), (1,), (0, 1)))
        client.assign(active=active, standby=[one for one in range(PARTITIONS) if one not in active])
        client.wait_ready(30)
        tasks = {one: client.task(one) for one in active}
        positions = {one: self.look(one, task) for one, task in tasks.items()}
        for _ in range(self.rng.randrange(1, 30)):
            if time.monotonic() >= end:
                return
            partition = self.rng.choice(active)
            positions[partition] = self._batch(partition, tasks[partition], positions[partition])

    def _batch(self, partition: int, task: Any, position: int) -> int:
        kv, win = task.store("kv"), task.store("win")
        until = position + self.rng.randrange(1, BATCH)
        for number in range(position, until):
            key, value = operation(partition, number)
            kv.put(key, value, timestamp=number)
            if value is not None:
                win.put(key, value, number // 100 * 1_000, timestamp=number)
        self.attempted[partition] = until
        task.commit({("in", partition): until})
        self.acknowledged[partition] = until
        self.commits += 1
        return until

    def look(self, partition: int, task: Any) -> int:
        """The offset that is there is one that was tried, not below what was acknowledged, and the state is its."""
        offset = int(task.source_offsets().get(("in", partition), 0))
        assert self.acknowledged[partition] <= offset <= self.attempted[partition]
        found = dict(task.store("kv").all())
        windows = {(key.key, key.start): value for key, value in task.store("win").all()}
        if self.exactly_once:
            assert (found, windows) == folded(partition, offset)
        elif offset >= self.repeated_to[partition]:
            # At least once the state may be ahead of the offset, by what is then processed once more.
            ahead = [
                at for at in range(offset, self.attempted[partition] + 1) if folded(partition, at) == (found, windows)
            ]
            assert ahead, f"the state is of no offset from {offset} to {self.attempted[partition]}"
            self.repeated_to[partition] = self.attempted[partition]
        self.acknowledged[partition] = self.attempted[partition] = offset
        self.looks += 1
        return offset


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_acknowledged_commits_survive_kills_of_the_sidecar(sidecars: Sidecars, number: int) -> None:
    seed = int(os.environ.get("STANDFAST_CRASH_SEED", "0")) or secrets.randbits(32)
    rng = random.Random(f"{seed}-{number}")
    print(f"crash run {number} of the sidecar: STANDFAST_CRASH_SEED={seed}")
    guarantee = GUARANTEES[number % 2]
    sidecar = sidecars.start(app__guarantee=guarantee)
    load = Load(sidecar, rng, exactly_once=guarantee == "exactly_once")
    for _ in range(LIVES):
        strike = threading.Timer(rng.uniform(*LIFE_S), kill_one, (sidecar, rng.random()))
        strike.start()
        load.live(LIFE_S[1] + 0.6)
        strike.join()
        if sidecar.process is not None and sidecar.process.poll() is not None:
            sidecar.start()
    client = sf.connect(sidecar.run_dir, stores=STORES, partitions=PARTITIONS)
    client.assign(active=range(PARTITIONS))
    client.wait_ready(30)
    for partition in range(PARTITIONS):
        load.look(partition, client.task(partition))
    client.close()
    print(f"run {number}: {load.commits} commits, {load.looks} looks")
    assert load.looks >= PARTITIONS  # on a busy machine a life may end before its first commit


def kill_one(sidecar: Sidecar, draw: float) -> None:
    """SIGKILL the server, or its worker."""
    try:
        workers = sidecar.call("GET", "/v1/status")["workers"] if draw < 0.4 else []
        pids = [one["pid"] for one in workers if one["pid"] is not None] or [sidecar.pid]
        os.kill(pids[0], signal.SIGKILL)
    except (AssertionError, ProcessLookupError, OSError, StandfastError):
        return
