"""Fixtures for tests that run sessions on a real embedded log and real RocksDB.

Rules of this file: a `Bench` opens sessions without background threads; `settle` drives them by hand, so a test chooses
when restore, standby and take-over work happens. Leases run on a clock that only the test moves.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Log
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import ManualClock
from standfast.stream.task.task import Task

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 1_357_000_000_000
KINDS = ("kv", "win", "ses", "ver")


def four_stores(**overrides: Any) -> list[Any]:
    """One store of each kind; overrides apply to all."""
    text = sf.serde.string
    return [
        sf.KeyValueStore("kv", text, text, **overrides),
        sf.WindowStore("win", text, text, window_size_ms=HOUR_MS, retention_ms=DAY_MS, **overrides),
        sf.SessionStore("ses", text, text, retention_ms=DAY_MS, **overrides),
        sf.VersionedStore("ver", text, text, history_retention_ms=DAY_MS, **overrides),
    ]


def operate(task: Task, rng: random.Random, count: int, *, keys: int = 30) -> None:
    """Random operations on all four stores, with deletes, late rows and commits in between."""
    kv, win, ses, ver = (task.store(name) for name in KINDS)
    now_ms = START_MS
    for number in range(count):
        now_ms += rng.choice((0, 1_000, HOUR_MS))
        key, at_ms = f"k{rng.randrange(keys)}", now_ms - rng.randrange(2 * DAY_MS)
        value = None if rng.random() < 0.2 else f"v{number}"
        kv.put(key, value, now_ms)
        win.put(key, value, at_ms - at_ms % HOUR_MS, at_ms)
        ses.put(key, at_ms, at_ms + rng.randrange(HOUR_MS), value, now_ms)
        ver.put(key, value, at_ms)
        if rng.random() < 0.05:
            task.commit()
    task.commit()


def filled(partition: int, records: int) -> dict[str, str]:
    """The rows that `Bench.fill` writes for a task."""
    return {f"{number:05}": f"{partition}" for number in range(records)}


class Bench:
    """Sessions of one application over one log, each with a state directory of its own."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        self.root = root
        self.clock = clock
        self.address = f"sqlite:///{root}/log"
        self.opened: list[sf.Session] = []
        self._log: Log | None = None

    @property
    def log(self) -> Log:
        """A handle on the log for the test itself."""
        if self._log is None:
            self._log = open_log(self.address, clock=self.clock)
        return self._log

    @property
    def embedded(self) -> EmbeddedLog:
        """The log with the calls of the embedded one alone (truncate, compact)."""
        assert isinstance(self.log, EmbeddedLog)
        return self.log

    def session(self, directory: str = "a", **settings: Any) -> sf.Session:
        """Open a session; `directory` is its state directory."""
        arguments: dict[str, Any] = {
            "log": self.address,
            "state_dir": self.root / directory,
            "stores": four_stores(),
            "partitions": 2,
            "background": False,
            "clock": self.clock,
        }
        session = sf.Session("app", **{**arguments, **settings})
        self.opened.append(session)
        return session

    def active(self, directory: str = "a", partitions: tuple[int, ...] = (0,), **settings: Any) -> sf.Session:
        """Open a session that runs these partitions, restored."""
        session = self.session(directory, **settings)
        session.assign(active=partitions)
        session.wait_ready(30)
        return session

    def fill(self, stores: list[Any], tasks: int, records: int) -> None:
        """Write `filled` rows for each task into the store `kv`, by an instance that is closed afterwards."""
        first = self.session("filling", stores=stores, partitions=tasks, take_over=False)
        first.assign(active=range(tasks))
        first.wait_ready(30)
        for partition in range(tasks):
            task = first.task(partition)
            for key, value in filled(partition, records).items():
                task.store("kv").put(key, value)
            task.commit()
        first.close()

    def settle(self, *sessions: sf.Session, rounds: int = 200) -> None:
        """Drive background work until three rounds of all sessions apply nothing (a take-over needs a round)."""
        idle = 0
        for _ in range(rounds):
            self.clock.advance(100)
            idle = 0 if sum(session.poll_once() for session in sessions) else idle + 1
            if idle == 3:
                return
        raise AssertionError(f"still applying records after {rounds} rounds")

    def close(self) -> None:
        """Close every session still open."""
        for session in self.opened:
            session.close()
        if self._log is not None:
            self._log.close()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore takes several rounds, so that a test can look in between."""
    monkeypatch.setattr("standfast.restore.replay.restorer.BATCH_RECORDS_MAX", 500)


@pytest.fixture
def bench(tmp_path: Path, clock: ManualClock) -> Iterator[Bench]:
    """Sessions over one embedded log in a temporary directory."""
    bench = Bench(tmp_path, clock)
    yield bench
    bench.close()


@contextmanager
def lock_held(session: sf.Session) -> Iterator[threading.Thread]:
    """Another thread, which holds the session's lock meanwhile, as an opening of a task does."""
    holds, goes = threading.Event(), threading.Event()

    def hold() -> None:
        with session._lock:
            holds.set()
            goes.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert holds.wait(30)
        yield thread
    finally:
        goes.set()
        thread.join()
