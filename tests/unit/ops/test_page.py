"""The ops page without a browser: verdicts, rows, escaping, messages of changes, headers, limits."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

import standfast as sf
from standfast.ops.config.config import load_config
from standfast.ops.observe.metrics_servers import HttpNumbers
from standfast.ops.observe.status import status_document
from standfast.ops.observe.verdict import duration, size, verdict
from standfast.ops.page.feed import NOTHING, QUEUE_MAX, PageFeed, PageStream
from standfast.ops.page.history import DONE_MS, RATE_MS, STEP_MS, STEPS, Meter, PageHistory, Series, bars
from standfast.ops.page.html import changes, document, render, whole
from standfast.ops.page.model import age, log_share, per_second, points
from standfast.ops.page.page import FILES, OpsPage
from standfast.ops.security.audit import Audit
from standfast.ops.sidecar.page_status import page_status
from standfast.store.clock import ManualClock
from standfast.store.errors import Unavailable
from standfast.stream.snapshot_counts import StoredSnapshot

if TYPE_CHECKING:
    from support.page import Serve
    from support.sessions import Bench

EVIL = '<img src=x onerror="alert(1)">\'"&'
NOW_MS = 1_357_000_000_000


def store(name: str = "kv", **changed: Any) -> dict[str, Any]:
    numbers = dict.fromkeys(
        (
            "position",
            "position_at_ms",
            "begin",
            "end",
            "lag",
            "sst_bytes",
            "memtable_bytes",
            "keys_estimate",
            "pending_compaction_bytes",
            "segments",
            "open_iterators",
            "late_dropped",
            "corruptions",
            "caught_up_ms",
        ),
        0,
    )
    return {**numbers, "store": name, "kind": "keyvalue", "ops": {}, "limit": None, "paused": False, **changed}


def task(number: int = 0, role: str = "active", state: str = "running", *stores: Any, **changed: Any) -> dict[str, Any]:
    return {
        "task": f"0_{number}",
        "partition": number,
        "role": role,
        "state": state,
        "epoch": 1,
        "error": "",
        "buffer_bytes": 0,
        "sources": {},
        "stream_times": {},
        "stores": stores or (store(),),
        **changed,
    }


def restore(number: int = 0, position: int = 0, end: int = 100, **changed: Any) -> dict[str, Any]:
    return {
        "task": f"0_{number}",
        "store": "kv",
        "reason": "resume",
        "start": 0,
        "position": position,
        "end": end,
        "remaining": end - position,
        "fraction": position / end,
        "rate": 10.0,
        "stuck": False,
        "seconds_left": (end - position) / 10,
        **changed,
    }


def status(*tasks: Any, restores: Any = (), **changed: Any) -> dict[str, Any]:
    return {**NOTHING, "app": "app", "instance": "i", "ready": True, "tasks": tasks, "restores": restores, **changed}


@pytest.mark.parametrize(
    ("document", "word", "text"),
    [
        (status(), "READY", "no tasks"),
        (status(task(), task(1, "standby", "standby")), "READY", "1 active, 1 standby"),
        (
            status(task(), task(1, state="restoring"), restores=[restore(1, 41)], ready=False),
            "RESTORING",
            "1 of 2 tasks whole, 41 %, 5.9 s left",
        ),
        (status(task(state="failed"), task(1, state="restoring")), "FAILED", "task 0_0"),
        (status(task(), draining=True), "DRAINING", "1 tasks to close"),
        (status(task(), ready=False, missing=["the log did not answer"]), "NOT READY", "the log did not answer"),
        (status(task(), standbys_missing=2), "DEGRADED", "no live instance can hold 2 standbys"),
        (
            status(task(1, "standby", "standby", store(lag=20_000))),
            "DEGRADED",
            "standby 0_1/kv far behind",
        ),
        (status(disk={"free_bytes": 5 << 30, "total_bytes": 100 << 30}), "DEGRADED", "5.0 GiB free on the disk"),
        (status(health={"degraded": ["the log is slow"]}), "DEGRADED", "the log is slow"),
        (status(live=False), "DOWN", "the instance is not running; these values come from its files"),
    ],
)
def test_verdict_is_one_word_and_why(document: dict[str, Any], word: str, text: str) -> None:
    found = verdict(document)
    assert (found.word, found.text) == (word, text)


def test_restores_stand_slowest_first_and_those_that_ended_stay_a_minute() -> None:
    history = PageHistory()
    first = status(
        *(task(number, state="restoring") for number in range(3)),
        restores=[restore(0, 90), restore(1, 10), restore(2, 50, seconds_left=None, stuck=True)],
    )
    history.look(first, NOW_MS)
    assert [(bar.task, bar.percent, bar.state) for bar in bars(first, history)] == [
        ("0_2", 50, "stuck"),
        ("0_1", 10, "running"),
        ("0_0", 90, "running"),
    ]
    second = status(task(0), task(1, state="restoring"), task(2, state="failed"), restores=[restore(1, 100)])
    history.look(second, NOW_MS + 1_000)
    assert [(bar.task, bar.percent, bar.state) for bar in bars(second, history)] == [
        ("0_1", 100, "done"),
        ("0_0", 100, "done"),
    ]
    history.look(status(task(0)), NOW_MS + 1_000 + DONE_MS)
    assert bars(status(task(0)), history) == []


def test_lag_is_remembered_for_standbys_that_are_held() -> None:
    history = PageHistory()
    for number in range(3):
        held = store(lag=30 - 10 * number, position=70 + 10 * number)
        history.look(status(task(1, "standby", "standby", held)), NOW_MS + STEP_MS * number)
    assert list(history.chart("lag 0_1/kv")) == [30, 20, 10] == list(history.chart("lag"))
    assert history.rate("0_1/kv") == pytest.approx(10 * 1_000 / STEP_MS)
    history.look(status(), NOW_MS + 4 * STEP_MS)
    assert history.chart("lag 0_1/kv") == () and history.rate("0_1/kv") == 0.0


def test_line_of_a_restore_stays_as_long_as_the_restore_is_shown() -> None:
    history = PageHistory()
    history.look(status(task(0, state="restoring"), restores=[restore(0, 50)]), NOW_MS)
    history.look(status(task(0)), NOW_MS + 1_000)
    assert history.chart("restore 0_0/kv") == (10.0,)
    history.look(status(task(0)), NOW_MS + 1_000 + DONE_MS)
    assert history.chart("restore 0_0/kv") == ()


def test_series_keeps_the_highest_value_of_each_step_and_begins_again_after_a_pause() -> None:
    series = Series()
    for at_ms, value in ((0, 1), (1, 7), (STEP_MS - 1, 3)):
        series.add(at_ms, value)
    assert list(series.values) == [3]
    for at_ms, value in ((STEP_MS, 2), (STEP_MS + 1, 1)):
        series.add(at_ms, value)
    assert list(series.values) == [7, 1]
    series.add(3 * STEP_MS, 5)
    assert list(series.values) == [5]
    for number in range(4, 4 + 2 * STEPS):
        series.add(number * STEP_MS, number)
    assert len(series.values) == STEPS


def test_rate_is_that_of_the_last_seconds_and_of_one_counter() -> None:
    meter = Meter()
    for second in range(60):
        meter.add(second * 1_000, 1_000 if second < 30 else 1_000 + 50 * (second - 29))
    assert meter.rate == 50.0
    meter.add(60_000, 10)  # a counter that began again
    assert meter.rate == 0.0
    meter.add(60_000 + RATE_MS, 10 + 3 * RATE_MS // 1_000)
    assert meter.rate == 3.0


def test_rates_stand_beside_counts_and_restores_and_lags_have_charts() -> None:
    def found(second: int) -> dict[str, Any]:
        held = store(position=100 * second, ops={"put": 20 * second, "get": 5})
        behind = store(lag=7, position=100)
        return status(
            *(task(0, "active", "running", held), task(1, "standby", "standby", behind), task(2, state="restoring")),
            restores=[restore(2, 10 * second, rate=10.0)],
            servers=[{"server": "RESP", "what": "commands", "value": 40 * second}],
        )

    history = PageHistory()
    for second in (1, 6):
        history.look(found(second), NOW_MS + 1_000 * second)
    page = render(found(6), history, NOW_MS + 6_000)
    text = {name: read("".join(rows.values())).text for name, rows in page.tables.items()}
    assert "600 100/s" in text["tasks"] and "120 20/s" in text["stores"] and "240 40/s" in text["servers"]
    assert "records behind: highest 7, now 7" in page.tables["standbys"]["0_1/kv"]
    assert "records a second: highest 10, now 10" in page.tables["restores"]["0_2/kv"]
    for about in ("records left to restore: highest 90, now 40", "records behind: highest 7", "changes a second"):
        assert about in page.blocks["tiles"], about


def test_line_of_a_chart_stays_within_its_picture_with_the_newest_value_at_the_right() -> None:
    for values in ([5.0], [0.0, 0.0], [float(one) for one in range(STEPS)]):
        line = [tuple(map(int, point.split(","))) for point in points(values, 90, 18).split()]
        assert len(line) >= 2 and line[-1][0] == 90
        assert all(0 <= x <= 90 and 0 <= y < 18 for x, y in line), line


def test_position_near_the_start_of_a_log_that_deletes_is_at_risk() -> None:
    assert log_share(store(begin=1_000, position=1_100, end=9_000)) == (1, True)
    assert log_share(store(begin=0, position=100, end=9_000)) == (1, False)
    assert log_share(store(begin=1_000, position=1_000, end=1_000)) == (100, False)
    assert log_share(store(begin=5, position=0, end=10)) == (0, False)


def test_numbers_are_told_for_people() -> None:
    assert [size(number) for number in (0, 1_536, 200 << 20, 5 << 40, -1)] == [
        *("0 B", "1.5 KiB", "200 MiB", "5.0 TiB", "unknown"),
    ]
    assert [duration(seconds) for seconds in (0.25, 38, 240, 7_200, None)] == [
        *("0.2 s", "38 s", "4 min", "2.0 h", "unknown"),
    ]
    assert [age(NOW_MS - 1_000 * ago, NOW_MS) for ago in (1, 15, 200, 500, 3_700, 400_000, -5)] == [
        *("just now", "under 1 min ago", "3 min ago", "5 min ago", "1 h ago", "4 d ago", "just now"),
    ]
    assert [per_second(rate) for rate in (0.0, 0.04, 2.25, 47.8, 1_234.0, 987_654.0)] == [
        *("", "", "2.2/s", "48/s", "1,200/s", "990,000/s"),
    ]
    assert age(-1, NOW_MS) == "never"


class Reader(HTMLParser):
    """Every tag, attribute and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def hostile(name: str) -> dict[str, Any]:
    """A status with this text everywhere."""
    held = task(0, name, name, store(name), error=name, task=name, sources={name: 1})
    return status(
        held,
        task(1, "standby", "standby", store(name), task=name + "1"),
        restores=[restore(0, 5, task=name, store=name, reason=name)],
        app=name,
        instance=name,
        members=[name],
        version=name,
        config={name: name},
        health={"degraded": [name]},
        servers=[{"server": name, "what": name, "value": name}],
        schedules=[{"task": name, "kind": name, "next_ms": 5}],
        events=[{"number": 1, "at_ms": 1, "event": name, "actor": name, "outcome": name, "fields": {name: name}}],
    )


