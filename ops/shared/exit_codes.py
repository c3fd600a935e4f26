"""Exit codes of the command line, in one table, and how an error is told.

     0  fine                                69  log or instance unreachable (Unavailable)
     1  a negative answer (not ready,       70  our bug (InternalError, or any error that is not of the tree)
        not found, mismatch)                73  held by another process (Held)
     2  usage (InvalidRequest)              75  fenced: a newer owner has it (Fenced)
     3  inconclusive (verify)               78  configuration (BadConfig)
    65  damaged or lost data               130  interrupted
        (Corruption, StateLost)             71  too little space on disk (DiskFull)
                                            74  whether a write happened is not known (CommitUnknown)

An error is one line `error: what` on stderr (one line a problem for BadConfig). With --json stdout holds one document
in any case: the result, or {"schema": "standfast.error/1", "error", "message", "problems", "exit_code"}.

Rules of this file: the only place that maps errors to exit codes; `guard` runs any program under them.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

from standfast.store.errors import (
    BadConfig,
    Closed,
    CommitUnknown,
    Corruption,
    DiskFull,
    Fenced,
    Held,
    InternalError,
    InvalidRequest,
    NotReady,
    StandfastError,
    StateLost,
    Unavailable,
)

OK = 0
NEGATIVE = 1
USAGE = 2
INCONCLUSIVE = 3
DATA = 65
UNAVAILABLE = 69
INTERNAL = 70
DISK = 71
HELD = 73
UNKNOWN = 74
FENCED = 75
CONFIG = 78
INTERRUPTED = 130

# First match wins, so a class stands above the one it derives from.
EXIT_CODES: tuple[tuple[type[StandfastError], int], ...] = (
    (BadConfig, CONFIG),
    (InvalidRequest, USAGE),
    (DiskFull, DISK),
    (NotReady, NEGATIVE),
    (Held, HELD),
    (CommitUnknown, UNKNOWN),
    (Unavailable, UNAVAILABLE),
    (StateLost, DATA),
    (Corruption, DATA),
    (Fenced, FENCED),
    (Closed, INTERNAL),
    (InternalError, INTERNAL),
)
ERROR_SCHEMA = "standfast.error/1"


def exit_code(error: BaseException) -> int:
    """The exit code of an error."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), INTERNAL)


def error_document(error: BaseException) -> dict[str, Any]:
    """The error as --json prints it."""
    return {
        "schema": ERROR_SCHEMA,
        "error": type(error).__name__,
        "message": str(error),
        "problems": list(error.problems) if isinstance(error, BadConfig) else [],
        "exit_code": exit_code(error),
    }


def tell(error: BaseException) -> int:
    """Say on stderr what went wrong; an unforeseen error with its traceback. Returns the exit code."""
    problems = error.problems if isinstance(error, BadConfig) else (str(error),)
    if not isinstance(error, StandfastError):
        traceback.print_exception(error, file=sys.stderr)
        notes = getattr(error, "__notes__", ())  # an application's own error, and what was done about it
        blame = "; ".join(notes) or "a bug of standfast: please report it with the lines above"
        problems = (f"{type(error).__name__}: {error} ({blame})",)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return exit_code(error)


def guard(run: Callable[[], int], on_error: Callable[[BaseException], None] | None = None) -> int:
    """Run a program; returns its exit code, or that of the error it ended with. `on_error` hears of the error too."""
    try:
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001  the outermost frame: everything becomes an exit code
        if on_error is not None:
            on_error(error)
        return tell(error)
