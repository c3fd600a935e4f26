"""Kill -9 at random moments on a real Kafka log: the remaining state equals the changelog, read as committed.

As `test_crash.py`, with the same children, looks and comparisons. Kafka adds: a killed writer leaves a transaction
open, which the next owner of the task must end before it reads where the changelog ends; records of an aborted one must
never reach a store; and at least once, a group's offsets are committed beside the changelogs.

Rules of this file: as there; to repeat run 7: `STANDFAST_CRASH_SEED=<seed> make crash KAFKA_RUNS=8 ARGS="-k kafka[7]"`.
Two of each four runs go without the compiled client of Kafka. Timestamps are of the last day, because Kafka deletes
from a windowed changelog by the records' own time.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import pytest

from standfast.store.native_module import SWITCH
from support.crash.run import Crash
from support.crash.seeds import seed_of_run
from support.crash.stories import GUARANTEES, run

RUNS = int(os.environ.get("STANDFAST_CRASH_KAFKA_RUNS", "1"))
AGO_MS = 20 * 3_600_000
# Mostly writers: transactions and fencing concern them.
STRIKES = (
    ("writer", "commit.logged"),
    ("standby", "standby.apply"),
    ("writer", "commit.local"),
    ("restorer", "restore.apply"),
    ("writer", "engine.written"),
    ("racer", "commit.logged"),
)


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_state_equals_the_changelog_after_kills_on_kafka(
    tmp_path: Path, number: int, kafka_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = seed_of_run()
    if number % 4 > 1:
        monkeypatch.setenv(SWITCH, "0")
    crash = Crash(
        tmp_path,
        seed,
        GUARANTEES[number % 2],
        address=f"kafka://{kafka_address}",
        app=f"crash-{secrets.token_hex(4)}",
        start_ms=int(time.time() * 1_000) - AGO_MS,
        mixed=True,
    )
    run(crash, number, STRIKES, most=6)
