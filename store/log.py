"""The library's logger: `standfast`, silent unless the application configures logging, or runs as `app.run()`.

    with printed(): ...     lines from INFO on go to stderr, if the program has set up no handler of its own

A line that is repeated while a log is away goes to stderr once in ten seconds, with how often it came.

Rules of this file: messages carry names and offsets, never keys, values or secrets.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import TextIO

logger = logging.getLogger("standfast")
logger.addHandler(logging.NullHandler())

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
REPEAT_S = 10.0
REPEATED_MAX = 1_000

_lock = threading.Lock()
_printing = 0  # how many runs share the handler
_handler: logging.Handler | None = None
_level_before = logging.NOTSET


class TextLines(logging.Formatter):
    """For people: control characters are escaped, so that nothing logged writes lines of its own."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """A line; a traceback, which is our own text, keeps its lines."""
        message = super().format(record)
        head, newline, rest = message.partition("\n")
        trace = newline + rest if record.exc_info else newline.replace("\n", "\\n") + rest.replace("\n", "\\n")
        return _plain(head) + (trace if record.exc_info else _plain(trace))


class Printer(logging.StreamHandler[TextIO]):
    """Writes lines to stderr, unless the program has set up a handler for them by now.

    A warning is written once in `REPEAT_S`, the next time with how often it came meanwhile; errors all are.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(TextLines())
        self._seen: dict[str, tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it."""
        if _configured(self):
            return
        if record.levelno == logging.WARNING and not record.exc_info:
            text = record.getMessage()
            written_s, count = self._seen.pop(text, (-REPEAT_S, 0))
            if record.created - written_s < REPEAT_S:
                self._seen[text] = (written_s, count + 1)
                return
            while len(self._seen) >= REPEATED_MAX:
                del self._seen[next(iter(self._seen))]
            self._seen[text] = (record.created, 0)
            if count:
                record = copy(record)  # other handlers may see it too
                record.msg, record.args = f"{text} [{count} more since the last such line]", ()
        super().emit(record)


@contextmanager
def printed() -> Iterator[None]:
    """Print the library's lines to stderr meanwhile, unless the program has handlers for them."""
    if not _begin():
        yield
        return
    try:
        yield
    finally:
        _end()


def _begin() -> bool:
    global _printing, _handler, _level_before
    with _lock:
        if not _printing:
            if _configured(None):
                return False
            _handler = Printer()
            _level_before = logger.level
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.INFO)
            logger.addHandler(_handler)
        _printing += 1
        return True


def _end() -> None:
    global _printing, _handler
    with _lock:
        _printing -= 1
        if not _printing and _handler is not None:
            logger.removeHandler(_handler)
            logger.setLevel(_level_before)
            _handler = None


def _configured(ours: logging.Handler | None) -> bool:
    """Whether the program set up a handler, other than `ours`, that gets the library's lines."""
    at: logging.Logger | None = logger
    while at is not None:
        if any(handler is not ours and not isinstance(handler, logging.NullHandler) for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
