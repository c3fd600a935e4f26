"""The players of the scenario `punctuator`: schedules, and the *now* with which their callbacks fire.

`Queue`, the queue of `standfast.stream.punctuation`, whose schedules have names:

    new                                   a new queue
    schedule A every=5000                 stream time; start=1000 may follow
    schedule B every=5000 made=0          wall clock, made at that time; start=1000 anchors it
    schedule C every=5000 due=5000        due for the first time as given
    on A cancel B                         reaction of A's callback each time it fires: schedule, cancel or fail
    cancel A
    at 1000 4000 unknown                  the time moves on: each callback's now, and the time that is due next
    fires 30 | counts 0                   the time moves on: the names that fire | and how many the queue counts

`Schedules`, an application on the test driver whose one processor only makes a schedule:

    new stream_time every=5000 start=1000 cancel_at=2000      start, and when the callback cancels itself, if given
    new wall_clock_time every=5000 now=100000                 made at that time
    record 1000 | advance 4999                                a record, the wall clock: with which now it fires
    in_hand                                                   topic, partition and offset that the callbacks have

`BothClocks`, one pass of the real loop: a schedule of 5 s by the wall clock, then one of 5 s by stream time:

    feed 7000 | advance 5000 | poll       a record in the log | the wall clock, from 100 s on | one pass: its callbacks

Rules of this file: a record only moves stream time on; nothing sleeps, clocks move as the script says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import ManualClock
from standfast.stream.app.app import App
from standfast.stream.punctuation import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Cancellable,
    PunctuationQueue,
    PunctuationType,
    first_due,
)
from standfast.stream.record import Record
from standfast.stream.runtime.loop import Loop
from standfast.stream.topology.assembly import assemble
from standfast.stream.topology.processor import Context, Processor
from worked_examples.driven import Driven
from worked_examples.script import Player


class CallbackFailed(Exception):
    """The error that a callback of a script raises."""


class Fired(NamedTuple):
    """Callbacks that fired at a time, as (name, now); `counted` is None if a callback failed."""

    at: str
    fired: list[tuple[str, int]]
    counted: int | None
    next_ms: int | None


class Queue(Player):
    """One queue after the other."""

    def __init__(self) -> None:
        self.new()

    def new(self) -> str:
        """Begin with a new queue."""
        self.queue = PunctuationQueue()
        self.handles: dict[str, Cancellable] = {}
        self.reactions: dict[str, str] = {}
        self.fired: list[tuple[str, int]] = []
        return "empty"

    def schedule(
        self, name: str, *, every: int, made: int | None = None, start: int | None = None, due: int | None = None
    ) -> str:
        """Make a schedule."""
        if due is None:
            due = first_due(STREAM_TIME if made is None else WALL_CLOCK_TIME, made, every, start)

        def callback(now_ms: int) -> None:
            self.fired.append((name, now_ms))
            if reaction := self.reactions.get(name):
                self.act(reaction)

        self.handles[name] = self.queue.schedule(due, every, callback)
        return f"{name} due={due}"

    def on(self, name: str, *reaction: str, **named: int) -> str:
        """Set the reaction of a callback each time it fires."""
        self.reactions[name] = " ".join([*reaction, *(f"{key}={value}" for key, value in named.items())])
        return f"on {name} {self.reactions[name]}"

    def cancel(self, name: str) -> str:
        """Cancel a schedule."""
        self.handles[name].cancel()
        return f"{name} cancelled"

    def fail(self) -> None:
        """Raise from the callback."""
        raise CallbackFailed

    def at(self, *times: str) -> list[Fired]:
        """Move the time on."""
        return [self._at(time) for time in times]

    def fires(self, time: str) -> list[str]:
        """Move the time on; the names of the callbacks that fire."""
        return [name for name, _ in self._at(time).fired]

    def counts(self, time: str) -> dict[str, Any]:
        """Move the time on; the names of the callbacks that fire, and the number that the queue counts."""
        seen = self._at(time)
        return {"fired": [name for name, _ in seen.fired], "counted": seen.counted}

    def value(self, answer: Any) -> Any:
        """For one time: the now of each callback that fired, and the time that is due next."""
        match answer:
            case [Fired() as seen]:
                return {"fired": [now_ms for _, now_ms in seen.fired], "next": seen.next_ms}
        return super().value(answer)

    def _at(self, time: str) -> Fired:
        self.fired = []
        try:
            count = self.queue.may_punctuate(None if time == "unknown" else int(time))
        except CallbackFailed:
            # The error ended the call, so it returned no count.
            count = None
        return Fired(time, self.fired, count, self.queue.next_due_ms)


TOPIC = "records"


def scheduled(make: Callable[[Context], object]) -> App:
    """An application whose one processor only makes schedules."""
    app = App("punctuator")

    @app.source(TOPIC)
    class Scheduled(Processor):
        stores = ()

        def init(self, context: Context) -> None:
            make(context)

        def process(self, record: Record) -> None:
            """A record only moves stream time on."""

    return app


class Schedules(Driven):
    """One schedule after the other."""

    def new(self, kind: str, *, every: int, start: int | None = None, cancel_at: int = -1, now: int = 0) -> None:
        """Declare a processor with one schedule."""
        self.held: dict[tuple[object, ...], None] = {}

        def make(context: Context) -> None:
            def callback(now_ms: int) -> None:
                self.noted.append(now_ms)
                self.held[context.topic, context.partition, context.offset, *context.headers] = None
                if now_ms == cancel_at:
                    handle.cancel()

            handle = context.schedule(every, PunctuationType(kind), callback, start)

        self.open(scheduled(make), now)

    def record(self, timestamp: str) -> list[int]:
        """Pipe a record."""
        self.running.pipe(TOPIC, "k", "v", int(timestamp))
        return list(self.take())

    def in_hand(self) -> list[list[object]]:
        """Topic, partition, offset and headers that the callbacks had, each once."""
        return [list(one) for one in self.held]


EVERY_MS = 5_000
ROUNDS_MAX = 1_000


class BothClocks(Player):
    """An application whose loop is driven by hand."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._fired: list[str] = []
        self._clock = ManualClock(100_000)
        folder = self._held.enter_context(tempfile.TemporaryDirectory(prefix="standfast-demo-"))
        address = f"sqlite:///{folder}/log?synchronous=normal"
        self._log = open_log(address, clock=self._clock)
        self._held.callback(self._log.close)
        self._log.admin.create_topic(TOPIC, 1, TopicPolicy())
        app = scheduled(self._make)
        assembled = assemble(app.builder, self._log.admin, address)
        # Without background threads: only the script's commands move the session.
        session = app.open_session(
            assembled, address, Path(folder) / "state", self._clock, background=False, alone=True
        )
        self._held.callback(session.close)
        # Bounded by rounds and not by time: nothing here sleeps.
        for _ in range(ROUNDS_MAX):
            if len(session.open_tasks()) == 1:
                break
            session.poll_once()
        else:
            raise AssertionError(f"the task does not run: {session.missing()}")
        self._loop = Loop(
            session,
            assembled.topology,
            app.runner_settings(assembled, self._clock),
            commit_interval_ms=app.commit_interval_ms,
            restart=app.restart,
            clock=self._clock,
        )
        self._held.callback(self._loop.close)

    def _make(self, context: Context) -> None:
        context.schedule(EVERY_MS, WALL_CLOCK_TIME, lambda now_ms: self._fired.append(f"wall clock {now_ms}"))
        context.schedule(EVERY_MS, STREAM_TIME, lambda now_ms: self._fired.append(f"stream time {now_ms}"))

    def feed(self, timestamp: str) -> None:
        """Write one record to the log."""
        producer = self._log.producer()
        producer.append({TopicPartition(TOPIC, 0): [Outgoing(b"k", b'"v"', int(timestamp))]})
        producer.close()

    def advance(self, duration_ms: str) -> None:
        """Move the wall clock on."""
        self._clock.advance(int(duration_ms))

    def poll(self) -> list[str]:
        """Run one pass of the loop."""
        self._fired.clear()
        self._loop.poll_once()
        return list(self._fired)

    def end(self) -> None:
        """Close loop, session and log."""
        self._held.close()
