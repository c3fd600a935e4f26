"""The objects of a process that forks: in the child they are dead, and their handles are closed.

    with forks.taking: handle = open(path); forks.close_in_child(handle)        a fork waits for the block's end
    os.fork() ──> child: handles are closed, `forked` of each object, whose calls raise Closed then
                         no destructor of an object runs any more

A flock belongs to the open file, which parent and child share: the lock of a process that was killed lasts as long as
such a child. Threads do not come along: a lock that one of them had stays taken in the child, and a destructor that
waits for one (of RocksDB, of librdkafka) never returns. SQLite's and RocksDB's would write to files of the parent.

Rules of this file: it imports nothing of ours. Its hooks run for `os.fork` alone, and so for `multiprocessing`; a
program that `subprocess` starts keeps no handle anyway.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any, Protocol

taking = threading.RLock()  # reentrant: a signal handler may fork in the middle of such a block
_handles: weakref.WeakSet[Any] = weakref.WeakSet()
_objects: weakref.WeakSet[Any] = weakref.WeakSet()


class Handle(Protocol):
    """A file or a socket."""

    def close(self) -> None: ...


class Owned(Protocol):
    """An object of one process."""

    def forked(self) -> None:
        """Be dead from now on, in the child of a fork: other threads are gone, and locks of theirs may stay taken.

        It assigns and closes handles; it waits for nothing, calls no library, and drops no object of one.
        """
        ...


def close_in_child(handle: Handle) -> None:
    """Have the child of a fork close its copy of the handle."""
    _handles.add(handle)


def dies_in_child(one: Owned) -> None:
    """Have the object's `forked` called in the child of a fork."""
    _objects.add(one)


def keep_for_good(one: object) -> None:
    """Keep an object, and all that it refers to, beyond the end of the interpreter: no destructor of it ever runs."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def end_without_libraries() -> None:
    """Have the end of this process, a child, pass over what libraries do then: RocksDB joins its threads, of which
    this process has none, and aborts it. What Python does at the end is done."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # a call of the GNU library, which hands the exit code over
        libc.on_exit(libc._exit, None)


def _in_child() -> None:
    for handle in list(_handles):
        handle.close()
    for one in list(_objects):
        keep_for_good(one)
        one.forked()
    _handles.clear()
    _objects.clear()
    taking.release()


os.register_at_fork(before=taking.acquire, after_in_parent=taking.release, after_in_child=_in_child)
