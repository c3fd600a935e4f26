"""The event loop that runs the calls of asynchronous steps, of all tasks of an application, in a thread of its own.

    begin(calls)   ──> event loop: at most `parallel` of a step at once; attempt, time-out, pause, next attempt
                                   ──> call.ended, step.ended(call)
    cancel(calls)  ──> CancelledError in the function; CANCEL_MS later it counts as one that ignores it
    wait(ms)           until a call has ended
    check()            sends a beat every 100 ms; one without an answer: a function blocks the event loop, and the log
                       has its line

Without threads the event loop takes some turns in each `wait` and `check`, and its time is that of the session's clock.

Rules of this file: it touches no task and no store. The thread starts with the first call. An error of a call is kept
in the call; nothing that a user's function raises ends the thread. A thread that is blocked for `BLOCKED_MAX_MS` is
abandoned, with an error for the tasks whose calls it has; the next call starts another one.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from standfast.store.clock import measured_ns
from standfast.store.errors import InternalError, InvalidRequest
from standfast.store.log import as_event, logger
from standfast.store.outside import random_number
from standfast.store.process.interrupts import Flag
from standfast.store.process.threads import THREADS, Running, Threads
from standfast.store.timestamps import duration_text
from standfast.stream.topology.calls import CALL, AsyncCall, CallStep

if TYPE_CHECKING:
    import asyncio

CANCEL_MS = 5_000  # that a function may take to end once it is cancelled
BEAT_MS = 100
BLOCKED_MS = 250  # in one function, without an answer to a beat: it blocks the event loop
BLOCKED_MAX_MS = 30_000
LOG_EVERY_MS = 10_000
START_MAX_MS = 60_000  # for an asynchronous init
STEP_MS = 50  # between two looks at a coroutine that is waited for
TURNS = 8  # of an event loop without a thread: one await in a function takes some


class CallLoop:
    """Runs coroutines. All methods are for the thread of the application's loop. `clock` moves with its waits."""

    def __init__(self, threads: Threads = THREADS) -> None:
        self.clock = threads.clock
        self._threads = threads
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Running | None = None
        self._arrived = Flag()
        self._beat_ms = 0  # when the oldest unanswered beat was sent; 0: there is none
        self._beaten_ms = 0
        self._logged_ms = -LOG_EVERY_MS
        self._suspect = 0  # id of the frame that the thread was in when a beat had no answer, and since when
        self._suspect_ms = 0

    # --- for tasks ---

    def begin(self, calls: Sequence[AsyncCall]) -> None:
        """Begin calls; each is ended once, whatever happens to it."""
        self._started().call_soon_threadsafe(self._create, tuple(calls))

    def cancel(self, calls: Sequence[AsyncCall]) -> None:
        """Cancel calls that were begun: each ends soon, at the latest CANCEL_MS later."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._cancel, tuple(calls))

    def wait(self, wait_ms: float) -> None:
        """Wait until a call has ended since the last wait, for at most so many milliseconds."""
        self._wait(self._arrived, wait_ms)
        self._arrived.clear()

    def check(self, what: Callable[[], str]) -> None:
        """Report a function that blocks the event loop. Raises InvalidRequest once it does for BLOCKED_MAX_MS.

        `what` names the calls that wait. To be called often while there are any; mostly it costs a comparison.
        """
        loop, thread, now_ms = self._loop, self._thread, self.clock.monotonic_ms()
        if loop is None or thread is None:
            self._turn()
            return
        if not thread.is_alive():
            self._abandon()
            raise InternalError(f"the event loop of asynchronous steps has ended by itself ({what()})")
        if not self._beat_ms:
            if now_ms - self._beaten_ms >= BEAT_MS:
                self._beat_ms = now_ms
                loop.call_soon_threadsafe(self._answer)
            return
        if now_ms - self._beat_ms < BEAT_MS:
            return
        frame = _function_of(thread)
        # The same function at two looks: on a busy machine the thread may only not have been scheduled yet.
        if frame is None or id(frame) != self._suspect:
            self._suspect, self._suspect_ms = id(frame), now_ms
            return
        blocked_ms = now_ms - self._beat_ms
        if now_ms - self._suspect_ms < BLOCKED_MS:
            return
        text = (
            f"a function blocks the event loop of asynchronous steps, for {duration_text(blocked_ms)} now, at "
            f"{_place(frame)}; no other call goes on meanwhile ({what()}): await there, or call the function by "
            "asyncio.to_thread"
        )
        if blocked_ms >= BLOCKED_MAX_MS:
            self._abandon()
            raise InvalidRequest(text)
        if now_ms - self._logged_ms >= LOG_EVERY_MS:
            self._logged_ms = now_ms
            logger.warning("%s", text, extra=as_event("event_loop_blocked", blocked_ms=blocked_ms, at=_place(frame)))

    def run(self, work: Coroutine[Any, Any, None], what: str, max_ms: int, step: Callable[[], None]) -> None:
        """Run a coroutine to its end, and raise its error; `step` is called while it waits.

        InvalidRequest once it has taken `max_ms`; it is cancelled then.
        """
        loop = self._started()
        future = asyncio.run_coroutine_threadsafe(_guarded(work), loop)
        until_ms = self.clock.monotonic_ms() + max_ms
        done = Flag()
        future.add_done_callback(lambda _: done.set())
        while not self._wait(done, STEP_MS):
            step()
            if self.clock.monotonic_ms() >= until_ms:
                future.cancel()
                raise InvalidRequest(
                    f"{what} has not ended after {duration_text(max_ms)}{self._where()}: make it end sooner"
                )
        error = future.result()
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread; calls that still run are cancelled. Closing twice is fine."""
        loop, thread = self._loop, self._thread
        if loop is None:
            return
        if thread is None:
            self._finish(loop)
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join((CANCEL_MS + 1_000) / 1_000)
        if thread.is_alive():
            logger.error(
                "the event loop of asynchronous steps does not end: a function blocks it%s",
                self._where(),
                extra=as_event("event_loop_blocked", blocked_ms=CANCEL_MS + 1_000, at=self._where()),
            )
        self._abandon()

    # --- inside ---

    def _started(self) -> asyncio.AbstractEventLoop:
        # Fifty modules of the standard library, for asynchronous steps alone: all other code here runs after this.
        global asyncio
        import asyncio

        if self._loop is None:
            loop = asyncio.SelectorEventLoop() if self._threads.stepped else asyncio.new_event_loop()
            self._loop = loop
            if self._threads.stepped:
                loop.time = lambda: self.clock.monotonic_ms() / 1_000  # type: ignore[method-assign]
            else:
                # A daemon, so that a function that never ends does not keep the process.
                self._thread = self._threads.start("standfast-calls", partial(_run, loop))
        return self._loop

    def _wait(self, flag: Flag, wait_ms: float) -> bool:
        """Wait for a flag that the event loop sets."""
        self._turn()
        if not self._threads.wait(flag, wait_ms):
            self._turn()
        return flag.is_set()

    def _turn(self) -> None:
        """Let an event loop without a thread take TURNS turns: each runs the callbacks that are ready or due."""
        loop = self._loop
        if loop is None or self._thread is not None:
            return

        def turned(left: int) -> None:
            if left:
                loop.call_soon(turned, left - 1)
            else:
                loop.stop()

        loop.call_soon(turned, TURNS)
        loop.run_forever()

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        """End an event loop without a thread."""
        left = asyncio.all_tasks(loop)
        for one in left:
            one.cancel()
        until_ms = self.clock.monotonic_ms() + CANCEL_MS
        while not all(one.done() for one in left) and self.clock.monotonic_ms() < until_ms:
            self._wait(Flag(), STEP_MS)
        self._loop = None
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _abandon(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            # Once its function returns, the thread cancels all calls and ends: other calls replace them by then.
            loop.call_soon_threadsafe(loop.stop)
        self._loop = self._thread = None
        self._beat_ms = self._beaten_ms = 0

    def _answer(self) -> None:
        self._beaten_ms, self._beat_ms = self.clock.monotonic_ms(), 0

    def _create(self, calls: Sequence[AsyncCall]) -> None:
        for call in calls:
            call.step.pending.append(call)
        for step in {call.step for call in calls}:
            self._fill(step)

    def _fill(self, step: CallStep) -> None:
        """Run calls of a step up to its bound, on the event loop: the next one follows at once when one ends."""
        while step.pending and step.running < step.settings.parallel:
            call = step.pending.popleft()
            if not call.ended:  # cancelled meanwhile
                step.running += 1
                call.running = asyncio.get_running_loop().create_task(self._carry_out(call))

    async def _carry_out(self, call: AsyncCall) -> None:
        """Run a call to its end. Raises nothing: the task's thread finds the error in the call."""
        CALL.set(call)
        call.began_ns = measured_ns()
        try:
            await _attempts(call)
        except asyncio.CancelledError:
            call.cancelled = True
        except BaseException as error:  # noqa: BLE001 - raised on the task's thread, SystemExit too
            call.error = error
        call.running = None
        call.step.running -= 1
        self._end(call)
        self._fill(call.step)

    def _end(self, call: AsyncCall) -> None:
        call.ended_ns = measured_ns()
        call.ended = True
        call.step.ended(call)
        self._arrived.set()

    def _cancel(self, calls: Sequence[AsyncCall]) -> None:
        for call in calls:
            if call.running is not None:
                call.running.cancel()
            elif not call.ended:
                call.cancelled = True
                call.began_ns = measured_ns()
                self._end(call)

    def _where(self) -> str:
        frame = None if self._thread is None else _function_of(self._thread)
        return "" if frame is None else f", at {_place(frame)}"


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for one in left:
            one.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_MS / 1_000))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        # Errors of tasks that were abandoned above are reported by the garbage collector, through the loop's handler.
        asyncio.set_event_loop(None)
        loop.close()


