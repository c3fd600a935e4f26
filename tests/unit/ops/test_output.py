"""Tables on a narrow terminal, and points in time.

Rules of this file: pure layout, and the tables of commands from documents with long names and large numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.ops.bench import bench
from standfast.ops.cli.spark import pipeline as commands_pipeline
from standfast.ops.cli.spark import verify as commands_verify
from standfast.ops.cli.state import tasks as commands_state
from standfast.ops.cli.state.rows import show_rows
from standfast.ops.shared.output import Output
from standfast.ops.shared.table import cell_len, draw, wrap
from standfast.ops.shared.times import parse_time, time_text
from standfast.restore.compare import RowSide

BIG = 81_650_123_456  # an offset of a busy topic
NAME = "hourly-delays-by-airport"
AT_MS = 1_357_020_000_000


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One hour ahead of UTC."""
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(params=[80, 100])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


def pretty(*, wide: bool = False) -> Output:
    out = Output(wide=wide, times="utc")
    out.pretty = True
    return out


def words(text: str) -> set[str]:
    return set(text.split())


# -- layout -----------------------------------------------------------------------------------------------------------


def test_columns_that_fit_stand_beside_each_other() -> None:
    drawing = draw(("store", "lag"), [("kv", "5"), ("hours", "12")], 80, right=("lag",))
    assert drawing.lines == ["store  lag", "──────────", "kv       5", "hours   12"]
    assert drawing.head == 1


def test_text_wraps_at_spaces_and_gives_way_before_headings_do() -> None:
    drawing = draw(("store", "why it is"), [("kv", "the log was cut behind it")], 22, fold=("why it is",))
    assert drawing.lines == ["store  why it is", "─" * 22, "kv     the log was cut", "       behind it"]


def test_headings_wrap_where_the_numbers_fit() -> None:
    drawing = draw(("seconds left", "records at most"), [("816", "8")], 16, right=("seconds left", "records at most"))
    assert drawing.lines == ["         records", "seconds       at", "   left     most", "─" * 16, "    816        8"]
    assert drawing.head == 3


def test_rows_too_wide_for_the_terminal_become_blocks() -> None:
    drawing = draw(("store", "end"), [("a" * 20, "1" * 12), ("b", "2")], 30, right=("end",))
    assert drawing.lines == ["store  " + "a" * 20, "end    " + "1" * 12, "", "store  b", "end    2"]


def test_wide_characters_count_twice() -> None:
    assert wrap("日本語", 4) == ["日本", "語"]
    assert draw(("k", "n"), [("日本", "1"), ("abcd", "2")], 80).lines[2:] == ["日本  1", "abcd  2"]


@given(
    st.lists(st.tuples(*[st.text("ab9 ", max_size=30)] * 3), max_size=5),
    st.integers(20, 120),
)
def test_no_cell_is_cut_and_no_line_is_wider_than_the_terminal_unless_one_cell_is(
    rows: list[tuple[str, str, str]], width: int
) -> None:
    drawing = draw(("name", "number", "some text"), rows, width, right=("number",), fold=("some text",))
    text = "\n".join(drawing.lines)
    for name, number, _ in rows:
        assert name.strip() in text and number.strip() in text
    longest = len("some text") + 2 + 30  # a line of a block
    assert max(map(cell_len, drawing.lines), default=0) <= max(width, longest)


# -- commands ---------------------------------------------------------------------------------------------------------


def status() -> dict[str, Any]:
    store = {"store": NAME, "kind": "window", "partition": 11, "begin": BIG - 1_000, "position": BIG - 816, "end": BIG}
    store |= {"lag": 8_168, "limit": BIG - 10, "paused": True, "keys_estimate": 123_456_789}
    store |= {"sst_bytes": 98_765_432_100, "segments": 24}
    task = {"task": "0_11", "role": "standby", "state": "restoring", "epoch": 1_234, "buffer_bytes": 16_777_216}
    task |= {"sources": {f"flights/{number}": BIG for number in range(4)}, "stores": [store]}
    restore = {"store": NAME, "partition": 11, "reason": "tombstones-expired", "position": BIG - 816, "end": BIG}
    restore |= {"fraction": 0.5, "rate": 394_123.4, "seconds_left": 123.45}
    return {"app": "app", "instance": "i", "live": False, "missing": [], "standbys_missing": 0, "tasks": [task]} | {
        "restores": [restore]
    }


