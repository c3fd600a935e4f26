"""Session clicks: the pages of each visit, written once when the visit is over.

    python examples/session_clicks.py        feeds six clicks and prints the visits that are over; Ctrl-C ends it
    python examples/session_clicks.py        again prints nothing: no visit is written twice

A visit ends after half an hour without a click; clicks may come five minutes late. A later click joins no written
visit, and each click is in one visit at most. (After a crash, a line may be printed again: only topic and store are
exactly once.) Time is the clicks' own, so Eve's click, four hours later, closes the other visits, and hers stays open.
All files are in ./session-clicks.
"""

from __future__ import annotations

import sys
import time

import standfast as sf

MINUTE_MS = 60_000
# visitor, minute, page
CLICKS = ("ann 0 home", "bob 3 home", "ann 29 help", "ann 12 cart", "bob 45 home", "eve 240 home")


def build(log: str | None = None, state_dir: str | None = None) -> sf.App:
    """The application. The test driver needs no log and no state directory."""
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
    """Create the topics and write the clicks, unless an earlier run has done so."""
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
    """Feed the clicks, and print visits until the process ends."""
    feed(f"sqlite:///{folder}/log")
    build(f"sqlite:///{folder}/log", f"{folder}/state").run()


if __name__ == "__main__":
    main(*sys.argv[1:])
