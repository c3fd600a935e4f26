"""Lines of the log on stderr, for people or for programs.

    text    2013-01-01 00:00:00,000 INFO standfast: serving flights
    json    {"at": "2013-01-01T00:00:00.000+00:00", "level": "info", "logger": "standfast", "message": "serving"}

A repeated warning or error is written once in ten seconds, with the number of repeats.

Rules of this file: one line per event: control characters are escaped, so that no text from outside can forge a line.
An audit event stands in its JSON line as fields.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

from standfast.store.log import Repeats, TextLines

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
AUDIT = "standfast.audit"
SERVER = "uvicorn"
SERVER_LINES = "uvicorn.error"


class JsonLines(logging.Formatter):
    """A formatter for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object."""
        message = record.getMessage()
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if record.name == AUDIT:
            line["audit"] = json.loads(message)
        else:
            line["message"] = message
        if record.exc_info:  # in a field, since a traceback has many lines and an event one
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Lines(logging.StreamHandler[TextIO]):
    """Writes lines, repeated ones once in ten seconds. Every audit event is written."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._repeats = Repeats(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count a repeat."""
        # An audit trail with gaps proves nothing, so its events pass the counting of repeats by.
        told = record if record.name == AUDIT else self._repeats.told(record)
        if told is not None:
            super().emit(told)


def configure(level: str, kind: Literal["text", "json"], stream: TextIO | None = None) -> logging.Handler:
    """Let standfast's lines go to stderr in this form; a second call changes level and form."""
    handler = Lines(stream or sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else TextLines())
    # Only warnings and errors of uvicorn. By itself it would write them in a form of its own, also under the JSON
    # format, and one for each request that cannot be read.
    for name, least in (("standfast", LEVELS[level]), (SERVER, max(LEVELS[level], logging.WARNING))):
        root = logging.getLogger(name)
        root.handlers = [handler]
        root.setLevel(least)
        root.propagate = False
    # uvicorn's lines must reach the logger above, even where a program's logging.config had disabled this one.
    below = logging.getLogger(SERVER_LINES)
    below.handlers, below.propagate, below.disabled = [], True, False
    below.setLevel(logging.NOTSET)
    return handler
