"""The ops page's routes: the page itself, its script and style, and its changes as a stream or on demand.

    GET /              the page, whole without scripts
    GET /page.css, /page.js, /page-icon.svg
    GET /page-events   Server-Sent Events: the page (unless ?seen= names it), then changes; STREAMS_MAX at a time
    GET /page.json     the whole page in the same shape, for readers without a stream
    GET /peek/...      the newest records of a changelog, where the settings allow it: see `peek.py`

Rules of this file: routes and headers. It only reads, and no answer but a peek holds a key or a value. The page may
load nothing from other hosts and may not be put into a frame. Its buttons are calls of /v1, which the guard judges as
any other; a client without the right to make them is shown none, nor links to rows that it may not read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from standfast.ops.page.feed import STREAMS_MAX, PageFeed, PageStream, Status
from standfast.ops.page.html import whole
from standfast.ops.page.peek import Look, PeekRoute
from standfast.store.clock import Clock, SystemClock

RETRY_MS = 1_000
SEND_S_MAX = 10.0
DATA = files("standfast.ops.page") / "data"
FILES = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page-icon.svg": "image/svg+xml",
}
HEADERS = {
    # No form at all: the script makes the buttons' calls, so the policy may forbid a planted form's target.
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


Acts = Callable[[Scope], bool]  # whether the client of a request is shown buttons
Reads = Callable[[Scope], frozenset[str] | None]  # the stores whose rows it may read; None: all


class OpsPage:
    """The page over a status; `status` is called in a thread and may raise errors of the library.

    `peek` looks at the newest records of a changelog; `acts` decides whether a client is shown buttons for calls of
    /v1, `reads` whether it is shown ways to rows.
    """

    def __init__(
        self,
        status: Status,
        clock: Clock | None = None,
        streams_max: int = STREAMS_MAX,
        peek: Look | None = None,
        acts: Acts = lambda scope: False,
        reads: Reads = lambda scope: None,
    ) -> None:
        self._acts = acts
        self._reads = reads
        self._peeks = peek is not None
        clock = clock or SystemClock()
        # A reading is the same for all of its readers, so those without a right to all rows have one without links.
        self._plain = PageFeed(status, clock, streams_max)
        self.feed = PageFeed(lambda: {**status(), "peek": True}, clock, streams_max) if self._peeks else self._plain
        # Read once: a request must not wait for the disk on the event loop.
        self._files = {name: (DATA / name).read_bytes() for name in FILES}
        self.routes: list[Route] = [
            Route("/", self._page, methods=["GET"]),
            Route("/page.json", self._json, methods=["GET"]),  # for polling, where a proxy lets no stream through
            Route("/page-events", _Events(self._feed_of)),
            *(Route(f"/{name}", self._file, methods=["GET"]) for name in FILES),
        ]
        if peek is not None:
            self.routes.append(Route("/peek/{store}/{partition:int}", PeekRoute(peek, HEADERS).page, methods=["GET"]))

    def close(self) -> None:
        """End the streams when the server stops, and answer the requests that wait for a reading."""
        self.feed.close()
        self._plain.close()

    def _feed_of(self, scope: Scope) -> PageFeed:
        return self.feed if self._reads(scope) is None else self._plain

    async def _page(self, request: Request) -> Response:
        scope = request.scope
        stores = (self._reads(scope) or frozenset()) if self._peeks else frozenset()
        html = await self._feed_of(scope).html(actions=self._acts(scope), stores=stores)
        if html is None:
            return _closing()
        return Response(html, headers=HEADERS, media_type="text/html; charset=utf-8")

    async def _json(self, request: Request) -> Response:
        page = await self._feed_of(request.scope).page_unless_closed()
        if page is None:
            return _closing()
        return Response(json.dumps(whole(page)), headers=HEADERS, media_type="application/json")

    async def _file(self, request: Request) -> Response:
        name = request.url.path.rpartition("/")[2]
        return Response(self._files[name], headers=HEADERS, media_type=FILES[name])


class _Events:
    """The stream, as a plain ASGI endpoint: a reader that takes nothing for SEND_S_MAX is cut off."""

    def __init__(self, feed_of: Callable[[Scope], PageFeed]) -> None:
        self._feed_of = feed_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await Response("this only reads", 405, {**HEADERS, "Allow": "GET"})(scope, receive, send)
            return
        seen = scope["query_string"].removeprefix(b"seen=").decode("latin-1")
        feed = self._feed_of(scope)
        stream = feed.open()
        if stream is None:
            await Response("too many streams are open", 503, {**HEADERS, "Retry-After": "5"})(scope, receive, send)
            return
        gone = asyncio.create_task(_disconnected(receive))
        # Beside the headers and not before them: a status that takes long must keep no stream from its end, and a
        # server that closes would answer a request without headers by a 500.
        begun = asyncio.create_task(feed.begin(stream, seen))
        try:
            # X-Accel-Buffering: nginx would hold events back until its buffer is full.
            headers = {**HEADERS, "Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
            raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            await self._pump(stream, gone, send)
            if begun.done():
                begun.result()  # raises what kept the page from being read, for the server's log
        finally:
            begun.cancel()
            gone.cancel()
            feed.unsubscribe(stream)

    async def _pump(self, stream: PageStream, gone: asyncio.Task[None], send: Send) -> None:
        await _send(send, f"retry: {RETRY_MS}\n\n")
        while True:
            # Beside the disconnect: a quiet stream would notice a closed connection only with its next event.
            text = asyncio.create_task(stream.queue.get())
            await asyncio.wait({text, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not text.done():
                text.cancel()
                return
            told = text.result()
            if told is None:
                await send({"type": "http.response.body", "body": b""})
                return
            await _send(send, f"data: {told}\n\n")


def _closing() -> Response:
    return Response("the server is closing", 503, {**HEADERS, "Retry-After": "5"})


async def _send(send: Send, text: str) -> None:
    async with asyncio.timeout(SEND_S_MAX):
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
