"""Planted bugs: errors of known kinds, put into the product to see that the checkers find and name them.

    planted(BUGS["gate early"]) ──> the named functions are replaced within the block ──> run worlds ──> its checker

Each kind has two variants, at different places. The second ones were written after the checkers.

Rules of this file: a bug replaces named functions, by their dotted paths: of the product, or of the simulated log where
the promise is the log's. A name that is gone is an error, so that no bug is planted in vain.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from standfast.restore.gate import TaskState as GateState
from standfast.store.engine import DEFAULT_FAMILY
from standfast.stream.open_windows import OpenWindows

Function = Callable[..., Any]
Make = Callable[[Function], Function]  # the function in place ──> the one with the bug


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug: replacements by dotted path, the checker that names it, and a seed that finds it."""

    kind: str
    checker: str
    seed: int
    places: Mapping[str, Make]


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Put a bug into the product for the time of a block. Raises LookupError for a name that is gone."""
    found = [(*_place(path), make) for path, make in bug.places.items()]  # before the first change
    with ExitStack() as stack:
        for owner, name, make in found:
            right = vars(owner)[name]
            setattr(owner, name, make(right))
            stack.callback(setattr, owner, name, right)
        yield


def _place(path: str) -> tuple[Any, str]:
    """The module or class of a dotted path, and the name in it."""
    *parts, name = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            owner = vars(owner).get(part)
            if owner is None:
                break
        if owner is not None and callable(vars(owner).get(name)):
            return owner, name
        break
    raise LookupError(f"{path} is gone: plant this bug where its work is done now")


# --- the gate opens early ---


def _opens_each(right: Function) -> Function:
    def opened(gate: Any, missing: Any) -> Any:
        return frozenset(task for task, state in gate._states.items() if state is GateState.RESTORED)

    return opened


# --- a position is ahead of its rows ---


def _record_before_rows(right: Function) -> Function:
    def write(stores: Any, rows: Any, cut: Any, times: Any, prepared: Any = None) -> None:
        right(stores, {}, cut, times)
        right(stores, rows, cut, times)

    return write


# --- an epoch is not checked ---


def _does_nothing(right: Function) -> Function:
    return lambda *args, **named: None


def _begins_for_any(right: Function) -> Function:
    def begin(log: Any, name: str, epoch: int, *rest: Any) -> Any:
        producer = log.producers.get(name)
        return right(log, name, epoch if producer is None else producer.epoch, *rest)

    return begin


# --- a standby passes its limit ---


def _end_as_limit(right: Function) -> Function:
    def committed(tailer: Any, limited: Any) -> Any:
        return {at: bounds.end for at, bounds in tailer._reader.bounds(limited).items()} if limited else {}

    return committed


# --- a window is emitted twice after a restart ---


def _forgets_given(right: Function) -> Function:
    def init(finals: Any, *args: Any) -> None:
        right(finals, *args)
        if finals._index.frontier is not None:
            finals._index = OpenWindows((0,))
            finals.next_end = 0

    return init


# --- offsets are committed before the changelog ---


def _offsets_first(right: Function) -> Function:
    def make_durable(task: Any, batches: Any, commit: Any, cut: Any) -> Any:
        if task.guarantee == "at_least_once" and commit.offsets:
            yield partial(task._group.commit, commit.offsets, commit.member, task.writer.claim)
        return (yield from right(task, batches, commit, cut))

    return make_durable


# --- a wipe takes a neighbour with it ---


def _forgets_all_rows(right: Function) -> Function:
    def forget(stores: Any, names: Any, copying: Any) -> None:
        right(stores, names, copying)
        for family in sorted(stores.engine.families() - {DEFAULT_FAMILY}):
            stores.engine.drop_family(family)

    return forget


# --- a stale claim wins ---


def _takes_from_any(right: Function) -> Function:
    def opened(writers: Any, task_id: Any, *, if_free: bool) -> Any:
        return right(writers, task_id, if_free=False)

    return opened


# --- a commit is acknowledged before the log has it ---


def _tells_first(right: Function) -> Function:
    def committed(task: Any, cut: Any, member: Any) -> Any:
        task._listener.on_commit(task.id, cut.offsets)
        return (yield from right(task, cut, member))

    return committed


GATE, POSITION, EPOCH = "gate opens early", "position ahead of rows", "epoch not checked"
LIMIT, WINDOW, OFFSETS = "standby passes its limit", "window emitted twice", "offsets before changelog"
WIPE, WAKE_UP, CLAIM = "wipe with a neighbour", "lost wake-up", "stale claim wins"
ACK = "commit acknowledged before the log"

FIRST = {
    GATE: Bug(GATE, "gate", 0, {"standfast.restore.gate.Gate._opened": _opens_each}),
    POSITION: Bug(POSITION, "fold", 0, {"standfast.store.task.task_stores.TaskStores._write": _record_before_rows}),
    EPOCH: Bug(
        EPOCH,
        "writers",
        0,
        {
            "simulator.log.writer.check_claim": _does_nothing,
            "simulator.log.group.check_claim": _does_nothing,
            "simulator.log.cluster.SimLog.begin": _begins_for_any,
        },
    ),
    LIMIT: Bug(LIMIT, "limits", 0, {"standfast.replication.tail.tailer.Tailer._committed": _end_as_limit}),
    WINDOW: Bug(WINDOW, "windows", 0, {"standfast.stream.dsl.final_results.FinalResults.__init__": _forgets_given}),
    OFFSETS: Bug(OFFSETS, "row", 0, {"standfast.stream.task.task.Task._make_durable": _offsets_first}),
    WIPE: Bug(WIPE, "wipe", 0, {"standfast.store.task.task_stores.TaskStores.forget": _forgets_all_rows}),
    WAKE_UP: Bug(WAKE_UP, "rest", 0, {"standfast.stream.session.instance.Instance._try_again": _does_nothing}),
    CLAIM: Bug(CLAIM, "claims", 0, {"standfast.stream.session.writers.Writers._open": _takes_from_any}),
    ACK: Bug(ACK, "commits", 0, {"standfast.stream.task.task.Task._committed": _tells_first}),
}
