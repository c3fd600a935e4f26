"""Decisions about snapshots: the files to upload, the files and snapshots that a prune may remove, the one to restore.

    upload     files of the checkpoint whose sha256 the storage does not have, or has with another size
    prune      snapshots beyond the newest `keep` of a task and older than `keep_ms`, and broken ones older than the
               grace; files that no other snapshot and no intent younger than the grace names
    restore    the highest position of the highest epoch that fits: same application and store definitions, and every
               position fits the log as a local position must (topic id, leader epoch, begin and end, deletes that
               compaction has removed)

Epochs and positions count within the topics of a log. Where topics were recreated their snapshots are another lineage:
each lineage keeps its newest, so that low numbers of a new log never look old beside high ones of a lost log.

Rules of this file: pure. Ages are by the storage's time: that of a manifest or intent, and that of a note written just
now. A prune removes less rather than more: of an intent that cannot be read no file is known, so nothing is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from standfast.restore.plan import (
    TIME_AHEAD,
    LogState,
    Refuse,
    ReinitialisePlan,
    StoredPosition,
    local_position,
    plan_changelog,
)
from standfast.restore.snapshot.manifest import Snapshot, SnapshotFile
from standfast.restore.snapshot.names import SnapshotName
from standfast.store.specs import definition_changes


class StoredObject(NamedTuple):
    """An object in a storage: key, size in bytes, and the storage's own time of writing in milliseconds."""

    key: str
    bytes: int
    modified_ms: int


class Retention(NamedTuple):
    """`keep` newest snapshots of each task stay, and those younger than `keep_ms` (None: age keeps none)."""

    keep: int
    keep_ms: int | None = None


class ListedSnapshot(NamedTuple):
    """A snapshot in a storage, with the storage's time of its manifest. `whole`: all of its files are there."""

    snapshot: Snapshot
    modified_ms: int
    whole: bool = True


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """Snapshots to remove, and files (sha256 with size) that nothing would name then."""

    snapshots: tuple[SnapshotName, ...]
    files: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Bytes of the files."""
        return sum(self.files.values())


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether a snapshot can be restored: `reason` says why not; `tail` is the most records left to read after it."""

    reason: str = ""
    tail: int = 0


def to_upload(files: Iterable[SnapshotFile], present: Mapping[str, int]) -> list[SnapshotFile]:
    """Files to upload, each content once; `present` are sizes in the storage by sha256."""
    wanted = {file.sha256: file for file in files if present.get(file.sha256) != file.bytes}
    return list(wanted.values())


def outdated(
    kept: Collection[ListedSnapshot],
    retention: Retention,
    now_ms: int,
    *,
    held: Collection[SnapshotName] = (),
    since_ms: int | None = None,
) -> list[SnapshotName]:
    """Snapshots that retention removes, the oldest first. Only whole ones count: a broken one replaces no other.

    Those in `held` stay, and with `since_ms` those written since then: they are parts of checkpoints.
    """
    by_line: dict[tuple[str, frozenset[str]], list[ListedSnapshot]] = {}
    for one in kept:
        if one.whole:
            by_line.setdefault((one.snapshot.task, one.snapshot.lineage), []).append(one)
    gone = []
    for line in by_line.values():
        line.sort(key=lambda one: one.snapshot.name.order, reverse=True)
        for one in line[max(retention.keep, 1) :]:  # the newest always stays
            if one.snapshot.name in held or (since_ms is not None and one.modified_ms >= since_ms):
                continue
            if retention.keep_ms is None or now_ms - one.modified_ms > retention.keep_ms:
                gone.append(one.snapshot.name)
    return sorted(gone)


def unnamed(files: Iterable[StoredObject], named: Collection[str]) -> dict[str, int]:
    """Files (sha256 with size) that are not among `named`."""
    held = frozenset(named)
    return {sha: one.bytes for one in files if (sha := one.key.rpartition("/")[2]) not in held}


def plan_prune(
    kept: Collection[ListedSnapshot],
    intents: Mapping[str, tuple[int, frozenset[str]]],
    files: Iterable[StoredObject],
    retention: Retention,
    *,
    now_ms: int,
    grace_ms: int,
    held: Collection[SnapshotName] = (),
    since_ms: int | None = None,
) -> PrunePlan:
    """Everything that a prune may remove; `intents` have the storage's time and the files by id.

    `held` and `since_ms` as in `outdated`.
    """
    gone = frozenset(outdated(kept, retention, now_ms, held=held, since_ms=since_ms)) | {
        one.snapshot.name for one in kept if not one.whole and now_ms - one.modified_ms > grace_ms
    }
    named: set[str] = set()
    for one in kept:
        if one.snapshot.name not in gone:
            named |= one.snapshot.contents
    for modified_ms, wanted in intents.values():
        if now_ms - modified_ms <= grace_ms:
            named |= wanted
    return PrunePlan(tuple(sorted(gone)), unnamed(files, named))