@pytest.mark.slow
@given(name=st.one_of(st.just(EVIL), st.text(min_size=1)))
def test_names_stay_text_whatever_they_are(name: str) -> None:
    found = hostile(name)
    history = PageHistory()
    history.look(found, NOW_MS)
    page = render(found, history, NOW_MS)
    plain = read(document(status(), render(status(), PageHistory(), NOW_MS), NOW_MS))
    got = read(document(found, page, NOW_MS))
    known = {tag for tag, _ in plain.tags} | {
        "td",
        "th",
        "tr",
        "small",
        "br",
        "span",
        "svg",
        "rect",
        "polyline",
        "progress",
    }
    assert {tag for tag, _ in got.tags} <= known
    for _, attributes in got.tags:
        assert not any(one.startswith("on") or one == "style" for one in attributes)
    json.loads(json.dumps(whole(page)))


def test_page_has_no_inline_script_or_style_and_loads_nothing_from_elsewhere() -> None:
    found = hostile("x")
    html = document(found, render(found, PageHistory(), NOW_MS), NOW_MS)
    assert re.findall(r"<script[^>]*>", html) == ['<script src="page.js" defer>']
    assert "<style" not in html and "style=" not in html and "://" not in html
    assert not re.search(r"\bon[a-z]+=", html)
    for name in ("page.js", "page.css"):
        assert name in FILES


