"""Session clicks: which pages a visitor looked at in one go, written once when the visit is over.

    python examples/session_clicks.py        feeds six clicks and prints the visits that are over; Ctrl-C ends it
    python examples/session_clicks.py        the same again prints nothing: no visit is written twice

A visit ends after half an hour without a click; clicks may come five minutes late. One that comes later than that
joins no visit that was written, and each click is in one visit at most. (After a crash, a line may be printed again:
only topic and store are exactly once.) Time is that of the clicks, so
Eve's, four hours later, is what closes the others' visits, and hers stays open. Everything is in ./session-clicks.
"""

from __future__ import annotations

import sys
import time

import standfast as sf

MINUTE_MS = 60_000
# who, minute, page
CLICKS = ("ann 0 home", "bob 3 home", "ann 29 help", "ann 12 cart", "bob 45 home", "eve 240 home")


def build(log: str | None = None, state_dir: str | None = None) -> sf.App:
    """The application. The test driver needs neither log nor state directory."""
    visits = sf.SessionStore("visits", sf.serde.string, sf.serde.json, retention_ms=24 * 60 * MINUTE_MS)
    app = sf.App("session-clicks", log=log, state_dir=state_dir, stores=[visits])
    (
        app.stream("clicks")
        .group_by_key()
        .window(sf.SessionWindows(30 * MINUTE_MS, grace_ms=5 * MINUTE_MS))
        .aggregate(list, lambda _, page, pages: [*pages, page], "visits", merge=joined, emit=sf.ON_WINDOW_CLOSE)
        .peek(lambda who, pages: print(f"{who.key}: {pages} in {(who.end - who.start) // MINUTE_MS} minutes"))
        .to("visits")
    )
    return app


def joined(_: str, one: list[str], other: list[str]) -> list[str]:
    return one + other


def feed(address: str) -> None:
    """Make the topics and write the clicks, unless that was done by an earlier run."""
    log = sf.open_log(address)
    if log.admin.describe_topic("clicks") is None:
        for topic in ("clicks", "visits"):
            log.admin.create_topic(topic, 1, sf.TopicPolicy())
        start_ms = time.time_ns() // 1_000_000 - 240 * MINUTE_MS
        for who, minute, page in map(str.split, CLICKS):
            click = sf.Outgoing(who.encode(), sf.serde.json.serialize(page), start_ms + int(minute) * MINUTE_MS)
            log.producer().append({sf.TopicPartition("clicks", 0): [click]})
    log.close()


def main(folder: str = "session-clicks") -> None:
    """Feed the clicks, and tell of visits until the process is stopped."""
    feed(f"sqlite:///{folder}/log")
    build(f"sqlite:///{folder}/log", f"{folder}/state").run()


if __name__ == "__main__":
    main(*sys.argv[1:])
