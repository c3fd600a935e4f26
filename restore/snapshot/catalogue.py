"""The snapshots of a storage: listed, read, verified.

    listed     manifests whose files are all there, with the right size; `broken` has the others, with their faults
    verify     every file of a snapshot is read and its sha256 compared

Rules of this file: reads only. A manifest is written after its files, so one that names a missing file is left
by a removal by hand, or by a kill at the worst moment: it is never listed, and a restore passes it over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from standfast.restore.snapshot.manifest import Snapshot, SnapshotFile, parse_snapshot
from standfast.restore.snapshot.names import FILES, TASKS, SnapshotName, file_key, name_of_key, sha_of_key
from standfast.restore.snapshot.planning import ListedSnapshot, StoredObject, newest_first
from standfast.store.errors import Corruption, InvalidRequest

if TYPE_CHECKING:
    from standfast.restore.snapshot.storage import Storage  # imports the library of the extra

READS_AT_ONCE = 8
LISTINGS_MAX = 3  # where snapshots go faster than they can be read, a task is restored from its log


@dataclass(frozen=True, slots=True)
class Listed:
    """Whole snapshots, and the names of others with the fault; both the newest of each task first."""

    whole: tuple[ListedSnapshot, ...]
    broken: dict[SnapshotName, str]

    @property
    def tasks(self) -> set[str]:
        """All tasks; of some of them every snapshot may be broken, and a command must not leave those out unsaid."""
        return {one.snapshot.task for one in self.whole} | {name.task for name in self.broken}


def names(storage: Storage, task: str | None = None) -> list[SnapshotName]:
    """Names of all manifests, or of those of a task, in order; their files may be missing."""
    found = storage.list(TASKS if task is None else f"{TASKS}/{task}")
    return sorted(name for one in found if (name := name_of_key(one.key)) is not None)


def to_try(storage: Storage, task: str) -> Iterator[SnapshotName]:
    """Names of a task's snapshots in the order in which a restore tries them, the newest first.

    Those stored meanwhile follow at the end: a prune may have removed the others while the first one was read.
    """
    tried: set[SnapshotName] = set()
    for _ in range(LISTINGS_MAX):
        found = [name for name in newest_first(names(storage, task)) if name not in tried]
        tried.update(found)
        yield from found
        if not found:
            return


def read_snapshot(storage: Storage, name: SnapshotName) -> Snapshot:
    """A manifest. Raises InvalidRequest for an absent or newer one, Corruption for a damaged one."""
    text = storage.read(name.key)
    if text is None:
        raise InvalidRequest(f"{storage.where} has no snapshot {name}: `standfast snapshot list` shows them")
    where = f"the manifest of snapshot {name} in {storage.where}"
    snapshot = parse_snapshot(text, where)
    if snapshot.name != name:
        raise Corruption(f"{where} is that of {snapshot.name}: it was copied there; use another snapshot")
    return snapshot


def foreign(storage: Storage, snapshot: Snapshot) -> str:
    """Why a snapshot is none of the storage's application, such as one that was copied there; "" if it is."""
    return "" if snapshot.app == storage.app else f"it is of application {snapshot.app!r}, and not of {storage.app!r}"


def read_own(storage: Storage, name: SnapshotName) -> Snapshot:
    """As `read_snapshot`; Corruption for a manifest of another application, too."""
    snapshot = read_snapshot(storage, name)
    if why := foreign(storage, snapshot):
        raise Corruption(f"snapshot {name} in {storage.where} cannot be used: {why}; use another snapshot")
    return snapshot


def present(storage: Storage, contents: Iterable[str]) -> dict[str, int]:
    """Sizes of these files, those that are there."""
    wanted = sorted(set(contents))
    with storage.threads.pool(READS_AT_ONCE, "standfast-snapshot") as pool:
        found = pool.map(lambda sha: storage.head(file_key(sha)), wanted)
        return {sha: one.bytes for sha, one in zip(wanted, found, strict=True) if one is not None}


def missing(files: Iterable[SnapshotFile], sizes: dict[str, int]) -> list[str]:
    """Faults of the files that are absent or have another size."""
    return [
        f"{file.name} ({file.sha256[:12]}) is missing"
        if file.sha256 not in sizes
        else f"{file.name} ({file.sha256[:12]}) has {sizes[file.sha256]} bytes instead of {file.bytes}"
        for file in files
        if sizes.get(file.sha256) != file.bytes
    ]


def listed(storage: Storage, task: str | None = None) -> Listed:
    """The snapshots of a task, or of all."""
    # Manifests before files: the files of a manifest that is read here were there before it.
    manifests = read_all(storage, storage.list(TASKS if task is None else f"{TASKS}/{task}"))
    sizes = {sha: one.bytes for one in storage.list(FILES) if (sha := sha_of_key(one.key)) is not None}
    whole, broken = [], {}
    for name, found in manifests.items():
        if isinstance(found, str):
            broken[name] = found
            continue
        faults = [why] if (why := foreign(storage, found.snapshot)) else missing(found.snapshot.files, sizes)
        if faults:
            broken[name] = "; ".join(faults[:3])
        else:
            whole.append(found)
    whole.sort(key=lambda one: (one.snapshot.task, *(-part for part in one.snapshot.name.order)))
    return Listed(tuple(whole), broken)


def read_all(storage: Storage, found: Iterable[StoredObject]) -> dict[SnapshotName, ListedSnapshot | str]:
    """Manifests of a listing, each with its time, or the text of its fault; one removed meanwhile is left out."""

    def read(name: SnapshotName, one: StoredObject) -> ListedSnapshot | str | None:
        try:
            return ListedSnapshot(read_snapshot(storage, name), one.modified_ms)
        except Corruption as error:
            return str(error)
        except InvalidRequest as error:
            return None if storage.head(name.key) is None else str(error)

    wanted = [(name, one) for one in found if (name := name_of_key(one.key)) is not None]
    with storage.threads.pool(READS_AT_ONCE, "standfast-snapshot") as pool:
        answers = list(pool.map(lambda pair: read(*pair), wanted))
    return {name: answer for (name, _), answer in zip(wanted, answers, strict=True) if answer is not None}


def verify_files(
    storage: Storage, snapshot: Snapshot, step: Callable[[SnapshotFile], None] = lambda file: None
) -> list[str]:
    """Read every file of a snapshot; returns the faults, none if all are as its manifest says."""

    def verify(file: SnapshotFile) -> str | None:
        digest = hashlib.sha256()
        try:
            for part in storage.read_parts(file_key(file.sha256), file.bytes):
                digest.update(part)
        except Corruption as error:
            return str(error)
        step(file)
        if digest.hexdigest() != file.sha256:
            return f"{file.name} has sha256 {digest.hexdigest()} instead of {file.sha256}"
        return None

    faults = missing(snapshot.files, present(storage, snapshot.contents))
    if faults:
        return faults
    with storage.threads.pool(READS_AT_ONCE, "standfast-snapshot") as pool:
        return [fault for fault in pool.map(verify, snapshot.files) if fault is not None]
