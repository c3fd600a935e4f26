"""Lines of the log: one event a line, for people or programs, whatever the event says."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from standfast.ops.audit import Audit
from standfast.ops.log_lines import configure
from standfast.store.clock import ManualClock

logger = logging.getLogger("standfast.test")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger("standfast")
    before = (list(root.handlers), root.level, root.propagate)
    yield
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


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
