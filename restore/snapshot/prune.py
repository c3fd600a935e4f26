"""Prunes a storage: checkpoints and snapshots that retention removes, and files that nothing names any more.

    note (new) ──> manifests, checkpoints, intents, files ──> old checkpoints, then old manifests go ──> old intents go
               ──> manifests and intents once more: newer ones keep their files ──> files go ──> note goes

Snapshots that are parts of a checkpoint stay as long as that does, those of one under way included. Probes older than
the grace, of processes that died, go first: nothing relies on them.

Rules of this file: it removes less rather than more. A manifest that cannot be read, or an intent, may name any file:
then no file is removed. A prune that takes longer than half the grace gives up, because uploads then no longer regard
its note. The storage's own time decides, that of the note.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from standfast.restore.snapshot.catalogue import missing, present, read_all
from standfast.restore.snapshot.checkpoints import Checkpoint, abandon_dead, checkpoints, plan_checkpoints, remove
from standfast.restore.snapshot.manifest import PruneNote, dump_note, parse_intent
from standfast.restore.snapshot.names import FILES, INTENTS, PROBES, PRUNES, TASKS, SnapshotName, file_key, sha_of_key
from standfast.restore.snapshot.planning import ListedSnapshot, PrunePlan, Retention, plan_prune
from standfast.restore.snapshot.policy import GRACE_DEFAULT_MS
from standfast.restore.snapshot.storage import Storage
from standfast.store.clock import Clock
from standfast.store.errors import Corruption, StandfastError, Unavailable
from standfast.store.failpoint import reach
from standfast.store.log import as_event, logger
from standfast.store.outside import new_id

Intents = Mapping[str, tuple[int, frozenset[str]]]


@dataclass(frozen=True, slots=True)
class Pruned:
    """Removed snapshots and files, or those that would be (`dry_run`); `unread` are manifests that keep every file,
    `unread_checkpoints` checkpoints that keep every snapshot. `probes` counts those of a test of the storage that a
    dead process left."""

    plan: PrunePlan
    unread: Mapping[SnapshotName, str]
    checkpoints: tuple[Checkpoint, ...] = ()
    unread_checkpoints: Mapping[int, str] = field(default_factory=dict)
    probes: int = 0

    @property
    def stays(self) -> list[str]:
        """Reasons for which objects stay until a person mends the storage."""
        return [
            *(f"no file is removed, since the manifest of {one} cannot be read: {why}"
              for one, why in self.unread.items()),
            *(f"no snapshot is removed, since checkpoint {one} cannot be read: {why}"
              for one, why in self.unread_checkpoints.items()),
        ]  # fmt: skip


def prune(
    storage: Storage,
    retention: Retention,
    *,
    clock: Clock,
    grace_ms: int = GRACE_DEFAULT_MS,
    dry_run: bool = False,
) -> Pruned:
    """Remove what retention and the grace allow. With `dry_run` nothing is written or removed, and this machine's wall
    clock stands for the storage's time."""
    if dry_run:
        now_ms = clock.wall_ms()
        seen = _look(storage, retention, now_ms=now_ms, grace_ms=grace_ms)
        return replace(seen, probes=len(_old(storage, PROBES, now_ms, grace_ms)))
    storage.prove()
    started_ms = clock.monotonic_ms()

    def check_time() -> None:
        if clock.monotonic_ms() - started_ms > grace_ms // 2:
            raise Unavailable(
                f"the prune of {storage.where} took too long and ends with a part of its work: run it again"
            )

    # The first look only says which files the note must name: an upload that begins after it must see them.
    now_ms = _now_ms(storage)
    probes = _drop_old(storage, PROBES, now_ms, grace_ms)
    first = _look(storage, retention, now_ms=now_ms, grace_ms=grace_ms)
    if not (first.plan.snapshots or first.plan.files or first.checkpoints or storage.list(INTENTS)):
        return replace(first, probes=probes)
    key = f"{PRUNES}/{new_id('prune', 32)}.json"
    try:
        storage.put_new(key, dump_note(PruneNote(new_id("prune", 32), tuple(sorted(first.plan.files)))))
        reach("snapshot.prune")
        note = storage.head(key)
        now_ms = 0 if note is None else note.modified_ms
        seen = _look(storage, retention, now_ms=now_ms, grace_ms=grace_ms)
        as_found = {one.number: one for one in seen.checkpoints}
        if abandon_dead(storage, seen.checkpoints, clock.wall_ms()):
            # A leader that was stopped may have completed one just before: then that keeps its snapshots.
            seen = _look(storage, retention, now_ms=now_ms, grace_ms=grace_ms)
        for one in seen.checkpoints:
            check_time()
            remove(storage, one)
        for name in seen.plan.snapshots:
            check_time()
            storage.delete(name.key)
        reach("snapshot.pruned")
        _drop_old(storage, INTENTS, now_ms, grace_ms)
        # Once more: an upload that was taken for dead may have written its manifest before its intent went.
        last = _look(storage, retention, now_ms=now_ms, grace_ms=grace_ms)
        files = {sha: size for sha, size in last.plan.files.items() if sha in first.plan.files}
        for sha in files:
            check_time()
            storage.delete(file_key(sha))
            reach("snapshot.unfiled")
        _drop_old(storage, PRUNES, now_ms, grace_ms)
    finally:
        with contextlib.suppress(StandfastError):  # else uploads pass these files over until the note is old
            storage.delete(key)
    if seen.plan.snapshots or files:
        logger.info(
            "removed %d snapshots and %d files of %s",
            len(seen.plan.snapshots),
            len(files),
            storage.where,
            extra=as_event("snapshots_pruned", snapshots=len(seen.plan.snapshots), files=len(files)),
        )
    removed = tuple(as_found.get(one.number, one) for one in seen.checkpoints)
    return Pruned(PrunePlan(seen.plan.snapshots, files), last.unread, removed, last.unread_checkpoints, probes)


