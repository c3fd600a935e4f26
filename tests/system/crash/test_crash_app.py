"""Kill -9 of whole applications: the results equal an uninterrupted run, whichever process finished it.

    input, a part at a time ──> child (support/crash/app_child.py) ──SIGKILL──> same directory, another, or the standby
    ...
                                                                              │ all processed and committed
                              outputs, stores, changelogs, offsets  <─────────┘  == plain loops
                              (support/crash/app_oracle.py)

In half of the runs one step keeps a store without a changelog: a row for each click that was committed in a directory.
In some a byte of a directory is flipped between two lives.

Rules of this file: it prints the seed of each run; the run's number gives story, place and guarantee. To repeat run 7:
`STANDFAST_CRASH_SEED=<seed> make crash APP_RUNS=8 ARGS="-k application[7]"`. That repeats every choice, but not the
moment of a kill after a delay.
"""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.crash.app_child import LIFE_MAX_S
from support.crash.app_oracle import Expected, Outputs, Row, Stores, compare, expect, make_inputs
from support.crash.app_run import LEASE_MS, MAX_STALL_MS, NO_STRIKE, AppCrash, Strike
from support.crash.seeds import seed_of_run
from support.groups import costly

DAMAGED = 0.4  # how often a byte is flipped where a story may do so
RUNS = int(os.environ.get("STANDFAST_CRASH_APP_RUNS", "1"))
# Where the first process of a run ends: (failpoint, place in the application, at most so many times before).
PLACES = (
    ("", "add", 900),
    ("commit.flushed", "", 25),
    ("commit.logged", "", 25),
    ("", "timer", 150),
    ("commit.local", "", 25),
    ("", "emit", 400),
    ("", "tick", 12),
    ("", "final", 120),
    ("engine.written", "", 40),
    ("", "board", 30),
    ("stores.dropped", "", 6),
)


# -- stories: `end` kills the first process at its place ---------------------------------------------------------------


def restarted(crash: AppCrash, failpoint: str, strike: Strike) -> None:
    """The same directory, life after life."""
    crash.feed(0.2)
    crash.kill_once("a", 0.5, failpoint, strike)
    for _ in range(crash.random.randrange(1, 4)):
        perhaps_damage(crash, "a")
        crash.kill_once("a", 0.8)
    perhaps_damage(crash, "a")
    crash.finish("a")


def taken_over(crash: AppCrash, failpoint: str, strike: Strike) -> None:
    """The standby takes over from the killed one, is killed itself, and the first one takes over again."""
    with crash.life("a", failpoint, strike) as first:
        crash.wait_until_ready(first)
        crash.feed(0.05)
        with crash.life("b") as second:
            crash.wait_until_ready(second)
            crash.feed(0.2)
            crash.end(first, 0.5, struck=True)
            time.sleep(crash.random.uniform(0, 2) * LEASE_MS / 1_000)
            perhaps_damage(crash, "a")
            with crash.life("a") as third:
                if crash.random.random() < 0.7:
                    crash.wait_until_ready(third)
                crash.end(second, 0.8, struck=False)
                crash.finish_with([third])


def moved(crash: AppCrash, failpoint: str, strike: Strike) -> None:
    """An empty directory goes on, and then the first one again with its old state."""
    crash.feed(0.2)
    crash.kill_once("a", 0.4, failpoint, strike)
    crash.kill_once("b", 0.7, failpoint, strike)
    perhaps_damage(crash, "a")
    crash.finish("a")


def failed(crash: AppCrash, failpoint: str, strike: Strike) -> None:
    """One task fails and is reopened while the others go on; then kills."""
    crash.feed(0.2)
    crash.fail_once("a", 0.4, crash.random.choice(("timer", "board", "tick")), crash.random.randrange(1, 8))
    crash.kill_once("a", 0.8, failpoint, strike)
    perhaps_damage(crash, "a")
    with crash.life("a", strike=("board", 3, "raise")) as last:
        crash.finish_with([last])


