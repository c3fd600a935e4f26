"""A session that several threads share, to be killed: each thread has its own source, all of them one task.

    thread n    record of source n ──> sum over all, a row, a window, a duplicate, an output      within `exclusive`
                                  └──> commit of what every thread has read, after some of the records
    plainly     rows put without `exclusive` beside them, whose numbers come to standard output once committed

Rules of this file: started by `test_crash_threads.py` with its settings as JSON. The value of record n is n.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from typing import Any

import standfast as sf

APP = "threads"
SOURCES = [(f"in{number}", 0) for number in range(4)]
RECORDS = 400  # of each source
WINDOW_MS = 60_000
RETENTION_MS = 30 * WINDOW_MS
START_MS = 1_357_000_000_000
TEXT, INT = sf.serde.string, sf.serde.int64


def stores() -> list[Any]:
    """The stores of the one task."""
    times: dict[str, Any] = {"window_size_ms": WINDOW_MS, "retention_ms": RETENTION_MS}
    return [
        sf.KeyValueStore("sums", TEXT, INT),
        sf.KeyValueStore("rows", TEXT, INT),
        sf.WindowStore("windows", TEXT, INT, **times),
        sf.WindowStore("duplicates", TEXT, INT, **times, retain_duplicates=True),
    ]


def say(line: str) -> None:
    """Print a line in one write: two threads print."""
    os.write(1, f"{line}\n".encode())


def open_session(settings: dict[str, Any], directory: str) -> sf.Session:
    """The session on a state directory, restored."""
    session = sf.Session(
        APP, log=settings["log"], state_dir=directory, stores=stores(), partitions=1, guarantee=settings["guarantee"],
        http_port=None,
    )  # fmt: skip
    session.assign(active=[0])
    session.wait_ready(60)
    return session


def time_of(number: int) -> int:
    """The time of a record in milliseconds: three to a window."""
    return START_MS + number * WINDOW_MS // 3


def process(session: sf.Session, source: int, read: dict[tuple[str, int], int], rng: random.Random) -> None:
    """Process one source from its committed offset to its end."""
    task, at = session.task(0), SOURCES[source]
    for number in range(read[at], RECORDS):
        with task.exclusive():
            sums = task.store("sums")
            sums.put("all", (sums.get("all") or 0) + number, time_of(number))
            task.store("rows").put(f"{source}-{number}", number, time_of(number))
            task.store("windows").put(f"{source}", number, time_of(number) // WINDOW_MS * WINDOW_MS, time_of(number))
            task.store("duplicates").put(f"{source}", number, time_of(number) // WINDOW_MS * WINDOW_MS, time_of(number))
            task.send("out", f"{source}".encode(), f"{number}".encode(), time_of(number), partition=0)
            task.observe(at[0], 0, time_of(number))
            read[at] = number + 1
            if rng.random() < 0.2 or number + 1 == RECORDS:
                session.commit(dict(read))


def put_plainly(
    session: sf.Session, read: dict[tuple[str, int], int], ended: threading.Event, rng: random.Random, life: int
) -> None:
    """Put rows beside the commits of the others, and print the numbers of those that were committed."""
    number = 0
    while not ended.is_set():
        first, number = number, number + rng.randrange(1, 30)
        for row in range(first, number):
            session.task(0).store("rows").put(f"plain-{life}-{row}", row, START_MS)
        with session.task(0).exclusive():  # the records' rows so far go with this commit, and so must their offsets
            session.commit(dict(read))
        say(f"plain {life} {number}")


def main() -> None:
    settings = json.loads(sys.argv[1])
    session = open_session(settings, settings["state_dir"])
    read = dict.fromkeys(SOURCES, 0) | {tuple(at): offset for at, offset in session.task(0).source_offsets().items()}
    seeds = random.Random(settings["seed"])
    ended = threading.Event()
    threads = [
        threading.Thread(target=process, args=(session, source, read, random.Random(seeds.random())), daemon=True)
        for source in range(len(SOURCES))
    ]
    beside = threading.Thread(
        target=put_plainly, args=(session, read, ended, random.Random(seeds.random()), settings["life"]), daemon=True
    )
    for thread in (*threads, beside):
        thread.start()
    say("begun")
    for thread in threads:
        thread.join()
    ended.set()
    beside.join()
    session.close()
    say("done")


if __name__ == "__main__":
    main()