def _now_ms(storage: Storage) -> int:
    """The storage's time: that of an object written just now."""
    key = f"{PRUNES}/{new_id('prune', 32)}.json"
    try:
        storage.put_new(key, dump_note(PruneNote(new_id("prune", 32), ())))
        found = storage.head(key)
        return 0 if found is None else found.modified_ms
    finally:
        storage.delete(key)


def _look(storage: Storage, retention: Retention, *, now_ms: int, grace_ms: int) -> Pruned:
    # Files first: one that is uploaded after this listing cannot be removed by it.
    files = [one for one in storage.list(FILES) if sha_of_key(one.key) is not None]
    intents, unread_intent = _intents(storage)
    manifests = read_all(storage, storage.list(TASKS))
    unread = {name: found for name, found in manifests.items() if isinstance(found, str)}
    sizes = {sha_of_key(one.key): one.bytes for one in files}
    kept = [_looked_at(storage, found, sizes) for found in manifests.values() if isinstance(found, ListedSnapshot)]
    # After the manifests: a checkpoint that begins later takes snapshots that are not among these, or are the newest.
    found = checkpoints(storage)
    held = plan_checkpoints(found, retention, now_ms=now_ms, grace_ms=grace_ms)
    plan = plan_prune(
        kept,
        intents,
        files,
        retention,
        now_ms=now_ms,
        grace_ms=grace_ms,
        held=held.snapshots,
        since_ms=held.since_ms,
    )
    if unread or unread_intent:
        plan = PrunePlan(plan.snapshots, {})
    return Pruned(plan, unread, held.gone, {one.number: one.fault for one in found if one.fault})


def _looked_at(storage: Storage, one: ListedSnapshot, sizes: Mapping[str | None, int]) -> ListedSnapshot:
    """A snapshot, marked if files of it are missing; those that came after the listing are looked up."""
    absent = [file for file in one.snapshot.files if sizes.get(file.sha256) != file.bytes]
    return one._replace(whole=not missing(absent, present(storage, (file.sha256 for file in absent))))


def _intents(storage: Storage) -> tuple[Intents, bool]:
    """Intents by key, and whether one is there that cannot be read."""
    found, unread = {}, False
    for one in storage.list(INTENTS):
        try:
            text = storage.read(one.key)
            if text is not None:  # else its upload has ended meanwhile
                found[one.key] = (one.modified_ms, frozenset(parse_intent(text, one.key).files))
        except Corruption:
            unread = True
    return found, unread


def _old(storage: Storage, folder: str, now_ms: int, grace_ms: int) -> list[str]:
    """Keys of notes whose process is dead, or has given up by its own clock."""
    return [one.key for one in storage.list(folder) if now_ms - one.modified_ms > grace_ms]


def _drop_old(storage: Storage, folder: str, now_ms: int, grace_ms: int) -> int:
    """Remove old notes; returns their number."""
    old = _old(storage, folder, now_ms, grace_ms)
    for key in old:
        storage.delete(key)
    return len(old)
