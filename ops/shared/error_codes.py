"""Error codes: one table from errors to reason name, HTTP status, RESP prefix and exit code.

    error of store/errors.py ──┐
    Refused(reason, message) ──┴─> Reason(name, http, resp, retry_after_s) and exit code

Rules of this file: the only place that maps errors to answers. A published name keeps its meaning, because clients in
all languages compare names. It knows no server, no task and no socket.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, Final

from standfast.ops.shared import exit_codes as exits
from standfast.store import errors
from standfast.store.errors import StandfastError
from standfast.store.log import as_event, logger

ERROR_SCHEMA = "standfast.error/1"
RETRY_AFTER_S: Final = 1


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One error code: its name, HTTP status, first word of the RESP error, and seconds until a retry may help."""

    name: str
    http: int
    resp: str
    retry_after_s: int | None = None


# The restore gate of the task is shut: wait until it is ready.
RESTORING: Final = ErrorCode("RESTORING", 503, "LOADING", RETRY_AFTER_S)
# This instance does not hold the partition: assign it, or locate its owner.
NOT_ASSIGNED: Final = ErrorCode("NOT_ASSIGNED", 409, "NOTASSIGNED")
# A standby here: write and read at the active task.
NOT_ACTIVE: Final = ErrorCode("NOT_ACTIVE", 409, "READONLY")
# The replica has not read as far as the request demands.
NOT_UP_TO_BOUND: Final = ErrorCode("NOT_UP_TO_BOUND", 503, "BEHIND", RETRY_AFTER_S)
# A newer owner, or a newer generation or session than the caller's: stop, read the source offsets, start again there.
FENCED: Final = ErrorCode("FENCED", 409, "FENCED")
STALE_EPOCH: Final = ErrorCode("STALE_EPOCH", 409, "FENCED")
# The call is wrong: fix it.
BAD_REQUEST: Final = ErrorCode("BAD_REQUEST", 400, "ERR")
BAD_BATCH: Final = ErrorCode("BAD_BATCH", 400, "ERR")
BAD_NAME: Final = ErrorCode("BAD_NAME", 400, "ERR")
NOT_FOUND: Final = ErrorCode("NOT_FOUND", 404, "ERR")
NO_SUCH_STORE: Final = ErrorCode("NO_SUCH_STORE", 404, "ERR")
CONFLICT: Final = ErrorCode("CONFLICT", 409, "ERR")
TOO_LARGE: Final = ErrorCode("TOO_LARGE", 413, "ERR")
# Too much at once: back off.
QUEUE_FULL: Final = ErrorCode("QUEUE_FULL", 429, "BUSY", RETRY_AFTER_S)
LIMIT: Final = ErrorCode("LIMIT", 429, "BUSY", RETRY_AFTER_S)
DISK_FULL: Final = ErrorCode("DISK_FULL", 507, "MISCONF", RETRY_AFTER_S)
# A commit may have happened or not, and only the source offsets show it: read them before sending anything again.
COMMIT_UNKNOWN: Final = ErrorCode("COMMIT_UNKNOWN", 500, "UNKNOWN")
# The log or the file system did not answer: ask again.
UNAVAILABLE: Final = ErrorCode("UNAVAILABLE", 503, "UNAVAILABLE", RETRY_AFTER_S)
HELD: Final = ErrorCode("HELD", 409, "UNAVAILABLE", RETRY_AFTER_S)
# The task failed and is being opened again.
CLOSED: Final = ErrorCode("CLOSED", 503, "UNAVAILABLE", RETRY_AFTER_S)
# The process ends: connect again later.
DRAINING: Final = ErrorCode("DRAINING", 503, "LOADING", RETRY_AFTER_S)
# Damage or loss, which only a person can judge. No retry time: asking again does not help.
CORRUPT: Final = ErrorCode("CORRUPT", 500, "CORRUPT")
LOG_LOST: Final = ErrorCode("LOG_LOST", 500, "CORRUPT")
INTERNAL: Final = ErrorCode("INTERNAL", 500, "ERR")
# The client is unknown, or lacks the permission.
NOAUTH: Final = ErrorCode("NOAUTH", 401, "NOAUTH")
WRONGPASS: Final = ErrorCode("WRONGPASS", 401, "WRONGPASS")
NOPERM: Final = ErrorCode("NOPERM", 403, "NOPERM")

