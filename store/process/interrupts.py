"""Parts that stay whole when a signal handler raises, wherever CPython runs it.

CPython runs handlers in the main thread alone: when a function begins, after a call of a C function, at a jump
backwards. So an exception may come within any Python function, also in the first line of an `__exit__`, and then a lock
that it was to release stays taken for good. Three rules follow, for code that a program calls in its main thread:

  * A lock is taken by `with` on an object whose `__enter__` and `__exit__` are C functions: `threading.Lock`, `RLock`,
    an open file. CPython looks for signals neither between taking it and the block, nor between the block and its
    release. `Condition`, `Event`, `Future` and context managers written in Python are not such objects: `Monitor` and
    `Flag` take their place, and a generator as context manager may hold nothing that other threads or processes need.
  * Waits end by themselves after `LOOK_S` and look again: a wake-up that an exception prevented costs that time.
  * Work of many steps, which must not end half done, is made `Apart`: another thread does it, where no handler runs,
    and the main thread waits. An exception then ends the wait, and the work goes on.

Rules of this file: it imports the clock and what stands for the outside, and knows no part of a session.
"""

from __future__ import annotations

import _thread
import contextvars
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from standfast.store.clock import SystemClock
from standfast.store.outside import Replaceable

P = ParamSpec("P")
T = TypeVar("T")
LOOK_S = 0.5
LEAVING_LOOKS, LEAVING_MS = 50, 0.2

_clock = SystemClock()
# A simulator, in whose processes no handler runs, answers that there is no such thread: it has no helpers then.
IS_MAIN = Replaceable(lambda: threading.get_ident() == threading.main_thread().ident)


