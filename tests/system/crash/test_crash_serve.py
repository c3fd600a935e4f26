"""Kill -9 of a sidecar's server and worker at random under load: acknowledged commits are there, as one cut.

    loader ──RESP──> server ──> state + source offset        operation n of a partition is known by its number, so the
       ^                │ kill -9, server or worker          offset that is found implies the required state: the fold
       └── new server ──┘                                    of the operations below it, no more and no less

Rules of this file: it prints the seed of each run; `STANDFAST_CRASH_SEED=<seed> make crash SERVE_RUNS=32
ARGS="-k sidecar[7]"` repeats every choice, but not the moment of a kill after a delay. It takes a quarter of
SERVE_RUNS, since `test_crash_moves.py` moves tasks between two sidecars as well.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest

import standfast as sf
from standfast.replication.log import TopicPolicy
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import Fenced, InvalidRequest, NotReady, Unavailable
from support.crash.seeds import seed_of_run
from support.serve import Sidecar, Sidecars

ASKED = os.environ.get("STANDFAST_CRASH_SERVE_RUNS")
RUNS = 2 if ASKED is None else (int(ASKED) + 3) // 4
GUARANTEES = ("exactly_once", "at_least_once")
LIVES = 3
KAFKA_RUNS = (RUNS + 4) // 5  # a run on Kafka takes longer: restores and transactions go through the broker
COMMITS_BEFORE = 40  # at most, of a life before its kill
COMMITS_AFTER = 5  # of a life after its kill: it goes on until they are acknowledged
DELAY_S = 0.3  # at most, from the last of those before to the kill: in a write, a commit, an opening, a move
LIFE_S_MAX = 90.0
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
    """The rows of both stores once the operations below `offset` are done."""
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

    def __init__(self, sidecar: Sidecar, rng: random.Random, source: str, *, exactly_once: bool) -> None:
        self.sidecar = sidecar
        self.source = source
        self.exactly_once = exactly_once
        self.rng = rng
        self.acknowledged = dict.fromkeys(range(PARTITIONS), 0)
        self.attempted = dict.fromkeys(range(PARTITIONS), 0)
        self.repeated_to = dict.fromkeys(range(PARTITIONS), 0)
        self.commits = 0
        self.looks = 0
        self.killed: list[str] = []
        self._strike_at = 0
        self._struck_at: int | None = None  # commits when the kill was over
        self._strikes: list[threading.Timer] = []
        self._last_s = time.monotonic()  # of the last commit
        self.pause_s = 0.0  # the longest time without one

    def live(self) -> None:
        """Write and commit through one kill, going on after any failure, until commits are acknowledged again."""
        self._strike_at, self._struck_at = self.commits + self.rng.randrange(COMMITS_BEFORE), None
        end = time.monotonic() + LIFE_S_MAX
        refused: dict[str, int] = {}
        client = self._connect()
        try:
            self._perhaps_strike()
            while self._goes_on:
                try:
                    self._spell(client)
                except ERRORS as error:
                    refused[str(error)] = refused.get(str(error), 0) + 1
                    assert time.monotonic() < end, f"no progress: {refused}\n{self.sidecar.told()}"
                    if self.sidecar.process is not None and self.sidecar.process.poll() is not None:
                        client.close()
                        self.sidecar.start()
                        client = self._connect()
        finally:
            client.close()
            for strike in self._strikes:
                strike.join()

    @property
    def _goes_on(self) -> bool:
        return self._struck_at is None or self.commits < self._struck_at + COMMITS_AFTER

    def _perhaps_strike(self) -> None:
        """Make the kill come soon, once there are as many commits as were drawn."""
        if self.commits == self._strike_at:
            strike = threading.Timer(self.rng.uniform(0, DELAY_S), self._strike, (self.rng.random(),))
            self._strikes.append(strike)
            strike.start()

    def _strike(self, draw: float) -> None:
        self.killed.append(kill_one(self.sidecar, draw))
        self._struck_at = self.commits

    def _connect(self) -> Any:
        return sf.connect(self.sidecar.run_dir, stores=STORES, partitions=PARTITIONS)

    def _spell(self, client: Any) -> None:
        """One assignment: one partition or both are active, the rest stands by in the worker."""
        active = self.rng.choice(((0,), (1,), (0, 1)))
        client.assign(active=active, standby=[one for one in range(PARTITIONS) if one not in active])
        client.wait_ready(30)
        tasks = {one: client.task(one) for one in active}
        positions = {one: self.look(one, task) for one, task in tasks.items()}
        for _ in range(self.rng.randrange(1, 30)):
            if not self._goes_on:
                return
            partition = self.rng.choice(active)
            positions[partition] = self._batch(partition, tasks[partition], positions[partition])

    def _batch(self, partition: int, task: Any, position: int) -> int:
        kv, win = task.store("kv"), task.store("win")
        until = position + self.rng.randrange(1, BATCH)
        for number in range(position, until):
            key, value = operation(partition, number)
            kv.put(key, value, timestamp=number + 1)
            if value is not None:
                win.put(key, value, number // 100 * 1_000, timestamp=number + 1)
        self.attempted[partition] = until
        task.commit({(self.source, partition): until})
        self.acknowledged[partition] = until
        self.commits += 1
        now_s = time.monotonic()
        self.pause_s, self._last_s = max(self.pause_s, now_s - self._last_s), now_s
        self._perhaps_strike()
        return until

    def look(self, partition: int, task: Any) -> int:
        """Check that the offset is one that was tried, not below the acknowledged one, and the state is its."""
        offset = int(task.source_offsets().get((self.source, partition), 0))
        assert self.acknowledged[partition] <= offset <= self.attempted[partition]
        found = dict(task.store("kv").all())
        windows = {(key.key, key.start): value for key, value in task.store("win").all()}
        if self.exactly_once:
            assert (found, windows) == folded(partition, offset)
        elif offset >= self.repeated_to[partition]:
            # At least once the state may be ahead of the offset, by records that are then processed once more.
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
@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.long) for number in range(1, RUNS))])
def test_acknowledged_commits_survive_kills_of_the_sidecar(sidecars: Sidecars, number: int) -> None:
    guarantee = GUARANTEES[number % 2]
    crash(sidecars.start(app__guarantee=guarantee), number, "in", exactly_once=guarantee == "exactly_once")


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("number", range(KAFKA_RUNS))
def test_acknowledged_commits_survive_kills_of_the_sidecar_on_kafka(
    sidecars: Sidecars, number: int, kafka_address: str
) -> None:
    """Exactly once: the state and the group's offset are of one transaction, whichever process was killed in it."""
    app, address = f"crash-{secrets.token_hex(4)}", f"kafka://{kafka_address}"
    with closing(open_log(address)) as log:
        log.admin.create_topic(f"{app}-in", PARTITIONS, TopicPolicy())
    sidecar = sidecars.start("k", address, app, app__guarantee="exactly_once")
    crash(sidecar, number, f"{app}-in", exactly_once=True)


