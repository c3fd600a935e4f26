"""A sidecar whose calls are counted: `python -m trips.sidecar serve ...`, toggled by lines of its standard input.

    begin ──> counts from now on        end ──> counts no more        each ──> one line of JSON: calls by file

Rules of this file: the command itself runs in the main thread, as it does for users.
"""

from __future__ import annotations

import json
import sys
import threading

from standfast.ops.command.command_line import main
from trips.hook import Trip, begin, end, install


def _toggle() -> None:
    sys.setprofile(None)
    trip = Trip()
    for line in sys.stdin:
        if line == "begin\n":
            trip = begin()
        else:
            end()
        print(json.dumps(trip.by_file), flush=True)


if __name__ == "__main__":
    install()
    threading.Thread(target=_toggle, daemon=True).start()
    sys.exit(main())
