"""What an exception keeps alive: its traceback holds the frames it passed, and these hold their variables.

A frame of the engine holds handles on RocksDB, of which a single one keeps the directory's LOCK; a frame of a context
manager holds what it was about to take or to let go. A caller may keep the exception for as long as it likes, and a
signal handler may raise one at any moment. So where one leaves, the frames below let go of their variables.

Rules of this file: it touches frames of this library (and of contextlib, which runs its context managers) only. The
locals of an application's own frames stay as they are, for whoever looks at its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from standfast.store.errors import StandfastError

_OURS = ("standfast.", "contextlib")


def let_go(error: BaseException | None) -> None:
    """Clear the variables of our frames that an exception, or one that it came from, has left."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        waiting += (found.__cause__, found.__context__)
        step = found.__traceback__
        while step is not None:
            if _is_ours(step.tb_frame.f_globals.get("__name__")):
                try:
                    step.tb_frame.clear()
                except RuntimeError:  # it still runs: the exception has not left it
                    pass
            step = step.tb_next


@contextmanager
def letting_go() -> Iterator[None]:
    """What leaves the block by an exception lets go of its variables, such as of a database half opened."""
    try:
        yield
    except BaseException as error:
        let_go(error)
        raise


def is_foreign(error: BaseException) -> bool:
    """Whether an exception was raised by code that is neither ours nor called by us: a signal handler's."""
    step = error.__traceback__
    if step is None or isinstance(error, StandfastError):
        return False
    while step.tb_next is not None:
        step = step.tb_next
    return not _is_ours(step.tb_frame.f_globals.get("__name__"))


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.startswith(_OURS)
