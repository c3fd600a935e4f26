"""Stream time, watermark and the input that holds them back: in status, metrics, page and on the command line."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.ops.cli.state.tasks import show_status
from standfast.ops.observe.clocks import FIELDS, clocked
from standfast.ops.observe.metrics_values import session_samples
from standfast.ops.observe.status import status_document
from standfast.ops.observe.status_merge import WorkerNumbers, statistics_of
from standfast.ops.page.history import PageHistory
from standfast.ops.page.html import render
from standfast.ops.shared.output import Output
from support.apps import Running, create, write
from support.event_time import ORDER, TEXT

if TYPE_CHECKING:
    from support.sessions import Bench

BEGIN_MS = 1_357_000_000_000  # 2013-01-01 00:26:40
STORES = [sf.KeyValueStore("seen", TEXT, sf.serde.int64)]


def two_inputs(app: sf.App, **source: Any) -> None:
    """One task over one partition each of `fast` and `slow`, which share its clocks."""
    slow = app.stream("slow", watermarks=ORDER, **source)
    app.stream("fast", watermarks=ORDER).merge(slow).group_by_key().count("seen")


def started(bench: Bench, make: Any = two_inputs, **given: Any) -> Running:
    create(bench, 1, "fast", "slow", "out")
    settings: dict[str, Any] = {"stores": STORES, "watermark_interval_ms": 0, **given}
    return Running(bench, make, **settings)


def at(seconds: int) -> int:
    return BEGIN_MS + seconds * 1_000


def document(session: sf.Session) -> dict[str, Any]:
    """The status as a client reads it."""
    found: dict[str, Any] = json.loads(json.dumps(status_document(session.statistics())))
    return found


def clocks(session: sf.Session) -> tuple[Any, ...]:
    (task,) = document(session)["tasks"]
    return tuple(task[name] for name in FIELDS)


def behind(session: sf.Session) -> dict[str, Any]:
    """The two metrics of task 0_0."""
    samples = session_samples(session.statistics())
    return {name: value for name, labels, value in samples if "_behind_" in name and labels == ("0_0",)}


@pytest.fixture
def lagging(bench: Bench) -> Running:
    """An application whose input `slow` is a minute behind its input `fast`."""
    one = started(bench)
    write(bench, "fast", ("k", "1", at(100)))
    write(bench, "slow", ("k", "1", at(40)))
    one.run()
    return one


def test_status_names_the_input_that_lags(lagging: Running) -> None:
    assert clocks(lagging.session) == (at(40), "slow/0", at(40) - 1, "slow/0")
    write(lagging.bench, "slow", ("k", "2", at(200)))
    lagging.run()
    assert clocks(lagging.session) == (at(100), "fast/0", at(100) - 1, "fast/0")
    lagging.close()


def test_input_without_a_record_is_named_while_the_clocks_are_unknown(bench: Bench) -> None:
    one = started(bench)
    write(bench, "fast", ("k", "1", at(100)))
    one.run()
    assert clocks(one.session) == (None, "slow/0", None, "slow/0")
    assert behind(one.session) == {}
    one.close()


def test_idle_input_is_left_out(bench: Bench) -> None:
    one = started(bench, lambda app: two_inputs(app, idle_after_ms=5_000))
    write(bench, "slow", ("k", "1", at(40)))
    write(bench, "fast", ("k", "1", at(100)))
    one.run()
    assert clocks(one.session)[1::2] == ("slow/0", "slow/0")
    bench.clock.advance(5_001)
    write(bench, "fast", ("k", "1", at(101)))
    one.run()
    assert clocks(one.session) == (at(101), "fast/0", at(101) - 1, "fast/0")
    one.close()


def test_largest_time_as_stream_time_waits_for_no_input(bench: Bench) -> None:
    one = started(bench, stream_time="max")
    write(bench, "fast", ("k", "1", at(100)))
    one.run()
    assert clocks(one.session) == (at(100), None, None, "slow/0")
    one.close()


def test_application_without_watermarks_has_a_stream_time_alone(bench: Bench) -> None:
    one = started(bench, lambda app: app.stream("fast").group_by_key().count("seen"))
    write(bench, "fast", ("k", "1", at(100)))
    one.run()
    assert clocks(one.session) == (at(100), "fast/0", None, None)
    assert set(behind(one.session)) == {"stream_time_behind_seconds"}
    one.close()


def test_session_without_sources_shows_no_clocks(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    session = bench.active("a", partitions=(0,))
    session.task(0).store("kv").put("k", "v")
    session.task(0).commit({("in", 0): 1})
    status = document(session)
    assert clocks(session) == (None, None, None, None)
    assert clocked(status) == [] and behind(session) == {}
    assert render(status, PageHistory(), status["at_ms"]).tables["clocks"] == {}
    show_status(status, Output())
    assert "watermark" not in capsys.readouterr().out


def test_standby_shows_no_clocks_of_its_own(bench: Bench, lagging: Running) -> None:
    lagging.commit()
    second = bench.session("b", stores=STORES, partitions=1, background=False)
    second.assign(standby=[0])
    bench.settle(second)
    (task,) = document(second)["tasks"]
    assert (task["role"], *(task[name] for name in FIELDS)) == ("standby", None, None, None, None)
    lagging.close()


def test_task_whose_processing_ended_shows_no_input(lagging: Running) -> None:
    lagging.commit()
    lagging.loop.close()
    assert clocks(lagging.session) == (at(40), None, None, None)  # the stream time that its commit keeps
    lagging.session.close()


def test_metrics_give_the_seconds_behind_the_clock(lagging: Running) -> None:
    now_ms = lagging.bench.clock.wall_ms()
    found = behind(lagging.session)
    assert found == {
        "stream_time_behind_seconds": (now_ms - at(40)) / 1_000,
        "watermark_behind_seconds": (now_ms - at(40) + 1) / 1_000,
    }
    lagging.bench.clock.advance(60_000)
    assert behind(lagging.session) == {name: value + 60 for name, value in found.items()}
    lagging.close()


def test_clocks_of_a_worker_are_in_the_sum_of_all(bench: Bench, lagging: Running) -> None:
    server, numbers = bench.session("b", stores=STORES, partitions=1), WorkerNumbers()
    numbers.take("1", document(lagging.session))
    merged = numbers.merged(server.statistics())
    (task,) = status_document(merged)["tasks"]
    assert tuple(task[name] for name in FIELDS) == clocks(lagging.session)
    assert merged.at_ms == server.clock.wall_ms()
    of_earlier = document(lagging.session)
    del of_earlier["at_ms"]
    for name in FIELDS:
        del of_earlier["tasks"][0][name]
    assert "_behind_" not in "".join(name for name, _, _ in session_samples(statistics_of(of_earlier)))
    lagging.close()


def test_page_has_a_line_for_each_task_with_clocks(lagging: Running) -> None:
    status = document(lagging.session)
    (line,) = render(status, PageHistory(), at(50)).tables["clocks"].values()
    cells = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", line)]
    assert cells == ["0_0", "2013-01-01 00:27:20 under 1 min ago", "2013-01-01 00:27:19 under 1 min ago", "slow/0"]
    status["tasks"][0] |= {"stream_time_waits_for": "fast/0", "watermark_ms": None}
    (line,) = render(status, PageHistory(), at(50)).tables["clocks"].values()
    assert "not known yet" in line and "slow/0 (watermark), fast/0 (stream time)" in line
    status["tasks"][0] |= {"watermark_waits_for": "<b>"}
    assert "<b>" not in render(status, PageHistory(), at(50)).tables["clocks"]["0_0"]
    lagging.close()


def test_command_prints_the_clocks_and_the_input(lagging: Running, capsys: pytest.CaptureFixture[str]) -> None:
    show_status(document(lagging.session), Output())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["0_0", "2013-01-01T00:27:20Z", "2013-01-01T00:27:19.999Z", "slow/0"] in lines
    of_files: dict[str, Any] = {**document(lagging.session), "live": False, "owner_pid": None}
    for name in FIELDS:
        of_files["tasks"][0].pop(name)
    show_status(of_files, Output())
    assert "watermark" not in capsys.readouterr().out
    lagging.close()


def test_status_does_not_wait_for_a_processor_in_the_middle_of_a_record(bench: Bench) -> None:
    seen: list[tuple[Any, ...]] = []

    class Slow(sf.Processor):
        stores = ()

        def process(self, record: sf.Record) -> None:
            asks = threading.Thread(target=lambda: seen.append(clocks(one.session)))
            asks.start()
            asks.join(30)

    one = started(bench, lambda app: app.stream("fast", watermarks=ORDER).process(Slow), stores=[])
    write(bench, "fast", ("k", "1", at(1)), ("k", "1", at(2)))
    one.run()
    assert len(seen) == 2 and seen[1][2] == at(1) - 1
    one.close()
