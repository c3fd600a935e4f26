"""Removes unusable stores from a task's directory, so that the other stores stay as they are.

    a store is lost            damaged block, truncated, recreated, ...
        copy by links aside ──> open carefully ──> plan: refused? ──> forget the store ──> close      it is restored
    the directory is lost      MANIFEST, CURRENT, STANDFAST, the task's record
        readable rows of stores without a log ──> new directory ──> old one aside, new one in its place

Rules of this file: it works on directories of closed tasks. Rows that no log has are given up only with an operator's
consent (`accept_unreadable_rows`), and rows that the log cannot give back as the restore plan says; a refusal changes
nothing. A directory that was set aside stays until the caller knows that the task is whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Protocol

from standfast.replication.offsets import TaskId
from standfast.restore.plan import CORRUPT
from standfast.store import files
from standfast.store.engine import DEFAULT_FAMILY, Engine
from standfast.store.errors import Corruption, StandfastError, StateLost
from standfast.store.failpoint import reach
from standfast.store.file_errors import NoRoom
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.rocks.errors import damaged_file
from standfast.store.rocks.open_engine import open_engine
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.seal import check_seal
from standfast.store.rocks.wal import refuse_damaged_wal
from standfast.store.task.salvage import Remains, copy_rows, copy_stores, open_remains
from standfast.store.task.state_dir import StateDir, marker_fault
from standfast.store.task.task_stores import TaskStores
from standfast.store.types.segments import store_of_family
from standfast.stream.loss import Loss

UNREADABLE_ROWS = "unreadable-rows"


class OpensStores(Protocol):
    """Opens the stores of a task in a directory; `careful` and `whole_wal` as for TaskStores."""

    def __call__(
        self, task: TaskId, directory: Path | None = None, *, careful: bool = False, whole_wal: bool | None = None
    ) -> TaskStores: ...


class Mender:
    """Mends the directories of a session's tasks."""

    def __init__(
        self,
        state_dir: StateDir,
        shared: RocksShared,
        stores: OpensStores,
        refuse: Callable[[TaskId, TaskStores, Mapping[str, str], Callable[[str], bool] | None], bool],
        *,
        accept_unreadable_rows: bool,
    ) -> None:
        """`refuse(task, stores, lost, had_rows)` raises StateLost if the plan refuses to restore these stores, and
        returns whether a copy of their rows is to be kept.

        `had_rows` says which stores of a wholly lost directory had rows.
        """
        self._state_dir = state_dir
        self._shared = shared
        self._stores = stores
        self._refuse = refuse
        self._accept = accept_unreadable_rows

    def take_out(self, task: TaskId, loss: Loss) -> dict[str, str]:
        """Make the directory of a closed task fit to be opened; returns the stores that start empty, with the reason.

        Raises StateLost if a person must decide, Unavailable if the disk refuses; nothing was changed then.
        """
        directory = self._state_dir.task_path(str(task))
        try:
            # A careful opening ignores damage in these, and removes files that it does not know.
            check_seal(directory)
            refuse_damaged_wal(directory, every_byte=True)
        except Corruption as damage:
            loss = Loss(damage=damage, whole=True)
        if loss.whole:
            return self._replace(task, directory, loss)
        # Before the first change: readable rows of the dropped stores come back from this copy.
        copy = self._state_dir.copy_aside(str(task), next(iter(loss.stores.values()), CORRUPT))
        lost: dict[str, str] = {}
        try:
            try:
                with closing(self._stores(task, careful=True)) as stores:
                    lost, keep = self._judged(task, stores, loss)
                    if keep:
                        self._state_dir.keep_aside(copy)
                    if lost:
                        self._forget(task, stores, lost, copy)
            except Corruption:  # not even a careful opening works
                if lost:
                    raise
            return lost or self._replace(task, copy, loss)
        finally:
            if not lost:  # otherwise it stays: rows are gone from the directory
                files.clear(copy)

    def take_back(self, task: TaskId) -> dict[str, str]:
        """Finish a replacement that a crash interrupted: the task has no directory, its old one lies aside; rare."""
        left = self._state_dir.left_behind(str(task))
        if left is None:
            return {}
        logger.warning(
            "task %s has no directory, and %s was set aside: a crash came before its replacement",
            task,
            left,
            extra=as_event("directory_missing", task=task),
        )
        return self._replace(task, left, Loss(whole=True), left)

    def _judged(self, task: TaskId, stores: TaskStores, loss: Loss) -> tuple[dict[str, str], bool]:
        """The lost stores, if losing them is allowed, and whether a copy stays; none if the whole directory is lost."""
        lost = dict(loss.stores) or dict.fromkeys(self._damaged(stores, loss.damage), CORRUPT)
        if not lost or DEFAULT_FAMILY in lost:
            return {}, False
        keep = loss.keep
        # A copy that a crash interrupted has replaced only a part of the rows.
        lost |= dict.fromkeys(stores.copying, CORRUPT)
        # The restore plan has accepted a planned loss already.
        if not loss.planned:
            keep = self._refuse(task, stores, {name: why for name, why in lost.items() if name in stores.specs}, None)
        unlogged = stores.unlogged & lost.keys()
        if unlogged and not self._accept:
            raise self._refused(task, unlogged, [f"{loss.damage or 'they are damaged'}"])
        return lost, keep

    def _forget(self, task: TaskId, stores: TaskStores, lost: Mapping[str, str], copy: Path) -> None:
        """Drop the rows of these stores; readable rows that no log has come back from the copy."""
        came_from = {name: stores.copying.get(name, copy.name) for name in sorted(stores.unlogged & lost.keys())}
        # Recorded with the drop, so that an opening after a crash here continues from the copy.
        stores.forget(lost, came_from)
        if came_from:
            self._copy_back(task, stores, came_from)
        logger.warning(
            "task %s: stores dropped to be restored: %s; its other stores stay",
            task,
            _listed(lost),
            extra=as_event("stores_reset", task=task, stores=sorted(lost)),
        )

    def _copy_back(self, task: TaskId, stores: TaskStores, came_from: Mapping[str, str]) -> None:
        """Copy the readable rows of damaged stores without a log; the operator accepted the loss of the others."""
        for name, folder in came_from.items():
            source = self._state_dir.aside_path(folder)
            with closing(open_engine(source, shared=self._shared, read_only=True, careful=True)) as engine:
                gaps, _ = copy_rows(engine, stores.engine, stores.specs[name])
            for gap in gaps:
                logger.warning(
                    "task %s: store %r, accepted: %s",
                    task,
                    name,
                    gap,
                    extra=as_event("loss_accepted", task=task, stores=[name]),
                )
        reach("mending.copied")
        stores.take_back(came_from)

    def _damaged(self, stores: TaskStores, damage: Corruption | None) -> frozenset[str]:
        """The stores with damaged rows: by the file that the error names, or else those that cannot be read whole."""
        engine = stores.engine
        if not engine.durable:
            return frozenset()
        file = None if damage is None else damaged_file(str(damage))
        families = frozenset() if file is None else engine.families_of(file)
        return frozenset(
            map(store_of_family, families or filter(lambda one: not _readable(engine, one), engine.families()))
        )

    def _replace(self, task: TaskId, directory: Path, loss: Loss, left: Path | None = None) -> dict[str, str]:
        """Replace a lost directory with a new one, with the readable rows that no log has; `left`: it lies aside."""
        name = str(task)
        build, scratch = self._state_dir.mending_path(name, "new"), self._state_dir.mending_path(name, "old")
        remains = open_remains(directory, scratch, self._shared, name) if directory.exists() else None
        try:
            with closing(self._stores(task, build, whole_wal=False)) as stores:
                logged = {one: CORRUPT for one, spec in stores.specs.items() if spec.logging}
                keep = self._refuse(task, stores, logged, _had_rows(remains))
                strangers = [] if remains is None else remains.undeclared(stores.specs, str(directory))
                if strangers and not self._accept:
                    raise self._refused(task, strangers, ["the task does not declare it any more, so it is not copied"])
                if stores.unlogged:
                    self._copy_unlogged(task, stores, remains, loss, marker_fault(directory))
                    stores.flush()
                unlogged = stores.unlogged
        finally:
            if remains is not None:
                remains.close()
            files.clear(scratch)
        why = "" if loss.damage is None else f": {loss.damage}"
        logger.warning(
            "task %s: the whole directory is set aside (%s)%s",
            task,
            CORRUPT,
            why,
            extra=as_event("directory_set_aside", task=task, reason=CORRUPT),
        )
        if keep and (place := self._state_dir.task_path(name) if left is None else left).exists():
            self._state_dir.keep_aside(place)  # before the rename, after which a crash would leave it unmarked
        # Two renames: a crash between them leaves the old directory aside, which `take_back` finds.
        self._state_dir.set_aside(name, CORRUPT)
        reach("mending.aside")
        if unlogged:
            files.rename(build, self._state_dir.task_path(name))
        else:
            files.clear(build)
        return logged or dict.fromkeys(unlogged, CORRUPT)

    def _copy_unlogged(
        self, task: TaskId, stores: TaskStores, remains: Remains | None, loss: Loss, unmarked: str
    ) -> None:
        """`unmarked`: why the directory's marker does not say whose it is, "" if it does."""
        names = stores.unlogged
        if remains is None:
            gaps = [f"no file of it can be read ({loss.damage})"]
        else:
            gaps = copy_stores(remains, stores, names)
        if unmarked:
            gaps.insert(0, f"{unmarked}, so the rows may be those of another application")
        if gaps and not self._accept:
            raise self._refused(task, names, gaps)
        for gap in gaps:
            logger.warning(
                "task %s: stores %s, accepted: %s",
                task,
                ", ".join(sorted(names)),
                gap,
                extra=as_event("loss_accepted", task=task, stores=sorted(names)),
            )
        logger.warning(
            "task %s: the rows of %s were copied from the damaged directory",
            task,
            ", ".join(sorted(names)),
            extra=as_event("rows_copied", task=task, stores=sorted(names)),
        )

    def _refused(self, task: TaskId, names: Collection[str], gaps: Collection[str]) -> StateLost:
        directory = self._state_dir.task_path(str(task))
        return StateLost(
            f"task {task}: store {few(map(repr, sorted(names)))} has no changelog (logging=False), and part of "
            f"its rows in {directory} cannot be read: {few(gaps, '; ')}. Nothing was changed. Put a copy of the "
            "directory back, or copy it away and accept the loss (accept_unreadable_rows): the rows that can be read "
            "are then kept, the others given up, and stores with a changelog are restored from it",
            reason=UNREADABLE_ROWS,
        )


def _had_rows(remains: Remains | None) -> Callable[[str], bool]:
    return (lambda name: True) if remains is None else remains.has_rows


def _readable(engine: Engine, family: str) -> bool:
    try:
        with closing(engine.scan(family)) as scan:
            # Only reading finds damage: RocksDB checks a block when it reads it.
            for _ in scan:
                pass
    except StandfastError:
        return False
    return True


def _listed(lost: Mapping[str, str]) -> str:
    return few(f"{name} ({why})" for name, why in sorted(lost.items()))


def flush(task: TaskId, stores: TaskStores) -> None:
    """Flush, so that the next opening has no write-ahead log to read; damage in one file stops the flushes of all."""
    try:
        stores.flush()
    except StandfastError as error:
        logger.log(
            logging.DEBUG if isinstance(error, NoRoom) else logging.WARNING,  # of a full disk the instance speaks once
            "task %s is closed without a flush, its rows are in its write-ahead log: %s",
            task,
            error,
            extra=as_event("task_closed_unflushed", task=task),
        )
