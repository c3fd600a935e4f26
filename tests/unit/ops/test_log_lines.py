"""Lines of the log: one event a line, for people or programs, whatever text the event has."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from standfast.ops.shared.log_lines import configure
from standfast.ops.sidecar.security.audit import Audit
from standfast.store.clock import ManualClock

logger = logging.getLogger("standfast.test")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    roots = [logging.getLogger(name) for name in ("standfast", "uvicorn")]
    before = [(list(root.handlers), root.level, root.propagate) for root in roots]
    yield
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
    logger.warning("two\nlines")
    Audit(clock).done("wipe", "ops", task="0_3")
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("a bug")
    first, second, third = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["level"], first["message"]) == ("warning", "two\nlines")
    assert second["audit"]["event"] == "wipe" and second["audit"]["task"] == "0_3"
    assert "ValueError: broken" in third["trace"]


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
