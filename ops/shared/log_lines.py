"""Lines of the log on stderr, for people or for programs.

    text    2013-01-01 00:00:00,000 INFO standfast: serving flights
    json    {"at": "2013-01-01T00:00:00.000+00:00", "level": "info", "logger": "standfast", "message": "serving"}

A warning or an error that comes again and again is written once in ten seconds, with how often it came.

Rules of this file: one line an event whatever it says: control characters are escaped, so that nobody writes lines of
their own. An audit event stands in its JSON line as fields.
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
    """For programs."""

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
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Lines(logging.StreamHandler[TextIO]):
    """Writes lines; of those that come again and again one in ten seconds. Events of the audit all are written."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._repeats = Repeats(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it."""
        told = record if record.name == AUDIT else self._repeats.told(record)
        if told is not None:
            super().emit(told)


def configure(level: str, kind: Literal["text", "json"], stream: TextIO | None = None) -> logging.Handler:
    """Let standfast's lines go to stderr in this form; a second call changes level and form."""
    handler = Lines(stream or sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else TextLines())
    # Of the HTTP door's server only what is wrong, which it would write in a form of its own, each time anew.
    for name, least in (("standfast", LEVELS[level]), (SERVER, max(LEVELS[level], logging.WARNING))):
        root = logging.getLogger(name)
        root.handlers = [handler]
        root.setLevel(least)
        root.propagate = False
    # Its lines go up to the logger above, whatever a program's logging.config, or the server's own, made of it.
    below = logging.getLogger(SERVER_LINES)
    below.handlers, below.propagate, below.disabled = [], True, False
    below.setLevel(logging.NOTSET)
    return handler
