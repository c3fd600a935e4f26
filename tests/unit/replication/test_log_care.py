"""The member that cares for the log, and in a sidecar its worker in the server's place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.sidecar.control.session import ServerSession
from standfast.ops.sidecar.worker.worker import TailWorkerSession
from standfast.replication.tail.log_care import care
from standfast.store.clock import SystemClock
from standfast.store.disk import DiskGuard
from standfast.store.errors import Unavailable
from standfast.store.task.state_dir import StateDir

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
Opened = Callable[[type[sf.Session], StateDir], sf.Session]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    with ExitStack() as stack:

        def open_one(kind: type[sf.Session], state: StateDir) -> sf.Session:
            log = f"sqlite:///{tmp_path}/log"
            given: dict[str, Any] = {"disk": DiskGuard({"state directory": tmp_path})} if kind is ServerSession else {}
            return stack.enter_context(
                kind("app", log=log, state_dir=state, stores=STORES, partitions=1, background=False, **given)
            )

        yield open_one


def cared_for_by(*sessions: sf.Session) -> list[str]:
    """The caring member, once each knows the others."""
    for _ in range(3):
        for session in sessions:
            session._instance.membership.heartbeat(session._lease_group)
            session._instance.poll_once()
    return [session.instance_id for session in sessions if session._log_is_mine()]


def test_worker_cares_for_the_log_while_the_server_leads(tmp_path: Path, opened: Opened) -> None:
    state = StateDir(tmp_path / "a", "app")
    server = opened(ServerSession, state.lend("m"))
    first, second = opened(TailWorkerSession, state.lend("m-tail0")), opened(TailWorkerSession, state.lend("m-tail1"))
    assert isinstance(first, TailWorkerSession)
    first.cares_for = "m"
    assert cared_for_by(server, first, second) == ["m-tail0"]
    state.close()


def test_one_of_two_applications_members_cares_for_the_log(tmp_path: Path, opened: Opened) -> None:
    state = StateDir(tmp_path / "a", "app")
    assert cared_for_by(opened(sf.Session, state.lend("m2")), opened(sf.Session, state.lend("m1"))) == ["m1"]
    state.close()


class TiredLog:
    """A log that fails once and accepts care afterwards."""

    def __init__(self) -> None:
        self.calls = 0

    def care(self, now_ms: int) -> None:
        self.calls += 1
        if self.calls == 1:
            raise Unavailable("the log is busy")


def test_care_goes_on_after_the_log_did_not_answer() -> None:
    log: Any = TiredLog()
    for mine in (False, True, True):
        care(log, SystemClock(), partial(bool, mine))
    assert log.calls == 2