def frozen(crash: AppCrash, failpoint: str, strike: Strike) -> None:
    """The owner stalls until its standby has taken over, and goes on with its pending records: it is refused."""
    with crash.life("a") as first:
        crash.wait_until_ready(first)
        crash.feed(0.2)
        with crash.life("b", failpoint, strike) as second:
            crash.wait_until_ready(second)
            for _ in range(crash.random.randrange(8)):
                crash.trickle(0.4)
            crash.freeze(first)
            time.sleep((2 * LEASE_MS + MAX_STALL_MS) / 1_000)
            for _ in range(crash.random.randrange(20)):
                crash.trickle(0.6)
            first.process.send_signal(signal.SIGCONT)
            crash.end(second, 0.8, struck=True)
            crash.finish_with([first])


def raced(crash: AppCrash, failpoint: str, strike: Strike) -> None:
    """Three processes begin at once with empty directories; two take over from the third, and one of these stalls.

    Each of them loses tasks to another one, and goes on.
    """
    crash.standbys = 2
    with crash.life("a", failpoint, strike) as first, crash.life("b") as second, crash.life("c") as third:
        crash.wait_until_ready(first)
        crash.wait_until_ready(second)
        crash.wait_until_ready(third)
        crash.feed(0.2)
        crash.end(first, 0.5, struck=True)
        for _ in range(crash.random.randrange(60)):
            crash.trickle(0.6)
        crash.freeze(second)
        time.sleep((2 * LEASE_MS + MAX_STALL_MS) / 1_000)
        second.process.send_signal(signal.SIGCONT)
        perhaps_damage(crash, "a")
        with crash.life("a") as again:
            for _ in range(crash.random.randrange(20)):
                crash.trickle(0.8)
            crash.finish_with([second, third, again])


def perhaps_damage(crash: AppCrash, directory: str) -> None:
    """Flip a byte of a directory that no process has open, in some of the runs."""
    if crash.random.random() < DAMAGED:
        crash.damage(directory)


STORIES: tuple[Callable[[AppCrash, str, Strike], None], ...] = (taken_over, restarted, failed, moved, frozen, raced)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_killed_application_gives_what_an_uninterrupted_one_gives(tmp_path: Path, number: int) -> None:
    seed = seed_of_run()
    crash = AppCrash(tmp_path, seed, "at_least_once" if number % 7 == 3 else "exactly_once")
    failpoint, place, most = PLACES[number % len(PLACES)]
    times = crash.random.randint(1, most)
    story = STORIES[number % len(STORIES)]
    head = f"run {number}: seed {seed}, {crash.guarantee}, {story.__name__} at {failpoint or place} #{times}"
    print(f"{head}, cache {crash.cached}, unlogged {crash.unlogged}", end="", flush=True)
    started = time.monotonic()
    story(crash, f"{failpoint}=kill:{times}" if failpoint else "", (place, times, "kill") if place else NO_STRIKE)
    crash.check()
    print(
        f": {crash.kills} kills in {crash.lives} lives ({crash.met} there), {crash.outputs} outputs and {crash.rows} "
        f"rows compared, {len(crash.damages)} damages that cost {crash.lost} stores, 0 differences, "
        f"{time.monotonic() - started:.1f} s"
    )


@pytest.mark.slow
@pytest.mark.parametrize("cached", [True, pytest.param(False, marks=pytest.mark.long)])
def test_uninterrupted_application_gives_what_the_oracle_says(tmp_path: Path, cached: bool) -> None:
    crash = AppCrash(tmp_path, 5, "exactly_once", records=400, cached=cached)
    crash.finish("a")
    crash.check()
    assert crash.outputs > (500 if cached else 1_000)  # a cache gives fewer updates, the fewer commits there are
    assert LIFE_MAX_S > 60


# -- the proof that the harness can fail -------------------------------------------------------------------------------

EXACT = ("finals", "alarms", "late", "dead", "boards", "order-finals", "order-sessions")


def planted(expected: Expected, guarantee: str, change: Callable[[Outputs, Stores], None]) -> list[str]:
    """The problems reported of a run with the expected results but for this change."""
    outputs, stores = copy.deepcopy(dict(expected.outputs)), copy.deepcopy(dict(expected.stores))
    change(outputs, stores)
    return compare(expected, outputs, stores, guarantee, cached=True)


