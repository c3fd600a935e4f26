"""Coordinated checkpoints in a storage: begun by the leader, a part from each task, one outcome.

    checkpoints/0000000007/begun.json        {"format": "standfast.checkpoint-begun/1", "number": 7, ...}
                           parts/0_3.json    {"format": "standfast.checkpoint-part/1", "snapshot": "0_3/12-4711", ...}
                           outcome.json      {"format": "standfast.checkpoint/1", "state": "complete", "parts": [...]}

A part names the snapshot of a task with rows on disk; a task without has no snapshot, and its part is the cut alone.
The outcome is created once: either complete, with all parts, or abandoned. A leader that comes after one that died in
the middle writes "abandoned", so that the former, if it lives after all, can complete nothing; if it was faster, the
checkpoint is complete, because every part was stored before. A prune that takes one for dead writes "abandoned", too,
before it removes any part, and removes that last: a leader that was stopped meanwhile finds it, or finds the beginning
gone. So no outcome is ever followed by another one.

Rules of this file: a checkpoint without the outcome "complete" and its beginning is never used. A field is never
renamed or given another meaning within a version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.log import Committed
from standfast.replication.metadata_parts import texts_of
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.shapes import Count, Shape, plain, read
from standfast.restore.snapshot.catalogue import missing, present, read_own, read_snapshot
from standfast.restore.snapshot.manifest import Snapshot, SnapshotCut
from standfast.restore.snapshot.names import CHECKPOINTS, SnapshotName, parse_name
from standfast.restore.snapshot.planning import Retention
from standfast.restore.snapshot.storage import Storage
from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.failpoint import reach
from standfast.store.names import few
from standfast.store.task.commit_record import parse_source_key, source_key

BEGUN_FORMAT = "standfast.checkpoint-begun/1"
PART_FORMAT = "standfast.checkpoint-part/1"
FORMAT = "standfast.checkpoint/1"
REMOVED = "a prune took it for dead and removed its parts before it was complete"
T = TypeVar("T")
_KEY = re.compile(r"checkpoints/([0-9]{10})/(begun|outcome|parts/[0-9_]{1,20})\.json")


class CheckpointState(StrEnum):
    """State of a checkpoint in a storage."""

    COMPLETE = "complete"
    ABANDONED = "abandoned"
    UNFINISHED = "unfinished"  # under way, or left by a leader that ended


class Begun(Shape, frozen=True, tag_field="format", tag=BEGUN_FORMAT):
    """A checkpoint under way: a prune leaves its parts. `at_ms` by the leader's wall clock."""

    number: Count
    leader: str
    at_ms: int


class CheckpointPart(Shape, frozen=True, tag_field="format", tag=PART_FORMAT):
    """The part of one task; `snapshot` is "" for a task without rows on disk. `progress` of its watermarks."""

    number: Count
    task: str
    epoch: Count
    snapshot: str
    cut: SnapshotCut
    progress: Mapping[str, int] = {}

    @property
    def name(self) -> SnapshotName | None:
        """The task's snapshot; None for a task without rows on disk."""
        return parse_name(self.snapshot) if self.snapshot else None


