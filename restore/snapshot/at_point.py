"""Restores of tasks as they were at a point, into a new folder, and the choice of the snapshots for a point.

    wanted (newest, a snapshot, offsets, a time) ──> point of each task ──> snapshot and tail, or the reason and the
                                                                           nearest points (points.py)
    chosen ──> DIR/.restoring/<app>: files, then the tail ──> all tasks whole: renamed to DIR/<app>

Rules of this file: everything is chosen before anything is written. The folder appears with all of its tasks, by one
rename, or not at all, and never over another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from standfast.restore.snapshot.catalogue import Listed, listed, read_own
from standfast.restore.snapshot.fetch import fetch, warn_of_pass
from standfast.restore.snapshot.manifest import Snapshot
from standfast.restore.snapshot.names import SnapshotName
from standfast.restore.snapshot.planning import newest
from standfast.restore.snapshot.points import Candidate, OffsetSpan, UnreachablePoint, choose
from standfast.restore.snapshot.storage import Storage
from standfast.restore.snapshot.tails import Tails, advance, logged
from standfast.store import files
from standfast.store.errors import InvalidRequest
from standfast.store.failpoint import reach
from standfast.store.file_errors import told
from standfast.store.names import few
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.state_dir import StateDir

MEMORY_BYTES = 64 << 20
BUILDING = ".restoring"
ONLY = ""  # the store of an offset that names none, for a task with one changelog


@dataclass(frozen=True, slots=True)
class WantedPoint:
    """The point: `offsets` by store (next to apply), or `time_ms`, or neither: a snapshot's own, the newest.

    `snapshots` are the only ones to use, by task.
    """

    offsets: Mapping[str, int] = field(default_factory=dict)
    time_ms: int | None = None
    snapshots: Mapping[str, SnapshotName] = field(default_factory=dict)

    @property
    def own(self) -> bool:
        """Whether a snapshot's own point is wanted."""
        return not self.offsets and self.time_ms is None


@dataclass(frozen=True, slots=True)
class AtPoint:
    """A task at a point: the snapshot to begin with, the offsets by store, the most records to apply."""

    snapshot: Snapshot
    point: Mapping[str, int]
    tail: int


def choose_task(
    storage: Storage, task: str, wanted: WantedPoint, tails: Tails | None, *, exact: bool = False
) -> AtPoint:
    """The snapshot of a task for a point. `exact`: a snapshot's own point alone, where its source offsets are known.

    Raises InvalidRequest with the reason and the nearest points, Corruption for a damaged manifest.
    """
    found = Listed((), {}) if task in wanted.snapshots else listed(storage, task)
    snapshots = [one.snapshot for one in found.whole]  # the newest first
    for name, fault in found.broken.items():
        warn_of_pass(storage, task, name, fault)
    if task in wanted.snapshots:
        snapshots = [read_own(storage, wanted.snapshots[task])]
    if not snapshots:
        raise InvalidRequest(
            f"{storage.where} has no whole snapshot of task {task}: `standfast snapshot list` shows them"
        )
    if wanted.own:
        ids = () if tails is None else tails.topic_ids(snapshots)
        own = newest(found.whole, ids) if found.whole else snapshots[0]
        return AtPoint(own, {name: at.offset for name, at in logged(own).items()}, 0)
    if tails is None:
        raise InvalidRequest("a point of the changelogs needs their log: name it with --log ADDRESS")
    # One point for all snapshots: a time is looked up once, so that each is judged for the same offsets.
    point = _point(task, snapshots, wanted, tails)
    by_name = {one.name: one for one in snapshots}
    candidates: list[Candidate] = []
    for snapshot in snapshots:
        one = _own(tails, snapshot) if exact else tails.candidate(snapshot, point)
        candidates.append(one)
        if one.reaches(point):
            break
    chosen = choose(point, candidates)
    if isinstance(chosen, UnreachablePoint):
        if not exact:
            chosen = _looked_beyond(point, candidates, by_name, tails)
        raise InvalidRequest(f"task {task}: {_told(chosen, exact)}")
    return AtPoint(by_name[chosen.name], point, chosen.tail)


