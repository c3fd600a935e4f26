"""The library's logger: `standfast`, silent unless the application configures logging, or runs as `app.run()`.

    with printed(): ...     lines from INFO on go to stderr, if the program has set up no handler of its own

A line that repeats while a log is away goes to stderr once in ten seconds, with the number of repeats. Lines that
differ only in a time ("for 3.2 s") count as the same line.

Rules of this file: messages carry names and offsets, never keys, values or secrets.
"""

from __future__ import annotations

import logging
import re
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
OVER = {"over": True}  # `extra` of a line about the end of a fault: it also reports how many lines were left out
_TIME = re.compile(r"\b\d+(?:\.\d+)? (?=m?s\b)")

_lock = threading.Lock()
_printing = 0  # the number of runs that share the handler
_handler: logging.Handler | None = None
_level_before = logging.NOTSET


class TextLines(logging.Formatter):
    """Lines for people: control characters are escaped, so that no logged text can forge a line."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line; a traceback, which is our own text, keeps its lines."""
        message = super().format(record)
        head, newline, rest = message.partition("\n")
        trace = newline + rest if record.exc_info else newline.replace("\n", "\\n") + rest.replace("\n", "\\n")
        return _plain(head) + (trace if record.exc_info else _plain(trace))


class Repeats:
    """Lets a line through once in `REPEAT_S`, the next time with the number of its repeats meanwhile.

    This holds for levels from WARNING to `level`; lines with a traceback all go through.
    """

    def __init__(self, level: int = logging.WARNING) -> None:
        self._level = level
        self._seen: dict[str, tuple[float, int]] = {}
        self._mutex = threading.Lock()

    def told(self, record: logging.LogRecord) -> logging.LogRecord | None:
        """The record to write, maybe with a number at its end; None for a repeat, which is counted."""
        if not logging.WARNING <= record.levelno <= self._level or record.exc_info:
            return record
        text = record.getMessage()
        key = _TIME.sub("N ", text)
        with self._mutex:
            if getattr(record, "over", False):
                left = sum(count for _, count in self._seen.values())
                self._seen.clear()
                return _with(record, f"{text} [{left} lines were left out]") if left else record
            written_s, count = self._seen.pop(key, (-REPEAT_S, 0))
            if record.created - written_s < REPEAT_S:
                self._seen[key] = (written_s, count + 1)
                return None
            # Texts name partitions and offsets, so their number is not bounded; the oldest go, or the table would grow.
            while len(self._seen) >= REPEATED_MAX:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = (record.created, 0)
        return _with(record, f"{text} [{count} more since the last such line]") if count else record


def _with(record: logging.LogRecord, text: str) -> logging.LogRecord:
    record = copy(record)  # other handlers may get the same record
    record.msg, record.args = text, ()
    return record


class Printer(logging.StreamHandler[TextIO]):
    """Writes lines to stderr, unless the program has set up a handler for them by now.

    A warning is written once in `REPEAT_S`, the next time with the number of its repeats; every error is written.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(TextLines())
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it."""
        # Looked at for each line: the program may set its handlers up only after the run began.
        if _configured(self):
            return
        told = self._repeats.told(record)
        if told is not None:
            super().emit(told)


@contextmanager
def printed() -> Iterator[None]:
    """Print the library's lines to stderr during the block, unless the program has handlers for them."""
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
    """Whether the program has set up a handler, other than `ours`, that gets the library's lines."""
    at: logging.Logger | None = logger
    while at is not None:
        if any(handler is not ours and not isinstance(handler, logging.NullHandler) for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