@pytest.fixture(scope="module")
@costly()
def expected() -> Expected:
    return expect(make_inputs(11, 400))


def test_input_brings_every_kind_of_output_and_row(expected: Expected) -> None:
    assert {topic for (topic, _), rows in expected.outputs.items() if len(rows) > 2} == {
        *EXACT, "updates", "visits", "totals"
    }  # fmt: skip
    assert all(rows for rows in expected.stores.values())
    assert {name for row in expected.outputs["alarms", 0] for name in row.value} == {"alarm", "retired", "count"}


def test_run_as_expected_is_not_reported(expected: Expected) -> None:
    for guarantee in ("exactly_once", "at_least_once"):
        assert planted(expected, guarantee, lambda outputs, stores: None) == []


@pytest.mark.parametrize(
    "topic", [pytest.param(one, marks=() if one in ("dead", "finals") else pytest.mark.long) for one in EXACT]
)
def test_missing_doubled_changed_or_swapped_result_is_reported(expected: Expected, topic: str) -> None:
    def drop(outputs: Outputs, _stores: Stores) -> None:
        del outputs[topic, 1][2]

    def double(outputs: Outputs, _stores: Stores) -> None:
        outputs[topic, 1].append(outputs[topic, 1][2])

    def other_header(outputs: Outputs, _stores: Stores) -> None:
        outputs[topic, 1][2] = outputs[topic, 1][2]._replace(headers=(("by", b"nobody"),))

    def swap(outputs: Outputs, _stores: Stores) -> None:
        rows = outputs[topic, 1]
        rows[0], rows[1] = rows[1], rows[0]

    for change in (drop, double, other_header, swap):
        said = planted(expected, "exactly_once", change)
        assert len(said) == 1 and f"{topic}-1" in said[0], change
    assert f"{topic}-1" in planted(expected, "at_least_once", drop)[0]


def test_stale_doubled_or_unordered_update_is_reported(expected: Expected) -> None:
    def last_gone(outputs: Outputs, _stores: Stores) -> None:
        outputs["updates", 0].pop()

    def doubled(outputs: Outputs, _stores: Stores) -> None:
        rows = outputs["updates", 0]
        rows.append(rows[-1])

    def too_high(outputs: Outputs, _stores: Stores) -> None:
        rows = outputs["totals", 0]
        rows[-1] = rows[-1]._replace(value=rows[-1].value + 1)

    for change in (last_gone, doubled, too_high):
        assert len(planted(expected, "exactly_once", change)) == 1, change
    assert len(planted(expected, "at_least_once", last_gone)) == 1


@pytest.mark.parametrize(
    "name",
    [
        "hops",
        "totals",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("sessions", "seen", "watcher-timers", "board")),
    ],
)
def test_lost_changed_or_left_over_row_is_reported(expected: Expected, name: str) -> None:
    def lose(_outputs: Outputs, stores: Stores) -> None:
        rows = stores[name, 0]
        del rows[next(iter(rows))]

    def change(_outputs: Outputs, stores: Stores) -> None:
        rows: dict[Any, Any] = stores[name, 0]
        rows[next(iter(rows))] = "other"

    def leave(_outputs: Outputs, stores: Stores) -> None:
        stores[name, 0]["left over"] = [1]

    for fault in (lose, change, leave):
        said = planted(expected, "exactly_once", fault)
        assert len(said) == 1 and f"store {name}-0" in said[0], fault
    assert len(planted(expected, "at_least_once", lose)) == 1


@pytest.mark.slow
def test_row_changed_and_result_added_behind_the_application_are_reported(tmp_path: Path) -> None:
    crash = AppCrash(tmp_path, 6, "exactly_once", records=60)
    crash.finish("a")
    outputs = crash.read_outputs()
    stores, _, found = crash.restore("a")
    assert crash.problems(outputs, stores) == found == []
    outputs["alarms", 0].append(Row("c0", {"alarm": 1, "count": 1}, 1))
    stores["seen", 1]["c9"] = [0, 0, 0]
    said = crash.problems(outputs, stores)
    assert any("alarms-0" in one for one in said) and any("store seen-1" in one for one in said)