def verdicts() -> list[Any]:
    digest = SimpleNamespace(hex=lambda: "2d8-1f183f3607f5cef5-17495cf90ed", count=BIG)
    one = {"store": NAME, "task": SimpleNamespace(partition=11), "verdict": "inconclusive", "position": BIG, "end": BIG}
    one |= (
        {"skipped": BIG}
        | dict.fromkeys(commands_verify.COUNTS, 816_816)
        | {"log_digest": digest, "store_digest": digest}
    )
    row = SimpleNamespace(kind="different", key=b"JFK", log=RowSide(AT_MS, b"x" * 60, 60, 0), store=None)
    return [SimpleNamespace(**one, kind="keyvalue", explanation="", differences=[row], truncated=False)]


def measures() -> dict[str, Any]:
    one = {
        "name": "restore_versions_near_workers_0",
        "what": "empty directory until the gate is open",
        "min": 1_234_567,
    }
    one |= {"unit": "records/s", "median": 1_234_567, "max": 1_234_567, "peak_rss_bytes": 25 << 20}
    settings = {"records": 1, "key_bytes": 1, "value_bytes": 1, "runs": 1, "memory_bytes": 1}
    return {"bench": "restore", "settings": settings, "versions": {}, "log": {"kind": "embedded"}, "measures": [one]}


def checked(lines: Sequence[str], width: int) -> None:
    assert max(map(cell_len, lines)) <= width, max(lines, key=cell_len)


def test_state_tables_break_no_number_name_or_state(terminal: int, capsys: pytest.CaptureFixture[str]) -> None:
    for show, told in (
        (
            commands_state.show_status,
            {NAME, "restoring", "standby", "8168", "16777216", "tombstones-expired", "394123.4"},
        ),
        (commands_state.show_tasks, {NAME, "restoring", "8168", str(BIG - 816), "123456789"}),
        (commands_state.show_lag, {NAME, "11", "standby", "8168", str(BIG - 816), str(BIG)}),
    ):
        show(status(), pretty())
        text = capsys.readouterr().out
        assert told <= words(text), text
        assert "98765432100" not in text
        checked(text.splitlines(), terminal)
    assert f"flights/3@{BIG}" not in text
    commands_state.show_tasks(status(), pretty(wide=True))
    assert {"98765432100", "window", "24"} <= words(capsys.readouterr().out)


def test_verdicts_and_figures_break_no_number_name_or_state(terminal: int, capsys: pytest.CaptureFixture[str]) -> None:
    commands_verify.show(verdicts(), pretty())
    text = capsys.readouterr().out
    assert {NAME, "inconclusive", "816816", str(4 * 816_816), "2013-01-01T06:00:00Z"} <= words(
        text.replace("@", " ")
    ), text
    checked([line for line in text.splitlines() if not line.startswith("- ")], terminal)
    commands_verify.show(verdicts(), pretty(wide=True))
    assert "2d8-1f183f3607f5cef5-17495cf90ed" in words(capsys.readouterr().out)
    bench.show(measures(), pretty())
    text = capsys.readouterr().out
    assert {"restore_versions_near_workers_0", "1,234,567", "records/s"} <= words(text), text
    checked(text.splitlines()[2:], terminal)