def restore_folder(storage: Storage, chosen: Sequence[AtPoint], output: Path, tails: Tails | None) -> dict[str, int]:
    """Restore tasks of one application into `<output>/<app>`, which must be new; returns applied records by task."""
    app = chosen[0].snapshot.app
    target, shared, applied = output / app, RocksShared(MEMORY_BYTES), {}
    refuse_folder(output, app)
    try:
        with closing(StateDir(output / BUILDING, app)) as state, _removed_unless_whole(state):
            for left in state.tasks():
                files.remove_tree(state.task_path(left))  # of a run that was killed
            for one in chosen:
                directory = state.task_path(one.snapshot.task)
                fetch(storage, one.snapshot, directory, shared)
                applied[one.snapshot.task] = 0
                if one.tail:
                    assert tails is not None  # the point was chosen with them
                    applied[one.snapshot.task] = advance(tails, one.snapshot, directory, one.point, shared)
                reach("snapshot.pointed")
            # Again: another process may have made it during the download, and a rename replaces an empty directory.
            refuse_folder(output, app)
            with told("putting restored tasks in place", target):
                files.rename(state.path, target)
                files.sync_folder(output)
    finally:
        with suppress(OSError):  # another application may be restored into this folder
            (output / BUILDING).rmdir()
    return applied


@contextmanager
def _removed_unless_whole(state: StateDir) -> Iterator[None]:
    """Remove a folder that an error leaves half built: its files may be many. Its lock keeps another restore out."""
    try:
        yield
    except BaseException:
        files.clear(state.path)
        raise


def refuse_folder(output: Path, app: str) -> None:
    """Raise InvalidRequest if the folder of the application exists."""
    if (output / app).exists() or (output / app).is_symlink():
        raise InvalidRequest(f"{output / app} exists: a restore makes a new folder and replaces none, name another one")


def _point(task: str, snapshots: Sequence[Snapshot], wanted: WantedPoint, tails: Tails) -> dict[str, int]:
    """The wanted offsets by store; the stores are those of the newest snapshot that fits the log."""
    reasons = []
    for snapshot in snapshots:
        found = tails.changelogs(snapshot)
        if isinstance(found, str):
            reasons.append(f"{snapshot.name}: {found}")
            continue
        if wanted.time_ms is not None:
            return tails.first_offsets(snapshot, wanted.time_ms)
        if wanted.offsets.keys() == {ONLY} and len(found) == 1:
            return {next(iter(found)): wanted.offsets[ONLY]}
        if wanted.offsets.keys() != found.keys():
            raise InvalidRequest(
                f"task {task} has the changelogs of {few(sorted(found)) or 'no store'}: give the offset of "
                "each as --to-offset STORE=N"
            )
        return dict(wanted.offsets)
    raise InvalidRequest(f"task {task} has no snapshot that fits the log ({few(reasons, '; ')})")


def _own(tails: Tails, snapshot: Snapshot) -> Candidate:
    """A snapshot's own point; the offset after its last transaction's marker means the same point."""
    own = {name: at.offset for name, at in logged(snapshot).items()}
    found = tails.changelogs(snapshot)
    if isinstance(found, str):
        return Candidate(snapshot.name, own, reason=found)
    return Candidate(snapshot.name, own, {name: (OffsetSpan(one.at.offset, one.base),) for name, one in found.items()})


def _looked_beyond(
    point: Mapping[str, int], candidates: Sequence[Candidate], by_name: Mapping[SnapshotName, Snapshot], tails: Tails
) -> UnreachablePoint:
    """The refusal with the nearest point above: behind the newest snapshot below the point, up to the log's end."""
    below = [one for one in candidates if one.spans]
    beyond = [tails.candidate(by_name[one.name], point, beyond=True) for one in below[:1]]
    found = choose(point, [*beyond, *(one for one in candidates if one not in below[:1])])
    if isinstance(found, UnreachablePoint):
        return found
    return UnreachablePoint(f"compaction ran while the point {dict(point)} was chosen: choose again")


def _told(refused: UnreachablePoint, exact: bool) -> str:
    if not exact:
        return refused.message
    return (
        f"{refused.message}; the source offsets are known at the point of a snapshot alone, so an application begins "
        "only there: restore any other point into a folder (-o DIR)"
    )