class CheckpointOutcome(Shape, frozen=True, tag_field="format", tag=FORMAT):
    """The end of a checkpoint. `pause_ms`: the longest time for which a group of tasks stood still."""

    number: Count
    state: CheckpointState
    why: str
    leader: str
    at_ms: int
    pause_ms: Count
    parts: tuple[CheckpointPart, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a storage. `modified_ms` is the storage's time of its newest note, `fault` says why its notes
    cannot be read; `held` are the snapshots that its parts name."""

    number: int
    state: CheckpointState
    why: str
    at_ms: int
    modified_ms: int
    begun_ms: int
    outcome: CheckpointOutcome | None = None
    held: tuple[SnapshotName, ...] = ()
    fault: str = ""
    keys: tuple[str, ...] = ()


class PruneDecisions(NamedTuple):
    """Decisions of a prune about checkpoints: those that go, the snapshots that stay for the others, and the storage's
    time from which on every snapshot stays (None: there is no checkpoint under way)."""

    gone: tuple[Checkpoint, ...] = ()
    snapshots: frozenset[SnapshotName] = frozenset()
    since_ms: int | None = None


def plan_checkpoints(
    found: Iterable[Checkpoint], retention: Retention, *, now_ms: int, grace_ms: int
) -> PruneDecisions:
    """The checkpoints that a prune removes, and the snapshots that it must leave.

    The newest `keep` complete ones stay, and younger ones than `keep_ms`; others go once they are older than the grace.
    Beside notes that cannot be read every snapshot stays.
    """
    # Numbers and not times: clocks of leaders may differ.
    listed = sorted(found, key=lambda one: one.number, reverse=True)
    complete = [one for one in listed if one.state is CheckpointState.COMPLETE]
    gone: list[Checkpoint] = []
    snapshots: set[SnapshotName] = set()
    since_ms: int | None = None
    for one in listed:
        if one.fault:
            since_ms = 0
            continue
        if one.state is CheckpointState.COMPLETE:
            young = retention.keep_ms is not None and now_ms - one.modified_ms <= retention.keep_ms
            stays = young or one in complete[: max(retention.keep, 1)]
        else:
            stays = now_ms - one.begun_ms <= grace_ms
        if not stays:
            gone.append(one)
        elif one.state is not CheckpointState.ABANDONED:
            snapshots.update(one.held)
            if one.state is CheckpointState.UNFINISHED:
                # Parts that are in the storage, and not in a note of the checkpoint yet.
                since_ms = one.begun_ms if since_ms is None else min(since_ms, one.begun_ms)
    return PruneDecisions(tuple(reversed(gone)), frozenset(snapshots), since_ms)


def remove(storage: Storage, one: Checkpoint) -> None:
    """Remove the notes of a checkpoint that has an outcome.

    That of a complete one goes first, so that it is never listed without its parts. That of another one goes last,
    after the beginning, so that its leader, if it was stopped and lives after all, can complete nothing.
    """
    complete = one.state is CheckpointState.COMPLETE
    for key in sorted(one.keys, key=lambda key: (("outcome" in key) is not complete, "begun" in key, key)):
        storage.delete(key)


def abandon_dead(storage: Storage, found: Iterable[Checkpoint], at_ms: int) -> bool:
    """Abandon those checkpoints that have no outcome; returns whether there were any. One may be complete by now."""
    dead = [one for one in found if one.state is CheckpointState.UNFINISHED]
    for one in dead:
        conclude(
            storage,
            CheckpointOutcome(
                one.number, CheckpointState.ABANDONED, "it had no outcome after the grace", "", at_ms, 0, ()
            ),
        )
    return bool(dead)


def begin(storage: Storage, least: int, leader: str, at_ms: int) -> int:
    """Announce a new checkpoint; returns its number, the first free one from `least`.

    Checkpoints that another leader left without an outcome are abandoned. Raises Unavailable.
    """
    storage.prove()
    notes: dict[int, set[str]] = {}
    for one in storage.list(CHECKPOINTS):
        name = _KEY.fullmatch(one.key)
        if name is not None:
            notes.setdefault(int(name[1]), set()).add(name[2])
    # One leader begins one at a time, so these were left by leaders that ended, or were replaced.
    for left in sorted(number for number, found in notes.items() if "outcome" not in found):
        conclude(
            storage,
            CheckpointOutcome(left, CheckpointState.ABANDONED, "its leader ended before its end", leader, at_ms, 0, ()),
        )
    number = max([least, *(one + 1 for one in notes)])
    # Another leader may begin one at the same time: each number is given once.
    while not storage.put_new(_key(number, "begun"), _dump(Begun(number, leader, at_ms))):
        number += 1
    reach("checkpoint.begun")
    return number


def put_part(storage: Storage, part: CheckpointPart) -> None:
    """Store the part of a task. Raises InvalidRequest if there is another one, Unavailable."""
    reach("checkpoint.part")
    if not storage.put_new(_key(part.number, f"parts/{part.task}"), _dump(part)):
        raise InvalidRequest(
            f"{storage.where} has another part of task {part.task} in checkpoint {part.number}: its owner was started "
            "again in the middle of it"
        )


def conclude(storage: Storage, outcome: CheckpointOutcome) -> CheckpointOutcome:
    """Write the outcome of a checkpoint; returns the one that stands, which another leader may have written before."""
    key = _key(outcome.number, "outcome")
    if storage.put_new(key, _dump(outcome)):
        return outcome
    text = storage.read(key)
    if text is None:
        raise InvalidRequest(f"{key} of {storage.where} was removed just now: the checkpoint is not complete")
    return _read(text, CheckpointOutcome, key)


def seal(
    storage: Storage,
    outcome: CheckpointOutcome,
    tasks: Collection[TaskId],
    limits: Mapping[TopicPartition, int],
    readers: Mapping[str, frozenset[int]],
    *,
    in_time: Callable[[], bool],
) -> CheckpointOutcome:
    """Complete a checkpoint of which every task has stored its part; `outcome` has no parts yet.

    `limits` are the ends of internal topics that its parts must have consumed, `readers` the groups that read each
    topic; `in_time`: whether no prune may take the checkpoint for a dead one yet. Returns the outcome that
    stands. Raises InvalidRequest for parts that are missing, broken, or no consistent cut, Unavailable.
    """
    # From the storage and not from reports: only parts that are there count.
    parts = []
    for task in sorted(tasks):
        key = _key(outcome.number, f"parts/{task}")
        text = storage.read(key)
        if text is None:
            raise InvalidRequest(f"task {task} has no part in checkpoint {outcome.number}")
        part = _read(text, CheckpointPart, key)
        _check_limits(part, task, limits, readers)
        parts.append(part)
        _check_whole(storage, part)
    reach("checkpoint.seal")
    if not in_time():
        raise InvalidRequest(f"checkpoint {outcome.number} took too long, so that a prune may have removed its parts")
    made = CheckpointOutcome(
        outcome.number, CheckpointState.COMPLETE, "", outcome.leader, outcome.at_ms, outcome.pause_ms, tuple(parts)
    )
    stands = conclude(storage, made)
    reach("checkpoint.sealed")
    if stands == made and not _has_begun(storage, outcome.number):
        # This process was stopped for so long that a prune has removed all notes, its word "abandoned" included. By
        # time alone nothing is taken back: the next leader may have found the outcome, and its pointer is in the log.
        storage.delete(_key(outcome.number, "outcome"))
        raise InvalidRequest(f"checkpoint {outcome.number} took too long: a prune has removed its parts")
    return stands


def checkpoints(storage: Storage) -> list[Checkpoint]:
    """All checkpoints of a storage, by number."""
    found: dict[int, dict[str, int]] = {}
    for one in storage.list(CHECKPOINTS):
        name = _KEY.fullmatch(one.key)
        if name is not None:
            found.setdefault(int(name[1]), {})[one.key] = one.modified_ms
    return [_checkpoint(storage, number, keys) for number, keys in sorted(found.items())]


def read_checkpoint(storage: Storage, number: int) -> CheckpointOutcome:
    """A complete checkpoint. Raises InvalidRequest for any other, Corruption."""
    key = _key(number, "outcome")
    text = storage.read(key)
    if text is None:
        raise InvalidRequest(
            f"{storage.where} has no complete checkpoint {number}: `standfast snapshot list` shows those that it has"
        )
    outcome = _read(text, CheckpointOutcome, key)
    if outcome.state is not CheckpointState.COMPLETE:
        raise InvalidRequest(f"checkpoint {number} of {storage.where} was {outcome.state}: {outcome.why}")
    if not _has_begun(storage, number):
        raise InvalidRequest(f"checkpoint {number} of {storage.where} is not usable: {REMOVED}")
    return outcome


def parts_of(storage: Storage, outcome: CheckpointOutcome) -> tuple[list[Snapshot], dict[TopicPartition, Committed]]:
    """The snapshots of a complete checkpoint, and the source offsets of its tasks without stores, with their metadata.

    Raises InvalidRequest for a part whose stores are in memory: their rows are in the log alone.
    """
    snapshots, offsets = [], {}
    for part in outcome.parts:
        name = part.name
        if name is not None:
            snapshots.append(read_own(storage, name))
            continue
        cut = part.cut
        if cut.positions:
            raise InvalidRequest(
                f"task {part.task} of checkpoint {outcome.number} has stores in memory ({few(cut.positions)}), "
                "whose rows the log alone has: no storage has its part"
            )
        metadata, _ = texts_of(CommitMetadata(part.epoch, cut.stream_times, cut.observed, part.progress), ())
        for key, offset in cut.sources.items():
            offsets[TopicPartition(*parse_source_key(key))] = Committed(offset, metadata)
    return snapshots, offsets


def _checkpoint(storage: Storage, number: int, keys: Mapping[str, int]) -> Checkpoint:
    base = _key(number, "begun")
    modified_ms, begun_ms = max(keys.values()), keys.get(base, min(keys.values()))
    ordered = tuple(sorted(keys))
    try:
        key = _key(number, "outcome")
        text = storage.read(key) if key in keys else None
        if text is not None:
            outcome = _read(text, CheckpointOutcome, key)
            held, state, why = _named(outcome.parts), outcome.state, outcome.why
            if state is CheckpointState.COMPLETE and base not in keys:
                held, state, why = (), CheckpointState.ABANDONED, REMOVED
            return Checkpoint(number, state, why, outcome.at_ms, modified_ms, begun_ms, outcome, held, "", ordered)
        begun = storage.read(base) if base in keys else None
        at_ms = begun_ms if begun is None else _read(begun, Begun, base).at_ms
        parts = [_read(one, CheckpointPart, key) for key in ordered if "/parts/" in key and (one := storage.read(key))]
        held = _named(parts)
        return Checkpoint(number, CheckpointState.UNFINISHED, "", at_ms, modified_ms, begun_ms, None, held, "", ordered)
    except (Corruption, InvalidRequest) as error:
        return Checkpoint(
            number, CheckpointState.UNFINISHED, "", begun_ms, modified_ms, begun_ms, None, (), str(error), ordered
        )


def _named(parts: Iterable[CheckpointPart]) -> tuple[SnapshotName, ...]:
    """The snapshots that parts name."""
    return tuple(parse_name(part.snapshot) for part in parts if part.snapshot)


def _check_limits(
    part: CheckpointPart, task: TaskId, limits: Mapping[TopicPartition, int], readers: Mapping[str, frozenset[int]]
) -> None:
    if part.task != str(task):
        raise InvalidRequest(f"the part of task {task} is that of {part.task}")
    for at, end in sorted(limits.items()):
        if at.partition != task.partition or task.group not in readers.get(at.topic, frozenset()):
            continue
        # Absent where the topic was empty when the task was opened, and still is.
        consumed = part.cut.sources.get(source_key(at.topic, at.partition), 0)
        if consumed != end:
            raise InvalidRequest(
                f"the part of task {task} has consumed {at} up to offset {consumed}, and the parts before it had "
                f"written up to {end}: no consistent cut"
            )


def _check_whole(storage: Storage, part: CheckpointPart) -> None:
    name = part.name
    if name is None:
        return
    try:
        snapshot = read_snapshot(storage, name)
    except (Corruption, InvalidRequest) as error:
        raise InvalidRequest(f"the part of task {part.task} cannot be read: {error}") from error
    if snapshot.cut != part.cut:
        raise InvalidRequest(f"snapshot {name} is not the point of task {part.task} in checkpoint {part.number}")
    faults = missing(snapshot.files, present(storage, snapshot.contents))
    if faults:
        raise InvalidRequest(f"files of snapshot {name} are gone ({'; '.join(faults[:3])})")


def _has_begun(storage: Storage, number: int) -> bool:
    return storage.head(_key(number, "begun")) is not None


def _key(number: int, name: str) -> str:
    return f"{CHECKPOINTS}/{number:010}/{name}.json"


def _dump(note: Begun | CheckpointPart | CheckpointOutcome) -> bytes:
    return json.dumps(plain(note)).encode() + b"\n"


def _read(text: bytes, kind: type[T], key: str) -> T:
    try:
        return read(text, kind)
    except ValueError as error:
        raise Corruption(f"{key} is damaged: {error}; use another checkpoint") from error
