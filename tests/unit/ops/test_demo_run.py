"""The demo from end to end, once: a second process joins, one is killed, and every check of the state left behind.

Rules of this file: the run is real and made once; tests that plant a difference use a copy of its state.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.demo.board import APP, PARTITIONS, RESULTS, TASKS, BoardSettings
from standfast.ops.demo.check import compare_finals, compare_state, open_state
from standfast.ops.demo.flights import read_flights
from standfast.ops.demo.plain import PlainBoard, plain_board
from standfast.ops.demo.result import differences
from standfast.ops.demo.run import settings_for
from standfast.ops.demo.view import LogView
from standfast.ops.demo.worker import state_dir
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import SystemClock
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.types.segments import store_of_family
from support.groups import costly

LIMIT = 2_500  # three days: aircraft are retired, hours close


@pytest.fixture(scope="module")
@costly()
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder after a run over the first flights, and the command's output."""
    folder = tmp_path_factory.mktemp("demo") / "kept"
    command = [sys.executable, "-m", "standfast.ops.cli", "demo", "--limit", str(LIMIT), "--dir", str(folder)]
    # A lease that is longer than a busy machine may stall a process.
    command += ["--no-spark", "--json", "--lease-ms", "4000"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return folder, json.loads(ended.stdout)


@pytest.fixture
def kept(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A folder with a copy of the state of B."""
    shutil.copytree(state_dir(finished[0], "b"), state_dir(tmp_path, "b"))
    return tmp_path


@pytest.fixture(scope="module")
def settings() -> BoardSettings:
    return settings_for(read_flights("sample", LIMIT))


@pytest.fixture(scope="module")
def plain(settings: BoardSettings) -> PlainBoard:
    return plain_board(read_flights("sample", LIMIT).flights, PARTITIONS, settings.grace_ms, settings.retention_ms)


def compared(folder: Path, plain: PlainBoard, settings: BoardSettings) -> dict[str, Any]:
    with open_state(folder, "b", settings) as tasks:
        return compare_state(tasks, plain)


@contextmanager
def written_to(folder: Path, task: TaskId) -> Iterator[RocksEngine]:
    """The database of a task, for planting differences."""
    with closing(RocksEngine(state_dir(folder, "b") / APP / str(task), shared=RocksShared(8 << 20))) as engine:
        yield engine


def first_row(engine: RocksEngine, store: str) -> tuple[str, bytes, bytes]:
    family = next(one for one in engine.families() if store_of_family(one) == store and list(engine.scan(one)))
    return family, *next(iter(engine.scan(family)))


@pytest.mark.slow
def test_demo_shares_takes_over_and_every_row_is_equal(finished: tuple[Path, dict[str, Any]]) -> None:
    document = finished[1]
    assert (document["schema"], document["ok"]) == ("standfast.demo/4", True)
    assert sum(map(differences, document["stores"].values())) == 0
    assert document["board"]["flights"] == document["committed"] == document["fed"]["records"] == LIMIT
    takeover, joined, returned = document["takeover"], document["joined"], document["returned"]
    assert takeover["tasks"] == TASKS // 2
    # Fewer by warm hand-overs where a busy machine let a lease run out.
    assert max(joined["tasks"], returned["tasks"]) <= TASKS // 2
    assert min(joined["longest_pause_ms"], returned["longest_pause_ms"]) > 0
    assert takeover["committed"] >= LIMIT // 2 and takeover["waiting"] > 0
    assert takeover["to_running_ms"] >= takeover["to_decided_ms"]


@pytest.mark.slow
def test_demo_gives_each_closed_hour_once_before_and_after_the_kill(
    finished: tuple[Path, dict[str, Any]], plain: PlainBoard
) -> None:
    finals = finished[1]["finals"]
    assert finals["records"] == finals["expected"] == len(plain.finals) > 0
    assert differences(finals) + finals["repeated"] == 0
    assert 0 < finished[1]["takeover"]["finals_before"] < finals["records"]


@pytest.mark.slow
def test_demo_retires_aircraft_and_publishes_the_live_board(
    finished: tuple[Path, dict[str, Any]], plain: PlainBoard
) -> None:
    document = finished[1]
    tails = {one.tail for one in read_flights("sample", LIMIT).flights}
    aircraft = document["stores"]["aircraft"]["rows"]
    assert aircraft == document["board"]["aircraft"] == len(plain.aircraft) < len(tails)
    # An aircraft that was retired, came back and left for good was retired twice.
    assert document["board"]["retired"] >= len(tails) - len(plain.aircraft)


@pytest.mark.slow
def test_demo_restores_and_verifies_to_the_same_digests(finished: tuple[Path, dict[str, Any]]) -> None:
    document = finished[1]
    assert document["verify"]["unequal"] == 0
    assert document["verify"]["rows"] == sum(one["rows"] for one in document["stores"].values())
    assert document["cold_restore"]["equal"] is True
    assert document["cold_restore"]["records"] > 0


@pytest.mark.slow
def test_log_care_takes_nothing_that_the_board_needs(finished: tuple[Path, dict[str, Any]]) -> None:
    log = open_log(finished[1]["log"]["address"])
    try:
        assert isinstance(log, EmbeddedLog)
        assert log.care(SystemClock().wall_ms()).expired == 0
    finally:
        log.close()


@pytest.mark.slow
def test_demo_keeps_the_folder_it_was_given(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, document = finished
    assert document["kept_in"] == str(folder)
    assert {state_dir(folder, name).name for name in ("a", "b", "cold")} <= {path.name for path in folder.iterdir()}
    assert (folder / "worker-a.log").is_file()


@pytest.mark.slow
def test_untouched_copy_has_no_difference(kept: Path, plain: PlainBoard, settings: BoardSettings) -> None:
    stores = compared(kept, plain, settings)
    assert sum(map(differences, stores.values())) == 0
    hours = len(plain.delays)
    assert {name: one["rows"] for name, one in stores.items()} == {
        "aircraft": len(plain.aircraft),
        "delays": hours,
        "three-hours": len(plain.three_hours),
        "final-delays": hours,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "task"),
    [
        ("aircraft", TaskId(0, 1)),
        ("delays", TaskId(1, 2)),
        ("three-hours", TaskId(1, 3)),
        ("final-delays", TaskId(1, 3)),
    ],
)
def test_deleted_row_is_missing(
    kept: Path, plain: PlainBoard, settings: BoardSettings, store: str, task: TaskId
) -> None:
    with written_to(kept, task) as engine:
        family, key, _ = first_row(engine, store)
        engine.write({family: {key: None}})
    found = compared(kept, plain, settings)
    assert {name: one["missing"] for name, one in found.items() if differences(one)} == {store: 1}
    assert found[store]["examples"][0].startswith(f"{store} ({task.partition}, ")


@pytest.mark.slow
def test_changed_and_added_rows_are_found(kept: Path, plain: PlainBoard, settings: BoardSettings) -> None:
    with written_to(kept, TaskId(0, 0)) as engine:
        family, key, row = first_row(engine, "aircraft")
        engine.write({family: {key: row.replace(b'"airport":"', b'"airport":"X'), b"N-none": row}})
    aircraft = compared(kept, plain, settings)["aircraft"]
    assert (aircraft["missing"], aircraft["extra"], aircraft["different"]) == (0, 1, 1)


@pytest.mark.slow
def test_row_in_the_wrong_partition_is_missing_and_extra(
    kept: Path, plain: PlainBoard, settings: BoardSettings
) -> None:
    with written_to(kept, TaskId(0, 3)) as engine:
        family, key, row = first_row(engine, "aircraft")
        engine.write({family: {key: None}})
    with written_to(kept, TaskId(0, 2)) as engine:
        engine.write({family: {key: row}})
    aircraft = compared(kept, plain, settings)["aircraft"]
    assert (aircraft["missing"], aircraft["extra"], aircraft["different"]) == (1, 1, 0)


@pytest.mark.slow
def test_final_result_written_again_is_found(
    finished: tuple[Path, dict[str, Any]], plain: PlainBoard, settings: BoardSettings, tmp_path: Path
) -> None:
    shutil.copytree(finished[0], tmp_path / "copy", ignore=shutil.ignore_patterns("state-*"))
    with (
        closing(open_log(f"sqlite:///{tmp_path}/copy/log.db")) as log,
        closing(LogView(log, settings, SystemClock())) as view,
    ):
        (part, airport, start), row = view.finals()[-1]
        assert compare_finals(view.finals(), plain.finals)["repeated"] == 0
        again = Outgoing(airport.encode() + start.to_bytes(8, "big"), json.dumps(row).encode(), start)
        log.producer().append({TopicPartition(RESULTS, part): [again]})
        assert compare_finals(view.finals(), plain.finals)["repeated"] == 1
