"""Uploads a snapshot: intent, files that are not there, manifest, a last look.

    intent (new) ──> notes of prunes? ──> files ──> all there? ──> manifest (new, never overwritten)
                                                       ──> all there still, and the intent? else the manifest goes

An upload and a prune each announce themselves before they look for the other, so at least one of them sees the other:
an upload that finds a note about a file that it needs gives up, and a prune leaves the files of a young intent. An
upload that was stopped for so long that its intent is no longer young finds that by its clock, or finds its intent
removed, and its manifest does not stay.

Rules of this file: a failed upload leaves nothing that is listed; its files stay for the next one, or for a prune. It
raises Unavailable for everything that another attempt may mend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from standfast.restore.snapshot.catalogue import missing, present, read_snapshot
from standfast.restore.snapshot.manifest import Intent, Snapshot, SnapshotFile, dump_note, dump_snapshot, parse_prune
from standfast.restore.snapshot.names import INTENTS, PRUNES, file_key
from standfast.restore.snapshot.planning import to_upload
from standfast.restore.snapshot.policy import GRACE_DEFAULT_MS
from standfast.restore.snapshot.storage import DamagedReads, Storage
from standfast.store.clock import Clock
from standfast.store.errors import Corruption, InvalidRequest, StandfastError, Unavailable
from standfast.store.failpoint import reach

UPLOADS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Created:
    """A snapshot with the files and bytes that were uploaded; `new`: False if the storage had this point already."""

    snapshot: Snapshot
    new: bool
    uploaded_files: int = 0
    uploaded_bytes: int = 0


def upload(
    storage: Storage,
    snapshot: Snapshot,
    directory: Path,
    *,
    clock: Clock,
    grace_ms: int = GRACE_DEFAULT_MS,
    step: Callable[[SnapshotFile], None] = lambda file: None,
    pace: Callable[[int], None] | None = None,
) -> Created:
    """Upload the snapshot of a checkpoint directory; `step` is called after each uploaded file, and may wait.

    `pace` is called with the number of bytes before each piece of a file is sent, and may wait.

    Raises InvalidRequest if its name is taken by another point, Unavailable for all that another attempt may mend.
    """
    storage.prove()
    # Before anything is written: an idle task's next snapshot has the name of its last one.
    if storage.head(snapshot.name.key) is not None:
        return _same(storage, snapshot)
    started_ms = clock.monotonic_ms()
    intent = Intent(snapshot.id, snapshot.task, snapshot.made.instance, tuple(sorted(snapshot.contents)))
    key = f"{INTENTS}/{intent.id}.json"
    try:
        storage.put_new(key, dump_note(intent))
        reach("snapshot.intent")
        _refuse_prunes(storage, snapshot, key, grace_ms)
        # After the notes were looked at: from here on no prune that begins removes these files.
        wanted = to_upload(snapshot.files, present(storage, snapshot.contents))
        _send(storage, wanted, directory, step, pace)
        reach("snapshot.files")
        # Before the manifest, so that one with missing files is not listed even for a moment.
        _check_time(snapshot, clock.monotonic_ms() - started_ms, grace_ms)
        _check_files(storage, snapshot)
        if not _put_manifest(storage, snapshot):
            return _same(storage, snapshot)
        reach("snapshot.manifest")
        try:
            # The files before the intent: a prune removes an old intent before any file.
            _check_files(storage, snapshot)
            if storage.head(key) is None:
                raise Unavailable(
                    f"a prune took the upload of snapshot {snapshot.name} for a dead one: it begins again"
                )
            _check_time(snapshot, clock.monotonic_ms() - started_ms, grace_ms)
        except StandfastError:
            # It is ours: put_new created it just now.
            storage.delete(snapshot.name.key)
            raise
    finally:
        with contextlib.suppress(StandfastError):  # else it stays until it is old, and keeps its files until then
            storage.delete(key)
    return Created(snapshot, new=True, uploaded_files=len(wanted), uploaded_bytes=sum(file.bytes for file in wanted))


def _put_manifest(storage: Storage, snapshot: Snapshot) -> bool:
    """As `put_new`; a manifest that cannot be read back does not stay."""
    try:
        return storage.put_new(snapshot.name.key, dump_snapshot(snapshot))
    except DamagedReads as damaged:
        if damaged.created:
            storage.delete(snapshot.name.key)
        raise


def _same(storage: Storage, snapshot: Snapshot) -> Created:
    """The snapshot of this name that is there, if it is of the same point."""
    try:
        found = read_snapshot(storage, snapshot.name)
    except (Corruption, InvalidRequest):
        storage.check_reads()
        raise
    if (found.app, found.cut.positions.keys(), found.lineage) != (
        snapshot.app,
        snapshot.cut.positions.keys(),
        snapshot.lineage,
    ):
        storage.check_reads()
        raise InvalidRequest(
            f"{storage.where} has another snapshot {snapshot.name}, of topics that were recreated since, or of another "
            "set of stores: name another address, or remove the old snapshots with `standfast snapshot prune`"
        )
    faults = missing(found.files, present(storage, found.contents))
    if faults:
        # Only whole uploads get a manifest: files were removed by other means, and the next point has another name.
        raise Unavailable(f"snapshot {found.name} in {storage.where} is broken ({'; '.join(faults[:3])})")
    return Created(found, new=False)


def _refuse_prunes(storage: Storage, snapshot: Snapshot, intent_key: str, grace_ms: int) -> None:
    """Raise Unavailable while a prune is under way that removes files of this snapshot."""
    intent = storage.head(intent_key)
    now_ms = 0 if intent is None else intent.modified_ms
    for one in storage.list(PRUNES):
        if now_ms - one.modified_ms > grace_ms:
            continue  # that prune has given up by its own clock, or its process is dead
        text = storage.read(one.key)
        if text is not None and not snapshot.contents.isdisjoint(parse_prune(text, one.key).files):
            raise Unavailable(
                f"a prune of {storage.where} removes files that snapshot {snapshot.name} needs: try again"
            )


def _send(
    storage: Storage,
    wanted: list[SnapshotFile],
    directory: Path,
    step: Callable[[SnapshotFile], None],
    pace: Callable[[int], None] | None,
) -> None:
    def send(file: SnapshotFile) -> None:
        storage.put_file(file_key(file.sha256), directory / file.name, pace=pace)
        reach("snapshot.file")
        step(file)

    with storage.threads.pool(UPLOADS_AT_ONCE, "standfast-snapshot") as pool:
        for future in [pool.submit(send, file) for file in wanted]:
            future.result()


def _check_files(storage: Storage, snapshot: Snapshot) -> None:
    faults = missing(snapshot.files, present(storage, snapshot.contents))
    if faults:
        raise Unavailable(
            f"files of snapshot {snapshot.name} went from {storage.where} ({'; '.join(faults[:3])}): again"
        )


def _check_time(snapshot: Snapshot, elapsed_ms: int, grace_ms: int) -> None:
    if elapsed_ms > grace_ms // 2:
        raise Unavailable(
            f"the upload of snapshot {snapshot.name} took {elapsed_ms // 1_000} s, and a prune may take one of more "
            f"than {grace_ms // 2_000} s for a dead one: it begins again, with the files that are there; if it never "
            "ends in time, give every instance and command a larger grace_ms, or uploads a larger bytes_per_s"
        )
