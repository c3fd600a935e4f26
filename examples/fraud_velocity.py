"""Fraud velocity: a card that pays four times in a burst is blocked, and free again after ten seconds.

    python examples/fraud_velocity.py        feeds payments and prints what happens to cards; Ctrl-C ends it
    python examples/fraud_velocity.py        again goes on: a card that was blocked is freed when its time has come

A burst is a session: payments with a minute at most from one to the next, by their own times. The timer that frees a
card is state as the block itself is, so both survive a kill. A payment that cannot be used is a dead letter: it goes to
the topic `unusable`, with headers that say why, and the others go on. All files are in ./fraud-velocity.
"""

from __future__ import annotations

import sys
import time

import standfast as sf

MINUTE_MS = 60_000
BLOCK_MS = 10_000
PAYMENTS_MAX = 3
# card, second, cents; the fifth has no amount, and the last two are no burst
PAYMENTS = ("ann 0 500", "bob 5 900", "ann 20 500", "ann 85 700", "bob 90 -", "ann 60 100", "cat 200 5", "cat 270 5")


class Block(sf.Processor):
    """Blocks the card of a burst, and frees it by a timer."""

    timer_key = sf.serde.string

    def init(self, context: sf.Context) -> None:
        self.context, self.blocked = context, context.store("blocked")

    def process(self, record: sf.Record) -> None:
        card, now_ms = record.key.key, self.context.wall_clock_ms
        if self.blocked.put_if_absent(card, now_ms) is None:
            self.context.timer(card, now_ms + BLOCK_MS, sf.PROCESSING_TIME)
            self.context.forward(sf.Record(card, f"blocked after {record.value} payments", record.timestamp))

    def on_timer(self, timer: sf.Timer) -> None:
        self.blocked.delete(timer.key)
        self.context.forward(sf.Record(timer.key, "free", timer.time))


def build(log: str | None = None, state_dir: str | None = None) -> sf.App:
    """The application. The test driver needs no log and no state directory."""
    # Without a cache, which would hold a burst back until the next commit.
    bursts = sf.SessionStore("bursts", sf.serde.string, sf.serde.int64, retention_ms=60 * MINUTE_MS, caching=False)
    blocked = sf.KeyValueStore("blocked", sf.serde.string, sf.serde.int64)
    app = sf.App("fraud-velocity", log=log, state_dir=state_dir, stores=[bursts, blocked], create_topics=True)
    payments = app.stream("payments", on_error="dead_letter", dead_letter="unusable")
    counts = payments.map_values(lambda payment: int(payment["cents"])).group_by_key()
    table = counts.window(sf.SessionWindows(MINUTE_MS, grace_ms=MINUTE_MS)).count("bursts")
    many = table.to_stream().filter(lambda _, count: (count or 0) > PAYMENTS_MAX)
    cards = many.process(Block, "blocked", key=sf.serde.string, value=sf.serde.string)
    cards.peek(lambda card, what: print(f"{card}: {what}")).to("cards")
    return app


def main(folder: str = "fraud-velocity") -> None:
    """Feed the payments, unless an earlier run has done so, and run until the process ends."""
    log = f"sqlite:///{folder}/log"
    app = build(log, f"{folder}/state")
    opened = sf.open_log(log)
    fed = opened.admin.describe_topic("payments") is not None
    opened.close()
    with app.producer() as producer:
        start_ms = time.time_ns() // 1_000_000 - 5 * MINUTE_MS
        for card, second, cents in map(str.split, () if fed else PAYMENTS):
            producer.send("payments", card, {"cents": cents}, start_ms + int(second) * 1_000)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
