"""The feed of the ops page: one reading of the status for all readers, rendered once a second, sent as changes.

    status() ──thread, at most once a second──> Page ──changes──> queue of each stream (a slow one is ended)

Rules of this file: the shell around `html.py`; it knows no HTTP. Nothing is read while there is no reader. A status
that cannot be read becomes the page's verdict, and the rest stays as it was.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from standfast.ops.observe.verdict import Json
from standfast.ops.page.history import PageHistory
from standfast.ops.page.html import Page, changes, document, render, verdict_block, whole
from standfast.ops.shared.in_thread import in_thread
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError

TICK_S = 1.0
BEAT_TICKS = 5  # a stream without news sends an empty change at least this often
SHARED_MS = 500  # below a tick, so that each tick reads again
STREAMS_MAX = 16
QUEUE_MAX = 8  # changes that a slow reader may be behind
NOTHING: dict[str, Any] = {
    "app": "standfast",
    "instance": "",
    "live": True,
    "ready": False,
    "missing": [],
    "members": [],
    "standbys_missing": 0,
    "tasks": [],
    "restores": [],
}

Status = Callable[[], Mapping[str, Any]]


@dataclass(eq=False, slots=True)
class PageStream:
    """Changes that one reader has not received yet; None ends the stream."""

    # One place more than changes may take, so that the end always has room.
    queue: asyncio.Queue[str | None] = field(default_factory=lambda: asyncio.Queue(QUEUE_MAX + 1))

    def put(self, text: str) -> bool:
        """Queue a change. False if the reader is too slow: then the stream ends, and the reader may connect again."""
        if self.queue.qsize() < QUEUE_MAX:
            self.queue.put_nowait(text)
            return True
        self.end()
        return False

    def end(self) -> None:
        """End the stream."""
        while self.queue.qsize() > QUEUE_MAX:
            self.queue.get_nowait()
        self.queue.put_nowait(None)


class PageFeed:
    """The current page, and streams of its changes. To be used on one event loop."""

    def __init__(self, status: Status, clock: Clock, streams_max: int = STREAMS_MAX) -> None:
        self._read = status
        self._clock = clock
        self._streams_max = streams_max
        self._streams: set[PageStream] = set()
        self._history = PageHistory()
        self._status: Json = NOTHING
        self._page = Page("")
        self._page_ms: int | None = None
        self._seen = secrets.token_hex(8)  # names the current page; random, so that no name of a former process fits
        self._reading: asyncio.Task[None] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    async def html(self, *, actions: bool = False, stores: Collection[str] = ()) -> str | None:
        """The whole page, None if the feed closes meanwhile; `actions` adds buttons, `stores` can be looked up."""
        page = await self.page_unless_closed()
        if page is None:
            return None
        return document(self._status, page, self._clock.wall_ms(), seen=self._seen, actions=actions, stores=stores)

    async def page_unless_closed(self) -> Page | None:
        """The current page; None if the feed closes before it is read, which may take as long as the status takes."""
        reading, closed = asyncio.create_task(self.page()), asyncio.create_task(self._closed.wait())
        try:
            await asyncio.wait({reading, closed}, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            reading.cancel()
            closed.cancel()

    async def page(self) -> Page:
        """The current page; readings within half a second are shared, and one that is under way is.

        A reader that is gone ends no reading: its thread goes on, and the next reader waits for it.
        """
        if self._page_ms is None or self._clock.monotonic_ms() - self._page_ms >= SHARED_MS:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._renew())
            await asyncio.shield(self._reading)
        return self._page

    async def _renew(self) -> None:
        now_ms = self._clock.monotonic_ms()
        page = await in_thread(self._render)
        # An unchanged page keeps its name, so that a browser that connects again is sent nothing.
        if page != self._page:
            self._seen = secrets.token_hex(8)
        self._page, self._page_ms = page, now_ms

    def open(self) -> PageStream | None:
        """A new stream, to be begun. None if there are too many; it is ended already if the feed is closed."""
        if len(self._streams) >= self._streams_max:
            return None
        stream = PageStream()
        if self._closed.is_set():
            stream.end()
        else:
            self._streams.add(stream)
        return stream

    async def begin(self, stream: PageStream, seen: str = "") -> None:
        """Put the whole page into a new stream, unless its reader has `seen` it; changes follow.

        If the status cannot be read for another reason than the library's errors, ends the stream and raises that.
        """
        try:
            page = await self.page()
        except BaseException:
            stream.end()
            raise
        stream.put(json.dumps({} if seen == self._seen else whole(page)))
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick(page))

    def unsubscribe(self, stream: PageStream) -> None:
        """Remove a stream whose reader is gone."""
        self._streams.discard(stream)

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def close(self) -> None:
        """End every stream, those that are opened later, and the wait of readers for a page."""
        self._closed.set()
        for stream in self._streams:
            stream.end()
        self._streams.clear()

    async def _tick(self, told: Page) -> None:
        """Send changes while there are readers. A stream that began with a newer page gets some rows twice, which
        does no harm: rows replace rows of the same key."""
        quiet = 0
        while self._streams:
            await asyncio.sleep(TICK_S)
            page = await self.page()
            news = changes(told, page)
            told = page
            quiet = 0 if news else quiet + 1
            if not news and quiet < BEAT_TICKS:
                continue
            quiet = 0
            text = json.dumps(news)
            self._streams -= {stream for stream in self._streams if not stream.put(text)}

    def _render(self) -> Page:
        """Read and render, in a thread: the status may ask the log."""
        now_ms = self._clock.wall_ms()
        try:
            self._status = self._read()
        except StandfastError as error:
            return self._unreadable(str(error))
        self._history.look(self._status, now_ms)
        return render(self._status, self._history, now_ms)

    def _unreadable(self, why: str) -> Page:
        # The last rows stay: an operator needs them most while the instance does not answer.
        page = self._page if self._page_ms is not None else render(NOTHING, self._history, 0)
        blocks = {**page.blocks, "verdict": verdict_block("bad", "NOT READABLE", why)}
        return replace(page, title="NOT READABLE", blocks=blocks)
