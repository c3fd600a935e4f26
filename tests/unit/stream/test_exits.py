"""sys.exit() in the code of an application is a failure of its record; in a handler of signals it ends the program."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import standfast as sf
from support.apps import Drive, headers_of

TEXT, JSON = sf.serde.string, sf.serde.json
REASON = r"called sys\.exit\(3\) while it processed: raise an exception"


def exit_for(*bad: Any) -> Callable[[Any, Any], None]:
    def check(key: Any, value: Any) -> None:
        if key in bad:
            sys.exit(3)

    return check


def came(driver: sf.testing.Driver, topic: str = "out") -> list[tuple[Any, Any]]:
    return [(record.key, record.value) for record in driver.read(topic)]


def test_exit_fails_the_task_as_any_exception_does(drive: Drive) -> None:
    app = sf.App("app")
    app.stream("in", key=TEXT, value=JSON).peek(exit_for("bad")).to("out")
    with pytest.raises(sf.InvalidRequest, match=REASON) as failed:
        drive(app).pipe("in", "bad", 1, 1)
    assert isinstance(failed.value.__cause__, SystemExit)
    assert "while task 0_0 processed the record of in-0 at offset 0" in failed.value.__notes__


def test_exit_leaves_its_record_out_where_the_source_skips(drive: Drive) -> None:
    app = sf.App("app")
    app.stream("in", key=TEXT, value=JSON, on_error="skip").peek(exit_for("bad")).to("out")
    driver = drive(app)
    for key in ("a", "bad", "b"):
        driver.pipe("in", key, 1, 1)
    assert came(driver) == [("a", 1), ("b", 1)]


def test_exit_in_a_step_makes_a_dead_letter_that_says_so(drive: Drive) -> None:
    app = sf.App("app")
    step = app.stream("in", key=TEXT, value=JSON).peek(exit_for("bad"), on_error="dead_letter", dead_letter="dead")
    step.to("out")
    driver = drive(app)
    for key in ("a", "bad"):
        driver.pipe("in", key, 1, 1)
    assert came(driver) == [("a", 1)]
    (dead,) = driver.read("dead")
    assert "called sys.exit(3)" in dict(headers_of(dead))["__streams.errors.message"]


def test_exit_in_a_step_that_fails_is_not_left_out_by_its_source(drive: Drive) -> None:
    app = sf.App("app")
    app.stream("in", key=TEXT, value=JSON, on_error="skip").peek(exit_for("bad"), on_error="fail").to("out")
    with pytest.raises(sf.InvalidRequest, match=REASON):
        drive(app).pipe("in", "bad", 1, 1)


class Exiting(sf.Processor):
    where = ""

    def init(self, context: sf.Context) -> None:
        self.context = context
        if self.where == "init":
            sys.exit(3)
        if self.where == "punctuation":
            context.schedule(10, sf.STREAM_TIME, lambda now_ms: sys.exit(3))

    def process(self, record: sf.Record) -> None:
        if self.where == "timer":
            self.context.timer(record.key, 1, sf.PROCESSING_TIME)

    def on_timer(self, timer: sf.Timer) -> None:
        sys.exit(3)


@pytest.mark.parametrize("where", ["init", "punctuation", "timer"])
def test_exit_beside_a_record_fails_the_task(where: str, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exiting, "where", where)
    app = sf.App("app")
    app.source("in", key=TEXT, value=JSON)(Exiting)

    def run() -> None:
        driver = drive(app)
        driver.pipe("in", "a", 1, 1)
        driver.advance_wall_clock(1_000)
        driver.pipe("in", "a", 1, 100)

    with pytest.raises(sf.InvalidRequest, match=REASON):
        run()


def test_exit_in_a_serde_and_in_a_timestamp_extractor_leaves_the_record_out(drive: Drive) -> None:
    def leave(raw: bytes) -> str:
        return sys.exit(3) if raw == b"bad" else raw.decode()

    def stamp(record: sf.Record) -> int:
        return sys.exit(3) if record.value == "timeless" else 7

    app = sf.App("app")
    own = sf.serde.pair("own", str.encode, leave)
    app.stream("in", key=TEXT, value=own, on_error="skip", timestamp=stamp).to("out", value=TEXT)
    driver = drive(app)
    for value in ("a", "bad", "timeless", "b"):
        driver.pipe("in", "k", value, 1)
    assert came(driver) == [("k", "a"), ("k", "b")]


@pytest.fixture
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(5))
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_exit_of_a_signal_handler_ends_the_program_whatever_it_came_to(on_error: Any, drive: Drive) -> None:
    app = sf.App("app")
    stream = app.stream("in", key=TEXT, value=JSON, on_error=on_error)
    stream.peek(lambda key, value: os.kill(os.getpid(), signal.SIGUSR1)).to("out")
    with pytest.raises(SystemExit) as ended:
        drive(app).pipe("in", "a", 1, 1)
    assert ended.value.code == 5
