"""Release of the variables that an exception keeps alive: its traceback holds frames, and these hold their variables.

A frame of the engine holds handles on RocksDB, of which a single one keeps the directory's LOCK; a frame of a context
manager holds the resource that it was about to take or to release. A caller may keep the exception for as long as it
likes, and a signal handler may raise one at any moment. So where an exception leaves, the frames below release their
variables.

Rules of this file: it touches frames of this library (and of contextlib, which runs its context managers) only. The
locals of an application's own frames stay, for the reader of its traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from standfast.store.errors import StandfastError

_OURS = ("standfast.", "contextlib")


def clear_frames(error: BaseException | None) -> None:
    """Clear the variables of our frames that an exception, or a cause of it, has left."""
    seen: set[int] = set()  # causes may form a cycle
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
                except RuntimeError:  # the frame still runs: the exception has not left it
                    pass
            step = step.tb_next


@contextmanager
def letting_go() -> Iterator[None]:
    """Clear the variables of our frames when an exception leaves the block, such as a half-opened database."""
    try:
        yield
    except BaseException as error:
        clear_frames(error)
        raise


def is_foreign(error: BaseException) -> bool:
    """Whether code that is neither ours nor called by us, such as a signal handler, raised the exception."""
    step = error.__traceback__
    if step is None or isinstance(error, StandfastError):
        return False
    # The innermost frame raised it; the binding is C and has no frame, so its errors end in a frame of ours.
    while step.tb_next is not None:
        step = step.tb_next
    return not _is_ours(step.tb_frame.f_globals.get("__name__"))


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.startswith(_OURS)
