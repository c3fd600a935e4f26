"""The guard of disk space in sessions and at the RESP server, on real small disks, without processes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import hiredis
import pytest

import standfast as sf
from standfast.ops.shared.error_codes import COMMIT_UNKNOWN, DISK_FULL, UNAVAILABLE, message_of, reason_of
from standfast.ops.sidecar.control.session import failure_of
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.restore.replay.jobs import Event, Job, JobProgress, Run
from standfast.restore.replay.worker import Worker
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.clock import ManualClock
from standfast.store.disk import AMPLIFICATION, CREDIT_BYTES, DiskGuard
from standfast.store.process.interrupts import Flag
from standfast.store.task.state_dir import StateDir
from standfast.stream.task.states import TaskState
from support.buffers import put
from support.disk import fill, free_bytes
from support.resp import Desk, open_session
from support.sessions import Bench

Mount = Callable[[int], Path]
MIB = 1 << 20
FLOOR = 8 * MIB
OFFSETS = ("OFFSETS", "flights", 0)
TIMEOUT_S = 60.0


def guard_of(path: Path, floor_bytes: int = FLOOR) -> DiskGuard:
    guard = DiskGuard({"state directory": path}, floor_bytes)
    guard.look()
    return guard


@contextmanager
def desk_on(root: Path, clock: ManualClock, **settings: Any) -> Iterator[Desk]:
    """A RESP server over a session whose state and log are on this disk."""
    with open_session(root, clock, **{"memory_bytes": 4 * MIB, "disk_floor_bytes": FLOOR, **settings}) as session:
        session.assign(active=[0])
        session.wait_ready(TIMEOUT_S)
        yield Desk(session)


# -- the guard --------------------------------------------------------------------------------------------------------


def test_buffers_together_are_granted_no_more_than_is_free_above_the_floor(small_disk: Mount) -> None:
    path = small_disk(16)
    guard = guard_of(path)
    above = free_bytes(path) - FLOOR
    buffers = [WriteBuffer(1 << 40, guard) for _ in range(3)]
    taken = 0
    with pytest.raises(sf.DiskFull, match="state directory"):
        while True:
            buffer = buffers[taken % 3]
            buffer.check_room(1_000)
            put(buffer, "f", b"%d" % taken, bytes(1_000 - 101))
            taken += 1
    held = sum(buffer.size_bytes for buffer in buffers)
    assert above - AMPLIFICATION * (held + 3 * CREDIT_BYTES) < 2_000, "and not much less"
    assert AMPLIFICATION * held <= above
    for buffer in buffers:
        with pytest.raises(sf.DiskFull):
            buffer.check_room(1)


def test_a_write_that_is_too_large_for_what_is_left_is_refused_whole(small_disk: Mount) -> None:
    guard = guard_of(small_disk(16))
    with pytest.raises(sf.DiskFull, match="no room for"):
        guard.grant(16 * MIB)


def test_credit_that_was_given_ends_once_the_disk_is_full(small_disk: Mount) -> None:
    path = small_disk(16)
    guard = guard_of(path)
    buffer = WriteBuffer(1 << 40, guard)
    buffer.check_room(10)
    assert buffer.stop_bytes >= CREDIT_BYTES
    fill(path, FLOOR // 2)
    guard.look()
    assert buffer.stop_bytes < 0
    with pytest.raises(sf.DiskFull):
        buffer.check_room(10)
    buffer.check_room(10, deletes=True)
    with pytest.raises(sf.DiskFull):
        buffer.check_room(10)
    fill(path)
    with pytest.raises(sf.DiskFull, match="a delete needs"):
        buffer.check_room(10, deletes=True)


def test_writes_go_on_only_once_an_eighth_of_the_floor_is_free_above_it(small_disk: Mount) -> None:
    path = small_disk(16)
    guard = guard_of(path)
    filler = fill(path, FLOOR - MIB)
    guard.look()
    assert "has" in guard.full and str(path) in guard.full and str(FLOOR) in guard.full
    with filler.open("r+b") as file:
        for free, full in ((FLOOR + FLOOR // 16, True), (guard.resume_bytes, False), (FLOOR + FLOOR // 16, False)):
            file.truncate(filler.stat().st_size - (free - free_bytes(path)))
            fill(path, free)
            guard.look()
            assert bool(guard.full) == full, f"at {free_bytes(path)}"


def test_a_folder_that_cannot_be_looked_at_is_full_and_one_that_is_not_there_yet_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not guard_of(tmp_path / "later" / "on", 1).full
    assert "cannot be measured" in guard_of(Path("/proc/1/x" * 600), 1).full


def test_without_a_floor_nothing_is_refused(small_disk: Mount) -> None:
    path = small_disk(4)
    fill(path)
    guard = guard_of(path, 0)
    buffer = WriteBuffer(1 << 40, guard)
    buffer.check_room(1 << 30)
    buffer.check_commit()
    assert guard.free_bytes == 0 and not guard.full


# -- the RESP server --------------------------------------------------------------------------------------------------

WRITES: list[tuple[Any, ...]] = [
    ("SET", "k", "v"),
    ("MSET", "k", "v", "l", "w"),
    ("SF.PUT", "other", "k", "v"),
    ("SF.WPUT", "win", "k", 0, "v"),
    ("SF.SPUT", "ses", "k", 0, 1, "v"),
    ("SF.VPUT", "ver", "k", "v"),
]
PASS: list[tuple[Any, ...]] = [
    ("GET", "k"),
    ("SF.RANGE", "kv", "", ""),
    ("DEL", "k"),
    ("UNLINK", "l"),
    ("GETDEL", "m"),
    ("SF.DEL", "other", "k"),
    ("SF.WDEL", "win", "k", 0),
    ("SF.SDEL", "ses", "k", 0, 1),
    ("SF.VDEL", "ver", "k"),
    ("SF.TIME", 5),
    ("SF.OFFSETS",),
]


def test_at_the_floor_every_verb_that_writes_is_refused_and_those_that_read_or_delete_are_not(
    small_disk: Mount, clock: ManualClock
) -> None:
    root = small_disk(48)
    with desk_on(root, clock) as desk:
        talk = desk.talk()
        assert talk("MSET", "k", "1", "l", "2", "m", "3") == b"OK"
        talk("SF.COMMIT", *OFFSETS, 1)
        filler = fill(root, FLOOR - MIB)
        desk.session.poll_once()
        clock.advance(1_000)
        desk.session.poll_once()
        for request in WRITES:
            refusal = talk.refused(*request)
            assert refusal.startswith("MISCONF state directory ") and str(FLOOR) in refusal, request
            assert "of this MULTI" in str(talk.exec(("GET", "k"), request)), request
        for request in PASS[:-1]:
            assert not isinstance(talk(*request), hiredis.ReplyError), request
        assert talk("SF.COMMIT", *OFFSETS, 2)[0] == 1, "the deletes are committed"
        assert talk(*PASS[-1]) == [b"flights", 0, 2]
        filler.unlink()
        clock.advance(1_000)
        desk.session.poll_once()
        for request in WRITES:
            assert not isinstance(talk(*request), hiredis.ReplyError), request


def test_a_refused_write_makes_no_connection_one_that_wrote(small_disk: Mount, clock: ManualClock) -> None:
    root = small_disk(48)
    with desk_on(root, clock) as desk:
        writer, passer_by = desk.talk(), desk.talk()
        writer("SET", "a", "1")
        fill(root, FLOOR - MIB)
        desk.session.disk.look()
        assert passer_by.refused("SET", "b", "2").startswith("MISCONF")
        assert "MISCONF" in str(passer_by.exec(("SET", "b", "2")))
        passer_by.connection.close()
        assert writer("SF.COMMIT", *OFFSETS, 1)[2] == 1, "nothing of it was discarded"


def test_a_commit_below_the_reserve_is_refused_and_keeps_what_it_was_to_commit(
    small_disk: Mount, clock: ManualClock
) -> None:
    root = small_disk(48)
    with desk_on(root, clock) as desk:
        talk = desk.talk()
        talk("SET", "a", "1")
        filler = fill(root)
        refusal = talk.refused("SF.COMMIT", "SEQ", 1, *OFFSETS, 1)
        assert refusal.startswith("MISCONF a commit of ") and "nothing was changed" in refusal
        assert talk("GET", "a") == b"1"
        filler.unlink()
        assert talk("SF.COMMIT", "SEQ", 1, *OFFSETS, 1) == [1, 1, 1]


def test_a_full_volume_of_the_log_alone_refuses_writes(small_disk: Mount, tmp_path: Path, clock: ManualClock) -> None:
    logs = small_disk(48)
    with desk_on(tmp_path, clock, log=f"sqlite:///{logs}/log") as desk:
        talk = desk.talk()
        assert talk("SET", "a", "1") == b"OK"
        fill(logs, FLOOR - MIB)
        desk.session.disk.look()
        assert talk.refused("SET", "a", "2").startswith(f"MISCONF log {logs} has ")
        assert [space.what for space in desk.session.statistics().disk.spaces] == ["log", "state directory"]  # type: ignore[union-attr]


def test_offsets_stay_refused_after_a_commit_in_doubt_also_if_its_task_is_closed_before_the_answer(
    small_disk: Mount, clock: ManualClock
) -> None:
    root = small_disk(48)
    with desk_on(root, clock, disk_floor_bytes=0) as desk:
        talk, other = desk.talk(), desk.talk()
        talk("SET", "a", bytes(100_000))
        filler = fill(root)
        desk.hold = True
        talk.send("SF.COMMIT", *OFFSETS, 1)
        ((connection, offload),) = desk.held
        desk.held.clear()
        offload.work()
        filler.unlink()
        desk.session.reopen(0)
        connection.done(offload)
        (refusal,) = talk.replies()
        assert str(refusal).startswith("UNKNOWN task 0_0: ") and "SF.OFFSETS" in str(refusal)
        desk.session.wait_ready(TIMEOUT_S)
        desk.hold = False
        for one in (talk, other):
            one("SELECT", 0)
            one("SET", "b", "1")
            assert one.refused("SF.COMMIT", "EPOCH", 2, *OFFSETS, 2).startswith("FENCED"), "it has not asked"
            found = one("SF.OFFSETS")
            assert found in ([], [b"flights", 0, 1])
            assert (one("GET", "a") is None) == (found == []), "rows and offset are one"


# -- sessions and applications ----------------------------------------------------------------------------------------


def test_a_put_and_a_commit_of_a_session_raise_what_tells_them_apart(small_disk: Mount, clock: ManualClock) -> None:
    root = small_disk(48)
    with open_session(root, clock, disk_floor_bytes=FLOOR, memory_bytes=4 * MIB) as session:
        session.assign(active=[0])
        session.wait_ready(TIMEOUT_S)
        task = session.task(0)
        task.store("kv").put(b"a", b"1")
        filler = fill(root, FLOOR - MIB)
        session.disk.look()
        with pytest.raises(sf.DiskFull) as refused:
            task.store("kv").put(b"a", b"2")
        assert reason_of(refused.value) is DISK_FULL and not refused.value.in_doubt
        task.store("kv").delete(b"b")
        task.commit({("flights", 0): 1})
        assert task.store("kv").get(b"a") == b"1"
        filler.unlink()
    with open_session(root, clock, memory_bytes=4 * MIB) as session:
        session.assign(active=[0])
        session.wait_ready(TIMEOUT_S)
        task = session.task(0)
        task.store("kv").put(b"a", bytes(100_000))
        filler = fill(root)
        with pytest.raises(sf.CommitUnknown, match="may or may not hold it") as unknown:
            task.commit({("flights", 0): 2})
        assert reason_of(unknown.value) is COMMIT_UNKNOWN
        assert task.state is TaskState.FAILED
        filler.unlink()
        session.reopen(0)
        session.wait_ready(TIMEOUT_S)
        assert session.task(0).source_offsets()[TopicPartition("flights", 0)] in (1, 2)


def test_offsets_of_a_commit_without_room_go_with_the_next_one_as_its_rows_do(
    small_disk: Mount, clock: ManualClock
) -> None:
    root = small_disk(48)
    with open_session(root, clock, disk_floor_bytes=FLOOR, memory_bytes=4 * MIB) as session:
        session.assign(active=[0, 1])
        session.wait_ready(TIMEOUT_S)
        for partition in (0, 1):
            session.task(partition).store("kv").put(b"a", b"1")
        filler = fill(root)
        with pytest.raises(sf.DiskFull, match="a commit of"):
            session.commit({("flights", 0): 1, ("flights", 1): 1})
        filler.unlink()
        session.commit({("flights", 1): 2})
        found = {partition: session.task(partition).source_offsets() for partition in (0, 1)}
        assert found == {0: {("flights", 0): 1}, 1: {("flights", 1): 2}}


@pytest.mark.parametrize("bulk", [False, True], ids=["batches", "bulk"])
def test_a_restore_waits_at_the_floor_says_why_and_goes_on(
    small_disk: Mount, tmp_path: Path, clock: ManualClock, bulk: bool
) -> None:
    root = small_disk(48)
    log = f"sqlite:///{tmp_path}/log"
    with open_session(tmp_path, clock, log=log) as session:
        session.assign(active=[0])
        session.wait_ready(TIMEOUT_S)
        for number in range(200):
            session.task(0).store("kv").put(b"%d" % number, bytes(1_000))
        session.task(0).commit({("flights", 0): 1})
    settings: dict[str, Any] = {"log": log, "disk_floor_bytes": FLOOR, "memory_bytes": 4 * MIB}
    workers = {"restore_workers": 1, "bulk_restore_records": 1} if bulk else {"restore_workers": 0}
    with open_session(root, clock, **settings, **workers) as session:
        filler = fill(root, FLOOR - MIB)
        session.assign(active=[0], standby=[1])
        before = free_bytes(root)
        for _ in range(50):
            session.poll_once()
        with pytest.raises(sf.NotReady, match="restores wait for space: state directory"):
            session.wait_ready(0)
        assert before - free_bytes(root) < MIB, "it writes nothing but what opening takes"
        assert session.statistics().disk.full  # type: ignore[union-attr]
        filler.unlink()
        session.wait_ready(TIMEOUT_S)
        assert len(list(session.task(0).store("kv").all())) == 200


def test_a_worker_of_a_bulk_restore_writes_no_file_below_the_floor(small_disk: Mount, tmp_path: Path) -> None:
    root = small_disk(48)
    said: queue.SimpleQueue[Event] = queue.SimpleQueue()
    stop = Flag()
    source = TopicPartition("t", 0)
    with closing(open_log(f"sqlite:///{tmp_path}/log")) as log:
        topic = log.admin.create_topic("t", 1, TopicPolicy())
        log.producer().append({source: [Outgoing(b"%d" % number, bytes(1_000), number) for number in range(100)]})
        spec = sf.KeyValueStore("kv", sf.serde.bytes, sf.serde.bytes)
        job = Job(1, spec, source, topic.topic_id, 0, 100, root, 1 << 20, 100, disk_floor_bytes=FLOOR)
        filler = fill(root, FLOOR - MIB)
        building = threading.Thread(target=Worker(log, job, said.put, stop).run, daemon=True)
        building.start()
        assert isinstance(said.get(timeout=TIMEOUT_S), JobProgress), "it has read all"
        with pytest.raises(queue.Empty):
            said.get(timeout=0.3)
        assert list(root.iterdir()) == [filler]
        filler.unlink()
        assert isinstance(said.get(timeout=TIMEOUT_S), Run)
        building.join(TIMEOUT_S)


def test_a_standby_waits_at_the_floor_and_catches_up(small_disk: Mount, tmp_path: Path, clock: ManualClock) -> None:
    root = small_disk(48)
    log = f"sqlite:///{tmp_path}/log"
    with (
        open_session(tmp_path, clock, log=log) as active,
        open_session(root, clock, log=log, disk_floor_bytes=FLOOR, take_over=False, memory_bytes=4 * MIB) as standby,
    ):
        active.assign(active=[0])
        active.wait_ready(TIMEOUT_S)
        standby.assign(standby=[0])
        filler = fill(root, FLOOR - MIB)
        active.task(0).store("kv").put(b"a", b"1")
        active.task(0).commit()

        def caught_up() -> bool:
            for _ in range(20):
                clock.advance(50)
                standby.poll_once()
            return standby.read("kv", 0, allow_stale=True).store.get(b"a") == b"1"

        assert not caught_up()
        assert standby.disk.full
        filler.unlink()
        assert any(caught_up() for _ in range(100))


def test_request_that_meets_a_task_whose_commit_is_in_doubt_is_not_in_doubt_itself(bench: Bench) -> None:
    """The reply was -UNKNOWN with the commit's own error, until the task was reopened: for a read as well."""
    task = bench.active().task(0)
    task.fail(sf.CommitUnknown("log x: whether the last transaction is in it is not known"))
    answer = failure_of(task)
    assert reason_of(answer) is UNAVAILABLE
    assert "SF.OFFSETS" in message_of(answer) and "log x" in message_of(answer)


def test_a_state_directory_that_could_not_be_opened_on_a_full_disk_is_not_left_locked(small_disk: Mount) -> None:
    """Its lock file had no room for the owner's note, and the process kept the lock until its end."""
    root = small_disk(1)
    StateDir(root, "app").close()
    filler = fill(root)
    with pytest.raises(sf.Unavailable, match="opening the state directory"):
        StateDir(root, "app")
    filler.unlink()
    StateDir(root, "app").close()
