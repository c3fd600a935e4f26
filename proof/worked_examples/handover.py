"""The player of `standfast.replication.handover`, with a real thread for each side.

    new                           a new hand-over
    produce A | produce None      the fetch thread offers a batch
    poll | poll 0                 the applying thread asks for one; 0: it does not wait
    wake | error E | close

Every command answers with its effects: each thread's answer, or that the thread waits.

Rules of this file: no step waits for the clock. A step is over when every thread has answered or waits, which the
hand-over's own condition shows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from standfast.replication.handover import Closed, Handover, WakeUp
from standfast.store.errors import InternalError, InvalidRequest
from standfast.store.process.interrupts import Monitor
from worked_examples.script import Player

# A hand-over that hangs must fail its scenario, and not hang it.
STUCK_AFTER_S = 30.0


class FetchFailed(Exception):
    """An error that a scenario reports."""


class Watched(Monitor):
    """A condition that shows its waiting threads. The lock stays taken until a thread that is shown really waits."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = threading.Condition()
        self.asleep: set[int] = set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """As in Monitor."""
        me = threading.get_ident()
        with self.seen:
            self.asleep.add(me)
            self.seen.notify_all()
        try:
            return super().wait(timeout_s)
        finally:
            with self.seen:
                self.asleep.discard(me)

    def notify_all(self) -> None:
        """As in Monitor. Every thread looks again, so none counts as waiting."""
        with self.seen:
            self.asleep.clear()
        super().notify_all()


class Asked:
    """A call by one side, on a thread of its own."""

    def __init__(self, name: str, action: Callable[[], object], seen: threading.Condition) -> None:
        self.name = name
        self.outcome: str | None = None
        self._action = action
        self._seen = seen
        self.thread = threading.Thread(target=self._run, name=f"handover-{name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        told = outcome(self._action)
        with self._seen:
            self.outcome = told
            self._seen.notify_all()


class Cast:
    """A hand-over with threads on both sides, played step by step."""

    def __init__(self) -> None:
        self._changed = Watched()
        self.handover: Handover[str] = Handover(self._changed)
        self._asked: list[Asked] = []
        self._waits: set[Asked] = set()

    def ask(self, name: str, action: Callable[[], object]) -> list[str]:
        """Make a call on a new thread; returns the answers of all threads, or that they wait."""
        self._asked.append(Asked(name, action, self._changed.seen))
        return self._settle()

    def produce(self, batch: str) -> list[str]:
        """Let the fetch thread offer a batch."""
        return self.ask(f"produce {batch}", lambda: self.handover.produce(batch))

    def poll(self) -> list[str]:
        """Let the applying thread ask for a batch."""
        return self.ask("poll", lambda: self.handover.poll_next())

    def do(self, action: Callable[[], object]) -> list[str]:
        """Make a call that never waits; returns its effects."""
        action()
        return self._settle()

    def close(self) -> None:
        """Release all waiting threads and join them."""
        self.handover.close()
        self._settle()

    def _settle(self) -> list[str]:
        seen = self._changed.seen

        def all_known() -> bool:
            return all(one.outcome is not None or one.thread.ident in self._changed.asleep for one in self._asked)

        with seen:
            if not seen.wait_for(all_known, STUCK_AFTER_S):
                raise InternalError(f"hand-over: {[one.name for one in self._asked]} neither answered nor waiting")
        told = []
        for one in list(self._asked):
            if one.outcome is not None:
                one.thread.join(STUCK_AFTER_S)
                self._asked.remove(one)
                told.append(f"{one.name}: {one.outcome}")
            # Reported once: a thread that goes on waiting is no news.
            elif one not in self._waits:
                self._waits.add(one)
                told.append(f"{one.name}: waits")
        return told


def outcome(action: Callable[[], object]) -> str:
    """Result or error of a call, in a word or two."""
    try:
        given = action()
    except WakeUp:
        return "WakeUp"
    except Closed:
        return "Closed"
    except InvalidRequest:
        return "InvalidRequest"
    except FetchFailed as error:
        return f"raises {error}"
    return "taken" if given is None else str(given)


class Exchange(Player):
    """One hand-over after the other."""

    def __init__(self) -> None:
        self.cast = Cast()

    def new(self) -> str:
        """Begin with a new hand-over."""
        self.end()
        self.cast = Cast()
        return "empty"

    def produce(self, batch: str) -> list[str]:
        """Let the fetch thread offer a batch."""
        if batch == "None":
            return self.cast.ask("produce None", lambda: self.cast.handover.produce(None))  # type: ignore[arg-type]
        return self.cast.produce(batch)

    def poll(self, timeout_s: str = "") -> list[str]:
        """Let the applying thread ask for a batch."""
        if timeout_s:
            return self.cast.ask("poll 0", lambda: self.cast.handover.poll_next(timeout_s=0) or "nothing")
        return self.cast.poll()

    def wake(self) -> list[str]:
        """Wake the fetch thread, for work other than this hand-over."""
        return self.cast.do(self.cast.handover.wake_up_producer)

    def error(self, name: str) -> list[str]:
        """Let the fetch thread report an error."""
        return self.cast.do(lambda: self.cast.handover.report_error(FetchFailed(name)))

    def close(self) -> list[str]:
        """Close the hand-over."""
        return self.cast.do(self.cast.handover.close)

    def value(self, answer: Any) -> Any:
        """Sorted by name: threads that answer in one step have no order."""
        return sorted(answer)

    def end(self) -> None:
        """Release every waiting thread and join it."""
        self.cast.close()
