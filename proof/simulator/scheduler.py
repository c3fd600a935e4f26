"""The scheduler of simulated processes: one runs at a time, simulated time passes only while none can go on.

    spawn(name, body) ──> Actor, a greenlet of its own
    run_until(...)    ──> the ready actor with the earliest wake ──> ... until it waits or ends ──> the next one
                          none is ready ──> the clock moves to the earliest wake

Rules of this file: no port, no fault and no product. Actors of equal wake run in the order of a draw, so that each seed
has an order of its own. An actor that is ended meets `ProcessEnded` in its next call, and in each one after that.
"""

from __future__ import annotations

from collections.abc import Callable

from greenlet import getcurrent, greenlet

from simulator.calls import ProcessEnded
from simulator.draws import Draws

TURNS_MAX = 2_000_000  # of one world: a loop that makes no progress ends with an error


class Actor:
    """One run of a simulated process. `error`: what its body raised, apart from the end of the process."""

    def __init__(self, name: str, incarnation: int, body: Callable[[], None], wake_ms: float, parent: greenlet) -> None:
        self.name = name
        self.incarnation = incarnation
        self.wake_ms = wake_ms
        self.ready: Callable[[], bool] | None = None
        self.ended = False  # it may change nothing any more
        self.done = False  # its body has returned
        self.error: Exception | None = None
        self.turns = 0
        self._body = body
        self.greenlet = greenlet(self._run, parent)

    def _run(self) -> None:
        try:
            self._body()
        except ProcessEnded:
            pass
        except Exception as error:  # noqa: BLE001  the world decides what the end of a process by an error means
            self.error = error
        self.done = True

    def __repr__(self) -> str:
        return f"{self.name} #{self.incarnation}"


class Scheduler:
    """See the head of this file. Times are milliseconds."""

    def __init__(self, draws: Draws, now_ms: float = 0) -> None:
        self.now_ms = now_ms
        self.turns = 0
        self.actors: list[Actor] = []
        self._draws = draws
        self._of: dict[greenlet, Actor] = {}
        self._incarnations: dict[str, int] = {}
        self._main = getcurrent()

    @property
    def current(self) -> Actor | None:
        """The actor that runs; None outside of all."""
        return self._of.get(getcurrent())

    def spawn(self, name: str, body: Callable[[], None], after_ms: float = 0) -> Actor:
        """Start a process; one of the same name has a higher incarnation."""
        number = self._incarnations[name] = self._incarnations.get(name, 0) + 1
        actor = Actor(name, number, body, self.now_ms + after_ms, self._main)
        self.actors.append(actor)
        self._of[actor.greenlet] = actor
        return actor

    def wait(self, wait_ms: float, ready: Callable[[], bool] | None = None) -> None:
        """Let the others run until so much time has passed, or `ready` holds; called by an actor."""
        actor = self.current
        assert actor is not None, "only a simulated process can wait"
        actor.wake_ms, actor.ready = self.now_ms + max(wait_ms, 0), ready
        self._main.switch()
        actor.ready = None
        if actor.ended:
            raise ProcessEnded(repr(actor))

    def end(self, actor: Actor) -> None:
        """End a process now, as SIGKILL does: wherever it waits, it goes no further."""
        actor.ended = True
        if actor is not self.current and not actor.done:
            # Its handlers run at once, each call of theirs refused, so that nothing of it is left for later.
            while not actor.done:
                actor.greenlet.switch()
            self._forget()

    def run_until(self, over: Callable[[], bool], limit_ms: float) -> bool:
        """Run until `over` holds (True), no actor is left, or the clock has passed `limit_ms` (False)."""
        while not over():
            actor = self._next()
            if actor is None:
                return over()
            if actor.wake_ms > self.now_ms and not (actor.ready is not None and actor.ready()):
                if actor.wake_ms > limit_ms:
                    self.now_ms = limit_ms
                    return over()
                self.now_ms = actor.wake_ms
            self.turns += 1
            actor.turns += 1
            if self.turns > TURNS_MAX:
                raise AssertionError(f"no end after {TURNS_MAX} turns: {self.actors}")
            actor.greenlet.switch()
            if actor.done:
                self._forget()
        return True

    def _next(self) -> Actor | None:
        now_ms, found, first_ms = self.now_ms, [], 0.0
        for actor in self.actors:
            ready = actor.wake_ms <= now_ms or (actor.ready is not None and actor.ready())
            at_ms = now_ms if ready else actor.wake_ms
            if not found or at_ms < first_ms:
                found, first_ms = [actor], at_ms
            elif at_ms == first_ms:
                found.append(actor)
        if len(found) < 2:
            return found[0] if found else None
        return min(found, key=lambda one: self._draws.bits("turn", one.name, one.incarnation, one.turns))

    def _forget(self) -> None:
        self.actors = [actor for actor in self.actors if not actor.done]