async def _attempts(call: AsyncCall) -> None:
    settings = call.step.settings
    while True:
        call.attempts += 1
        call.results.clear()  # of an attempt that failed after it had forwarded
        error = await _attempt(call)
        if error is None:
            return
        if call.attempts > settings.retries or not isinstance(error, (settings.retry_on, _TimedOut)):
            if call.attempts > 1:
                error.add_note(f"in attempt {call.attempts} of {settings.retries + 1}")
            raise error
        call.retries += 1
        await asyncio.sleep(settings.pause_ms(call.attempts, random_number("retry")) / 1_000)


async def _attempt(call: AsyncCall) -> BaseException | None:
    """One attempt; its error, None if it went well."""
    process: Any = call.step.processor.process
    attempt = asyncio.ensure_future(_guarded(process(call.record)))
    try:
        # Not wait_for: that would wait for ever for a function that ignores its cancellation.
        await asyncio.wait({attempt}, timeout=call.step.settings.timeout_ms / 1_000)
    except asyncio.CancelledError:
        await _end_attempt(call, attempt)
        raise
    if not attempt.done():
        call.timeouts += 1
        await _end_attempt(call, attempt)
        # It may have ended in the very moment of its cancellation; then it has done its work.
        if attempt.cancelled() or attempt.result() is not None:
            return _TimedOut(f"{call}: no answer within timeout_ms={call.step.settings.timeout_ms:,}")
    if attempt.cancelled():
        return InvalidRequest(f"{call}: the function cancelled itself; raise another error there")
    return attempt.result()


