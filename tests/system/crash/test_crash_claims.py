"""An instance that is killed while it claims its topics stops no other application, and goes on at its next start.

Rules of this file: the kill comes at a failpoint of the child; who may start after it is part of the table below.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.replication.log import Log
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.claims import claims_of
from standfast.store.failpoint import VARIABLE
from support import claims_child

pytestmark = pytest.mark.slow

SHARED = "orders-eu-x-changelog"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = open_log(f"sqlite:///{tmp_path}/log")
    yield made
    made.close()


def start(root: Path, app: str, store: str, failpoint: str = "") -> tuple[int, str]:
    """Exit code and errors of a process that starts the application."""
    done = subprocess.run(
        [sys.executable, claims_child.__file__, f"sqlite:///{root}/log", str(root / app), app, store],
        env=os.environ | {VARIABLE: failpoint},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def claimed(log: Log, app: str) -> bool:
    return SHARED in claims_of(log.group(app).notes())


@pytest.mark.parametrize(
    ("failpoint", "claims", "told"),
    [
        ("claims.asked=kill:1", False, "'orders' starts at this moment"),
        ("claims.looked=kill:1", False, "'orders' starts at this moment"),
        ("claims.claimed=kill:1", True, "belongs to application 'orders'"),
    ],
)
def test_the_next_start_after_a_kill_goes_on_and_the_other_application_is_refused(
    tmp_path: Path, log: Log, failpoint: str, claims: bool, told: str
) -> None:
    assert start(tmp_path, "orders", "eu-x", failpoint)[0] == -signal.SIGKILL
    assert claimed(log, "orders") is claims
    code, errors = start(tmp_path, "orders-eu", "x")
    assert code == 1 and told in errors
    assert not claimed(log, "orders-eu")
    assert start(tmp_path, "orders", "eu-x") == (0, "")
    assert {kind for kind, _ in log.group("orders").notes()} == {"claim"}
