"""A program that declares other stores than the directory of its task has: which are emptied, and which refused.

    another definition                               refused: the bytes mean something else
    rows without a changelog, not declared any more  refused: the rows are the only copy
    anything else that has no place any more         emptied, and restored from its changelog where that is declared

Rules of this file: it reads the engine of an opened directory, and changes nothing. `stored` and `declared` are
definitions by store name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from standfast.store.engine import DEFAULT_FAMILY, Engine
from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.specs import definition_changes
from standfast.store.types.segments import store_of_family

Definitions = Mapping[str, Any]


def gone_stores(stored: Definitions, declared: Definitions) -> set[str]:
    """The stores without a position: their rows do not count, so that a restore begins at the first record."""
    gone = {name for name, old in stored.items() if name not in declared or old["engine"] != declared[name]["engine"]}
    # Memory stores keep no rows over a restart, so no position of theirs may count.
    gone |= {name for name, one in declared.items() if one["engine"] == "memory"}
    # Rows of a store that the record does not know remain from a drop that a crash interrupted.
    return gone | (declared.keys() - stored.keys())


def refuse_changed(directory: Path, stored: Definitions, declared: Definitions) -> None:
    """Raise InvalidRequest if a store is declared with another definition than its rows were written with."""
    for name, definition in declared.items():
        if name not in stored:
            continue
        changes = definition_changes(
            {key: value for key, value in stored[name].items() if key != "engine"},
            {key: value for key, value in definition.items() if key != "engine"},
        )
        if changes:
            raise InvalidRequest(
                f"store {name!r} in {directory} was made with another definition ({'; '.join(changes)}): "
                "declare it as it was, or give the changed store a new name and drop the old one"
            )


def refuse_last_copies(engine: Engine, directory: Path, task: str, stored: Definitions, declared: Definitions) -> None:
    """Raise InvalidRequest if an opening would drop rows without a changelog, since their store is not declared."""
    for name, old in stored.items():
        now = declared.get(name)
        if old.get("logging", True) or (now is not None and now["engine"] == old["engine"]):
            continue
        if not _holds_rows(engine, name):
            continue
        raise InvalidRequest(
            f"store {name!r} of task {task} in {directory} has no changelog, so these rows are the only "
            f"copy, and {'no processor of this task claims it' if now is None else 'its engine is memory now'}: "
            "declare and connect it as before (a sub-topology whose number changed, because a source was added "
            "before it, must get its number back); or, to give the rows up, stop the application and move the "
            "directory away: stores with a changelog are restored"
        )


def _holds_rows(engine: Engine, name: str) -> bool:
    try:
        for family in engine.families():
            if family != DEFAULT_FAMILY and store_of_family(family) == name:
                with engine.scan(family) as scan:
                    if next(iter(scan), None) is not None:
                        return True
    except Corruption:  # damaged rows are rows
        return True
    return False


def copy_interrupted(where: str, stores: Collection[str]) -> Corruption:
    """The error of a directory in which a crash interrupted the copy of stores' rows."""
    unfinished = Corruption(
        f"{where}: a crash interrupted the copy of the rows of {few(sorted(stores))} from a damaged database: they are "
        "copied again"
    )
    unfinished.families = frozenset(stores)
    return unfinished


def tell_emptied(task: str, interrupted: Collection[str], undeclared: Collection[str]) -> None:
    """Say which stores are emptied here: a crash interrupted their import, or they are no longer declared."""
    if interrupted:
        about = as_event("import_interrupted", task=task, stores=sorted(interrupted))
        logger.warning("task %s: a crash interrupted the import of files into %s: the store is emptied and begins "
                       "again", task, ", ".join(sorted(interrupted)), extra=about)  # fmt: skip
    for name in sorted(undeclared):
        about = as_event("store_dropped", task=task, store=name)
        logger.warning("task %s: store %r is no longer declared: its rows are dropped here, its changelog keeps "
                       "them", task, name, extra=about)  # fmt: skip
