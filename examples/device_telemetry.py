"""Device telemetry: the mean temperature of each device by minute, and devices that fall silent.

    python examples/device_telemetry.py      feeds readings, prints the minutes that are over; Ctrl-C ends it
    python examples/device_telemetry.py      again prints nothing: no minute is written twice

A reading may come five seconds late, so the watermark of a partition is five seconds behind its latest reading. Behind
the repartition a task has the smallest watermark of both partitions. It closes minutes, also those of a device that
sends no more. A partition without readings for two seconds is idle, and no minute waits for it. A device is silent two
minutes after its last reading, by the watermark. All files are in ./device-telemetry.
"""

from __future__ import annotations

import sys
import time

import standfast as sf

MINUTE_MS = 60_000
# device, second, degrees; hall and yard are in different partitions, and the yard falls silent
READINGS = ("hall 5 20", "yard 10 30", "hall 40 22", "yard 55 34", "hall 58 24", "hall 130 21", "hall 185 21")


class Silence(sf.Processor):
    """Forwards each device without a reading for two minutes."""

    timer_key = sf.serde.string

    def init(self, context: sf.Context) -> None:
        self.context, self.last = context, context.store("last")

    def process(self, record: sf.Record) -> None:
        if record.timestamp > (self.last.get(record.key) or -1):
            self.last.put(record.key, record.timestamp)
            self.context.timer(record.key, record.timestamp + 2 * MINUTE_MS)

    def on_timer(self, timer: sf.Timer) -> None:
        # Each reading has a timer; only that of the last one finds that none came since.
        if self.last.get(timer.key) == timer.time - 2 * MINUTE_MS:
            self.context.forward(sf.Record(timer.key, "silent", timer.time))


def build(log: str | None = None, state_dir: str | None = None) -> sf.App:
    """The application. The test driver needs no log and no state directory."""
    text, json = sf.serde.string, sf.serde.json
    minutes = sf.WindowStore("minutes", text, json, window_size_ms=MINUTE_MS, retention_ms=60 * MINUTE_MS)
    last = sf.KeyValueStore("last", text, sf.serde.int64)
    app = sf.App("device-telemetry", log=log, state_dir=state_dir, stores=[minutes, last])
    readings = app.stream("readings", watermarks=sf.BoundedDisorder(5_000), idle_after_ms=2_000).repartition("devices")
    table = readings.group_by_key().window(sf.TumblingWindows(MINUTE_MS)).aggregate(
        list, lambda _, degrees, found: [*found, degrees], "minutes", emit=sf.ON_WINDOW_CLOSE
    )  # fmt: skip
    means = table.to_stream().map(lambda minute, found: (minute.key, sum(found) / len(found)), key=text)
    means.peek(lambda device, mean: print(f"{device}: {mean:.1f} degrees")).to("means")
    silent = readings.process(Silence, "last", value=text)
    silent.peek(lambda device, _: print(f"{device} is silent")).to("silent")
    return app


def main(folder: str = "device-telemetry") -> None:
    """Feed the readings, unless an earlier run has done so, and run until the process ends."""
    app, log = build(f"sqlite:///{folder}/log", f"{folder}/state"), sf.open_log(f"sqlite:///{folder}/log")
    if log.admin.describe_topic("readings") is None:
        for topic in ("readings", "means", "silent"):
            log.admin.create_topic(topic, 2, sf.TopicPolicy())
        start_ms = (time.time_ns() // 1_000_000 // MINUTE_MS - 10) * MINUTE_MS
        with app.producer() as producer:
            for device, second, degrees in map(str.split, READINGS):
                producer.send("readings", device, int(degrees), start_ms + int(second) * 1_000)
    log.close()
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