class _TimedOut(TimeoutError):
    """An attempt took longer than `timeout_ms`; tried again whatever `retry_on` names."""


_TimedOut.__name__ = _TimedOut.__qualname__ = "TimeoutError"


async def _end_attempt(call: AsyncCall, attempt: asyncio.Future[BaseException | None]) -> None:
    """Cancel an attempt and wait for its end. Raises InvalidRequest if it ignores its cancellation."""
    attempt.cancel()
    await asyncio.wait({attempt}, timeout=CANCEL_MS / 1_000)
    if not attempt.done():
        assert isinstance(attempt, asyncio.Task)
        call.ignored = True
        place = _waiting_at(attempt)
        name = inspect.unwrap(getattr(call.step.processor, "function", call.step.processor.process)).__qualname__
        raise InvalidRequest(
            f"{call}: {name} still runs {duration_text(CANCEL_MS)} after it was cancelled"
            + ("" if place is None else f", at {_place(place)}")
            + ": let asyncio.CancelledError pass"
        )


async def _guarded(work: Coroutine[Any, Any, Any]) -> BaseException | None:
    """Await and return the error: SystemExit and KeyboardInterrupt in a task of its own would end the event loop."""
    try:
        await work
    except asyncio.CancelledError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the caller raises it
        return error
    return None


def _waiting_at(attempt: asyncio.Task[Any]) -> FrameType | None:
    """The innermost frame outside of asyncio of a task that awaits."""
    coroutine: Any = attempt.get_coro()
    found = None
    while inspect.iscoroutine(coroutine):
        frame = coroutine.cr_frame
        if frame is not None and not frame.f_globals.get("__name__", "").startswith("asyncio"):
            found = frame
        coroutine = coroutine.cr_await
    return found


def _function_of(thread: Running) -> FrameType | None:
    """The frame of the user's function that the event loop's thread executes; None while it executes none."""
    frame = sys._current_frames().get(thread.ident or 0)
    found = None
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == "selectors":  # it waits for events
            return None
        if name.partition(".")[0] not in ("asyncio", "threading") and not name.startswith("standfast.stream."):
            # The outermost in the end: the function of the step, and not where a library calls the system.
            found = frame
        frame = frame.f_back
    return found


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
