"""Actions of the ops page: buttons for permitted users, and a bounded look at a changelog."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette

from standfast.ops.config.types import HttpSection
from standfast.ops.observe.status import status_document
from standfast.ops.page.feed import NOTHING
from standfast.ops.page.history import PageHistory
from standfast.ops.page.html import render
from standfast.ops.page.model import percentile, restore_phases
from standfast.ops.page.page import OpsPage
from standfast.ops.page.peek import RECORDS_MAX, Look, look
from standfast.ops.security.http_guard import is_admin, store_of
from standfast.ops.security.tokens import OWNER, READER, Actor
from standfast.ops.sidecar.control.events import Events
from standfast.ops.sidecar.control.timers import SidecarTimers
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import UnknownStore

if TYPE_CHECKING:
    from support.sessions import Bench

NAMES = ("plain.name-1_x", '"><b>', "a/../b", "?", "")
EVIL = '<img src=x onerror="alert(1)">'


def ask(path: str, actor: Actor | None = None, peek: Look | None = None) -> httpx.Response:
    """The answer to a caller of the page, after the guard's verdict."""
    page = OpsPage(lambda: {**NOTHING, "ready": True}, peek=peek, acts=is_admin)
    inner = Starlette(routes=list(page.routes))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await inner({**scope, **({} if actor is None else {"actor": actor})}, receive, send)

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return await client.get(path)

    return asyncio.run(get())


def test_only_an_admin_gets_buttons_and_they_are_hidden_until_a_script_shows_them() -> None:
    html = ask("/", OWNER).text
    assert '<section id="actions" aria-labelledby="h-actions" hidden>' in html and "<form" not in html
    for actor in (None, READER):
        assert "actions" not in ask("/", actor).text


def test_changelogs_cannot_be_looked_at_unless_the_settings_say_so(bench: Bench) -> None:
    assert HttpSection().peek is False
    assert ask("/peek/kv/0", OWNER).status_code == 404
    session = bench.active("a", partitions=(0,))
    changelog = TopicPartition("app-kv-changelog", 0)
    answer = ask("/peek/kv/0", peek=lambda store, partition: look(session.log, changelog))
    assert answer.status_code == 200 and "holds no record" in answer.text
    assert "form-action 'none'" in answer.headers["content-security-policy"]


def test_look_at_a_changelog_is_bounded_and_escaped(bench: Bench) -> None:
    session = bench.active("a", partitions=(0,))
    store = session.task(0).store("kv")
    for number in range(RECORDS_MAX + 10):
        store.put(f"k{number}", "v")
    store.put(EVIL, "é" * 100)
    store.delete("k0")
    session.task(0).commit()
    found = look(session.log, TopicPartition("app-kv-changelog", 0))
    assert len(found.records) == RECORDS_MAX and found.records[-1].offset == found.end - 1
    text = ask("/peek/kv/0", peek=lambda store, partition: found).text
    assert "<img" not in text and "&lt;img src=x" in text
    assert f"<code>{'é' * 40}…</code>" in text and "é" * 41 not in text
    assert text.count("<tr>") == RECORDS_MAX + 1


def test_error_of_a_look_is_told_on_its_page() -> None:
    def refuse(store: str, partition: int) -> Any:
        raise UnknownStore(f"no store {store}")

    answer = ask(f"/peek/{EVIL}/0", peek=refuse)
    assert answer.status_code == 404 and "no store &lt;img" in answer.text and "<img" not in answer.text


@pytest.mark.parametrize(
    ("path", "store"),
    [("/peek/kv/0", "kv"), ("/peek", None), ("/v1/stores/kv/get", "kv"), ("/v1/stores", None), ("/", None)],
)
def test_look_at_a_changelog_counts_as_reading_its_store(path: str, store: str | None) -> None:
    assert store_of(path) == store


def test_histogram_is_told_by_the_bound_that_holds_nearly_all() -> None:
    told = {"buckets": [{"le": 0.005, "count": 90}, {"le": 0.05, "count": 99}, {"le": 2.0, "count": 99}], "count": 100}
    assert percentile(told, 0.9) == "in 5 ms" and percentile(told, 0.99) == "in 50 ms"
    assert percentile(told, 1.0) == "over 2.0 s"


def test_time_of_restores_is_told_by_its_phases() -> None:
    spent = {"fetch": 400_000_000, "decode": 100_000_000, "write": 500_000_000, "ingest": 1, "idle": 9_000_000_000}
    assert restore_phases({"counters": {"restore_phases_ns": spent}}) == "fetch 39 %, decode 9 %, write 49 % of 1.0 s"
    assert restore_phases({"counters": {}}) == "" == restore_phases({})


def test_no_link_is_made_of_a_name_that_no_store_can_have(bench: Bench) -> None:
    found: dict[str, Any] = {**status_document(bench.active("a", partitions=(0,)).statistics()), "peek": True}
    found["tasks"][0]["stores"] = [{**one, "store": name} for one in found["tasks"][0]["stores"][:1] for name in NAMES]
    rows = render(found, PageHistory(), 0).tables["changelogs"].values()
    links = [found for row in rows for found in re.findall(r'href="([^"]*)"', row)]
    assert links == ["peek/plain.name-1_x/0"]


def test_schedules_are_shown_with_what_they_missed_and_counted(bench: Bench) -> None:
    session = bench.active("a", partitions=(0,))
    loop = asyncio.new_event_loop()
    timers = SidecarTimers(bench.clock, Events(loop))
    timers.schedule(frozenset({0}), 0, "wall_clock_time", 1_000, None)
    timers.schedule(frozenset({0}), 0, "stream_time", 60_000, 5_000)
    now_ms = bench.clock.wall_ms()
    bench.clock.advance(3_500)
    timers.tick(frozenset({0}), {0: session.task(0)})
    wall, stream = timers.shown()
    assert (wall["task"], wall["next_ms"], wall["missed"], wall["interval_ms"]) == ("0_0", now_ms + 4_000, 2, 1_000)
    assert (stream["kind"], stream["next_ms"], stream["missed"]) == ("stream_time", 5_000, 0)
    assert timers.counters.punctuations == {("wall_clock_time", "fired"): 1}
    assert timers.counters.punctuation_delay_seconds[("wall_clock_time",)].total == 2.5
    loop.close()
