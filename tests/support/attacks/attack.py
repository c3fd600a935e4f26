"""The attacks: each makes one call of an entry while something else happens, and then asks for the postcondition.

    alone            nothing else happens, which shows that the entry is right
    commit_beside    a second thread commits at a point within the call
    same_beside      a second thread makes the same call at a point within the call
    fork             another thread forks at a point within the call, and the child ends
    signalled        a signal comes at a point within the call, and its handler raises
    full_disk        the disk of state and log is full
    listener_raises  each method of a listener raises

Rules of this file: the point is drawn from the test's seed, out of as many as an earlier call of the same kind had. The
second thread runs to its end, unless the call holds a lock that the thread needs: then the call goes on.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any

import standfast as sf
from support.attacks.calls import Entry
from support.attacks.points import Alarm, at_point, counted, signalled
from support.attacks.stage import STEP, ListenerFailed, Rows
from support.disk import fill

BLOCKED_S = 0.02
HANGS_S = 30.0  # no call takes so long, on a busy machine either
DOCUMENTED = (sf.StandfastError, Alarm, ListenerFailed)


class Attempt:
    """A call that may fail with a documented error."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.error: Exception | None = None

    def __call__(self) -> None:
        try:
            self._call()
        except Exception as error:
            # Without its frames, which could keep an iterator or a lock.
            self.error = error.with_traceback(None)
            self._shown = f"{type(error).__name__}: {error}"

    @property
    def returned(self) -> bool:
        """Whether it returned; fails for an error that is not documented."""
        if self.error is None:
            return True
        bug = isinstance(self.error, sf.InternalError) or not isinstance(self.error, DOCUMENTED)
        assert not bug, f"not a documented error: {self._shown}"
        return False


def begun(stage: Any, entry: Entry) -> tuple[int, int]:
    """The call, undisturbed, and rows put after it; returns the number of its points, and that of the next call."""
    first = stage.number()
    points = counted(lambda: entry.call(stage, first))
    stage.settle()
    return points, stage.number()


def alone(stage: Any, entry: Entry, rng: random.Random) -> None:
    _, number = begun(stage, entry)
    _checked(stage, entry, number, lambda call: call())


def commit_beside(stage: Any, entry: Entry, rng: random.Random) -> None:
    points, number = begun(stage, entry)
    offset = stage.number() * STEP
    _two_threads(stage, entry, rng.randint(1, points), number, lambda: stage.commit(offset), {offset}, {})


def same_beside(stage: Any, entry: Entry, rng: random.Random) -> None:
    points, number = begun(stage, entry)
    other = stage.number()
    offset = entry.offset(other)
    offsets = set() if offset is None else {offset}
    point = rng.randint(1, points)
    _two_threads(stage, entry, point, number, lambda: entry.call(stage, other), offsets, entry.rows(other))


def _two_threads(
    stage: Any,
    entry: Entry,
    point: int,
    number: int,
    other: Callable[[], object],
    offsets: set[int],
    rows: Rows,
) -> None:
    new = {**rows, **entry.rows(number), **entry.gone(stage)}
    beside = Attempt(other)
    thread = threading.Thread(target=beside, daemon=True)

    def begin() -> None:
        thread.start()
        thread.join(BLOCKED_S)

    call = Attempt(lambda: entry.call(stage, number))
    at_point(point, begin, call)
    if thread.ident is None:  # the call had fewer points this time
        thread.start()
    thread.join(HANGS_S)
    assert not thread.is_alive(), "the second thread still waits after the call"
    own = entry.offset(number)
    stage.check(
        returned=call.returned and beside.returned,
        new=new,
        offsets=frozenset(offsets | ({own} if own is not None else set())),
        drops=entry.drops,
    )
    entry.after(stage)


def fork(stage: Any, entry: Entry, rng: random.Random) -> None:
    points, number = begun(stage, entry)
    codes: list[int] = []

    def child() -> None:
        pid = os.fork()
        if pid == 0:
            # It uses nothing of the session; inherited handles go with it.
            gc.collect()
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    thread = threading.Thread(target=child)

    def forked() -> None:
        thread.start()
        thread.join(BLOCKED_S)  # a fork waits where the call is in the middle of an opening that the child must know of

    def under_attack(call: Attempt) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, from Python 3.12 on
            at_point(rng.randint(1, points + 10), forked, call)
            if thread.ident is None:  # the call had fewer points this time
                thread.start()
            thread.join(HANGS_S)
        assert codes == [0], f"the child ended with {codes}"
        assert call.returned, f"{call.error!r}"

    _checked(stage, entry, number, under_attack)


def signalled_at_a_point(stage: Any, entry: Entry, rng: random.Random) -> None:
    points, number = begun(stage, entry)

    def under_attack(call: Attempt) -> None:
        with _hook_ignored(), suppress(Alarm):  # it may come when the call has just returned
            signalled(rng.randint(1, points), call)

    _checked(stage, entry, number, under_attack, atomic=entry.commits)


def full_disk(stage: Any, entry: Entry, rng: random.Random) -> None:
    _, number = begun(stage, entry)

    def under_attack(call: Attempt) -> None:
        filler = fill(stage.root)
        call()
        filler.unlink()

    _checked(stage, entry, number, under_attack)
    # RocksDB may refuse one more write, with a documented error: then the task is opened again.
    with suppress(sf.StandfastError):
        stage.settle()


def listener_raises(stage: Any, entry: Entry, rng: random.Random) -> None:
    _, number = begun(stage, entry)

    def under_attack(call: Attempt) -> None:
        stage.noisy.armed = True
        call()
        stage.noisy.armed = False

    _checked(stage, entry, number, under_attack)


def _checked(
    stage: Any, entry: Entry, number: int, attack: Callable[[Attempt], object], *, atomic: bool = False
) -> None:
    new, offset = {**entry.rows(number), **entry.gone(stage)}, entry.offset(number)
    call = Attempt(lambda: entry.call(stage, number))
    attack(call)
    stage.check(
        returned=call.returned,
        new=new,
        offsets=frozenset() if offset is None else frozenset({offset}),
        drops=entry.drops,
        atomic=atomic,
    )
    entry.after(stage)


@contextmanager
def _hook_ignored() -> Any:
    """Python drops a handler's exception within a callback of the collector, and goes on; so does the call."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


ATTACKS: dict[str, Callable[[Any, Entry, random.Random], None]] = {
    "alone": alone,
    "commit_beside": commit_beside,
    "same_beside": same_beside,
    "fork": fork,
    "signal": signalled_at_a_point,
    "full_disk": full_disk,
    "listener_raises": listener_raises,
}