def test_page_is_made_for_keyboards_and_screen_readers() -> None:
    reader = read(document(hostile("x"), render(hostile("x"), PageHistory(), NOW_MS), NOW_MS))
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("h1") == 1 and tags.count("main") == 1 and tags.count("table") == tags.count("thead")
    headings = [attributes["id"] for tag, attributes in reader.tags if tag == "h2"]
    for tag, attributes in reader.tags:
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
        if tag == "section":
            assert attributes["aria-labelledby"] in headings
        if tag == "svg":
            assert attributes["role"] == "img" and attributes["aria-label"]
        if tag == "progress":
            assert attributes["aria-label"]
        if "tabindex" in attributes:
            assert attributes["tabindex"] == "0" and attributes["role"] == "region"


def test_only_what_changed_is_told() -> None:
    def page(*tasks: Any, restores: Any = ()) -> Any:
        return render(status(*tasks, restores=restores), PageHistory(), NOW_MS)

    first = page(task(0), task(1))
    assert changes(first, page(task(0), task(1))) == {}
    told = changes(first, page(task(0), task(1, state="failed")))
    assert set(told["tables"]) == {"tasks"} and list(told["tables"]["tasks"]["rows"]) == ["0_1"]
    assert "order" not in told["tables"]["tasks"] and "FAILED" in told["blocks"]["verdict"]
    gone = changes(first, page(task(1)))["tables"]["tasks"]
    assert gone == {"rows": {}, "order": ["0_1"]}


