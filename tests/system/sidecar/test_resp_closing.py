"""A task is closed or moved: connections bound to it read, write and commit no more, and get FENCED."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.groups import costly
from support.resp import Client, Desk
from support.serve import KEYVALUE, Sidecar, Sidecars, wait_for

REQUESTS: tuple[tuple[Any, ...], ...] = (
    ("GET", "a"),
    ("MGET", "a", "b"),
    ("EXISTS", "a"),
    ("SCAN", 0),
    ("DBSIZE",),
    ("SET", "a", "2"),
    ("SET", "a", "2", "NX"),
    ("DEL", "a"),
    ("GETDEL", "a"),
    ("SF.GET", "kv", "a"),
    ("SF.RANGE", "kv", "", ""),
    ("SF.PUT", "kv", "a", "2"),
    ("SF.TIME",),
    ("SF.TIME", 5),
    ("SF.COMMIT",),
    ("SF.COMMIT", "SEQ", 9, "OFFSETS", "in", 0, 7),
)
OTHER_KINDS: tuple[tuple[Any, ...], ...] = (
    ("SF.WPUT", "win", "k", 0, "v"),
    ("SF.WGET", "win", "k", 0),
    ("SF.WFETCH", "win", "k", 0, 9),
    ("SF.SPUT", "ses", "k", 0, 9, "v"),
    ("SF.SFETCH", "ses", "k"),
    ("SF.VPUT", "ver", "k", "v"),
    ("SF.VGET", "ver", "k"),
)


# -- the engine -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [False, True])
def test_whoever_is_bound_to_a_task_that_goes_is_fenced_in_everything(desk: Desk, written: bool) -> None:
    bound, busy = desk.talk(), desk.talk()
    assert bound("GET", "a") is None
    if written:
        busy("SET", "a", "1")
    desk.engine.discard(0, "the task is closed here")
    for request in (*REQUESTS, *OTHER_KINDS):
        assert bound.refused(*request).startswith("FENCED partition 0: the task is closed here"), request
    assert str(bound.exec(("GET", "a"))).startswith("FENCED")
    assert str(bound.exec(("SET", "a", "2"), ("SF.COMMIT", "SEQ", 1))).startswith("FENCED")
    assert not desk.session.task(0).stores.buffer.rows
    assert desk.talk(partition=1)("SET", "a", "1") == b"OK", "the other task is not touched"


def test_fenced_stays_the_answer_when_the_task_is_gone_until_the_connection_binds_anew(desk: Desk) -> None:
    bound, unbound = desk.talk(), desk.talk()
    assert bound("GET", "a") is None
    desk.engine.discard(0, "the task is closed here")
    desk.session.assign(active=[1])
    for request in REQUESTS:
        assert bound.refused(*request).startswith("FENCED"), request
        assert unbound.refused(*request).startswith("NOTASSIGNED"), request
    assert bound("SELECT", 0) == b"OK"
    assert bound.refused("GET", "a").startswith("NOTASSIGNED")


def test_closing_comes_before_the_commits_that_wait(desk: Desk) -> None:
    """Else a waiting commit would begin, and the task would be closed under it."""
    first, second = desk.talk(), desk.talk()
    first("SET", "a", "1")
    second("SET", "b", "2")
    desk.hold = True
    first.send("SF.COMMIT", "SEQ", 1)
    second.send("SET", "b", "3")
    second.send("SF.COMMIT", "SEQ", 2)
    closed = []

    def closing() -> None:
        closed.append(desk.engine.statistics().committing)
        desk.engine.discard(0, "the task is closed here")

    desk.engine.when_free(0, closing)
    assert (closed, first.replies(), second.replies()) == ([], [], [])
    desk.release()
    first.run()
    second.run()
    assert closed == [0]
    assert first.replies() == [[1, 1, 2]], "what was in the commit that ran is acknowledged"
    assert [str(reply).split()[0] for reply in second.replies()] == ["FENCED", "FENCED"]
    assert not desk.held


# -- the process ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
@costly()
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """One sidecar for all ways in which a task leaves."""
    made = Sidecars(tmp_path_factory.mktemp("closing"))
    sidecar = made.start()
    sidecar.declare([KEYVALUE])
    yield sidecar
    made.close()


def taken(sidecar: Sidecar, **more: Any) -> int:
    """Take both partitions under a new generation, ready."""
    generation = int(sidecar.call("GET", "/v1/assignment")["generation"]) + 1
    sidecar.assign(generation, active=(0, 1), **more)
    sidecar.wait_ready()
    return generation


def goes(sidecar: Sidecar, how: str, generation: int) -> None:
    """Partition 0 leaves."""
    if how in ("clean", "lost"):
        sidecar.call("POST", "/v1/revoke", {"generation": generation, "partitions": [0], "mode": how})
    elif how == "lease":
        wait_for(lambda: not sidecar.call("GET", "/v1/status")["tasks"], told=sidecar.told)
    elif how == "wipe":
        epoch = sidecar.call("GET", "/v1/assignment")["tasks"][0]["epoch"]
        sidecar.call("POST", "/v1/wipe", {"partition": 0, "epoch": epoch})
        sidecar.wait_ready()
    else:
        standby = (0,) if how == "standby" else ()
        sidecar.assign(generation + 1, active=(0, 1) if how == "generation" else (1,), standby=standby)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["clean", "lost", "lease", "wipe", "generation", "gone", "standby"])
def test_connection_bound_before_is_fenced_however_the_task_goes(served: Sidecar, how: str) -> None:
    generation = taken(served, **({"lease_ms": 500} if how == "lease" else {}))
    path = Path(served.info["resp_socket"])
    reader, writer = Client(path), Client(path)
    try:
        for client in (reader, writer):
            assert client("AUTH", "kv", "x") == b"OK"
            client("GET", "a")
        assert writer("SET", "a", "not committed") == b"OK"
        goes(served, how, generation)
        for request in REQUESTS:
            assert reader.refused(*request).startswith("FENCED"), (how, request)
            assert writer.refused(*request).startswith("FENCED"), (how, request)
        assert reader("SELECT", 0) == b"OK"
        if how in ("wipe", "generation"):
            reader("SF.OFFSETS")
            assert reader("GET", "a") is None, "what was not committed is gone"
        else:
            word = "READONLY" if how == "standby" else "NOTASSIGNED"
            assert reader.refused("GET", "a").startswith(word)
    finally:
        reader.close()
        writer.close()
