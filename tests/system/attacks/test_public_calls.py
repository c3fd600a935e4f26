"""Every public call under every attack: it returns or raises a documented error, and nothing is lost.

Rules of this file: `standfast.__all__` decides which calls are attacked; a call without an entry, and without a reason
for that, fails. In `make test` the calls of a class are made one after the other on one stage, from a seed that
follows from their names, for a sixth of the pairs of attack and class; in the slow lane for the others, too, and each
call has a stage of its own, for SEEDS new seeds. Seeds are printed, and `STANDFAST_ATTACK_SEED` repeats one, and
STANDFAST_ATTACK_SEEDS=3 tries three of each call.
"""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from standfast.store.clock import ManualClock
from support.attacks.attack import ATTACKS
from support.attacks.awaited import ATTRIBUTES, CANCELLED
from support.attacks.calls import ENTRIES
from support.attacks.programs import DRIVEN, PROGRAMS, DriverStage
from support.attacks.reasons import CLASSES, METHODS
from support.attacks.stage import Stage
from support.attacks.surface import public_calls

SEEDS = int(os.environ.get("STANDFAST_ATTACK_SEEDS", "1"))  # of each call
DISK_MIB = 64
SHARE = 6
ALL = {**ENTRIES, **PROGRAMS, **DRIVEN}
CLASS_OF = public_calls()
# A forked child would copy the garbage of all earlier tests, page by page, to look at it.
pytestmark = pytest.mark.usefixtures("earlier_objects_stay")
AIO = {"aio.Session", *(f"aio.Session.{name}" for name in ("__aenter__", "__aexit__", *CANCELLED, *ATTRIBUTES))}
TWO_THREADS = {"commit_beside", "same_beside"}  # a driver runs in the test's own thread


def attacked(names: list[str]) -> list[tuple[str, str]]:
    """Each attack with each of these calls, or classes."""
    driven = ("testing.Driver", "Context", "SourceContext")
    pairs = [(attack, name) for attack in ATTACKS for name in names]
    return [one for one in pairs if not (one[0] in TWO_THREADS and one[1].startswith(driven))]


def sampled(pairs: list[tuple[str, str]]) -> list[Any]:
    """Each attack with every sixth class, and each class under one attack or two; the slow lane has the others."""
    attacks = list(ATTACKS)
    owners = sorted({owner for _, owner in pairs})
    return [
        pytest.param(
            *one, marks=() if (attacks.index(one[0]) + owners.index(one[1])) % SHARE == 0 else pytest.mark.long
        )
        for one in pairs
    ]


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where state and log lie: a small disk for the attack that fills it."""
    if request.node.callspec.params["attack"] != "full_disk":
        return tmp_path
    path: Path = request.getfixturevalue("small_disk")(DISK_MIB)
    return path


def attack_all(attack: str, names: list[str], seed: int, root: Path, clock: ManualClock, settings: Any) -> None:
    seed = int(os.environ.get("STANDFAST_ATTACK_SEED", seed))
    rng = random.Random(seed)
    stage: Any = (DriverStage if names[0] in DRIVEN else Stage)(root, clock, **settings)
    for name in names:
        print(f"{name}, seed {seed}")
        ATTACKS[attack](stage, ALL[name], rng)
    stage.finish()
    stage.close()


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("attack", "owner"), sampled(attacked(sorted({CLASS_OF[name] for name in ALL}))))
def test_calls_under_attack_leave_a_session_that_works_and_lose_nothing(
    attack: str, owner: str, root: Path, tmp_path: Path, clock: ManualClock
) -> None:
    names = [name for name in ALL if CLASS_OF[name] == owner]
    settings = {key: value for name in names for key, value in ALL[name].settings(tmp_path).items()}
    attack_all(attack, names, zlib.crc32(f"{attack} {owner}".encode()), root, clock, settings)


@pytest.mark.long
@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(("attack", "name"), attacked(list(ALL)))
def test_each_call_by_itself_under_attack(
    attack: str, name: str, seed: int, root: Path, tmp_path: Path, clock: ManualClock
) -> None:
    attack_all(attack, [name], random.randrange(2**32), root, clock, ALL[name].settings(tmp_path))


def test_every_public_call_has_an_entry_or_a_reason() -> None:
    reasons = {name for name, owner in CLASS_OF.items() if owner in CLASSES} | METHODS.keys()
    lacking = sorted(name for name in CLASS_OF if name not in ALL and name not in AIO and name not in reasons)
    assert not lacking, f"say in tests/support/attacks how these are called, or why that needs no attack: {lacking}"
    gone = sorted((ALL.keys() | AIO | CLASSES.keys() | METHODS.keys()) - CLASS_OF.keys())
    assert not gone, f"entries of calls that are not there: {gone}"
    assert not (reasons & (ALL.keys() | AIO)), "an entry and a reason for the same call"
