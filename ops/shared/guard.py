"""Run a command and turn each of its ends into an exit code.

An error is one line `error: what` on stderr (for BadConfig one line per problem), or a line of a log in JSON, where the
command writes such a log. With --json stdout always holds one
document: the result, or {"schema": "standfast.error/1", "error", "message", "problems", "exit_code"}.

Rules of this file: `guard` is the outermost frame of every command; codes are those of `error_codes.py`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from standfast.ops.shared.error_codes import ERROR_SCHEMA, exit_code
from standfast.ops.shared.exit_codes import INTERRUPTED
from standfast.ops.shared.streams import say
from standfast.store.errors import BadConfig, StandfastError
from standfast.store.log import as_event, logger, shown_as


def error_printed(error: BaseException) -> dict[str, Any]:
    """The error as --json prints it."""
    return {
        "schema": ERROR_SCHEMA,
        "error": type(error).__name__,
        "message": str(error),
        "problems": list(error.problems) if isinstance(error, BadConfig) else [],
        "exit_code": exit_code(error),
    }


def tell(error: BaseException) -> int:
    """Print the error on stderr, an unforeseen one with its traceback. Returns the exit code."""
    problems = error.problems if isinstance(error, BadConfig) else (str(error),)
    if shown_as() == "json":  # a program that reads these lines reads nothing else
        bug = None if isinstance(error, StandfastError) else error
        about = as_event("command_failed", error_class=type(error).__name__, exit_code=exit_code(error))
        logger.error("%s", "; ".join(problems), exc_info=bug, extra=about)
        return exit_code(error)
    if not isinstance(error, StandfastError):
        say("".join(traceback.format_exception(error)).rstrip())
        notes = getattr(error, "__notes__", ())  # an application's own error carries its handling as notes
        blame = "; ".join(notes) or "a bug in standfast: please report it with the lines above"
        problems = (f"{type(error).__name__}: {error} ({blame})",)
    for problem in problems:
        say(f"error: {problem}")
    return exit_code(error)


def guard(run: Callable[[], int], on_error: Callable[[BaseException], None] | None = None) -> int:
    """Run a command; returns its exit code, or that of the error that ended it. `on_error` is given that error."""
    try:
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise  # `| head` has closed stdout: no error of the command, and a line about it would be noise
    except Exception as error:  # noqa: BLE001  the outermost frame: everything becomes an exit code
        if on_error is not None:
            on_error(error)
        return tell(error)
