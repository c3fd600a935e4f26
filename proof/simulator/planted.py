"""Planted bugs: errors of known kinds, put into the product to see that the checkers find and name them.

    planted(bug) ──> the named functions are replaced within the block ──> worlds run ──> its checker alarms

Each kind has two variants, at different places. The second ones were written after the checkers. `python -m
simulator.planted` searches for all of them from seed 0 on and prints the seeds for the tables below, which a change of
plans or faults moves; names of kinds after it are a choice of them.

Rules of this file: a bug replaces named functions, by their dotted paths: of the product, or of the simulated log where
the promise is the log's. A name that is gone is an error, so that no bug is planted in vain.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from simulator.checkers import Alarm
from simulator.plan import draw_plan
from simulator.run import run
from standfast.restore.gate import GateState as GateState
from standfast.restore.plan import UP_TO_DATE, Resume, UpToDate
from standfast.store import files
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import Unavailable
from standfast.stream.open_windows import OpenWindows
from standfast.stream.task.opener import NOTHING

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
    found = [(*place(path), make) for path, make in bug.places.items()]  # before the first change
    with ExitStack() as stack:
        for owner, name, make in found:
            right = vars(owner)[name]
            setattr(owner, name, make(right))
            stack.callback(setattr, owner, name, right)
        yield


def finds(bug: Bug, seed: int) -> Alarm | None:
    """The alarm of the bug's checker in the world of a seed; None if it does not name the bug there."""
    with planted(bug):
        outcome = run(draw_plan(seed))
    return next((alarm for alarm in outcome.alarms if alarm.checker == bug.checker), None)


def search(bug: Bug, seeds: Iterable[int]) -> tuple[int, Alarm] | None:
    """The first seed whose world shows a bug to its checker, with the alarm."""
    return next(((seed, alarm) for seed in seeds if (alarm := finds(bug, seed)) is not None), None)


def place(path: str) -> tuple[Any, str]:
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
    def steps(write: Any, batches: Any, commit: Any, cut: Any) -> Any:
        if write._task.guarantee == "at_least_once" and commit.offsets:
            yield partial(write._task.group.commit, commit.offsets, commit.member, write._writer.claim)
        return (yield from right(write, batches, commit, cut))

    return steps


# --- a wake-up is lost ---


def _forgets_to_open(right: Function) -> Function:
    def note(failures: Any, task: Any, error: Exception, **rest: Any) -> None:
        if not isinstance(error, Unavailable):
            right(failures, task, error, **rest)

    return note


# --- a wipe takes a neighbour with it ---


def _forgets_all_rows(right: Function) -> Function:
    def forget(stores: Any, names: Any, copying: Any) -> None:
        right(stores, names, copying)
        for family in sorted(stores.engine.families() - {DEFAULT_FAMILY}):
            stores.engine.drop_family(family)

    return forget


# --- a stale claim wins ---


def _opens_again(right: Function) -> Function:
    def lose(manager: Any, task_id: Any, why: str) -> None:
        if task_id in manager.tasks:
            manager._start_over(task_id, "fenced", NOTHING, manager._clock.monotonic_ms())
        else:
            right(manager, task_id, why)

    return lose


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


# --- the second variants: written after the checkers, and at other places ---


def _resumes_at_once(right: Function) -> Function:
    def plan(*args: Any, **named: Any) -> Any:
        found = right(*args, **named)
        if isinstance(found, Resume):
            return UpToDate(found.topic_partition, UP_TO_DATE, found.position, found.position)
        return found

    return plan


def _leaves_the_last(right: Function) -> Function:
    def stage(applier: Any, changelog: Any, records: Any, next_offset: int) -> Any:
        return right(applier, changelog, records[:-1] if len(records) > 1 else records, next_offset)

    return stage


def _keeps_epoch(right: Function) -> Function:
    def init_producer(log: Any, name: str) -> Any:
        known = log.producers.get(name)
        epoch = right(log, name)
        if known is not None and known.epoch > 1:
            log.producers[name].epoch = epoch = 1
        return epoch

    return init_producer


def _drains_one_more(right: Function) -> Function:
    def drain(standby: Any) -> Any:
        limit = standby._limit
        standby._limit = None if limit is None else limit + 1
        try:
            return right(standby)
        finally:
            standby._limit = limit

    return drain


def _begins_without_progress(right: Function) -> Function:
    def resume(task: Any, *args: Any, **named: Any) -> None:
        right(task, *args, **named)
        for name in [one for one in task.progress if one.startswith("closed:")]:
            del task.progress[name]

    return resume


def _offsets_at_begin(right: Function) -> Function:
    def begin(log: Any, name: str, epoch: int, batches: Any, offsets: Any, member: Any) -> Any:
        made = right(log, name, epoch, batches, offsets, member)
        if offsets is not None:
            log.commit(*offsets)
        return made

    return begin