def test_page_of_a_real_session_shows_its_stores(bench: Bench) -> None:
    session = bench.active("a", partitions=(0, 1))
    session.task(0).store("kv").put("secret-key", "secret-value")
    session.task(0).commit({("flights", 0): 7})
    found = status_document(session.statistics())
    html = document(found, render(found, PageHistory(), NOW_MS), NOW_MS)
    text = read(html).text
    assert "READY 2 active, 0 standby" in text and "flights/0 at 7" in text.replace("('flights', 0)", "flights/0")
    assert "secret" not in html


def test_page_lists_snapshots_with_the_error_of_the_last_attempt_first(bench: Bench, tmp_path: Path) -> None:
    session = bench.active("a", snapshots=sf.SnapshotPolicy(to=str(tmp_path / "snaps")))
    kept = session.counters.snapshots
    kept.stored = (StoredSnapshot("0_0/3-4711", "0_0", 3, 4711, 5 << 20, 6, NOW_MS - 3_600_000),)
    kept.errors["0_0"] = ("writing <b>x</b> to the storage: no space", NOW_MS - 120_000)
    session._downloads.add("0_1", "0_1/1-2", 300, 100, session.clock.monotonic_ms())
    found = render(status_document(session.statistics()), PageHistory(), NOW_MS)
    assert list(found.tables["snapshots"]) == ["error/0_0", "0_0/3-4711"]
    text = read(found.tables["snapshots"]["0_0/3-4711"]).text
    for shown in ("4,711", "1 h ago", "5.0 MiB", "6", str(tmp_path / "snaps"), "stored"):
        assert shown in text
    failed = found.tables["snapshots"]["error/0_0"]
    assert "no space" in failed and "<b>" not in failed
    assert "33 %" in found.tables["downloads"]["0_1"]


def test_page_shows_when_a_failed_task_is_opened_again_and_how_often_it_failed() -> None:
    failed = task(0, "active", "failed", error="KeyError: 'x'", failures=2, opened_again_ms=3_400)
    once = task(1, "active", "failed", failures=1, opened_again_ms=200_000)
    given_up = task(2, "active", "failed", error="its rows may be the last copy", failures=0, opened_again_ms=None)
    found = render(status(failed, once, given_up), PageHistory(), NOW_MS).tables["tasks"]
    assert "opened again in 3.4 s, failed 2 times" in read(found["0_0"]).text
    assert "opened again in 3 min, failed 1 time" in read(found["0_1"]).text
    assert "opened again" not in found["0_2"] and "last copy" in found["0_2"]


