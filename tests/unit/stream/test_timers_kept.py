"""Timers over restarts, failovers and take-overs, and against a sorted list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import standfast as sf
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.task_stores import TaskStores
from standfast.stream.runtime.timers import NEVER, Timers
from support.apps import Drive, Running, create, text_of, write, written
from support.sessions import Bench
from support.timers import Timed, ask, at

TEXT = sf.serde.string
EVENT = sf.EVENT_TIME


# --- survival ---


def test_timers_survive_a_restart(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app, 1_000)
    ask(driver, "set", "a", 100, 200)
    ask(driver, "set", "w", 1_500, kind="wall")
    at(driver, 100)
    driver.restart()
    driver.advance_wall_clock(500)
    at(driver, 200)
    assert timed.fired == [("a", 100), ("w", 1_500), ("a", 200)]
    driver.restart()
    at(driver, 300)
    assert len(timed.fired) == 3


def declared(timed: Timed) -> Callable[[sf.App], None]:
    return lambda app: timed.declare(app)


def test_timers_survive_a_failover_to_another_directory(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("a", '["set", 100, "kept", "event"]', 0), ("a", '["set", 50, "fired", "event"]', 0))
    write(bench, "in", ("a", '["set", 70, "gone", "event"]', 0), ("a", '["cancel", 70, "gone", "event"]', 0))
    write(bench, "in", ("time", "null", 51))
    timed = Timed()
    one = Running(bench, declared(timed), watermark_interval_ms=0)
    one.run()
    one.commit()
    write(bench, "in", ("a", '["set", 80, "uncommitted", "event"]', 60), ("time", "null", 101))
    one.run()
    assert timed.fired == [("fired", 50), ("uncommitted", 80), ("kept", 100)]
    one.close()  # without a commit
    other = Running(bench, declared(timed), "b", watermark_interval_ms=0)
    assert len(other.rows("Timing-timers")) == 1
    timed.fired.clear()
    other.run()
    other.commit()
    assert timed.fired == [("uncommitted", 80), ("kept", 100)]
    assert [value for _, value, _ in text_of(written(bench, "out"))] == ['"fired@50"', '"uncommitted@80"', '"kept@100"']


def test_standby_that_takes_over_fires_the_timers_that_were_left(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("a", '["set", 100, "a", "event"]', 0))
    timed = Timed()
    one = Running(bench, declared(timed), watermark_interval_ms=0, standby_replicas=1)
    other = Running(bench, declared(timed), "b", settle=False, watermark_interval_ms=0, standby_replicas=1)
    bench.settle(one.session, other.session)
    one.run()
    one.commit()
    bench.settle(one.session, other.session)
    one.close()
    bench.settle(other.session)
    write(bench, "in", ("time", "null", 101))
    other.run()
    assert timed.fired == [("a", 100)]


# --- against a sorted list ---

TIMES = st.integers(0, 12)
KEYS = st.sampled_from(["", "a", "b", "ab"])
COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), TIMES, KEYS),
        st.tuples(st.just("cancel"), TIMES, KEYS),
        st.tuples(st.just("at"), TIMES, st.none()),
        st.tuples(st.just("restart"), st.none(), st.none()),
    ),
    max_size=25,
)
REACTIONS = st.dictionaries(KEYS, st.tuples(st.sampled_from(["set", "cancel"]), st.integers(-3, 4), KEYS), max_size=2)


class Model:
    """Timers as a set of (time, key), and the clock."""

    def __init__(self, reactions: dict[str, tuple[str, int, str]]) -> None:
        self.pending: set[tuple[int, str]] = set()
        self.fired: list[tuple[str, int]] = []
        self.clock = -1
        self.reactions = reactions

    def act(self, what: str, time_ms: int, key: str) -> None:
        (self.pending.add if what == "set" else self.pending.discard)((time_ms, key))

    def advance(self, to_ms: int) -> None:
        if to_ms <= self.clock:
            return
        self.clock = to_ms
        while due := sorted(one for one in self.pending if one[0] <= to_ms):
            time_ms, key = due[0]
            self.pending.remove(due[0])
            self.fired.append((key, time_ms))
            if key in self.reactions and len(self.fired) < 50:
                what, delta, other = self.reactions[key]
                self.act(what, max(time_ms + delta, 0), other)


def memory_stores() -> TaskStores:
    rows = sf.KeyValueStore("timers", sf.serde.bytes, sf.serde.bytes, engine="memory")
    return TaskStores(Path("unused"), "app", "0_0", [rows], RocksShared(1 << 20), now_ms=lambda: 0)


@given(commands=COMMANDS, reactions=REACTIONS)
def test_timers_behave_as_a_sorted_list(commands: list[Any], reactions: dict[str, Any]) -> None:
    model, stores = Model(reactions), memory_stores()
    fired: list[tuple[str, int]] = []

    def fire(timer: sf.Timer) -> None:
        fired.append((timer.key, timer.time))
        if timer.key in reactions and len(fired) < 50:
            what, delta, other = reactions[timer.key]
            (timers.set if what == "set" else timers.cancel)(other, max(timer.time + delta, 0), EVENT)

    timers = Timers(stores.store("timers"), TEXT, fire, "here")
    for what, time_ms, key in commands:
        if what == "at":
            if time_ms > model.clock:  # a watermark only ever goes on
                timers.fire(EVENT, time_ms)
            model.advance(time_ms)
        elif what == "restart":
            stores.commit(stores.cut)
            timers = Timers(stores.store("timers"), TEXT, fire, "here")
        else:
            model.act(what, time_ms, key)
            (timers.set if what == "set" else timers.cancel)(key, time_ms, EVENT)
        earliest = min((pending for pending, _ in model.pending), default=NEVER)
        assert timers.next_ms(EVENT) <= earliest
    assert fired == model.fired