def _takes_the_next_task(right: Function) -> Function:
    def take_out(mender: Any, task: Any, loss: Any) -> Any:
        lost, folder = right(mender, task, loss), mender._state_dir
        for other in [one for one in folder.tasks() if one > str(task)][:1]:
            files.clear(folder.task_path(other))
        return lost

    return take_out


def _asks_once(right: Function) -> Function:
    def is_free(placement: Any, task_id: Any, *rest: Any) -> Any:
        return placement.__dict__.setdefault("answers", {}).setdefault(task_id, right(placement, task_id, *rest))

    return is_free


def _always(right: Function) -> Function:
    return lambda *args, **named: True


def _hopes(right: Function) -> Function:
    def write_log(write: Any, batches: Any, commit: Any, size_bytes: int) -> Any:
        try:
            return (yield from right(write, batches, commit, size_bytes))
        except Unavailable:
            applier = write._task.applier
            stored = {at: applier.position(at) for at in batches if at in applier.store_of}
            return {at: (0 if one is None else one.offset) + len(batches[at]) for at, one in stored.items()}

    return write_log


GATE, POSITION, EPOCH = "gate opens early", "position ahead of rows", "epoch not checked"
LIMIT, WINDOW, OFFSETS = "standby passes its limit", "window emitted twice", "offsets before changelog"
WIPE, WAKE_UP, CLAIM = "wipe with a neighbour", "lost wake-up", "stale claim wins"
ACK = "commit acknowledged before the log"

FIRST = {
    GATE: Bug(GATE, "gate", 0, {"standfast.restore.gate.Gate._opened": _opens_each}),
    POSITION: Bug(POSITION, "fold", 23, {"standfast.store.task.task_stores.TaskStores._write": _record_before_rows}),
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
    LIMIT: Bug(LIMIT, "limits", 7, {"standfast.replication.tail.tailer.Tailer._committed": _end_as_limit}),
    WINDOW: Bug(WINDOW, "windows", 2, {"standfast.stream.dsl.final_results.FinalResults.__init__": _forgets_given}),
    OFFSETS: Bug(OFFSETS, "offsets", 23, {"standfast.stream.task.commit_write.CommitWrite.steps": _offsets_first}),
    WIPE: Bug(WIPE, "wipe", 45, {"standfast.store.task.task_stores.TaskStores.forget": _forgets_all_rows}),
    WAKE_UP: Bug(WAKE_UP, "rest", 8, {"standfast.stream.runtime.failures.Failures.note": _forgets_to_open}),
    CLAIM: Bug(
        CLAIM,
        "claims",
        26,
        {
            "standfast.stream.session.task_manager.TaskManager._lose": _opens_again,
            "standfast.stream.session.writers.Writers._open": _takes_from_any,
        },
    ),
    ACK: Bug(ACK, "commits", 0, {"standfast.stream.task.task.Task._committed": _tells_first}),
}
SECOND = {
    GATE: Bug(GATE, "gate", 2, {"standfast.stream.task.planning.plan_changelog": _resumes_at_once}),
    POSITION: Bug(POSITION, "fold", 0, {"standfast.replication.tail.applier.ChangelogApplier.stage": _leaves_the_last}),
    EPOCH: Bug(EPOCH, "writers", 13, {"simulator.log.cluster.SimLog.init_producer": _keeps_epoch}),
    LIMIT: Bug(LIMIT, "limits", 7, {"standfast.replication.standby.Standby._drain": _drains_one_more}),
    WINDOW: Bug(WINDOW, "windows", 2, {"standfast.stream.task.task.Task.resume_from_log": _begins_without_progress}),
    OFFSETS: Bug(OFFSETS, "offsets", 14, {"simulator.log.cluster.SimLog.begin": _offsets_at_begin}),
    WIPE: Bug(WIPE, "wipe", 4, {"standfast.stream.task.mending.Mender.take_out": _takes_the_next_task}),
    WAKE_UP: Bug(WAKE_UP, "rest", 0, {"standfast.stream.session.managed.ManagedPlacement._is_free": _asks_once}),
    CLAIM: Bug(CLAIM, "claims", 4, {"standfast.stream.session.managed.ManagedPlacement._is_free": _always}),
    ACK: Bug(ACK, "commits", 72, {"standfast.stream.task.commit_write.CommitWrite._log": _hopes}),
}

FOUND_WITHIN = 200  # seeds


def main() -> int:
    """Search for the bugs of the kinds that were named, or for all; returns 1 if one is not found."""
    lost = 0
    for variant, bugs in enumerate((FIRST, SECOND), 1):
        for kind, bug in bugs.items():
            if not sys.argv[1:] or kind in sys.argv[1:]:
                found = search(bug, range(FOUND_WITHIN))
                lost += found is None
                print(
                    f"{kind}, variant {variant}: " + ("NOT FOUND" if found is None else f"seed {found[0]}: {found[1]}")
                )
                sys.stdout.flush()
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
