"""The hand-over of batches from a fetch thread to an applying thread: one slot, which loses no batch.

    fetch thread                        slot                      applying thread
    produce(batch)      ──────────> [ 0 or 1 batch ] ──────────>  poll_next()
      waits while the slot is full                                  waits while the slot is empty
      WakeUp if woken then: offer the same batch again              the slot's batch first, then the error
    report_error(e)     ────────────── first one wins ─────────>  raised by every poll_next from then on
                        <── wake_up_producer(), close() ────────

    OPEN --report_error--> FAILED   produce raises Closed; poll_next gives the slot's batch, then raises the error
    OPEN --close---------> CLOSED   produce and poll_next raise Closed; the slot's batch is dropped
    FAILED --close-------> FAILED   the slot's batch is dropped; poll_next still raises the error

A wake-up makes produce raise WakeUp only if the slot is full; the next call of produce clears it in any case, so it
never counts twice. Semantics of the hand-over of Flink's Kafka source, but for one point: there an error drops the
slot's batch, here the batch is delivered first, because it was fetched before the error and its partition's position
has moved past it.

Rules of this file: one lock, one condition; no thread of its own, no clock, and it never looks into a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar, overload

from standfast.store.errors import Closed, InvalidRequest, NotReady
from standfast.store.process.interrupts import Monitor

__all__ = ["Closed", "Handover", "HandoverStatistics", "WakeUp"]

T = TypeVar("T")


class WakeUp(NotReady):
    """The producer was woken while the slot was full; its batch was not taken: do the work, then offer it again."""


@dataclass(frozen=True, slots=True)
class HandoverStatistics:
    """Counters since the hand-over was made, and whether the slot has a batch now."""

    produced: int
    polled: int
    wake_ups: int
    full: bool


class Handover(Generic[T]):
    """A size-one exchange between two threads.

    `changed` is its lock and signal; a test gives one that reports when a thread waits.
    """

    def __init__(self, changed: Monitor | None = None) -> None:
        self._changed = changed if changed is not None else Monitor()
        self._slot: T | None = None
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None
        self._closed = False
        self._woken = False
        self._produced = self._polled = self._wake_ups = 0

    def produce(self, batch: T) -> None:
        """Put a batch into the slot, waiting while the slot is full.

        Raises WakeUp if woken while the slot is full: offer the batch again. Raises Closed after an error or close,
        InvalidRequest for None. After any of these errors the batch is not in the slot.
        """
        if batch is None:
            raise InvalidRequest("hand-over: None is not a batch; poll_next waits while the slot is empty")
        with self._changed:
            self._changed.wait_for(lambda: self._slot is None or self._woken or self._ended)
            self._woken = False  # also if the slot was free, or a later full slot would raise for the old wake-up
            if self._ended:
                raise Closed(self._end_told()) from self._error
            if self._slot is not None:
                self._wake_ups += 1
                raise WakeUp("hand-over: woken while the slot is full; handle the wake-up and offer the batch again")
            self._slot = batch
            self._produced += 1
            self._changed.notify_all()

    @overload
    def poll_next(self) -> T: ...

    @overload
    def poll_next(self, timeout_s: float | None) -> T | None: ...

    def poll_next(self, timeout_s: float | None = None) -> T | None:
        """Take the batch out of the slot, waiting for one; None if none has come after `timeout_s` seconds.

        Without a time-out it never returns None. Raises the reported error once the slot is empty, each time the
        same one; Closed after close.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._slot is not None or self._ended, timeout_s)
            batch, self._slot = self._slot, None
            if batch is not None:
                self._polled += 1
                self._changed.notify_all()
                return batch
            if self._error is not None:
                # With its first traceback, since each raise would make it longer.
                raise self._error.with_traceback(self._trace)
            if self._closed:
                raise Closed(self._end_told())
            return None

    def wake_up_producer(self) -> None:
        """Make the produce that waits for the slot, or else the next one that would wait, raise WakeUp, once."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def report_error(self, error: BaseException) -> bool:
        """End the hand-over with an error. False, and no change, after an earlier error or close."""
        # Here, where the mistake is made: poll_next would raise TypeError on another thread.
        if not isinstance(error, BaseException):
            raise InvalidRequest(f"hand-over: {error!r} is not an error that poll_next could raise")
        with self._changed:
            if self._ended:
                return False
            self._error, self._trace = error, error.__traceback__
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """End the hand-over and drop the slot's batch. Closing twice is fine; an error reported before stays."""
        with self._changed:
            self._closed = True
            self._slot = None
            self._woken = False
            self._changed.notify_all()

    def statistics(self) -> HandoverStatistics:
        """An immutable snapshot."""
        with self._changed:
            return HandoverStatistics(self._produced, self._polled, self._wake_ups, self._slot is not None)

    @property
    def _ended(self) -> bool:
        return self._closed or self._error is not None

    def _end_told(self) -> str:
        if self._error is not None:
            return f"hand-over: ended by {type(self._error).__name__}: {self._error}; make a new one"
        return "hand-over: it was closed; make a new one"
