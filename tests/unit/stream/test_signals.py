"""Exceptions of a real signal handler in the middle of a commit, at any moment.

    put, put, ... ── timer armed ── commit ──> it returns, or the handler's exception comes out of it
                                                    └──> reopen, in the same process ──> state = log, nothing is locked

Rules of this file: signals come from the kernel (setitimer), so no two runs are alike; the seed of the delays is
printed. The exceptions are kept, as in a debugger or an interactive session: their frames could keep locks.
"""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.applier import ChangelogApplier
from standfast.store.clock import SystemClock, measured_ns
from standfast.store.errors import Held
from support.holders import holders
from support.sessions import Bench

pytestmark = pytest.mark.slow

TEXT, INT = sf.serde.string, sf.serde.int64
SRC = TopicPartition("src", 0)
ROUNDS = 60
KEYS = 20


class Alarm(Exception):
    """The exception of an application's handler."""


class Timer:
    """Raises in the main thread after a moment, if that is still within `with timer.after(...)`."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error
        self._armed = False
        self._before = signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise self._error("the signal came")

    def arm(self, delay_us: float) -> None:
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, max(delay_us, 1) / 1_000_000)

    def disarm(self) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def close(self) -> None:
        self.disarm()
        signal.signal(signal.SIGALRM, self._before)


@pytest.fixture
def timer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Timer]:
    # A signal in a callback of the collector goes to this hook, and the commit goes on. That of pytest keeps the
    # exception, whose frame keeps its callers: with a handle on RocksDB in one of them, the directory stays locked.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    made = Timer(request.param)
    yield made
    made.close()


def stores() -> list[Any]:
    return [
        sf.KeyValueStore("counts", TEXT, INT),
        sf.WindowStore("windows", TEXT, INT, window_size_ms=1_000, retention_ms=60_000),
        sf.KeyValueStore("memory", TEXT, INT, engine="memory"),
    ]


def apply(task: Any, number: int) -> None:
    """Record `number` of the source: two stores count it, one has a row for it."""
    for name in ("counts", "memory"):
        store = task.store(name)
        store.put(f"k{number % KEYS}", (store.get(f"k{number % KEYS}") or 0) + 1, number + 1)
    task.store("windows").put("all", number, number * 100, number + 1)
    task.send("out", b"%d" % number, b"", number + 1)


def check(session: sf.Session, bench: Bench, offset: int, guarantee: str) -> None:
    """State is the log's fold, and has the first `offset` records: each once, or at least once."""
    task = session.task(0)
    counts = dict(task.store("counts").all())
    windows = sorted(number for _, number in task.store("windows").all())
    folded, written = logged(bench)
    assert counts == dict(task.store("memory").all()) == folded
    expected = {f"k{key}": len(range(key, offset, KEYS)) for key in range(min(KEYS, offset))}
    if guarantee == "exactly_once":
        assert (counts, written) == (expected, list(range(offset)))
        assert windows == list(range(offset))[-len(windows) :]
    else:
        assert all(counts[key] >= count for key, count in expected.items())
        assert set(written) >= set(range(offset))
        assert set(windows) >= set(range(max(offset - 500, 0), offset))


def logged(bench: Bench) -> tuple[dict[str, int], list[int]]:
    """The fold of the counts' changelog, and the numbers in the output."""
    changelog, out = TopicPartition("app-counts-changelog", 0), TopicPartition("out", 0)
    folded: dict[bytes, bytes | None] = {}
    written = []
    reader = bench.log.reader()
    reader.assign({changelog: 0, out: 0})
    while batches := reader.fetch(10_000):
        for batch in batches:
            if batch.source == changelog:
                folded |= {record.key or b"": record.value for record in batch.records}
            else:
                written += [int(record.key or b"-1") for record in batch.records]
    reader.close()
    return {key.decode(): INT.deserialize(value) for key, value in folded.items() if value}, written


@pytest.mark.parametrize("role", ["active", "standby"])
@pytest.mark.parametrize("step", ["stage", "write"])
def test_round_of_restoring_that_is_broken_off_passes_over_no_record(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str, role: str
) -> None:
    """Records read from the log by then, and not applied, are read again."""
    kv = [sf.KeyValueStore("kv", TEXT, TEXT)]
    bench.fill(kv, 2, 2_000)
    monkeypatch.setattr("standfast.restore.replay.restorer.BATCH_RECORDS_MAX", 100)
    session = bench.session("b", stores=kv, restore_workers=0, take_over=False)
    session.assign(**{role: [0]})
    real, count = getattr(ChangelogApplier, step), 0

    def broken(*given: Any, **settings: Any) -> Any:
        nonlocal count
        count += 1
        if count == (3 if role == "active" else 1):
            raise KeyboardInterrupt
        return real(*given, **settings)

    monkeypatch.setattr(ChangelogApplier, step, broken)
    with pytest.raises(KeyboardInterrupt):
        bench.settle(session)
    bench.clock.advance(1_000)
    bench.settle(session)
    assert session.missing() == ()
    assert len(list(session.read("kv", 0, allow_stale=True).store.all())) == 2_000


# Python drops a handler's exception within a callback of a weak reference, and goes on: so does the commit.
@pytest.mark.parametrize(
    ("timer", "guarantee", "background"),
    [
        pytest.param(error, guarantee, background, marks=() if of_each_pair else pytest.mark.long)
        for error in (Alarm, KeyboardInterrupt)
        for guarantee in ("exactly_once", "at_least_once")
        for background in (False, True)  # driven, or by threads
        # Four of eight have every pair of two values.
        for of_each_pair in [(error is Alarm) ^ (guarantee == "exactly_once") ^ background]
    ],
    indirect=["timer"],
)
def test_commit_that_a_signal_handler_breaks_off_leaves_no_lock_and_loses_nothing(
    bench: Bench, timer: Timer, guarantee: str, background: bool
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    bench.log.admin.create_topic("out", 1, TopicPolicy())
    clock = SystemClock() if background else bench.clock
    session = bench.active(stores=stores(), guarantee=guarantee, background=background, clock=clock)
    task, offset, usual_us, broken = session.task(0), 0, 500.0, 0
    kept: list[BaseException] = []
    for _ in range(ROUNDS):
        upto = offset + rng.randrange(1, 6)
        for number in range(offset, upto):
            apply(task, number)
        started_ns = measured_ns()
        try:
            timer.arm(rng.uniform(0, 1.2) * usual_us)
            if rng.random() < 0.5:
                session.commit({SRC: upto})
            else:
                task.commit({SRC: upto})
            timer.disarm()
            usual_us += 0.1 * ((measured_ns() - started_ns) / 1_000 - usual_us)
            offset = upto
            continue
        except (Alarm, KeyboardInterrupt) as error:
            timer.disarm()
            kept.append(error)
            broken += 1
        try:
            session.reopen(0)
        except Held:
            pytest.fail(f"the directory stays locked by this process:\n{holders()}")
        session.wait_ready(30)
        task = session.task(0)
        found = task.source_offsets().get(SRC, 0)
        assert found in (offset, upto)
        offset = found
        if broken % 10 == 0:
            check(session, bench, offset, guarantee)
    check(session, bench, offset, guarantee)
    assert broken > ROUNDS // 5, "the signals came too late to break anything off"
    session.close()
    again = bench.active(stores=stores(), guarantee=guarantee)
    assert again.task(0).source_offsets() == ({SRC: offset} if offset else {})
    check(again, bench, offset, guarantee)
