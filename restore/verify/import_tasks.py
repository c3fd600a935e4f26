"""Import of folders with manifests as tasks: an instance opens the rebuilt stores and tails on from their positions.

    folder of each store ── sha256 ──> <state_dir>/<app>/.taking-in/0_3: files in, position = end ── rename ──> 0_3

The instance that opens the task reads later records like any tail: its gate opens at the log's end, which lies at or
beyond the offset from which on the rows are the log's again (`converge_offset`).

Rules of this file: only tasks that do not exist yet, under the lock of the state directory; a crash leaves only
`.taking-in`, which the next call removes. Files are linked or copied, so that the folder can be used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from standfast.replication.log import Log
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.files.manifest import Manifest, ManifestFile
from standfast.restore.files.manifest_files import check_files, read_manifest
from standfast.restore.verify.verify import mismatch
from standfast.store.errors import Corruption, InvalidRequest, StateLost
from standfast.store.files import clear, copy, link, make_folder, rename, sync_folder
from standfast.store.rocks.lookups import check_found
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.commit_record import CommitRecord, Position, StoreTimes
from standfast.store.task.state_dir import StateDir
from standfast.store.task.task_stores import TaskStores
from standfast.store.types.kinds import definition_spec

MEMORY_BYTES = 64 << 20
TAKING_IN = ".taking-in"


@dataclass(frozen=True, slots=True)
class Taken:
    """One imported store of one task: its position (next to read), rows, and their digest."""

    task: TaskId
    store: str
    position: int
    rows: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class Planned:
    """One store of one task that an import would make. `records`: most of them left to read; None without a log."""

    task: TaskId
    store: str
    folder: str
    records: int | None


def plan_import(
    state_dir: Path, folders: Sequence[Path], *, log: Log | None = None, group: int = 0
) -> tuple[Planned, ...]:
    """The tasks that `import_tasks` would make, after the same checks but for the files' sha256; nothing is written."""
    _, manifests, tasks = _checked(state_dir, folders, log, group)
    found = []
    for task in tasks:
        for folder, manifest in manifests.items():
            position = manifest.partition(task.partition).end
            end = None if log is None else _end(log, TopicPartition(manifest.topic, task.partition))
            records = None if end is None else max(end - position, 0)
            found.append(Planned(task, manifest.store, str(folder), records))
    return tuple(found)


def import_tasks(
    state_dir: Path, folders: Sequence[Path], *, log: Log | None = None, group: int = 0
) -> tuple[Taken, ...]:
    """Make the tasks of these folders (one for each store of the application) in a state directory.

    With `log`, it must hold the changelogs that the folders were made from, and their positions. Raises InvalidRequest
    for tasks that exist already or folders that do not fit each other, StateLost for a log that does not continue at
    the positions, Corruption for damaged files.
    """
    app, manifests, tasks = _checked(state_dir, folders, log, group)
    # All checks before the first change: a damaged file of the last folder must not leave tasks of the others.
    for folder, manifest in manifests.items():
        for partition in manifest.partitions:
            check_files(folder, partition.files)
    # Its lock keeps instances from the directory meanwhile.
    state = StateDir(state_dir, app)
    work = state.path / TAKING_IN
    clear(work)
    try:
        make_folder(work)
        taken = [one for task in tasks for one in _make(work, app, task, manifests)]
        for task in tasks:
            # A task is there whole or not at all.
            rename(work / str(task), state.task_path(str(task)))
        sync_folder(state.path)
    finally:
        clear(work)
        state.close()
    return tuple(taken)


def _checked(
    state_dir: Path, folders: Sequence[Path], log: Log | None, group: int
) -> tuple[str, dict[Path, Manifest], list[TaskId]]:
    """Application, manifests and tasks of these folders, which fit each other, the log and the state directory."""
    manifests = {folder: read_manifest(folder) for folder in folders}
    app = _one_app(manifests)
    tasks = _tasks(manifests, group)
    for task in tasks:
        path = Path(state_dir) / app / str(task)
        if path.exists():
            raise InvalidRequest(f"{path} exists already: an import makes new tasks only, name another state directory")
    if log is not None:
        for manifest in manifests.values():
            _check_log(log, manifest)
    return app, manifests, tasks