def test_pipeline_breaks_no_number_name_or_state(terminal: int, capsys: pytest.CaptureFixture[str]) -> None:
    inspected = [{"records": BIG, "keys": BIG}]
    one = {"store": NAME, "kind": "window", "verdict": "inconclusive", "inspected": inspected, "matched": BIG}
    one |= dict.fromkeys(("missing", "extra", "different", "stale", "indeterminate"), 816)
    one |= {"rebuilt": {"rows": BIG, "files": 12, "bytes": BIG}, "rebuild_left_out": "", "rebuilt_differs": []}
    one |= {"verified": []}
    summary = {"stores": [one], "app": "a", "records": 1, "out": "o", "indeterminate": 816}
    done: Any = SimpleNamespace(verdict="different", elapsed_ms=1_000)
    commands_pipeline._show(done, summary, pretty())
    text = capsys.readouterr().out
    assert {NAME, "inconclusive", str(BIG), str(4 * 816)} <= words(text), text
    checked(text.splitlines(), terminal)


def test_rows_show_times_as_asked_for(terminal: int, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "partition": 11,
        "key": "JFK " * 40,
        "window_start": AT_MS,
        "window_end": AT_MS + 3_600_000,
        "value": "v" * 90,
    }
    document = {"rows": [row], "partitions": [], "truncated": False}
    show_rows(document, pretty())
    text = capsys.readouterr().out
    assert {"2013-01-01T06:00:00Z", "2013-01-01T07:00:00Z"} <= words(text), text
    checked(text.splitlines(), terminal)
    show_rows(document, Output(times="ms"))
    assert {str(AT_MS), str(AT_MS + 3_600_000)} <= words(capsys.readouterr().out)


def test_unknown_cell_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("a", "b", "c"), [(None, "", 0)])
    assert capsys.readouterr().out.splitlines()[1] == "-     0"


# -- times ------------------------------------------------------------------------------------------------------------


def test_times_are_local_unless_utc_or_milliseconds_are_asked_for(zone: None) -> None:
    assert time_text(AT_MS) == "2013-01-01T07:00:00+01:00"
    assert time_text(AT_MS + 5) == "2013-01-01T07:00:00.005+01:00"
    assert time_text(AT_MS, "utc") == "2013-01-01T06:00:00Z"
    assert time_text(-1, "utc") == "1969-12-31T23:59:59.999Z"
    assert time_text(AT_MS, "ms") == str(AT_MS)


@pytest.mark.parametrize("style", ["local", "utc"])
def test_time_that_no_calendar_has_stays_a_number(style: Any) -> None:
    for ms in (2**63 - 1, -(2**63), 300_000_000_000_000):
        assert time_text(ms, style) == str(ms)


def test_typed_times_are_milliseconds_or_iso(zone: None) -> None:
    assert parse_time(str(AT_MS)) == parse_time("2013-01-01T06:00:00Z") == AT_MS
    assert parse_time("2013-01-01T07:00:00") == parse_time("2013-01-01 07:00+01:00") == AT_MS
    assert parse_time("-5") == -5
    with pytest.raises(ValueError):
        parse_time("yesterday")


def test_typed_time_with_two_readings_is_refused_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = {
        "2013-11-03T01:30:00": ("comes twice", "2013-11-03T01:30:00-04:00 or 2013-11-03T01:30:00-05:00"),
        "2013-03-10 02:30": ("comes never", "2013-03-10T01:30:00-05:00 or 2013-03-10T03:30:00-04:00"),
        "20130101": ("may be the date 2013-01-01 or 1970-01-01T05:35:30.101Z", "milliseconds"),
        "201301010800": ("2013-01-01T08:00:00 or 1976-", "milliseconds"),
        "20130101080000": ("2013-01-01T08:00:00 or 2607-", "milliseconds"),
    }
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        for text, said in readings.items():
            with pytest.raises(ValueError) as caught:
                parse_time(text)
            assert all(one in str(caught.value) for one in said), caught.value
        for text in ("2013-11-03T01:30:00-05:00", "2013-11-03T03:30", "20131301", "99999999", "1357020000000"):
            parse_time(text)
    time.tzset()


@given(st.integers(-62_000_000_000_000, 253_000_000_000_000))
def test_shown_times_are_read_as_the_same(ms: int) -> None:
    assert parse_time(time_text(ms)) == parse_time(time_text(ms, "utc")) == parse_time(time_text(ms, "ms")) == ms
