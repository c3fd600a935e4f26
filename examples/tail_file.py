"""A file that grows: its lines by a source of one's own, and out the number of lines of each level.

    python examples/tail_file.py                      reads ./tail-file/app.log, made if absent; Ctrl-C ends it
    echo "ERROR disk full" >> ./tail-file/app.log     counts at once; without the program, at its next start

All other files are in ./tail-file too, or in the folder named on the command line. The position is the byte behind the
last counted line, so that no line counts twice, however the program ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import standfast as sf

LINES = "INFO started\nWARNING slow disk\nINFO ready\n"


class Lines(sf.Source):
    """The lines of a file, and those that are appended to it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def run(self, context: sf.SourceContext) -> None:
        with Path(self.path).open("rb") as file:
            while not context.cancelled:
                file.seek(context.position)
                line = file.readline()
                if line.endswith(b"\n"):
                    record = sf.Record(None, line.decode().strip(), context.wall_clock_ms)
                    context.collect(record, context.position + len(line))
                else:  # the end, or a line that is being written
                    context.wait(0.1)


def build(path: str, log: str | None = None, state_dir: str | None = None) -> sf.App:
    """The application. The test driver needs no log and no state directory."""
    counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
    app = sf.App("tail-file", log=log, state_dir=state_dir, stores=[counts], create_topics=True)
    lines = app.stream(Lines(path), name="lines", value=sf.serde.string)
    by_level = lines.filter(lambda _, line: bool(line)).group_by(lambda _, line: line.split()[0])
    by_level.count("counts").peek(print).to("levels")
    return app


def main(folder: str = "tail-file") -> None:
    """Count until the process ends."""
    path = Path(folder, "app.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(LINES, encoding="utf-8")
    build(str(path), f"sqlite:///{folder}/log", f"{folder}/state").run()


if __name__ == "__main__":
    main(*sys.argv[1:])
