"""A damaged store of any kind equals its log again, in batches and in bulk, whatever step a kill interrupts."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from system.crash.test_damaged_directory import half, manifest
from system.crash.test_damaged_store import ROWS, STORES, TEXT, files_of, fill, flip, middle, rows, wanted, whole

import standfast as sf
from support.bulk import BATCHES, BULK, digests, drive
from support.sessions import Bench, four_stores, operate

KEPT = sf.KeyValueStore("kept", TEXT, TEXT, logging=False)
IN_MEMORY = sf.KeyValueStore("mem", TEXT, TEXT, engine="memory")
FAMILIES = {"kv": "kv", "win": "win@", "ses": "ses@", "ver": "ver"}


@pytest.mark.slow
@pytest.mark.parametrize("restore", [BATCHES, BULK], ids=["batches", "bulk"])
@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", FAMILIES)
def test_damaged_store_of_any_kind_equals_its_log_again(
    bench: Bench, kind: str, guarantee: str, restore: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"stores": [*four_stores(), KEPT, IN_MEMORY], "guarantee": guarantee, **restore}
    first = bench.session(**settings)
    first.assign(active=[0])
    drive(first)
    task = first.task(0)
    for number in range(200):
        task.store("kept").put(f"{number:03}", "v")
        task.store("mem").put(f"{number:03}", "v")
    operate(task, random.Random(kind), 400)
    task.commit({("src", 0): 400})
    before = digests(first)
    task.stores.flush()
    families = [one for one in task.stores.engine.families() if one.startswith(FAMILIES[kind])]
    file = max((path for one in families for path in files_of(first, one)), key=lambda path: path.stat().st_size)
    first.close()
    flip(file, 0)
    again = bench.session(**settings)
    again.assign(active=[0])
    drive(again)
    try:
        digests(again)
    except sf.Corruption:  # met by a read, or already by the opening
        again.poll_once()
        drive(again)
    assert digests(again) == before
    assert again.counters.store_wipes == {(kind, "corrupt"): 1}
    assert {store for store, _, _ in again.counters.restored_records} == {kind, "mem"}
    assert again.task(0).source_offsets() == {("src", 0): 400}
    again.close()
    cold = bench.session("cold", **settings)
    cold.assign(active=[0])
    drive(cold)
    assert {at: digest for at, digest in digests(cold).items() if at[0] != "kept"} == {
        at: digest for at, digest in before.items() if at[0] != "kept"
    }


CHILD = """
import sys
import standfast as sf
from standfast.store.clock import SystemClock
text = sf.serde.string
stores = [sf.KeyValueStore("kv", text, text), sf.KeyValueStore("other", text, text),
          sf.KeyValueStore("plain", text, text, logging=False)]
session = sf.Session("app", log=sys.argv[1], state_dir=sys.argv[2], stores=stores, partitions=2, background=False,
                     take_over=False, accept_unreadable_rows=True)
session.assign(active=[0])
for _ in range(4):
    try:
        session.wait_ready(30)
        for store in stores:
            list(session.task(0).store(store.name).all())
        break
    except sf.Corruption:
        session.poll_once()
"""


def killed_at(bench: Bench, failpoint: str) -> None:
    """Open the task in a process that is killed at a failpoint."""
    environment = {**os.environ, "STANDFAST_FAILPOINT": f"{failpoint}=kill:1"}
    arguments = [sys.executable, "-c", CHILD, bench.address, str(bench.root / "a")]
    ended = subprocess.run(arguments, env=environment, capture_output=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


def filled(bench: Bench, family: str) -> Path:
    first = bench.active(stores=STORES)
    fill(first)
    (file,) = files_of(first, family)
    first.close()
    return file


@pytest.mark.slow
def test_kill_after_a_store_left_the_record_restores_it(bench: Bench) -> None:
    middle(filled(bench, "kv"))
    killed_at(bench, "stores.forgotten")
    again = bench.active(stores=STORES)
    whole(again)
    assert again.task(0).source_offsets() == {("src", 0): ROWS}


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["stores.forgotten", "mending.copied"])
def test_kill_while_readable_rows_are_copied_back_copies_them_again(bench: Bench, failpoint: str) -> None:
    middle(filled(bench, "plain"))
    killed_at(bench, failpoint)
    refused = bench.session(stores=STORES)
    with pytest.raises(sf.StateLost, match="accept_unreadable_rows"):
        refused.assign(active=[0])
    refused.close()
    again = bench.active(stores=STORES, accept_unreadable_rows=True)
    kept = rows(again, "plain")
    assert ROWS - 100 < len(kept) < ROWS
    assert kept == sorted(set(kept) & set(wanted()))
    assert rows(again, "kv") == rows(again, "other") == wanted()
    assert list((again.state_path / ".aside").iterdir()) == []


@pytest.mark.slow
def test_kill_before_a_new_directory_is_in_its_place_loses_no_row(bench: Bench) -> None:
    directory = filled(bench, "plain").parent
    half(manifest(directory))
    killed_at(bench, "mending.aside")
    assert not directory.exists()
    whole(bench.active(stores=STORES))