def link_files(folder: Path, files: Sequence[ManifestFile], target: Path) -> list[tuple[str, Path]]:
    """(family, path) of these files under `target`: links, or copies on another disk, since an ingest moves files."""
    make_folder(target, mode=0o777, parents=True, exist_ok=True)
    linked = []
    for number, file in enumerate(files):
        path = target / f"{number}.sst"
        try:
            link(folder / file.name, path)
        except OSError:
            copy(folder / file.name, path)
        linked.append((file.family, path))
    return linked


def _make(work: Path, app: str, task: TaskId, manifests: Mapping[Path, Manifest]) -> list[Taken]:
    specs = [definition_spec(one.store, one.definition) for one in manifests.values()]
    stores = TaskStores(work / str(task), app, str(task), specs, RocksShared(MEMORY_BYTES), now_ms=lambda: 0)
    taken = []
    try:
        for folder, manifest in manifests.items():
            part, name = manifest.partition(task.partition), manifest.store
            files = link_files(folder, part.files, work / "files" / f"{task}-{name}")
            # A logged store's rows are the log's again only beyond converge_offset; the end of the log is beyond it.
            position = Position(part.end, -1, manifest.topic_id, manifest.made.at_ms)
            cut = CommitRecord(
                positions={**stores.cut.positions, name: position},
                stores=stores.cut.stores,
            )
            stores.ingest(name, files, StoreTimes(part.observed_ms, part.sequence), cut)
            # The digest is of rows that a scan finds. Spark's writes take the compiled writer where it is installed.
            here = stores.engine.families()  # those of expired segments stayed out
            check_found(stores.engine, (family for family, _ in files if family in here), f"{folder}, task {task}")
            # sha256 proves the files; the digest proves that this version reads the same rows from them.
            digest = digest_rows(stores.committed_view(name).logical_rows()) if _has_rows(stores, name) else Digest()
            if part.digest is not None and digest.hex() != part.digest:
                raise Corruption(
                    f"{folder}: partition {task.partition} gave rows of digest {digest.hex()}, its manifest says "
                    f"{part.digest}: make the folder again"
                )
            taken.append(Taken(task, name, part.end, digest.count, digest))
        # The WAL is not synced: the flush makes rows and positions durable before the rename.
        stores.flush()
    finally:
        stores.close()
    return taken


def _has_rows(stores: TaskStores, name: str) -> bool:
    present = stores.engine.families()
    return any(family in present for family in stores.store(name).families())


def _one_app(manifests: Mapping[Path, Manifest]) -> str:
    apps = {manifest.app for manifest in manifests.values()}
    names = [manifest.store for manifest in manifests.values()]
    if len(apps) != 1 or len(set(names)) != len(names):
        what = ", ".join(f"{folder} ({one.app}/{one.store})" for folder, one in manifests.items())
        raise InvalidRequest(f"these folders do not make one application's state: {what or 'none is given'}")
    return apps.pop()


def _tasks(manifests: Mapping[Path, Manifest], group: int) -> list[TaskId]:
    partitions = {folder: [one.partition for one in manifest.partitions] for folder, manifest in manifests.items()}
    first = next(iter(partitions.values()))
    for folder, numbers in partitions.items():
        if numbers != first:
            raise InvalidRequest(f"{folder} has partitions {numbers}, another folder {first}: rebuild the same ones")
    return [TaskId(group, number) for number in first]


def _end(log: Log, source: TopicPartition) -> int:
    reader = log.reader()
    try:
        return reader.bounds([source])[source].end
    finally:
        reader.close()


def _check_log(log: Log, manifest: Manifest) -> None:
    info = log.admin.describe_topic(manifest.topic)
    reader = log.reader()
    try:
        for part in manifest.partitions:
            position = Position(part.end, -1, manifest.topic_id)
            source = TopicPartition(manifest.topic, part.partition)
            # Without bounds first: a topic that is missing or recreated has none to compare with.
            reason = mismatch(position, info, part.partition, None)
            if not reason:
                reason = mismatch(position, info, part.partition, reader.bounds([source])[source])
            if reason:
                raise StateLost(
                    f"store {manifest.store!r}: {source} does not continue at offset {part.end} of its manifest "
                    f"({reason}): rebuild it from this log",
                    reason=reason,
                )
    finally:
        reader.close()