def test_page_without_a_policy_of_snapshots_has_no_such_table(bench: Bench) -> None:
    assert "snapshots" not in render(status_document(bench.active("a").statistics()), PageHistory(), NOW_MS).tables


def test_a_sidecars_page_shows_disk_servers_events_and_settings_without_secrets(
    tmp_path: Path, clock: ManualClock, bench: Bench
) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[app]\nname = "a"\nlog = "kafka://b:1?some.key=hunter2"\n[serve]\nlease = "3s"\n', "utf-8")
    audit, http = Audit(clock), HttpNumbers()
    audit.done("assign", "flights-app", generation=7)
    http.answered("GET /v1/status", 503, 0.1)
    found = page_status(
        {**status_document(bench.active().statistics()), "sidecar": {"generation": 7, "draining": False}},
        state_path=tmp_path,
        audit=audit,
        loaded=load_config(path, {}),
        http_server=http,
        schedules=[{"task": "0_0", "kind": "wall_clock_time", "next_ms": 0, "missed": 2}],
    )
    text = read(document(found, render(found, PageHistory(), NOW_MS), NOW_MS)).text
    for part in (
        "assign",
        "flights-app",
        "answers 5xx",
        "serve.lease3s",
        "disk free",
        "generation7",
        "wall clock time",
    ):
        assert part in text, part
    assert "hunter2" not in text and json.loads(json.dumps(found)) == json.loads(json.dumps(dict(found)))
    assert verdict({**found, "sidecar": {"draining": True}}).word == "DRAINING"