REASONS: Final[dict[str, ErrorCode]] = {
    reason.name: reason for reason in list(globals().values()) if isinstance(reason, ErrorCode)
}

# First match wins, so a class stands above the one it derives from.
ERRORS: Final[tuple[tuple[type[StandfastError], ErrorCode, int], ...]] = (
    (errors.UnknownStore, NO_SUCH_STORE, exits.USAGE),
    (errors.BadConfig, BAD_REQUEST, exits.CONFIG),
    (errors.TooLarge, TOO_LARGE, exits.USAGE),
    (errors.InvalidRequest, BAD_REQUEST, exits.USAGE),
    (errors.Backpressure, QUEUE_FULL, exits.NEGATIVE),
    (errors.DiskFull, DISK_FULL, exits.DISK),
    (errors.NotReady, RESTORING, exits.NEGATIVE),
    (errors.Held, HELD, exits.HELD),
    (errors.CommitUnknown, COMMIT_UNKNOWN, exits.UNKNOWN),
    (errors.Unavailable, UNAVAILABLE, exits.UNAVAILABLE),
    (errors.StateLost, LOG_LOST, exits.DATA),
    (errors.Fenced, FENCED, exits.FENCED),
    (errors.Corruption, CORRUPT, exits.DATA),
    (errors.Closed, CLOSED, exits.INTERNAL),
    (errors.WorkerFailed, INTERNAL, exits.INTERNAL),
    (errors.ListenerFailed, INTERNAL, exits.INTERNAL),
    (errors.InternalError, INTERNAL, exits.INTERNAL),
)
# A full volume is known by text alone: SQLite, RocksDB and the kernel report it through errors that have other causes
# too. It must not look like an outage, since a client's retry would not end it.
_DISK_FULL_TEXTS = ("No space left", "no space left", "disk full", "Disk quota exceeded")


class Refused(StandfastError):
    """An instance refuses a request with an error code of the table; the request changed nothing."""

    def __init__(self, reason: ErrorCode, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class NotFound(Refused):
    """The path, row or named object does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(NOT_FOUND, message)


class NotAssigned(Refused):
    """This instance does not hold the partition."""

    def __init__(self, message: str) -> None:
        super().__init__(NOT_ASSIGNED, message)


class NotActive(Refused):
    """The partition is a standby here."""

    def __init__(self, message: str) -> None:
        super().__init__(NOT_ACTIVE, message)


def reason_of(error: BaseException) -> ErrorCode:
    """The error code of any error; INTERNAL for one that standfast did not raise on purpose."""
    if isinstance(error, Refused):
        return error.reason
    # Before the table: whichever class the error has, a client must not send such a commit again unasked.
    if isinstance(error, StandfastError) and error.in_doubt:
        return COMMIT_UNKNOWN
    if isinstance(error, errors.Unavailable) and any(text in str(error) for text in _DISK_FULL_TEXTS):
        return DISK_FULL
    return next((reason for kind, reason, _ in ERRORS if isinstance(error, kind)), INTERNAL)


def exit_code(error: BaseException) -> int:
    """The exit code of a command that ends with this error."""
    return next((code for kind, _, code in ERRORS if isinstance(error, kind)), exits.INTERNAL)


def message_of(error: BaseException) -> str:
    """The one line sent to a client. An unforeseen error gives its class only: its text may hold data."""
    if isinstance(error, StandfastError):
        return " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: a bug in standfast, please report it with the lines in its log"


def error_document(error: BaseException) -> dict[str, Any]:
    """The JSON body of an HTTP error; an error that standfast did not raise on purpose is logged, without its text."""
    reason = reason_of(error)
    if reason is INTERNAL:
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        logger.error(
            "http: %s%s",
            type(error).__name__,
            "".join(f" at {one.filename}:{one.lineno}" for one in frame),
            extra=as_event("http_failed", error_class=type(error).__name__),
        )
    return {
        "schema": ERROR_SCHEMA,
        "error": type(error).__name__,
        "reason": reason.name,
        "message": message_of(error),
    }
