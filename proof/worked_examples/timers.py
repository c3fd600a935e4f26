"""The player of timers per key: an application on the test driver; the timers lie in a real logged store.

    new | new processing_time now=1000        timers by event time, by the wall clock
    set a 30 31 at=10 | cancel a 40 at=10     a record of key a at 10 sets or cancels timers
    on a 10 set a 15 26                       reaction of a's timer at 10: set or cancel
    watermark 19 | advance 999 | restart      time moves on, a new processor: the timers that fire, in order

Rules of this file: the source's watermarks are the largest timestamp - 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from standfast.store import serde
from standfast.stream.app.app import App
from standfast.stream.record import Record
from standfast.stream.timer import Timer, TimerKind
from standfast.stream.topology.processor import Context, Processor
from standfast.stream.watermarks import BoundedDisorder
from worked_examples.driven import Driven

TOPIC = "in"
CLOCK = "clock"  # the key of records that only move the watermark on


class Timers(Driven):
    """One application after the other."""

    def new(self, kind: str = "event_time", now: int = 0) -> None:
        """Begin with an application without timers."""
        self.reactions: dict[tuple[str, int], list[tuple[str, str, list[int]]]] = defaultdict(list)
        player, timer_kind = self, TimerKind(kind)
        # A watermark after every record, so that no step waits for an interval.
        app = App("timers", watermark_interval_ms=0)

        @app.source(TOPIC, key=serde.string, value=serde.json, watermarks=BoundedDisorder(0))
        class Timed(Processor):
            stores = ()

            def init(self, context: Context) -> None:
                self.change: dict[str, Callable[..., object]] = {"set": context.timer, "cancel": context.cancel_timer}

            def process(self, record: Record) -> None:
                for verb, times in record.value.items():
                    for time_ms in times:
                        self.change[verb](record.key, time_ms, timer_kind)

            def on_timer(self, timer: Timer) -> None:
                player.noted.append([timer.key, timer.time])
                for verb, key, times in player.reactions[timer.key, timer.time]:
                    for time_ms in times:
                        self.change[verb](key, time_ms, timer_kind)

        self.open(app, now)

    def set(self, key: str, *times: str, at: int) -> list[list[object]]:
        """Pipe a record that sets timers for its key."""
        return self._pipe(key, {"set": [int(time) for time in times]}, at)

    def cancel(self, key: str, *times: str, at: int) -> list[list[object]]:
        """Pipe a record that cancels timers of its key."""
        return self._pipe(key, {"cancel": [int(time) for time in times]}, at)

    def on(self, key: str, time: str, verb: str, of: str, *times: str) -> None:
        """Set the reaction of a timer's callback."""
        self.reactions[key, int(time)].append((verb, of, [int(one) for one in times]))

    def watermark(self, to_ms: str) -> list[list[object]]:
        """Move the watermark on with a record one millisecond after it."""
        return self._pipe(CLOCK, {}, int(to_ms) + 1)

    def _pipe(self, key: str, value: dict[str, list[int]], timestamp: int) -> list[list[object]]:
        self.running.pipe(TOPIC, key, value, timestamp)
        return list(self.take())