def run_app(page: OpsPage, *requests: tuple[str, str]) -> list[httpx.Response]:
    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(Starlette(routes=list(page.routes)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [await client.request(method, path) for method, path in requests]

    return asyncio.run(ask())


def test_every_answer_has_the_headers_of_a_closed_page() -> None:
    page = OpsPage(lambda: status(task()))
    answers = run_app(page, *(("GET", path) for path in ("/", "/page.json", "/page.js", "/page.css", "/page-icon.svg")))
    for answer in answers:
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'") and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-frame-options"] == "DENY" and answer.headers["cache-control"] == "no-store"
    assert answers[1].json()["whole"] is True
    for method in ("POST", "PUT", "DELETE"):
        for answer in run_app(page, (method, "/"), (method, "/page-events"), (method, "/page.json")):
            assert answer.status_code == 405


def test_status_that_cannot_be_read_becomes_the_verdict() -> None:
    def broken() -> dict[str, Any]:
        raise Unavailable("the log <did> not answer")

    (answer,) = run_app(OpsPage(broken), ("GET", "/"))
    assert answer.status_code == 200 and "NOT READABLE" in answer.text and "&lt;did&gt;" in answer.text


async def begun(feed: PageFeed) -> PageStream | None:
    """A stream with its first page; None if there are too many."""
    stream = feed.open()
    if stream is not None:
        await feed.begin(stream)
    return stream


@pytest.mark.slow
@pytest.mark.parametrize(
    # A browser connects again by itself after a stream that has ended, and not after an error.
    ("path", "code", "text"),
    [("/", 503, "closing"), ("/page.json", 503, "closing"), ("/page-events", 200, "retry: 1000\n\n")],
)
def test_a_server_that_closes_while_its_status_is_read_answers_by_no_error_of_its_own(
    serve: Serve, path: str, code: int, text: str
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def stuck() -> dict[str, Any]:
        reading.set()
        assert go_on.wait(60)
        return status()

    with ThreadPoolExecutor(1) as thread:
        with serve(stuck) as address:
            asked = thread.submit(httpx.get, address + path, timeout=30)
            assert reading.wait(30)
        answer = asked.result()
        go_on.set()
    assert answer.status_code == code and text in answer.text


def test_a_stream_whose_status_cannot_be_read_ends_with_that_error(clock: ManualClock) -> None:
    def broken() -> dict[str, Any]:
        raise ValueError("a defect")

    async def watch() -> None:
        feed = PageFeed(broken, clock)
        stream = feed.open()
        assert stream is not None
        with pytest.raises(ValueError, match="a defect"):
            await feed.begin(stream)
        assert await stream.queue.get() is None

    asyncio.run(watch())


def test_a_stream_that_is_opened_after_the_close_has_ended(clock: ManualClock) -> None:
    async def watch() -> None:
        feed = PageFeed(status, clock)
        feed.close()
        stream = feed.open()
        assert stream is not None and await stream.queue.get() is None and feed.streams == 0

    asyncio.run(watch())


def test_streams_have_a_limit_and_share_one_reading(clock: ManualClock) -> None:
    readings = []

    def reading() -> dict[str, Any]:
        readings.append(1)
        return status(task(epoch=len(readings)))

    async def watch() -> None:
        feed = PageFeed(reading, clock, streams_max=3)
        streams = [await begun(feed) for _ in range(4)]
        assert streams[3] is None and feed.streams == 3 and len(readings) == 1
        first = streams[0]
        assert first is not None and json.loads(str(await first.queue.get()))["whole"]
        feed.unsubscribe(first)
        assert await begun(feed) is not None
        feed.close()
        assert feed.streams == 0 and first.queue.empty()

    asyncio.run(watch())


def test_readers_that_go_and_come_again_share_the_reading_that_is_under_way(clock: ManualClock) -> None:
    readings, reading, go_on = [], threading.Event(), threading.Event()

    def stuck() -> dict[str, Any]:
        readings.append(1)
        reading.set()
        assert go_on.wait(60)
        return status()

    async def watch() -> None:
        feed = PageFeed(stuck, clock)
        for _ in range(3):  # a browser that connects again
            asked = asyncio.create_task(feed.page())
            await asyncio.to_thread(reading.wait, 30)
            await asyncio.sleep(0)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        go_on.set()
        await feed.page()
        assert len(readings) == 1

    asyncio.run(watch())


def test_reader_that_is_too_slow_loses_its_stream() -> None:
    async def fill() -> None:
        stream = PageStream()
        assert all(stream.put("x") for _ in range(QUEUE_MAX))
        assert not stream.put("x")
        stream.end()
        told = [stream.queue.get_nowait() for _ in range(stream.queue.qsize())]
        assert told[-1] is None and len(told) <= QUEUE_MAX + 1

    asyncio.run(fill())


@pytest.mark.slow
def test_a_stream_tells_changes_and_that_it_lives() -> None:
    epochs = [1]

    async def watch() -> None:
        feed = PageFeed(lambda: status(task(epoch=epochs[0])), ManualTicks())
        stream = await begun(feed)
        assert stream is not None
        assert json.loads(str(await stream.queue.get()))["whole"]
        epochs[0] = 2
        told = json.loads(str(await asyncio.wait_for(stream.queue.get(), 5)))
        assert list(told["tables"]["tasks"]["rows"]) == ["0_0"] and "whole" not in told
        assert json.loads(str(await asyncio.wait_for(stream.queue.get(), 15))) == {}
        feed.close()

    asyncio.run(watch())


@pytest.mark.slow
def test_reader_that_takes_nothing_is_let_go_without_harm_to_others(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standfast.ops.page.page.SEND_S_MAX", 0.5)
    epochs = iter(range(1, 1_000_000))

    def busy() -> dict[str, Any]:
        epoch = next(epochs)
        # More than the kernel keeps for one connection.
        return status(*(task(number, epoch=epoch, error="x" * 5_000) for number in range(1_000)))

    with serve(busy, streams_max=2) as address:
        where = ("127.0.0.1", int(address.rpartition(":")[2]))
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            stuck.connect(where)
            stuck.sendall(b"GET /page-events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with httpx.stream("GET", f"{address}/page-events", timeout=10) as other:
                told = (line for line in other.iter_lines() if line.startswith("data: "))
                seen = [json.loads(next(told)[6:]) for _ in range(4)]
                assert seen[0]["whole"] and all(len(one["tables"]["tasks"]["rows"]) == 1_000 for one in seen)
                with httpx.stream("GET", f"{address}/page-events", timeout=10) as third:
                    assert third.status_code == 200  # in the place of the one that was closed


class ManualTicks(ManualClock):
    """A clock on which every reading is a second later."""

    def monotonic_ms(self) -> int:
        self.advance(1_000)
        return super().monotonic_ms()
