"""The players of the scenario `watermarks`: a task's event-time clock, and the treatment of late records.

`Tasks`, the valve of `standfast.stream.watermarks`:

    task 0_0 flights/0 weather/0          a task and its inputs
    say flights/0 10 idle active          signals as they are
    clock | state flights/0 | late 120    the first task's clock and the input that it waits for | and that input | is
                                          such a record late

`Sources`, applications on the test driver, whose processors note each record's timestamp:

    one_source disorder=5 | two_sources idle=1000 | across      with source `in`; clicks and orders; `in`
    record in 100 partition=1 | advance 500 | restart
    came | watermark | clock | clocks | dropped                 processed and late records; the clock of task 0_0;
                                                                those of 1_0 and 1_1; the number of dropped records

Rules of this file: where there is one source, a late record goes to the topic `late`.
"""

from __future__ import annotations

from typing import Any

from standfast.store import serde
from standfast.stream.app.app import App
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context, Processor
from standfast.stream.watermarks import Active, BoundedDisorder, Channel, Idle, Signal, Watermark, WatermarkValve
from worked_examples.driven import Driven
from worked_examples.script import Player


class Tasks(Player):
    """Tasks by name."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin without a task."""
        self.tasks: dict[str, WatermarkValve] = {}
        self.inputs: dict[str, list[Channel]] = {}

    def task(self, name: str, *channels: str) -> Any:
        """Add a task with its inputs."""
        self.inputs[name] = [Channel.parse(channel) for channel in channels]
        self.tasks[name] = WatermarkValve(self.inputs[name])

    def say(self, channel: str, *signals: str) -> Any:
        """Give signals, as written, to every task with that input."""
        return self.signals(Channel.parse(channel), [signal_of(word) for word in signals])

    def signals(self, channel: Channel, signals: list[Signal]) -> Any:
        """Give signals to every task with that input."""
        for signal in signals:
            for name, channels in self.inputs.items():
                if channel in channels:
                    self.tasks[name].on_signal(channel, signal)

    def clock(self) -> dict[str, Any]:
        """The clock, and the input that it waits for."""
        return {"clock": self.valve.clock_ms, "waits_for": str(self.valve.holding_back())}

    def state(self, channel: str) -> dict[str, Any]:
        """The clock, and the state of an input."""
        states = {str(one.channel): one.state for one in self.valve.statistics().inputs}
        return {"clock": self.valve.clock_ms, channel: states[channel]}

    def late(self, timestamp: str) -> bool:
        """Whether a record at that time would be late."""
        return self.valve.is_late(int(timestamp))

    @property
    def valve(self) -> WatermarkValve:
        """The valve of the first task."""
        return next(iter(self.tasks.values()))


def signal_of(word: str) -> Signal:
    """The signal of a word: `idle`, `active`, or a watermark in milliseconds."""
    if word == "idle":
        return Idle()
    return Active() if word == "active" else Watermark(int(word))


LATE = "late"


class Sources(Driven):
    """One application after the other."""

    def one_source(self, *, disorder: int) -> None:
        """Declare one source whose watermark follows every record, and a topic for late records."""
        app = App("watermarks", watermark_interval_ms=0)
        app.source("in", watermarks=BoundedDisorder(disorder), late=LATE)(self._noting())
        self.open(app)

    def two_sources(self, *, idle: int) -> None:
        """Declare two sources that become idle."""
        app, processor = App("watermarks"), self._noting()
        for topic in ("clicks", "orders"):
            app.source(topic, watermarks=BoundedDisorder(0), idle_after_ms=idle)(processor)
        self.open(app)

    def across(self) -> None:
        """Declare two tasks, a topic, and two tasks behind it, with a watermark after every record."""
        app = App("watermarks", watermark_interval_ms=0)
        stream = app.stream("in", key=serde.string, value=serde.json, watermarks=BoundedDisorder(0))
        stream.repartition("middle").process(self._noting())
        self.open(app, partitions=2)

    def record(self, topic: str, timestamp: str, partition: int | None = None) -> None:
        """Pipe a record."""
        self.running.pipe(topic, "k", "v", int(timestamp), partition=partition)

    def came(self) -> dict[str, Any]:
        """Processed records, late records, and the watermark."""
        late = [record.timestamp for record in self.running.read(LATE)]
        return {"processed": self.take(), "late": late, **self.watermark()}

    def watermark(self) -> dict[str, int | None]:
        """The watermark of task 0_0; None while it is unknown."""
        return {"watermark": self.contexts["0_0"].watermark_ms}

    def clock(self) -> dict[str, int | None]:
        """The clock of task 0_0."""
        return {"clock": self.contexts["0_0"].watermark_ms}

    def clocks(self) -> dict[str, int | None]:
        """The clocks of both tasks behind the topic."""
        return {task: self.contexts[task].watermark_ms for task in ("1_0", "1_1")}

    def _noting(self) -> type[Processor]:
        self.contexts: dict[str, Context] = {}
        player = self

        class Noting(Processor):
            stores = ()

            def init(self, context: Context) -> None:
                player.contexts[context.task_id] = context

            def process(self, record: Record) -> None:
                player.noted.append(record.timestamp)

        return Noting
