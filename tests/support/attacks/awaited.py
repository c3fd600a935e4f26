"""Calls of `aio.Session` whose await is cancelled at a point within the call, in whichever thread that runs.

    CANCELLED["commit"]    the coroutine, made on an open session

Rules of this file: the point is drawn from the test's seed. The thread of the call waits there for the cancellation,
and goes on: an await that ends early leaves the call behind it under way.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any

import standfast as sf
from standfast.stream.session import aio as aio_session
from support.attacks.stage import SRC, STEP

TOLD_S = 0.02
Made = Callable[[sf.aio.Session, int], Coroutine[Any, Any, Any]]

CANCELLED: dict[str, Made] = {
    "assign": lambda session, n: session.assign(active=[0]),
    "commit": lambda session, n: session.commit({SRC: n * STEP}),
    "grow": lambda session, n: session.grow({0: 1}),
    "look_at_group": lambda session, n: session.look_at_group(),
    "on_lost": lambda session, n: session.on_lost(None, [SRC]),
    "on_revoke": lambda session, n: session.on_revoke(None, [SRC]),
    "poll_once": lambda session, n: session.poll_once(),
    "reopen": lambda session, n: session.reopen(0),
    "statistics": lambda session, n: session.statistics(),
    "wait_ready": lambda session, n: session.wait_ready(5),
}
DROPS = {"on_lost", "on_revoke", "reopen"}
# Of the blocking session, by the same names.
ATTRIBUTES = tuple(name for name, value in vars(sf.aio.Session).items() if isinstance(value, aio_session._Same))


class Points:
    """Counts lines of threads other than the event loop's; at the wanted one cancels a task there."""

    def __init__(self) -> None:
        self.count = 0
        self.at = 0
        self._told = threading.Event()
        self._cancel: Callable[[], object] = lambda: None

    def arm(self, at: int, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        def cancel() -> None:
            task.cancel()
            self._told.set()

        self.count, self.at = 0, at
        self._cancel = lambda: loop.call_soon_threadsafe(cancel)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self.at:
                self._cancel()
                self._told.wait(TOLD_S)
        return self


async def cancelled(session: sf.aio.Session, points: Points, make: Made, n: int, at: int) -> bool:
    """Make the call, and cancel its await at a point of it; returns whether it returned nevertheless."""
    task = asyncio.ensure_future(make(session, n))
    points.arm(at, asyncio.get_running_loop(), task)
    try:
        await task
    except asyncio.CancelledError:
        return False
    finally:
        points.at = 0
    return True


async def usable(session: sf.aio.Session) -> None:
    """The remedies that the documentation names after a cancelled await."""
    for _ in range(3):
        with suppress(sf.StandfastError):
            if 0 not in session.tasks():
                await session.assign(active=[0])
            await session.wait_ready(5)
            session.task(0).store("kv").get("a")
            return
        with suppress(sf.StandfastError):
            await session.reopen(0)
    raise AssertionError("not usable after three attempts")