def _deadline_ms(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else _clock.monotonic_ms() + timeout_s * 1_000


def _left_s(deadline_ms: float | None) -> float:
    return LOOK_S if deadline_ms is None else min((deadline_ms - _clock.monotonic_ms()) / 1_000, LOOK_S)


class Flag:
    """As threading.Event."""

    def __init__(self, *, is_set: bool = False) -> None:
        self._set = is_set
        self._waiters: deque[_thread.LockType] = deque()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it, and wake every waiter."""
        self._set = True
        _wake(self._waiters)

    def clear(self) -> None:
        """Reset it."""
        self._set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set, at most `timeout_s` seconds; returns whether it is."""
        deadline_ms = _deadline_ms(timeout_s)
        while not self._set:
            left_s = _left_s(deadline_ms)
            if left_s <= 0:
                break
            waiter = _joined(self._waiters)
            try:
                if not self._set:  # else `set` came before this waiter had joined
                    waiter.acquire(timeout=left_s)
            finally:
                _left(self._waiters, waiter)
        return self._set


class Monitor(threading.RLock().__class__):  # type: ignore[misc]  # by name, it is a function for the type checkers
    """A lock with a signal, as threading.Condition; `with` takes and releases it in C. Not for nested use."""

    def __init__(self) -> None:
        self._waiters: deque[_thread.LockType] = deque()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Release the lock, wait for `notify_all`, and take the lock again; may return early. False after the time."""
        waiter = _joined(self._waiters)
        try:
            self.release()
            return waiter.acquire(timeout=LOOK_S if timeout_s is None else max(min(timeout_s, LOOK_S), 0))
        finally:
            # The caller's `with` releases the lock, so this thread must have it; an exception may break one call off.
            try:
                self.retake()
            finally:
                self.retake()
                _left(self._waiters, waiter)

    def wait_for(self, predicate: Callable[[], T], timeout_s: float | None = None) -> T:
        """Wait until the predicate is true, at most `timeout_s` seconds; returns its last value."""
        deadline_ms = _deadline_ms(timeout_s)
        while not (found := predicate()):
            left_s = _left_s(deadline_ms)
            if left_s <= 0:
                break
            self.wait(left_s)
        return found

    def notify_all(self) -> None:
        """Wake every thread that waits; the caller has the lock."""
        _wake(self._waiters)

    def retake(self) -> None:
        """Take the lock if this thread does not have it."""
        lock: Any = self
        if not lock._is_owned():
            self.acquire()


class CallResult(Generic[T]):
    """The outcome of a call that another thread makes: its result, or the error that `result` raises."""

    def __init__(self) -> None:
        self._ended = Flag()
        self._claimed = _thread.allocate_lock()
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._ended.is_set()

    def claim(self) -> bool:
        """Decide, once, that the call is made, or that it never is; False if that is decided already."""
        return self._claimed.acquire(blocking=False)

    def wait(self) -> None:
        """Wait for the call's end."""
        self._ended.wait()

    def begin(self, action: Callable[[], T]) -> None:
        """Make the call, unless it is decided that it is never made."""
        if self.claim():
            self.run(action)

    def run(self, action: Callable[[], T]) -> None:
        """Make the call, on this thread."""
        try:
            self._result = action()
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._error = error
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """End without the call."""
        self._error = error
        self._ended.set()

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the call's end. Raises its error, or TimeoutError."""
        if not self._ended.wait(timeout_s):
            raise TimeoutError
        try:
            if self._error is not None:
                raise self._error
            result: T = self._result
            return result
        finally:
            del self  # the error's traceback has this frame, which would keep both in a cycle


def is_main() -> bool:
    """Whether this is the thread in which CPython runs signal handlers."""
    return IS_MAIN.ask()


class Apart:
    """Makes calls where no signal handler can break them off: in the main thread, another thread makes them meanwhile.

    An exception of a handler ends the wait alone: a call that has begun goes on, and its own error is lost then. The
    next call begins after its end.
    """

    def __init__(self) -> None:
        self._last: CallResult[Any] | None = None

    def wait(self) -> None:
        """Wait, in the main thread, for the end of a call whose wait an exception ended."""
        last = self._last
        if last is not None and is_main():
            last.wait()

    def run(self, action: Callable[[], T]) -> T:
        """Make a call. Raises its error."""
        if not is_main():
            return action()
        self.wait()
        answer: CallResult[T] = CallResult()
        begin, context = answer.begin, contextvars.copy_context()  # not `answer`, which this function deletes
        helper: threading.Thread | None = None
        self._last = answer  # right before the block, which ends each answer
        try:
            helper = start("standfast-call", lambda: begin(lambda: context.run(action)))
            return answer.result()
        finally:
            if answer.claim():  # it has not begun, and never does
                answer.fail(RuntimeError("broken off before it began"))
            self._last = None if answer.done() else answer
            ended = answer.done()
            del answer
            for _ in range(LEAVING_LOOKS):  # so that a program that lists its threads finds none left by the call
                if not ended or helper is None or not helper.is_alive():
                    break
                _clock.sleep_ms(LEAVING_MS)


class Interruptible(Protocol):
    """An object whose calls a program makes in its main thread."""

    _apart: Apart

    def _within_call(self) -> bool:
        """Whether a signal handler calls in the middle of another call of this very thread, whose locks it has."""
        ...


S = TypeVar("S", bound=Interruptible)


def whole(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make each call of the method whole."""

    @wraps(method)
    def call(self: S, /, *given: P.args, **named: P.kwargs) -> T:
        action: Any = partial(method, self, *given, **named)
        # Another thread would wait for the locks that this one has.
        made: T = action() if not is_main() or self._within_call() else self._apart.run(action)
        return made

    return call


def start(name: str, run: Callable[[], Any]) -> threading.Thread:
    """Start a daemon thread. Not by its own `start`, which waits, on this thread, for an Event."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    _thread.start_new_thread(thread.start, ())
    return thread


def _joined(waiters: deque[_thread.LockType]) -> _thread.LockType:
    waiter = _thread.allocate_lock()
    waiter.acquire()
    waiters.append(waiter)
    return waiter


def _left(waiters: deque[_thread.LockType], waiter: _thread.LockType) -> None:
    try:
        waiters.remove(waiter)
    except ValueError:  # woken
        pass


def _wake(waiters: deque[_thread.LockType]) -> None:
    while waiters:
        try:
            waiter = waiters.popleft()
        except IndexError:  # its thread has left, or another one has woken it
            return
        waiter.release()


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM and Ctrl-C within the block. Outside the main thread the program itself calls it."""
    # Python refuses handlers there.
    is_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if is_main_thread else ()
    before = {number: signal.signal(number, lambda _number, _frame: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
