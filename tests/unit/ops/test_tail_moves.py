"""Moves of tasks between server and worker: never two owners, and a far task is restored in the worker."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from standfast.ops.sidecar.worker.moves import Holding, ProcessMoves, moves

ONE = frozenset({0})
NONE: frozenset[int] = frozenset()
RUNNING = Holding("active", "running")
FAR = 10_000


def test_without_worker_the_server_does_everything() -> None:
    assert moves(ONE, frozenset({1}), {}, None) == ProcessMoves(server_active=ONE, server_standby=frozenset({1}))


def test_new_active_task_is_opened_by_the_server() -> None:
    assert moves(ONE, NONE, {}, {}).server_active == ONE


def test_task_with_little_to_replay_stays_in_the_server() -> None:
    assert moves(ONE, NONE, {0: Holding("active", "restoring", 10)}, {}).server_active == ONE


def test_far_task_goes_to_the_worker_and_comes_back() -> None:
    given_back = moves(ONE, NONE, {0: Holding("active", "restoring", FAR)}, {})
    assert given_back.server_active == NONE and given_back.worker_active == NONE and given_back.far == ONE
    restored = moves(ONE, NONE, {}, {}, given_back)
    assert restored.worker_active == ONE and restored.server_active == NONE
    waiting = moves(ONE, NONE, {}, {0: Holding("active", "restoring", FAR)}, restored)
    assert waiting.worker_active == ONE
    whole = moves(ONE, NONE, {}, {0: RUNNING}, waiting)
    assert whole.worker_active == NONE and whole.server_active == NONE
    opened = moves(ONE, NONE, {}, {}, whole)
    assert opened.server_active == ONE
    # However much was written meanwhile, the task does not go to and fro.
    assert moves(ONE, NONE, {0: Holding("active", "restoring", FAR)}, {}, opened).server_active == ONE


def test_bare_task_begins_in_the_worker_and_comes_back() -> None:
    first = moves(ONE, NONE, {}, {}, bare=ONE)
    assert first.worker_active == ONE and first.server_active == NONE
    loading = moves(ONE, NONE, {}, {0: Holding("active", "restoring", FAR)}, first)
    assert loading.worker_active == ONE
    for end in (RUNNING, Holding("active", "failed")):
        done = moves(ONE, NONE, {}, {0: end}, loading)
        assert done.worker_active == NONE and done.tried == ONE
        # A task that the worker could not begin is bare still: the server opens it all the same.
        assert moves(ONE, NONE, {}, {}, done, bare=ONE).server_active == ONE


def test_bare_task_whose_worker_died_goes_to_the_next_worker() -> None:
    first = moves(ONE, NONE, {}, {}, bare=ONE)
    assert moves(ONE, NONE, {}, {}, first, bare=ONE).worker_active == ONE


def test_bare_task_without_a_worker_is_opened_by_the_server() -> None:
    assert moves(ONE, NONE, {}, None, bare=ONE).server_active == ONE


def test_warm_standby_is_closed_in_the_worker_before_the_server_opens_it() -> None:
    first = moves(ONE, NONE, {}, {0: Holding("standby", "standby", 3)})
    assert first.server_active == NONE and first.worker_standby == NONE
    assert moves(ONE, NONE, {}, {}, first).server_active == ONE


def test_lagging_standby_is_promoted_in_the_worker() -> None:
    assert moves(ONE, NONE, {}, {0: Holding("standby", "standby", FAR)}).worker_active == ONE


def test_running_task_that_becomes_standby_leaves_the_server_first() -> None:
    first = moves(NONE, ONE, {0: RUNNING}, {})
    assert first.server_active == NONE and first.worker_standby == NONE
    assert moves(NONE, ONE, {}, {}, first).worker_standby == ONE


def test_task_that_failed_in_the_worker_is_opened_by_the_server_which_tells_the_fault() -> None:
    first = moves(ONE, NONE, {}, {0: Holding("active", "failed")})
    assert moves(ONE, NONE, {}, {}, first).server_active == ONE


@given(st.integers(0, 2**32))
def test_no_task_is_ever_given_to_both_and_every_task_gets_where_it_belongs(seed: int) -> None:
    rng = random.Random(seed)
    server: dict[int, Holding] = {}
    worker: dict[int, Holding] = {}
    last: ProcessMoves | None = None
    active, standby = NONE, NONE
    for step in range(60):
        if step < 40 and rng.random() < 0.2:
            roles = {partition: rng.choice(("active", "standby", "none")) for partition in range(4)}
            active = frozenset(one for one, role in roles.items() if role == "active")
            standby = frozenset(one for one, role in roles.items() if role == "standby")
        if step < 40 and rng.random() < 0.05:
            worker.clear()  # it died
        last = moves(active, standby, server, worker, last)
        to_server, to_worker = last.server_active, last.worker_active | last.worker_standby
        assert not to_server & to_worker
        assert not to_server & worker.keys(), "opened here while the worker has it"
        assert not to_worker & server.keys(), "opened there while the server has it"
        server = {one: server.get(one, Holding("active", "restoring", rng.choice((0, FAR)))) for one in to_server}
        worker = {
            one: worker[one]
            if one in worker and worker[one].role == role
            else Holding(role, state, rng.choice((0, FAR)))
            for role, state, some in (
                ("active", "restoring", last.worker_active),
                ("standby", "standby", last.worker_standby),
            )
            for one in some
        }
        for held in (server, worker):
            for partition, one in held.items():
                if one.state == "restoring" and rng.random() < 0.7:
                    held[partition] = RUNNING
    assert set(server) == active and set(worker) == standby
