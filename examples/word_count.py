"""Word count: lines in, and out the number of occurrences of each word.

    python examples/word_count.py            feeds three lines and counts them; Ctrl-C ends it
    python examples/word_count.py            again: the counts go on where they stood

All files are in ./word-count, or in the folder named on the command line: the log, here a SQLite file in place of a
broker, and the state. The words go through a repartition topic, so that equal words meet in one task.
"""

from __future__ import annotations

import sys

import standfast as sf

LINES = ("the quick brown fox", "jumps over the lazy dog", "The end")


def build(log: str | None = None, state_dir: str | None = None) -> sf.App:
    """The application. The test driver needs no log and no state directory."""
    counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
    app = sf.App("word-count", log=log, state_dir=state_dir, stores=[counts], create_topics=True)
    (
        app.stream("lines", value=sf.serde.string)
        .flat_map(lambda _, line: [(None, word) for word in line.lower().split()])
        .group_by(lambda _, word: word)
        .count("counts")
        .peek(print)
        .to("word-counts")
    )
    return app


def main(folder: str = "word-count") -> None:
    """Write the lines, and count until the process ends."""
    app = build(f"sqlite:///{folder}/log", f"{folder}/state")
    with app.producer() as producer:
        for line in LINES:
            producer.send("lines", None, line)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
