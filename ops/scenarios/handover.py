"""The scenario `handover`: how batches go from the fetch thread to the applying thread.

    taking turns; a wake-up and the batch that is offered again; an error after a batch; closing

Rules of this file: it plays `standfast.replication.handover` with a real thread for each side. No step waits for the
clock: a step is over when every thread has answered or waits, which the hand-over's own condition tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from standfast.ops.scenarios.stage import Stage
from standfast.replication.handover import Closed, Handover, WakeUp
from standfast.store.errors import InternalError, InvalidRequest

STUCK_AFTER_S = 30.0


class FetchFailed(Exception):
    """An error that a scenario reports."""


class Watched(threading.Condition):
    """A condition that tells who waits on it. Whoever is told so still finds the lock taken until they do."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = threading.Condition()
        self.asleep: set[int] = set()

    def wait(self, timeout: float | None = None) -> bool:
        """As of Condition."""
        me = threading.get_ident()
        with self.seen:
            self.asleep.add(me)
            self.seen.notify_all()
        try:
            return super().wait(timeout)
        finally:
            with self.seen:
                self.asleep.discard(me)

    def notify_all(self) -> None:
        """As of Condition: everybody looks again, so nobody is known to wait."""
        with self.seen:
            self.asleep.clear()
        super().notify_all()


class Asked:
    """Something that one side was asked to do, on a thread of its own."""

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
        """Have a thread do it; returns what everybody answered, or that they wait."""
        self._asked.append(Asked(name, action, self._changed.seen))
        return self._settle()

    def produce(self, batch: str) -> list[str]:
        """The fetch thread offers a batch."""
        return self.ask(f"produce {batch}", lambda: self.handover.produce(batch))

    def poll(self) -> list[str]:
        """The applying thread asks for one."""
        return self.ask("poll", lambda: self.handover.poll_next())

    def do(self, action: Callable[[], object]) -> list[str]:
        """Do what never waits, and tell what it set off."""
        action()
        return self._settle()

    def close(self) -> None:
        """Release whoever still waits and join them."""
        self.handover.close()
        self._settle()

    def _settle(self) -> list[str]:
        seen = self._changed.seen

        def all_known() -> bool:
            return all(one.outcome is not None or one.thread.ident in self._changed.asleep for one in self._asked)

        with seen:
            if not seen.wait_for(all_known, STUCK_AFTER_S):
                raise InternalError(f"hand-over: {[one.name for one in self._asked]} neither answered nor wait")
        told = []
        for one in list(self._asked):
            if one.outcome is not None:
                one.thread.join(STUCK_AFTER_S)
                self._asked.remove(one)
                told.append(f"{one.name}: {one.outcome}")
            elif one not in self._waits:
                self._waits.add(one)
                told.append(f"{one.name}: waits")
        return told


def outcome(action: Callable[[], object]) -> str:
    """What a call gave or raised, in a word or two."""
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


def play(stage: Stage) -> None:
    """Every part in turn."""
    _turns(stage)
    _wake_up(stage)
    _error(stage)
    _closing(stage)


def _turns(stage: Stage) -> None:
    stage.part("One slot: the fetch thread is one batch ahead, no more")
    cast = Cast()
    stage.step("poll", cast.poll(), ["poll: waits"], "nothing is there")
    expected = ["poll: A", "produce A: taken"]
    stage.step("produce A", cast.produce("A"), expected, "the waiting poll gets it")
    stage.step("produce B", cast.produce("B"), ["produce B: taken"], "into the empty slot, nobody polls yet")
    stage.step("produce C", cast.produce("C"), ["produce C: waits"], "the slot holds B")
    seen = sorted(cast.poll())
    stage.step("poll", seen, ["poll: B", "produce C: taken"], "B comes out, C goes in")
    stage.step("poll", cast.poll(), ["poll: C"], "in the order of production")
    cast.close()


def _wake_up(stage: Stage) -> None:
    stage.part("Wake-up: the fetch thread is wanted for something else")
    cast = Cast()
    wake = cast.handover.wake_up_producer
    stage.step(
        "wake up, then produce A", [*cast.do(wake), *cast.produce("A")], ["produce A: taken"], "the slot is empty"
    )
    stage.step(
        "produce B", cast.produce("B"), ["produce B: waits"], "that wake-up was cleared and does not count later"
    )
    stage.step("wake up", cast.do(wake), ["produce B: WakeUp"], "B was not taken; the producer keeps it")
    stage.step("produce B again", cast.produce("B"), ["produce B: waits"], "one wake-up wakes once")
    seen = sorted(cast.poll())
    stage.step("poll", seen, ["poll: A", "produce B: taken"], "nothing was lost")
    stage.step("poll", cast.poll(), ["poll: B"], "and nothing comes twice")
    cast.close()


def _error(stage: Stage) -> None:
    stage.part("Error: what was fetched before it comes first, and the first error wins")
    cast = Cast()

    def report(name: str) -> list[str]:
        return cast.do(lambda: cast.handover.report_error(FetchFailed(name)))

    stage.step("produce A", cast.produce("A"), ["produce A: taken"])
    stage.step("produce B", cast.produce("B"), ["produce B: waits"])
    stage.step("report error E", report("E"), ["produce B: Closed"], "the producer's side is closed")
    stage.step("report error F", report("F"), [], "not the first")
    stage.step("poll", cast.poll(), ["poll: A"], "it was in the slot before the error")
    stage.step("poll", cast.poll(), ["poll: raises E"])
    stage.step("poll", cast.poll(), ["poll: raises E"], "from now on")
    stage.step("produce C", cast.produce("C"), ["produce C: Closed"])
    cast.close()
    stage.step("close, then poll", cast.poll(), ["poll: raises E"], "closing hides no error")


def _closing(stage: Stage) -> None:
    stage.part("Close: every wait ends, what is in the slot is let go")
    cast = Cast()
    stage.step("poll", cast.poll(), ["poll: waits"])
    stage.step("close", cast.do(cast.handover.close), ["poll: Closed"])
    cast = Cast()
    stage.step("produce A", cast.produce("A"), ["produce A: taken"], "another hand-over")
    stage.step("produce B", cast.produce("B"), ["produce B: waits"])
    stage.step("close", cast.do(cast.handover.close), ["produce B: Closed"])
    stage.step("poll", cast.poll(), ["poll: Closed"], "A is let go; its partition's position in the store never moved")
    stage.step("produce C", cast.produce("C"), ["produce C: Closed"])
    seen = cast.ask("produce None", lambda: cast.handover.produce(None))  # type: ignore[arg-type]
    stage.step("produce None", seen, ["produce None: InvalidRequest"], "None is no batch")
