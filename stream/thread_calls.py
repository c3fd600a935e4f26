"""Blocking calls of one object from an event loop; a call whose await is cancelled goes on, and the next waits for it.

    await run ──> worker thread ──> outcome ──> its caller
       │ cancelled                     │
       └─> left: the thread goes on ───┴──> the next call: waits, and raises its error, once

A call that is cancelled during its wait for others has not begun. A running one has its `Caller`: a wait ends once that
is gone, and a commit takes no rows that are written after the cancellation.

Rules of this file: it knows no session. Calls are started and left on the event loop; only `Caller` is used by threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from standfast.store.log import as_event, logger
from standfast.stream.steps import NotBegun

T = TypeVar("T")


class Caller:
    """The await that a blocking call works for. As a context: a step that raises NotBegun if it was cancelled, and that
    a cancellation waits for."""

    def __init__(self) -> None:
        self._step = threading.Lock()
        self.gone = False

    def leave(self) -> None:
        """The await is cancelled."""
        with self._step:
            self.gone = True

    def __enter__(self) -> None:
        self._step.acquire()
        if self.gone:
            self._step.release()
            raise NotBegun("the await of this call was cancelled")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step.release()


class ThreadCalls:
    """The calls of one object that run in worker threads."""

    def __init__(self) -> None:
        self._left: dict[Future[Any], str] = {}  # calls whose await was cancelled, by their start, with their names

    async def settled(self, names: Collection[str]) -> None:
        """Wait for left calls of these names, and raise the first error of one."""
        while call := next((one for one, name in self._left.items() if name in names), None):
            with suppress(Exception):  # raised below, where one of several waiters has taken the call
                await asyncio.wrap_future(call)
            if self._left.pop(call, None) is not None:
                call.result()

    async def run(
        self,
        name: str,
        job: Callable[[Caller], T],
        *,
        kept: bool = True,
        undo: Callable[[Future[T]], object] | None = None,
    ) -> T:
        """The result of a job in a worker thread; if the await is cancelled the job is left, and then undone.

        `kept`: the next call waits for it; otherwise its result is of no use to any other.
        """
        caller = Caller()
        call = _start(partial(job, caller))
        try:
            return await asyncio.wrap_future(call)
        except (asyncio.CancelledError, GeneratorExit):
            caller.leave()
            self._leave(name, call, kept=kept)
            if undo is not None:
                self.follow(name, partial(undo, call))
            raise

    def follow(self, name: str, job: Callable[[], object]) -> None:
        """Run a job after left calls of this name, and leave it too: it undoes a cancelled one."""
        before = [call for call, own in self._left.items() if own == name]

        def last() -> object:
            for call in before:
                call.exception()  # waits; it is raised by the next call
            return job()

        self._leave(name, _start(last))

    def take(self, name: str) -> list[Future[Any]]:
        """The left calls of a name, and all that have ended: the caller waits for them and raises their errors."""
        taken = [call for call, own in self._left.items() if own == name or call.done()]
        for call in taken:
            del self._left[call]
        return taken

    def _leave(self, name: str, call: Future[Any], *, kept: bool = True) -> None:
        if kept:
            self._left[call] = name
        call.add_done_callback(partial(_tell, name))


def _start(job: Callable[[], T]) -> Future[T]:
    """The future of a job in the loop's pool: an event loop that `asyncio.run` ends waits for it."""
    # Not the pool's own, which a cancelled await would cancel before its start: a close would never begin.
    call: Future[T] = Future()
    call.set_running_or_notify_cancel()

    def run() -> None:
        try:
            call.set_result(job())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            call.set_exception(error)

    asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, run)
    return call


def _tell(name: str, call: Future[Any]) -> None:
    # No other call may come that raises it.
    if (error := call.exception()) is not None:
        about = as_event("cancelled_call_failed", call=name)
        logger.warning("%s failed after its await was cancelled: %s", name, error, extra=about)