def judge_names(snapshot: Snapshot, app: str, task: str) -> Judged:
    """Whether a snapshot is of this task; the first step of `judge`, and the only one where the log is not asked."""
    if (snapshot.app, snapshot.task) != (app, task):
        return Judged(f"it is of application {snapshot.app!r}, task {snapshot.task}")
    return Judged()


def judge(
    snapshot: Snapshot,
    *,
    app: str,
    task: str,
    definitions: Mapping[str, Mapping[str, Any]],
    logs: Mapping[str, LogState],
    now_ms: int,
) -> Judged:
    """Whether a snapshot can be the base of a task's restore.

    `definitions` are those of the declared stores, `logs` the changelogs by store, with `diverged_at` for the
    snapshot's own position.
    """
    if (other := judge_names(snapshot, app, task)).reason:
        return other
    for name, old in snapshot.stores.items():
        if name not in definitions:
            if not old.get("logging", True):
                return Judged(f"store {name!r} has no changelog and is not declared, and its rows would be dropped")
            continue
        changes = definition_changes(old, definitions[name])
        if changes:
            return Judged(f"store {name!r} had another definition ({'; '.join(changes)})")
    tail = 0
    for name, log in logs.items():
        stored = snapshot.cut.positions.get(name)
        if stored is None or name in snapshot.memory_stores:
            tail += log.stop - log.begin
            continue
        judged = fits(stored, log, now_ms)
        if judged.reason:
            return judged
        tail += judged.tail
    return Judged(tail=tail)


def judge_store(
    snapshot: Snapshot,
    store: str,
    *,
    app: str,
    task: str,
    definition: Mapping[str, Any],
    log: LogState,
    now_ms: int,
) -> Judged:
    """Whether one store of a snapshot can be the base of that store's restore; `log` as for `judge`."""
    if (other := judge_names(snapshot, app, task)).reason:
        return other
    old, stored = snapshot.stores.get(store), snapshot.cut.positions.get(store)
    if old is None or stored is None or store in snapshot.memory_stores:
        return Judged(f"it has no rows of store {store!r}")
    changes = definition_changes(old, definition)
    if changes:
        return Judged(f"store {store!r} had another definition ({'; '.join(changes)})")
    return fits(stored, log, now_ms)


def fits(stored: StoredPosition, log: LogState, now_ms: int) -> Judged:
    """Whether a snapshot's position of a changelog fits the log."""
    plan = plan_changelog(local_position(stored, rows=True), log, now_ms=now_ms)
    if plan.reason == TIME_AHEAD:
        return Judged(
            f"it was made {(stored.at_ms - now_ms) // 1_000} s ahead of this machine's clock, so its age is "
            f"unknown, and deletes behind its position {stored.offset} of {log.topic_partition} may be gone"
        )
    if isinstance(plan, ReinitialisePlan | Refuse):
        return Judged(f"its position {stored.offset} of {log.topic_partition} does not fit the log ({plan.reason})")
    return Judged(tail=plan.records_max)


def newest(kept: Collection[ListedSnapshot], topic_ids: Collection[str] = ()) -> Snapshot:
    """The newest snapshot of one task, of those that count in the log's topics as they are now (`topic_ids`).

    Where none does, or the log is not known, of the lineage that was stored last: a log that was recreated begins with
    low numbers again, beside which those of the old one would look newer for ever.
    """
    now = frozenset(topic_ids)
    own = [one for one in kept if one.snapshot.lineage and one.snapshot.lineage <= now]
    if not own:
        last = max(kept, key=lambda one: (one.modified_ms, one.snapshot.name.order))
        own = [one for one in kept if one.snapshot.lineage == last.snapshot.lineage]
    return max(own, key=lambda one: one.snapshot.name.order).snapshot


def newest_first(names: Iterable[SnapshotName]) -> list[SnapshotName]:
    """Snapshots in the order in which a restore tries them."""
    return sorted(names, key=lambda name: name.order, reverse=True)
