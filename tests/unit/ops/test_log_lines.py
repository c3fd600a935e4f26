"""Lines of the log: one event a line, for people or programs, whatever text the event has."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.security.audit import Audit
from standfast.ops.shared import guard
from standfast.ops.shared.log_lines import configure
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store import log
from standfast.store.clock import ManualClock
from standfast.store.errors import BadConfig
from standfast.store.log import as_event, printed

logger = logging.getLogger("standfast.test")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    roots = [logging.getLogger(name) for name in ("standfast", "uvicorn")]
    before = [(list(root.handlers), root.level, root.propagate) for root in roots]
    shown = log._shown
    yield
    log._shown = shown
    for root, (handlers, level, propagate) in zip(roots, before, strict=True):
        root.handlers[:], root.propagate = handlers, propagate
        root.setLevel(level)


def test_an_event_is_one_line_for_people() -> None:
    out = io.StringIO()
    configure("info", "text", out)
    logger.info("client said %s", "x\nERROR standfast: all is lost\x1b[2J")
    logger.debug("not told")
    (line,) = out.getvalue().splitlines()
    assert line.endswith(r"INFO standfast.test: client said x\nERROR standfast: all is lost\x1b[2J")


def test_an_event_is_one_object_for_programs(clock: ManualClock) -> None:
    out = io.StringIO()
    configure("info", "json", out)
    before = datetime.now(UTC)
    logger.warning("two\nlines of task %s", "0_3", extra=as_event("trouble", task=TaskId(0, 3), offset=7))
    Audit(clock).done("wipe", "ops", task="0_3")
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("a bug")
    first, second, third = (json.loads(line) for line in out.getvalue().splitlines())
    assert first["time"].endswith("Z")
    assert 0 <= (datetime.fromisoformat(first.pop("time")) - before).total_seconds() + 0.001 < 5
    assert first == {
        "level": "warning",
        "logger": "standfast.test",
        "pid": os.getpid(),
        "event": "trouble",
        "message": "two\nlines of task 0_3",
        "task": "0_3",
        "offset": 7,
    }
    assert second.pop("time")
    assert second == {
        "level": "info",
        "logger": "standfast.audit",
        "pid": os.getpid(),
        "event": "wipe",
        "message": "done",
        "actor": "ops",
        "outcome": "done",
        "at_ms": clock.wall_ms(),
        "task": "0_3",
    }
    assert third["error"] == "ValueError" and third["traceback"].endswith("ValueError: broken")
    assert third["event"] == "test_log_lines.test_an_event_is_one_object_for_programs"  # it has no name of its own


def test_fields_that_json_does_not_have_are_text_and_replace_no_field_of_the_line() -> None:
    out = io.StringIO()
    configure("info", "json", out)
    given: dict[str, Any] = {
        "at": TopicPartition("flights", 2),
        "rate": float("nan"),
        "where": Path("/x"),
        "many": [1, "a"],
        "odd": {"a": object},
        "level": "mine",
        "time": 3,
        "traceback": "none",
        "name": "a name",  # an attribute of every record of Python's logging
        "surrogate": "\ud800",
    }
    logger.info("text", extra=as_event("odd", **given))
    (line,) = out.getvalue().splitlines()
    assert line.isascii()
    found = json.loads(line, parse_constant=pytest.fail)
    assert (found["level"], found["level_"], found["time_"], found["traceback_"]) == ("info", "mine", 3, "none")
    assert (found["at"], found["rate"], found["where"], found["many"]) == ("flights-2", "nan", "/x", [1, "a"])
    assert found["odd"].startswith("{'a': ") and found["name_"] == "a name" and found["surrogate"] == "\ud800"


def test_repeats_are_a_number_for_programs() -> None:
    out = io.StringIO()
    handler = configure("info", "json", out)
    for at_s in (0, 1, 2, 11):
        record = logger.makeRecord(logger.name, logging.WARNING, "", 0, "the log is away", (), None)
        record.created = at_s
        handler.handle(record)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert "left_out" not in first and second["left_out"] == 2


WRITER = """
import logging, sys
from standfast.store.log import Repeats, WholeLines, logger
logger.addHandler(WholeLines("json", sys.stderr, Repeats()))
logger.setLevel("INFO")
print("ready", flush=True)
sys.stdin.read()
for number in range(20):
    logger.info("%s", sys.argv[1] * (200_000 if number % 2 else 10), extra={"number": number})
