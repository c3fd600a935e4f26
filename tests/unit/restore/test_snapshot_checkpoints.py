"""Coordinated checkpoints in a folder: one outcome each, prunes beside them, and notes that are damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.snapshot import prune, upload
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.checkpoints import (
    Checkpoint,
    CheckpointOutcome,
    CheckpointPart,
    CheckpointState,
    abandon_dead,
    begin,
    checkpoints,
    conclude,
    parts_of,
    plan_checkpoints,
    put_part,
    read_checkpoint,
    seal,
)
from standfast.restore.snapshot.manifest import CutPosition, Snapshot, SnapshotCut
from standfast.restore.snapshot.names import SnapshotName, file_key
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Retention
from standfast.restore.snapshot.storage import Storage
from standfast.store.clock import SystemClock
from standfast.store.errors import InvalidRequest, Unavailable
from support.snapshots import checkpoint

HOUR_MS = 3_600_000
TASK = TaskId(0, 0)
EMPTY = SnapshotCut({}, {}, {}, {}, {}, 1)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "snaps"), "app")


def snapshot(storage: Storage, tmp_path: Path, *rows: str, epoch: int = 1) -> Snapshot:
    one, directory = checkpoint(tmp_path / f"task-{epoch}", rows, epoch=epoch)
    upload.upload(storage, one, directory, clock=SystemClock())
    return one


def made(storage: Storage, one: Snapshot, number: int | None = None) -> int:
    """A complete checkpoint of this one snapshot."""
    number = begin(storage, 1, "me", 0) if number is None else number
    put_part(storage, CheckpointPart(number, "0_0", one.epoch, str(one.name), one.cut))
    assert sealed(storage, number).state is CheckpointState.COMPLETE
    return number


def sealed(
    storage: Storage, number: int, tasks: Sequence[TaskId] = (TASK,), ends: int | None = None
) -> CheckpointOutcome:
    limits = {} if ends is None else {TopicPartition("x", 0): ends}
    outcome = CheckpointOutcome(number, CheckpointState.COMPLETE, "", "me", 7, 20, ())
    return seal(storage, outcome, tasks, limits, {"x": frozenset({0})}, in_time=lambda: True)


def aged(storage: Storage, tmp_path: Path) -> None:
    """Make every object of the storage older than any grace."""
    for path in (tmp_path / "snaps" / "app").rglob("*"):
        os.utime(path, (1_000, 1_000))


def pruned(storage: Storage, keep: int = 1) -> prune.Pruned:
    return prune.prune(storage, Retention(keep), clock=SystemClock(), grace_ms=HOUR_MS)


def test_a_checkpoint_is_complete_with_its_outcome_and_not_before(storage: Storage, tmp_path: Path) -> None:
    one = snapshot(storage, tmp_path, "a")
    number = begin(storage, 1, "me", 5)
    with pytest.raises(InvalidRequest, match="task 0_0 has no part in checkpoint 1"):
        sealed(storage, number)
    put_part(storage, CheckpointPart(number, "0_0", 1, str(one.name), one.cut))
    assert [(found.number, found.state) for found in checkpoints(storage)] == [(1, CheckpointState.UNFINISHED)]
    with pytest.raises(InvalidRequest, match="has no complete checkpoint 1"):
        read_checkpoint(storage, number)
    outcome = sealed(storage, number)
    assert read_checkpoint(storage, number) == outcome
    assert parts_of(storage, outcome) == ([one], {})
    assert sealed(storage, number) == outcome  # again, after an answer that was lost


def test_one_outcome_stands_whoever_writes_it_first(storage: Storage, tmp_path: Path) -> None:
    one = snapshot(storage, tmp_path, "a")
    number = begin(storage, 1, "me", 5)
    put_part(storage, CheckpointPart(number, "0_0", 1, str(one.name), one.cut))
    over = CheckpointOutcome(number, CheckpointState.ABANDONED, "its leader ended", "other", 8, 0, ())
    assert conclude(storage, over) == over
    assert sealed(storage, number) == over
    with pytest.raises(InvalidRequest, match=r"checkpoint 1 of .* was abandoned: its leader ended"):
        read_checkpoint(storage, number)
    second = made(storage, one)
    assert second == 2
    assert (
        conclude(storage, CheckpointOutcome(second, CheckpointState.ABANDONED, "late", "other", 8, 0, ())).state
        is CheckpointState.COMPLETE
    )


def test_numbers_grow_and_what_a_leader_left_is_abandoned_by_the_next(storage: Storage) -> None:
    assert begin(storage, 5, "a", 0) == 5
    assert begin(storage, 1, "b", 0) == 6
    assert [(one.number, one.state) for one in checkpoints(storage)] == [
        (5, CheckpointState.ABANDONED),
        (6, CheckpointState.UNFINISHED),
    ]


def test_a_part_of_another_life_of_its_owner_is_refused(storage: Storage, tmp_path: Path) -> None:
    one = snapshot(storage, tmp_path, "a")
    number = begin(storage, 1, "me", 5)
    part = CheckpointPart(number, "0_0", 1, str(one.name), one.cut)
    put_part(storage, part)
    put_part(storage, part)  # an answer was lost
    with pytest.raises(InvalidRequest, match=r"has another part of task 0_0 in checkpoint 1"):
        put_part(storage, CheckpointPart(number, "0_0", 2, str(one.name), one.cut))


@pytest.mark.parametrize(("consumed", "ends", "fits"), [(3, 3, True), (2, 3, False), (4, 3, False), (None, 0, True)])
def test_parts_that_are_no_consistent_cut_are_never_complete(
    storage: Storage, consumed: int | None, ends: int, fits: bool
) -> None:
    number = begin(storage, 1, "me", 5)
    sources = {} if consumed is None else {"x/0": consumed}
    put_part(storage, CheckpointPart(number, "0_0", 1, "", SnapshotCut({}, sources, {}, {}, {}, 1)))
    if fits:
        assert sealed(storage, number, ends=ends).state is CheckpointState.COMPLETE
        return
    with pytest.raises(InvalidRequest, match=rf"has consumed x-0 up to offset {consumed}, .* no consistent cut"):
        sealed(storage, number, ends=ends)
    assert checkpoints(storage)[0].state is CheckpointState.UNFINISHED


def test_a_part_whose_snapshot_is_broken_is_never_complete(storage: Storage, tmp_path: Path) -> None:
    one = snapshot(storage, tmp_path, "a")
    number = begin(storage, 1, "me", 5)
    put_part(storage, CheckpointPart(number, "0_0", 1, str(one.name), EMPTY))
    with pytest.raises(InvalidRequest, match="is not the point of task 0_0"):
        sealed(storage, number)
    second = begin(storage, 1, "me", 5)
    put_part(storage, CheckpointPart(second, "0_0", 1, str(one.name), one.cut))
    storage.delete(file_key(one.files[0].sha256))
    with pytest.raises(InvalidRequest, match="are gone"):
        sealed(storage, second)
    third = begin(storage, 1, "me", 5)
    put_part(storage, CheckpointPart(third, "0_0", 1, "0_0/1-99", one.cut))
    with pytest.raises(InvalidRequest, match=r"the part of task 0_0 cannot be read: .* has no snapshot 0_0/1-99"):
        sealed(storage, third)


def test_a_leader_that_was_stopped_for_too_long_completes_nothing(storage: Storage, tmp_path: Path) -> None:
    number = begin(storage, 1, "me", 5)
    put_part(storage, CheckpointPart(number, "0_0", 1, "", EMPTY))
    outcome = CheckpointOutcome(number, CheckpointState.COMPLETE, "", "me", 7, 20, ())
    with pytest.raises(InvalidRequest, match="took too long"):
        seal(storage, outcome, [TASK], {}, {}, in_time=lambda: False)
    assert checkpoints(storage)[0].state is CheckpointState.UNFINISHED


def while_sealing(monkeypatch: pytest.MonkeyPatch, place: str, work: Callable[[], object]) -> None:
    """Let others work while a leader is stopped at a failpoint, once."""
    left = [work]

    def reach(name: str) -> None:
        if name == place and left:
            left.pop()()

    monkeypatch.setattr("standfast.restore.snapshot.checkpoints.reach", reach)


def test_a_complete_checkpoint_stays_though_its_leader_was_stopped_right_after_it(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = begin(storage, 1, "me", 5)
    put_part(storage, CheckpointPart(number, "0_0", 1, "", EMPTY))
    key = f"checkpoints/{number:010}/outcome.json"
    seen: list[object] = []

    def next_leader() -> None:
        aged(storage, tmp_path)
        found = conclude(
            storage, CheckpointOutcome(number, CheckpointState.ABANDONED, "its leader ended", "next", 9, 0, ())
        )
        pruned(storage)
        seen.extend((found.state, storage.read(key)))

    while_sealing(monkeypatch, "checkpoint.sealed", next_leader)
    assert sealed(storage, number).state is CheckpointState.COMPLETE
    assert seen == [CheckpointState.COMPLETE, storage.read(key)]
    assert read_checkpoint(storage, number).leader == "me"


def test_a_checkpoint_whose_parts_a_prune_has_removed_is_never_complete(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = snapshot(storage, tmp_path, "a")
    number = begin(storage, 1, "me", 5)
    put_part(storage, CheckpointPart(number, "0_0", 1, str(one.name), one.cut))

    def prune_all() -> None:
        aged(storage, tmp_path)
        assert [found.number for found in pruned(storage).checkpoints] == [number]

    while_sealing(monkeypatch, "checkpoint.seal", prune_all)
    with pytest.raises(InvalidRequest, match="a prune has removed its parts"):
        sealed(storage, number)
    assert checkpoints(storage) == []


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_prune_that_stops_at_any_note_of_a_dead_checkpoint_lets_no_leader_complete_it(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    number = begin(storage, 1, "me", 5)
    put_part(storage, CheckpointPart(number, "0_0", 1, "", EMPTY))
    left = [removed]
    delete = Storage.delete

    def killed(self: Storage, key: str) -> None:
        if key.startswith("checkpoints/"):
            if not left[0]:
                raise Unavailable("killed here")
            left[0] -= 1
        delete(self, key)

    def prune_in_part() -> None:
        aged(storage, tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(Storage, "delete", killed)
            with pytest.raises(Unavailable, match="killed here"):
                pruned(storage)

    while_sealing(monkeypatch, "checkpoint.seal", prune_in_part)
    assert sealed(storage, number).state is CheckpointState.ABANDONED
    assert [one.state for one in checkpoints(storage)] == [CheckpointState.ABANDONED]
    with pytest.raises(InvalidRequest, match="was abandoned"):
        read_checkpoint(storage, number)


def test_a_prune_keeps_a_checkpoint_that_becomes_complete_beside_it(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = snapshot(storage, tmp_path, "a")
    snapshot(storage, tmp_path, "a", "b")  # newer, so that only the checkpoint keeps the first one
    number = begin(storage, 1, "me", 5)
    put_part(storage, CheckpointPart(number, "0_0", 1, str(first.name), first.cut))
    aged(storage, tmp_path)

    def late(storage: Storage, found: Iterable[Checkpoint], at_ms: int) -> bool:
        sealed(storage, number)
        return abandon_dead(storage, found, at_ms)

    monkeypatch.setattr(prune, "abandon_dead", late)
    assert (pruned(storage).checkpoints, pruned(storage).plan.snapshots) == ((), ())
    assert len(parts_of(storage, read_checkpoint(storage, number))[0]) == 1


def test_an_outcome_without_its_beginning_is_never_used(storage: Storage) -> None:
    """As its leader leaves it that is killed after a prune has removed all other notes."""
    number = begin(storage, 1, "me", 5)
    put_part(storage, CheckpointPart(number, "0_0", 1, "", EMPTY))
    sealed(storage, number)
    storage.delete(f"checkpoints/{number:010}/begun.json")
    assert [one.state for one in checkpoints(storage)] == [CheckpointState.ABANDONED]
    with pytest.raises(InvalidRequest, match="a prune took it for dead"):
        read_checkpoint(storage, number)


def test_offsets_of_tasks_without_stores_come_with_their_metadata_and_memory_stores_are_refused(
    storage: Storage,
) -> None:
    number = begin(storage, 1, "me", 5)
    cut = SnapshotCut({}, {"in/0": 12}, {}, {"in/0": 99}, {}, 4)
    put_part(storage, CheckpointPart(number, "0_0", 4, "", cut, {"in/0": 3}))
    snapshots, offsets = parts_of(storage, sealed(storage, number))
    assert snapshots == []
    found = offsets[TopicPartition("in", 0)]
    assert found.offset == 12
    assert '"in/0":99' in found.metadata
    at = CutPosition("app-kv-changelog", 0, "t", 3, -1, "", 0, False)
    memory = CheckpointOutcome(
        9,
        CheckpointState.COMPLETE,
        "",
        "me",
        0,
        0,
        (CheckpointPart(9, "0_0", 1, "", SnapshotCut({"kv": at}, {}, {}, {}, {}, 1)),),
    )
    with pytest.raises(InvalidRequest, match=r"task 0_0 of checkpoint 9 has stores in memory .kv."):
        parts_of(storage, memory)


def test_a_prune_leaves_the_parts_of_checkpoints_that_stay_and_of_one_under_way(
    storage: Storage, tmp_path: Path
) -> None:
    names = []
    for count in range(1, 6):
        one = snapshot(storage, tmp_path, *(f"row {number}" for number in range(count)))
        names.append(one.name)
        if count in (1, 2):
            made(storage, one)
    under_way = begin(storage, 1, "me", 5)
    third = next(kept.snapshot for kept in listed(storage).whole if kept.snapshot.name == names[2])
    put_part(storage, CheckpointPart(under_way, "0_0", 1, str(names[2]), third.cut))
    done = pruned(storage)
    # The first checkpoint goes with its part; the newest one stays, as does the newest snapshot.
    assert [one.number for one in done.checkpoints] == [1]
    assert names[1] in [kept.snapshot.name for kept in listed(storage).whole]
    assert {names[2], names[4]} < {kept.snapshot.name for kept in listed(storage).whole}
    assert [(one.number, one.state) for one in checkpoints(storage)] == [
        (2, CheckpointState.COMPLETE),
        (3, CheckpointState.UNFINISHED),
    ]
    assert len(parts_of(storage, read_checkpoint(storage, 2))[0]) == 1
    aged(storage, tmp_path)
    done = pruned(storage)
    assert [(one.number, one.state) for one in done.checkpoints] == [(3, CheckpointState.UNFINISHED)]
    assert sorted(kept.snapshot.name for kept in listed(storage).whole) == [names[1], names[4]]


def test_a_dry_run_removes_no_checkpoint(storage: Storage, tmp_path: Path) -> None:
    for count in (1, 2):
        made(storage, snapshot(storage, tmp_path, *"ab"[:count]))
    done = prune.prune(storage, Retention(1), clock=SystemClock(), grace_ms=HOUR_MS, dry_run=True)
    assert [one.number for one in done.checkpoints] == [1]
    assert len(checkpoints(storage)) == 2
    assert len(listed(storage).whole) == 2


def test_beside_a_checkpoint_that_cannot_be_read_no_snapshot_is_removed(storage: Storage, tmp_path: Path) -> None:
    for count in (1, 2, 3):
        one = snapshot(storage, tmp_path, *"abc"[:count])
    number = made(storage, one)
    path = tmp_path / "snaps" / "app" / "checkpoints" / f"{number:010}" / "outcome.json"
    path.write_text("{}")
    aged(storage, tmp_path)
    done = pruned(storage)
    assert (done.plan.snapshots, done.checkpoints) == ((), ())
    assert "is damaged" in done.unread_checkpoints[number]
    assert len(listed(storage).whole) == 3


def test_checkpoints_stay_by_number_and_age() -> None:
    def one(number: int, state: CheckpointState, at_ms: int) -> Checkpoint:
        return Checkpoint(number, state, "", 0, at_ms, at_ms, held=(SnapshotName("0_0", 1, number),))

    found = [
        one(1, CheckpointState.COMPLETE, 0),
        one(2, CheckpointState.COMPLETE, 500),
        one(3, CheckpointState.ABANDONED, 600),
        one(4, CheckpointState.COMPLETE, 700),
        one(5, CheckpointState.UNFINISHED, 800),
        one(6, CheckpointState.UNFINISHED, 950),
    ]
    plan = plan_checkpoints(found, Retention(1), now_ms=1_000, grace_ms=100)
    assert [one.number for one in plan.gone] == [1, 2, 3, 5]
    assert plan.snapshots == {SnapshotName("0_0", 1, 4), SnapshotName("0_0", 1, 6)}
    assert plan.since_ms == 950
    plan = plan_checkpoints(found, Retention(1, 500), now_ms=1_000, grace_ms=1_000)
    assert [one.number for one in plan.gone] == [1]
