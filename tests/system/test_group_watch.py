"""Members that come and go are heard of at once on the embedded log: by a watch of the group, and by a session.

Rules of this file: a real log and real time. Looks by the clock are put off for a minute, so that none of them helps.
"""

from __future__ import annotations

import secrets
import time
from contextlib import closing
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.tail.open_log import open_log
from standfast.stream.session import instance
from support.waits import until

LEASE_MS = 60_000
LONG_MS = 30_000


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/log"


def role_of(session: sf.Session) -> str:
    return "".join(task.role for task in session.tasks().values())


def test_watch_reports_members_that_come_and_go_and_no_renewal(address: str) -> None:
    app = f"watched-{secrets.token_hex(4)}"
    with closing(open_log(address)) as log, closing(open_log(address)) as other:
        mine, theirs = log.group(app), other.group(app)
        mine.join("a", lease_ms=LEASE_MS)
        watch = mine.watch()
        assert watch is not None

        def heard_of_another() -> bool:
            theirs.join("b", lease_ms=LEASE_MS)
            theirs.leave("b")
            return watch.wait(200)

        until(heard_of_another, "the watch is connected")  # a watch sees no change from before it was connected
        while watch.wait(100):
            pass
        for _ in range(3):
            theirs.heartbeat("a", lease_ms=LEASE_MS)
        assert not watch.wait(500)
        theirs.leave("a", only=lambda _: True)
        assert watch.wait(LONG_MS)
        watch.wake()
        assert not watch.wait(LONG_MS)
        watch.close()
        watch.close()
        watch.wake()


def test_standby_takes_over_from_an_owner_that_leaves_without_a_look_by_the_clock(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = f"heard-{secrets.token_hex(4)}"
    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]

    def session(name: str) -> sf.Session:
        return sf.Session(app, log=address, state_dir=tmp_path / name, stores=stores, partitions=1, lease_ms=LEASE_MS)

    with session("owner") as owner:
        owner.assign(active=[0])
        owner.wait_ready(60)
        with session("standby") as standby:
            standby.assign(standby=[0])
            until(lambda: role_of(standby) == "standby", "the standby is open")
            monkeypatch.setattr(instance, "TAKE_OVER_TICK_MS", 60_000)
            monkeypatch.setattr(instance, "RESTORING_TICK_MS", 60_000)
            time.sleep(0.5)  # the last look that was due before
            owner.close()
            until(lambda: role_of(standby) == "active", "the standby has taken over", 20)