"""


@pytest.mark.slow
def test_lines_of_several_processes_on_one_pipe_are_whole() -> None:
    reading, writing = os.pipe()
    begin, end = os.pipe()
    command = [sys.executable, "-P", "-c", WRITER]
    writers = [
        subprocess.Popen([*command, name], stdin=begin, stdout=subprocess.PIPE, stderr=writing) for name in "abcd"
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        writer.stdout.close()
    os.close(begin)
    os.close(end)  # all of them begin to write
    os.close(writing)
    got = bytearray()
    try:
        while piece := os.read(reading, 1 << 16):
            got += piece
    finally:
        os.close(reading)
        for writer in writers:
            assert writer.wait(60) == 0
    lines = [json.loads(line) for line in got.splitlines()]
    assert sorted((one["message"][0], one["number"]) for one in lines) == [
        (name, n) for name in "abcd" for n in range(20)
    ]
    assert {len(one["message"]) for one in lines} == {10, 200_000}


def test_long_line_is_written_whole_to_a_pipe_that_does_not_block() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    got = bytearray()

    def read() -> None:
        while piece := os.read(reading, 1 << 12):
            got.extend(piece)

    reader = threading.Thread(target=read)
    with os.fdopen(writing, "w") as stream:
        reader.start()
        log.write_whole(stream, "x" * 1_000_000 + "\n")
    reader.join()
    os.close(reading)
    assert len(got) == 1_000_001


@pytest.mark.slow
def test_line_is_written_where_a_stopped_process_has_the_lock(tmp_path: Path) -> None:
    holder = "import fcntl, sys; fcntl.lockf(1, fcntl.LOCK_EX); print('x', flush=True, file=sys.stderr); input()"
    with (tmp_path / "lines").open("a") as file:
        with subprocess.Popen(
            [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=file, stderr=subprocess.PIPE
        ) as process:
            assert process.stderr is not None and process.stdin is not None
            assert process.stderr.readline() == b"x\n"
            log.write_whole(file, "a line\n")
            assert (tmp_path / "lines").read_text() == "a line\n"
            process.stdin.close()


def test_wrong_form_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDFAST_LOGGING__FORMAT", "xml")
    with pytest.raises(BadConfig, match="STANDFAST_LOGGING__FORMAT is 'xml': give text or json"), printed():
        pass
    monkeypatch.setenv("STANDFAST_LOGGING__FORMAT", "json")
    monkeypatch.setenv("STANDFAST_LOGGING__LEVEL", "loud")
    with pytest.raises(BadConfig, match="STANDFAST_LOGGING__LEVEL is 'loud': give debug or"), printed():
        pass


def test_error_that_ends_a_command_is_a_line_of_its_log() -> None:
    out = io.StringIO()
    configure("info", "json", out)

    def fails() -> int:
        raise BadConfig(["app.log is missing", "app.name is missing"])

    assert guard.guard(fails) == 78
    line = json.loads(out.getvalue())
    assert (line["event"], line["exit_code"], line["error_class"]) == ("command_failed", 78, "BadConfig")
    assert line["message"] == "app.log is missing; app.name is missing"


def test_the_server_of_the_http_server_writes_as_we_do_and_once_for_what_comes_again() -> None:
    out = io.StringIO()
    server = logging.getLogger("uvicorn.error")
    server.disabled = True  # as logging.config leaves loggers that it does not name
    configure("info", "json", out)
    server.info("not told")
    for _ in range(100):
        server.warning("Invalid HTTP request received.")
    (line,) = map(json.loads, out.getvalue().splitlines())
    assert (line["level"], line["message"]) == ("warning", "Invalid HTTP request received.")


def test_a_traceback_keeps_its_lines_for_people() -> None:
    out = io.StringIO()
    configure("info", "text", out)
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("a bug")
    assert len(out.getvalue().splitlines()) > 3


def test_a_second_call_changes_level_and_form() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("info", "text", first)
    configure("error", "json", second)
    logger.warning("quiet")
    logger.error("loud")
    assert first.getvalue() == "" and json.loads(second.getvalue())["message"] == "loud"


def test_line_that_comes_again_is_written_once_in_ten_seconds_with_how_often_it_came() -> None:
    out = io.StringIO()
    handler = configure("info", "text", out)

    def tell(at_s: float, text: str, level: int = logging.WARNING, **more: bool) -> None:
        record = logger.makeRecord(logger.name, level, "", 0, text, (), None, extra=more)
        record.created = at_s
        handler.handle(record)

    for tenth in range(120):
        tell(tenth / 10, f"log x has been locked for {tenth / 10:.1f} s")
        tell(tenth / 10, f"task 0_{tenth % 2} failed", logging.ERROR)
        tell(tenth / 10, "told as often as it is", logging.INFO)
    tell(12.0, "the log can be used again, after 12.0 s", over=True)
    tell(12.1, "log x has been locked for 0.1 s")
    lines = [line.partition("standfast.test: ")[2] for line in out.getvalue().splitlines()]
    assert lines.count("told as often as it is") == 120
    assert [line for line in lines if "locked" in line] == [
        "log x has been locked for 0.0 s",
        "log x has been locked for 10.0 s [99 more since the last such line]",
        "log x has been locked for 0.1 s",
    ]
    assert len([line for line in lines if "failed" in line]) == 4  # of each task, at 0 and at 10 seconds
    assert "the log can be used again, after 12.0 s [37 lines were left out]" in lines