def crash(sidecar: Sidecar, number: int, source: str, *, exactly_once: bool) -> None:
    """One run: lives with a kill in each, then a check of everything."""
    seed = seed_of_run()
    rng = random.Random(f"{seed}-{number}")
    print(f"crash run {number} of the sidecar: STANDFAST_CRASH_SEED={seed}")
    load = Load(sidecar, rng, source, exactly_once=exactly_once)
    for _ in range(LIVES):
        load.live()
    client = sf.connect(sidecar.run_dir, stores=STORES, partitions=PARTITIONS)
    client.assign(active=range(PARTITIONS))
    client.wait_ready(60)
    for partition in range(PARTITIONS):
        load.look(partition, client.task(partition))
    client.close()
    told = f"{load.commits} commits, {load.looks} looks, longest time without a commit {load.pause_s:.1f} s"
    print(f"run {number}: {told}, killed {', '.join(load.killed)}")
    assert len(load.killed) == LIVES
    assert load.commits >= LIVES * COMMITS_AFTER


def kill_one(sidecar: Sidecar, draw: float) -> str:
    """SIGKILL the worker, or the server, also where no worker can be named; returns the one killed."""
    try:
        workers = sidecar.call("GET", "/v1/status")["workers"] if draw < 0.4 else []
        pids = [one["pid"] for one in workers if one["pid"] is not None]
    except (AssertionError, httpx.HTTPError):
        pids = []
    with suppress(ProcessLookupError):
        os.kill(pids[0] if pids else sidecar.pid, signal.SIGKILL)
    return "worker" if pids else "server"
