"""The library's logger: `standfast`, silent unless the application configures logging, or runs as `app.run()`.

    with printed(): ...     lines from INFO on go to stderr, if the program has set up no handler of its own

    text    2013-01-01 00:00:00,000 WARNING standfast: task 0_3 stops: ...
    json    {"time": "2013-01-01T00:00:00.000Z", "level": "warning", "logger": "standfast", "pid": 41,
             "event": "task_stopped", "message": "task 0_3 stops: ...", "task": "0_3"}

One line is one event, and reaches stderr whole, also where several processes share it. Child processes write as the
process that started them (`child_environment`, `print_as_parent`). A line that repeats while a log is away goes to
stderr once in ten seconds, with the number of repeats. Lines that differ only in a time ("for 3.2 s") count as the
same line.

Rules of this file: messages and fields carry names and offsets, never keys, values or secrets.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO, get_args

from standfast.store.clock import SystemClock
from standfast.store.errors import BadConfig

logger = logging.getLogger("standfast")
logger.addHandler(logging.NullHandler())

LogFormat = Literal["text", "json"]
FORMAT_VARIABLE = "STANDFAST_LOGGING__FORMAT"  # as any setting of a sidecar, `logging.format`
LEVEL_VARIABLE = "STANDFAST_LOGGING__LEVEL"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
HTTP_LOGGER = "uvicorn"  # of the HTTP server: only its warnings and errors are lines of ours
AUDIT_LOGGER = "standfast.audit"

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOCK_TRIES_MAX = 1_000  # a millisecond each
REPEAT_S = 10.0
REPEATED_MAX = 1_000
_TIME = re.compile(r"\b\d+(?:\.\d+)? (?=m?s\b)")
_PARENT_VARIABLE = "STANDFAST_PARENT_LINES"  # form and level, such as `json 20`, in the environment of a child
_PLAIN = (str, int, bool, type(None))
# What every record has; further attributes were given as `extra=` and are fields of the event.
_RECORD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
_OWN = _RECORD | {"event", "over"}

_lock = threading.Lock()
_printing = 0  # the number of runs that share the handler
_handler: logging.Handler | None = None
_before: list[tuple[logging.Logger, int]] = []  # loggers that have the handler, with their levels before
_shown: tuple[LogFormat, int] | None = None  # form and least level of the lines that this process writes to stderr


def as_event(event: str, **fields: Any) -> dict[str, Any]:
    """`extra=` of a log call: the event's name, and its fields by their names (task, topic, partition, store, ...)."""
    # Python's logging refuses a field that would replace an attribute of its records.
    return {"event": event} | {f"{name}_" if name in _RECORD else name: value for name, value in fields.items()}


OVER = as_event("log_back", over=True)  # about the end of a fault: it also reports how many lines were left out


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


class JsonLines(logging.Formatter):
    """Lines for programs: one JSON object each. `time` is RFC 3339 in UTC; fields of the event stand beside it.

    A line whose call names no event has that of its place, `module.function`. An error has its class in `error`, and
    its traceback in `traceback`. Values that JSON does not have are text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object, in ASCII."""
        given = vars(record)
        stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": stamp.removesuffix("+00:00") + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "event": str(given.get("event") or f"{record.module}.{record.funcName}"),
            # The text of an audit event is its document, whose parts stand beside it here.
            "message": given.get("outcome", "") if record.name == AUDIT_LOGGER else record.getMessage(),
        }
        for name, value in given.items():
            if name not in _OWN:
                # A field must not stand in for one of the line's own.
                line[f"{name}_" if name in line or name in ("error", "traceback") else name] = _jsonable(value)
        error = record.exc_info
        if error and error[0] is not None:
            line["error"] = error[0].__name__
            line["traceback"] = self.formatException(error)
        elif record.exc_text:  # formatted by a handler before this one
            line["traceback"] = record.exc_text
        return json.dumps(line)


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
                return _with(record, f"{text} [{left} lines were left out]", left) if left else record
            written_s, count = self._seen.pop(key, (-REPEAT_S, 0))
            if record.created - written_s < REPEAT_S:
                self._seen[key] = (written_s, count + 1)
                return None
            # Texts name partitions and offsets, so their number is not bounded; the oldest go, or the table would grow.
            while len(self._seen) >= REPEATED_MAX:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = (record.created, 0)
        return _with(record, f"{text} [{count} more since the last such line]", count) if count else record


def _with(record: logging.LogRecord, text: str, left_out: int) -> logging.LogRecord:
    record = copy(record)  # other handlers may get the same record
    record.msg, record.args = text, ()
    record.left_out = left_out
    return record


class WholeLines(logging.StreamHandler[TextIO]):
    """Writes each line in one piece, repeated ones once in ten seconds. Every audit event is written."""

    def __init__(self, form: LogFormat, stream: TextIO, repeats: Repeats) -> None:
        super().__init__(stream)
        self.setFormatter(JsonLines() if form == "json" else TextLines())
        self._repeats = repeats

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count a repeat."""
        # An audit trail with gaps proves nothing, so its events pass the counting of repeats by.
        told = record if record.name == AUDIT_LOGGER else self._repeats.told(record)
        if told is None:
            return
        try:
            write_whole(self.stream, self.format(told) + self.terminator)
        except Exception:  # noqa: BLE001  as every handler: a line that cannot be written is no error of its caller
            self.handleError(told)


class Printer(WholeLines):
    """Writes lines to stderr, unless the program has set up a handler for them by now.

    A warning is written once in `REPEAT_S`, the next time with the number of its repeats; every error is written.
    """

    def __init__(self, form: LogFormat = "text", repeats: Repeats | None = None) -> None:
        super().__init__(form, sys.stderr, repeats or Repeats())

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it."""
        # Looked at for each line: the program may set its handlers up only after the run began.
        if not _configured(self, logging.getLogger(record.name)):
            super().emit(record)


