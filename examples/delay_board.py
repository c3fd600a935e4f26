"""Delay board: flights joined with a table of airports, delays by city and hour, shown every two seconds.

    python examples/delay_board.py           feeds airports and flights and shows the board; Ctrl-C ends it
    python examples/delay_board.py           again: the board is there at once, from the state

Times are the flights' own; an hour takes flights until ten minutes after its end, so the last one is too late. The
airport ZZZ is not in the table, so the join drops its flight. All files are in ./delay-board.
"""

from __future__ import annotations

import sys
import time

import standfast as sf

HOUR_MS = 3_600_000
AIRPORTS = {"JFK": "New York", "LGA": "New York", "EWR": "Newark"}
# airport, minute, minutes late
FLIGHTS = ("JFK 5 12", "EWR 20 0", "JFK 62 3", "LGA 55 40", "ZZZ 64 1", "EWR 70 9", "JFK 4 8")


class Board(sf.Processor):
    """Sends the delays of every city and hour to the topic `board`, by the wall clock."""

    def init(self, context: sf.Context) -> None:
        self.context, self.delays = context, context.store("delays")
        context.schedule(2_000, sf.WALL_CLOCK_TIME, self.show)

    def show(self, now_ms: int) -> None:
        for (city, start_ms, _), delays in self.delays.all():
            self.context.forward(sf.Record(city, {"hour": start_ms, "minutes late": delays}, now_ms))


def build(log: str | None = None, state_dir: str | None = None) -> sf.App:
    """The application. The test driver needs no log and no state directory."""
    delays = sf.WindowStore("delays", sf.serde.string, sf.serde.json, window_size_ms=HOUR_MS, retention_ms=24 * HOUR_MS)
    app = sf.App("delay-board", log=log, state_dir=state_dir, stores=[delays])
    flights = app.stream("flights").join(app.table("airports"), lambda delay, city: {"city": city, "delay": delay})
    hourly = flights.group_by(lambda _, flight: flight["city"]).window(sf.TumblingWindows(HOUR_MS, grace_ms=600_000))
    table = hourly.aggregate(list, lambda _, flight, late: [*late, flight["delay"]], "delays")
    table.process(Board, "delays").peek(print).to("board")
    return app


def feed(address: str) -> None:
    """Create the topics and write airports and flights, unless an earlier run has done so."""
    log = sf.open_log(address)
    if log.admin.describe_topic("flights") is None:
        for topic in ("airports", "flights", "board"):
            log.admin.create_topic(topic, 1, sf.TopicPolicy())
        start_ms = (time.time_ns() // 1_000_000 // HOUR_MS - 2) * HOUR_MS
        rows: list[tuple[str, str, int, object]] = [("airports", code, 0, city) for code, city in AIRPORTS.items()]
        rows += [
            ("flights", code, start_ms + int(at) * 60_000, int(late)) for code, at, late in map(str.split, FLIGHTS)
        ]
        for topic, key, stamp, value in rows:
            record = sf.Outgoing(key.encode(), sf.serde.json.serialize(value), stamp)
            log.producer().append({sf.TopicPartition(topic, 0): [record]})
    log.close()


def main(folder: str = "delay-board") -> None:
    """Feed, and show the board until the process ends."""
    feed(f"sqlite:///{folder}/log")
    build(f"sqlite:///{folder}/log", f"{folder}/state").run()


if __name__ == "__main__":
    main(*sys.argv[1:])
