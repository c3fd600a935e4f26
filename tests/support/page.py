"""Fixtures: a browser (Debian: apt-get install chromium) and small servers of the ops page.

Rules of this file: the browser is Debian's Chromium, driven by Playwright; where it is missing, its tests are skipped
with the package to install, and with CI set they fail. Servers listen on loopback only.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from support.groups import costly
from support.missing import missing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from standfast.ops.page.page import OpsPage

WAIT_MS = 20_000  # of each expectation: a chart begins with the second of two times of five seconds
# Heavy imports stand inside the fixtures: this file is read by every run of pytest.
Serve = Callable[..., Any]
# The browser's words for a server that a test has ended: which one depends on how far the request had come.
SERVER_GONE = tuple(
    f"net::ERR_{name}"
    for name in (
        "CONNECTION_REFUSED",
        "CONNECTION_RESET",
        "CONNECTION_CLOSED",
        "SOCKET_NOT_CONNECTED",
        "EMPTY_RESPONSE",
        "INCOMPLETE_CHUNKED_ENCODING",
    )
)


@contextmanager
def serving(page: OpsPage, port: int = 0) -> Iterator[str]:
    """The page's address, while a server runs in a thread of its own."""
    import uvicorn
    from starlette.applications import Starlette

    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(Starlette(routes=list(page.routes)), log_level="critical", lifespan="off")
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve([listener])

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        loops[0].call_soon_threadsafe(page.close)
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def serve() -> Serve:
    """`with serve(status) as address:`"""
    from standfast.ops.page.page import OpsPage

    return lambda status, port=0, **settings: serving(OpsPage(status, **settings), port)


@pytest.fixture(scope="module")
@costly()
def chromium() -> Iterator[Browser]:
    """A headless browser. Shared by one file: while it is there, its event loop runs in this thread."""
    from playwright.sync_api import expect, sync_playwright

    program = shutil.which("chromium")
    if program is None:
        missing("these tests need Debian's Chromium: apt-get install chromium")
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        # No sandbox: tests run as root in containers, and open only pages of this repository.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Page]:
    """A fresh tab; an error of the page, in the console or thrown, fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    complaints = [one for one in problems if not any(gone in one for gone in SERVER_GONE)]
    assert complaints == []
