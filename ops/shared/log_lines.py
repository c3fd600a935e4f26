"""Lines of a sidecar's log on stderr, for people or for programs: form, level, and the loggers that write them.

A repeated warning or error is written once in ten seconds, with the number of repeats. Every audit event is written;
its JSON line has the event's parts as fields.

Rules of this file: the forms themselves, and how a line is written, are in `standfast.store.log`.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from standfast.store.log import HTTP_LOGGER, LEVELS, LogFormat, Repeats, WholeLines, show

SERVER_LINES = "uvicorn.error"


def configure(level: str, kind: LogFormat, stream: TextIO | None = None) -> logging.Handler:
    """Let standfast's lines go to stderr in this form; a second call changes level and form."""
    handler = WholeLines(kind, stream or sys.stderr, Repeats(logging.ERROR))
    # Only warnings and errors of uvicorn. By itself it would write them in a form of its own, also under the JSON
    # format, and one for each request that cannot be read.
    for name, least in (("standfast", LEVELS[level]), (HTTP_LOGGER, max(LEVELS[level], logging.WARNING))):
        root = logging.getLogger(name)
        root.handlers = [handler]
        root.setLevel(least)
        root.propagate = False
    # uvicorn's lines must reach the logger above, even where a program's logging.config had disabled this one.
    below = logging.getLogger(SERVER_LINES)
    below.handlers, below.propagate, below.disabled = [], True, False
    below.setLevel(logging.NOTSET)
    show(kind, LEVELS[level])
    return handler