def write_whole(stream: TextIO, text: str) -> None:
    """Write a text so that no text of another process, which shares the stream, comes between."""
    stream.flush()
    try:
        handle = stream.fileno()
    except (OSError, ValueError, AttributeError):  # a stream in memory: no other process has it
        stream.write(text)
        stream.flush()
        return
    # A pipe takes PIPE_BUF bytes (4,096) in one piece, and less than a traceback of what does not fit it.
    locked = _lock_for_write(handle)
    try:
        rest = text.encode(errors="backslashreplace")
        while rest:
            try:
                rest = rest[os.write(handle, rest) :]
            except BlockingIOError:  # a process that shares the pipe has made it so: wait, as any other write does
                select.select([], [handle], [])
    finally:
        if locked:
            with suppress(OSError):
                fcntl.lockf(handle, fcntl.LOCK_UN)


def _lock_for_write(handle: int) -> bool:
    """Lock a file or pipe against writes of other processes of ours; the lock ends with its process."""
    clock = SystemClock()
    # For a bounded time, because a process that is stopped within its write keeps the lock. The line is one write then.
    for _ in range(LOCK_TRIES_MAX):
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            clock.sleep_ms(1)
        except OSError:  # a file system without locks
            return False
        else:
            return True
    return False


@contextmanager
def printed(form: LogFormat | None = None) -> Iterator[None]:
    """Print the library's lines to stderr during the block, unless the program has handlers for them.

    Without `form` the variables STANDFAST_LOGGING__FORMAT and STANDFAST_LOGGING__LEVEL decide, as for a sidecar. Raises
    BadConfig for values that these cannot have.
    """
    form, level = form or _from_environment(FORMAT_VARIABLE, get_args(LogFormat)), _level()
    if not _begin(form or "text", level):
        yield
        return
    try:
        yield
    finally:
        _end()


def show(form: LogFormat, level: int) -> None:
    """Note the form of the lines that this process writes to stderr, for its children."""
    global _shown
    _shown = form, level


def shown_as() -> LogFormat | None:
    """The form of the lines that this process writes to stderr; None while it writes none, or the program does."""
    return None if _shown is None else _shown[0]


def child_environment() -> dict[str, str]:
    """Variables that have a child process of ours write its lines as this process does."""
    return {} if _shown is None else {_PARENT_VARIABLE: f"{_shown[0]} {_shown[1]}"}


def print_as_parent() -> None:
    """In a child process: write lines, and an error that ends the process, as the parent writes lines, if it does."""
    given = os.environ.pop(_PARENT_VARIABLE, "").split()
    if len(given) != 2 or given[0] not in get_args(LogFormat) or not given[1].isdigit():
        return
    form: Any = given[0]
    _begin(form, int(given[1]), Repeats(logging.ERROR))
    sys.excepthook = _told_end


def _told_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    ended = (kind, error, trace)
    logger.error("process %d ends: %s", os.getpid(), kind.__name__, exc_info=ended, extra=as_event("process_failed"))


def _begin(form: LogFormat, level: int | None, repeats: Repeats | None = None) -> bool:
    global _printing, _handler
    with _lock:
        if not _printing:
            if _configured(None, logger):
                return False
            _handler = Printer(form, repeats)
            _add(logger, _handler, level or logger.level or logging.INFO)
            server = logging.getLogger(HTTP_LOGGER)
            if not _configured(None, server):  # Python would print its warnings itself, in a form of its own
                _add(server, _handler, max(logger.level, logging.WARNING))
            show(form, logger.level)
        _printing += 1
        return True


def _add(to: logging.Logger, handler: logging.Handler, level: int) -> None:
    _before.append((to, to.level))
    to.setLevel(level)
    to.addHandler(handler)


def _end() -> None:
    global _printing, _handler, _shown
    with _lock:
        _printing -= 1
        if not _printing and _handler is not None:
            for one, level in _before:
                one.removeHandler(_handler)
                one.setLevel(level)
            _before.clear()
            _handler = _shown = None


def _from_environment(variable: str, known: tuple[str, ...]) -> Any:
    given = os.environ.get(variable)
    if given is not None and given not in known:
        raise BadConfig([f"{variable} is {given!r:.100}: give {' or '.join(known)}"])
    return given


def _level() -> int | None:
    name = _from_environment(LEVEL_VARIABLE, tuple(LEVELS))
    return None if name is None else LEVELS[name]


def _configured(ours: logging.Handler | None, of: logging.Logger) -> bool:
    """Whether the program has set up a handler, other than `ours`, that gets the lines of a logger."""
    at: logging.Logger | None = of
    while at is not None:
        if any(handler is not ours and not isinstance(handler, logging.NullHandler) for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


def _jsonable(value: Any) -> Any:
    """A value as JSON has it: numbers, texts, lists, objects of them; anything else, such as a task's id, as text."""
    if type(value) in _PLAIN:
        return value
    try:
        # NaN is no number of JSON, and a tuple of a class of its own (a topic's partition) has a text of its own.
        if type(value) in (float, list, tuple, dict):
            json.dumps(value, allow_nan=False)
            return value
    except (TypeError, ValueError):
        pass
    return str(value)


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
