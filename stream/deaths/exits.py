"""sys.exit() in the code of a processor: a failure of its record, and no end of the process.

    SystemExit of a processor, serde, timer ...   InvalidRequest: the task fails, or on_error leaves the record out
    SystemExit of a handler of signals            as it is: it ends the program, wherever it was

Rules of this file: it looks at exceptions, and catches nothing else.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

from standfast.store.errors import InvalidRequest


def failure_of(error: BaseException) -> BaseException:
    """The error as the failure of a record or a callback: SystemExit becomes InvalidRequest, others stay."""
    if not isinstance(error, SystemExit) or _from_handler(error):
        return error
    failure = InvalidRequest(
        f"the application called sys.exit({'' if error.code is None else repr(error.code)}) while it processed: raise "
        "an exception that names the fault of the record, or end the application with app.stop()"
    )
    failure.__cause__ = error  # also where it is only counted
    return failure


@contextmanager
def as_failures() -> Iterator[None]:
    """Raise SystemExit of the block as its failure."""
    try:
        yield
    except SystemExit as error:
        failure = failure_of(error)
        if failure is error:
            raise
        raise failure from error


def _from_handler(error: SystemExit) -> bool:
    """Whether a handler of signals raised it: its frame lies on top of those that the signal came to."""
    handlers = _handlers()
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _handlers() -> set[CodeType]:
    found = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        code = getattr(handler, "__code__", None)  # of a method, too
        if isinstance(code, CodeType):
            found.add(code)
    return found
