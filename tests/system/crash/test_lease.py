"""Leases: renewal delays no work, when a member loses one, and the cost of a loss.

Rules of this file: the pure watch by itself; all else with real processes on a real log.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.kafka.members import Members, member_key, member_value, removal_headers
from standfast.replication.lease.process import SILENT_MS, LeaseEnd, LeaseProcess
from standfast.replication.lease.renewal import StallWatch
from standfast.replication.leases import MEMBER_MS, RENEWALS_PER_LEASE, lease_in_group_ms, renewal_interval_ms
from standfast.replication.log import Record
from standfast.replication.progress import ALLOWED, RENEWED, TRIES, LeaseProgress, replay_allowance_ms
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import ManualClock
from support.lease import LEASE_MS, Leases
from support.processes import has_ended
from support.sessions import Bench
from support.waits import until

BOTH = pytest.mark.parametrize("leases", ["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True)
# For tests that are slow on a broker and show the same on the embedded log.
BOTH_DEAR = pytest.mark.parametrize(
    "leases", ["sqlite", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.long])], indirect=True
)
GUARANTEES = pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])


# -- when to renew ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lease_ms", "members", "expected"),
    [
        *((1_500, members, 1_500) for members in (0, 1, 100)),
        *((1_500, members, 3_000) for members in (101, 200)),
        (1_500, 500, 7_500),
        (10_000, 500, 10_000),
        (10_000, 700, 20_000),
    ],
)
def test_lease_is_as_many_times_its_length_as_the_size_of_the_group_takes(
    lease_ms: int, members: int, expected: int
) -> None:
    assert lease_in_group_ms(lease_ms, members) == expected
    # The group's renewals together, each of which every member reads.
    assert members / renewal_interval_ms(expected) <= RENEWALS_PER_LEASE / MEMBER_MS or expected == lease_ms


def test_part_that_counts_is_no_stall() -> None:
    watch = StallWatch(1_000)
    for now_ms in range(0, 5_000, 500):
        assert watch.look({"loop": 1 + now_ms}, 0, now_ms) == ()


def test_part_that_stands_still_for_longer_than_max_stall_is_found_and_goes_on_later() -> None:
    watch = StallWatch(1_000)
    assert watch.look({"loop": 7, "work": 1}, 0, 0) == ()
    assert watch.look({"loop": 7, "work": 2}, 0, 1_000) == ()
    assert watch.look({"loop": 7, "work": 3}, 0, 1_001) == ("loop",)
    assert watch.look({"loop": 8, "work": 4}, 0, 1_002) == ()


def test_part_that_has_not_begun_or_has_ended_is_not_watched() -> None:
    watch = StallWatch(1_000)
    for now_ms in (0, 2_000, 4_000):
        assert watch.look({"loop": 0}, 0, now_ms) == ()
    assert watch.look({"loop": 3}, 0, 5_000) == ()
    assert watch.look({"loop": 0}, 0, 9_000) == ()


def test_announced_replay_may_take_longer_and_no_part_is_blamed_for_it() -> None:
    watch = StallWatch(1_000)
    allowed = replay_allowance_ms(16 << 20)
    assert allowed == 4_096
    assert watch.look({"loop": 7}, 0, 0) == ()
    assert watch.look({"loop": 7}, allowed, 500) == ()
    assert watch.look({"loop": 7}, allowed, 5_500) == ()
    assert watch.look({"loop": 7}, allowed, 5_597) == ("loop",)
    assert watch.look({"loop": 7}, 0, 5_600) == ()  # the loop could not run meanwhile
    assert watch.look({"loop": 7}, 0, 6_601) == ("loop",)


def test_replay_is_announced_by_the_size_of_the_wal(tmp_path: Path) -> None:
    (tmp_path / "000012.log").write_bytes(b"x" * 8_192)
    (tmp_path / "LOG").write_bytes(b"x" * 100_000)
    progress = LeaseProgress()
    with progress.replaying(tmp_path):
        assert progress.words[ALLOWED] == 2
    assert progress.words[ALLOWED] == 0


def test_beat_that_has_not_read_the_newest_metadata_renews_and_changes_nothing_else() -> None:
    def record(kind: str, metadata: str, plan: int, offset: int) -> Record:
        return Record(offset, 1_000, member_key("a"), member_value(kind, "s", 500, 0, metadata, plan), ())

    members = Members()
    members.apply([record("join", "old", 1, 0), record("join", "new", 2, 1)], 0, old=False)
    members.apply([record("beat", "old", 1, 2)], 400, old=False)
    assert [one.metadata for one in members.view().members] == ["new"]
    assert members.run_out(899) == []
    members.apply([record("beat", "new", 2, 3)], 500, old=False)
    assert [one.metadata for one in members.view().members] == ["new"]
    assert members.run_out(1_000) == ["a"]


def test_removal_by_a_member_that_had_not_read_the_newest_beat_is_void() -> None:
    members, late = Members(), Members()
    joined = Record(0, 1_000, member_key("a"), member_value("join", "s", 500, 0, "", 1), ())
    beat = Record(1, 1_400, member_key("a"), member_value("beat", "s", 500, 0, "", 1), ())
    late.apply([joined], 0, old=False)
    assert late.run_out(10_000) == ["a"]  # it stalled, and writes its knowledge from before
    removal = Record(2, 11_000, member_key("a"), None, tuple(removal_headers(late.leases["a"])))
    for one, seen in ((members, [joined, beat, removal]), (late, [beat, removal])):
        one.apply(seen, 10_000, old=False)
        assert [member.member_id for member in one.view().members] == ["a"]
    known = Record(3, 12_000, member_key("a"), None, tuple(removal_headers(late.leases["a"])))
    late.apply([known], 10_000, old=False)
    assert late.view().members == ()


def test_time_for_which_a_reader_waited_for_the_topic_counts_for_no_lease() -> None:
    members = Members()
    members.apply([Record(0, 1_000, member_key("a"), member_value("join", "s", 500, 0, "", 1), ())], 0, old=False)
    members.hold(400, 600)
    assert (members.run_out(899), members.run_out(900)) == ([], ["a"])
    members.hold(5_000, 1_000)  # never more than a whole lease from now
    assert (members.run_out(1_499), members.run_out(1_500)) == ([], ["a"])


# -- the renewing thread -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_a_session_whose_tasks_others_take_over_has_a_lease_process(bench: Bench) -> None:
    alone = bench.session("a", background=True, take_over=False)
    by_hand = bench.session("b")
    assert (alone._keeper.pid, by_hand._keeper.pid) == (None, None)


@pytest.mark.slow
@BOTH_DEAR
def test_lease_is_renewed_while_the_interpreter_is_held(leases: Leases) -> None:
    first, second = leases.pair()
    first.order(hold_s=3 * LEASE_MS / 1_000)
    until(lambda: first.status["gap_ms"] >= 0 and leases.log.group(leases.app).view().members, "members")
    time.sleep(3 * LEASE_MS / 1_000)
    leases.feed(10)
    until(leases.whole, "all is processed")
    assert first.is_("active running")
    assert first.status["lost"] == {}
    assert second.status["promotions"] == 0


@pytest.mark.slow
def test_thread_renews_while_the_lease_process_stands_still_or_is_gone(leases: Leases) -> None:
    first, second = leases.pair()
    pid = first.status["keeper"]
    leases.freeze(pid)
    time.sleep(2 * LEASE_MS / 1_000)
    os.kill(pid, signal.SIGKILL)
    until(lambda: first.status["keeper"] not in (None, pid), "there is another one")
    leases.feed(10)
    until(leases.whole, "all is processed")
    assert (first.status["lost"], second.status["promotions"]) == ({}, 0)


@pytest.mark.slow
def test_owner_that_could_not_look_for_long_does_not_take_its_lease_process_for_silent(
    tmp_path: Path, clock: ManualClock
) -> None:
    address, progress = f"sqlite:///{tmp_path}/log.sqlite", LeaseProgress(shared=True)
    process = LeaseProcess(address, progress, 60_000, clock)
    with closing(progress), closing(open_log(address)) as log, closing(process):
        log.group("app").join("a", lease_ms=60_000)
        process.start()
        process.renew("app", "a", 100, LeaseEnd("", ""))
        until(lambda: progress.words[RENEWED], "it renews")
        assert process.poll(1_000)
        pid, before = process.pid, progress.words[TRIES]
        clock.advance(10 * SILENT_MS)  # the interpreter was held; the process went on
        until(lambda: progress.words[TRIES] > before, "it goes on")
        assert process.poll(1_000)
        assert process.pid == pid


@pytest.mark.slow
@BOTH_DEAR
def test_killed_owner_is_not_renewed_for(leases: Leases) -> None:
    first, second = leases.pair(max_stall_ms=60_000)
    keeper = first.status["keeper"]
    first.process.kill()
    killed = time.monotonic()
    until(lambda: has_ended(keeper), "its lease process ends", 5)
    until(lambda: second.is_("active running"), "the standby has the task")
    assert time.monotonic() - killed < 20  # far below max_stall


# -- the cost of losing one -------------------------------------------------------------------------------------------


@pytest.mark.slow
@BOTH_DEAR
@GUARANTEES
def test_false_alarm_costs_one_warm_hand_over_and_no_record(leases: Leases, guarantee: str) -> None:
    first, second = leases.pair(guarantee=guarantee)
    leases.feed(200)
    leases.freeze(first.process.pid, first.status["keeper"])  # for longer than the lease, and much less than max_stall
    until(lambda: second.is_("active running"), "the standby has the task")
    os.kill(first.status["keeper"], signal.SIGCONT)
    first.process.send_signal(signal.SIGCONT)
    until(lambda: first.is_("standby standby"), "the first stands by")
    leases.feed(50)
    until(leases.whole, "all is processed")
    out = leases.out()
    if guarantee == "exactly_once":
        assert set(out.values()) == {1}
    assert first.status["lost"] == {"late": 1}
    assert first.status["wipes"] == second.status["wipes"] == {}
    assert (first.status["promotions"], second.status["promotions"]) == (0, 1)
    assert second.status["lost"] == {}
    counts = counted(leases)
    if guarantee == "exactly_once":
        assert sum(counts.values()) == leases.fed
    assert sum(counts.values()) >= leases.fed


def counted(leases: Leases) -> dict[str, int]:
    """The rows of the store, restored from its changelog once the members have ended."""
    for member in leases.members:
        member.end()
    app_stores = [sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)]
    with sf.Session(
        leases.app, log=leases.address, state_dir=leases.root / "reader", stores=app_stores, partitions=1,
        background=False, take_over=False,
    ) as session:  # fmt: skip
        session.assign(active=[0])
        session.wait_ready(30)
        return dict(session.task(0).store("counts").all())


@pytest.mark.slow
@BOTH_DEAR
def test_owner_whose_loop_makes_no_progress_stops_renewing_and_loses_nothing(leases: Leases) -> None:
    first, second = leases.pair(max_stall_ms=1_000)
    first.order(stick_s=8)
    time.sleep(0.2)
    leases.feed(30)
    until(lambda: second.is_("active running"), "the standby has the task")
    until(leases.whole, "all is processed")
    until(lambda: first.status["lost"] == {"stalled": 1}, "the first finds out")
    until(lambda: first.is_("standby standby"), "the first stands by")
    leases.feed(10)
    until(leases.whole, "all is processed")
    assert set(leases.out().values()) == {1}
    assert "no progress for 1.0 s (the application's loop)" in first.err.read_text()


@pytest.mark.slow
def test_owner_that_is_stopped_stops_being_renewed_for_after_max_stall(leases: Leases) -> None:
    first, second = leases.pair(max_stall_ms=1_000)
    leases.freeze(first.process.pid)
    until(lambda: second.is_("active running"), "the standby has the task")
    first.process.send_signal(signal.SIGCONT)
    until(lambda: first.is_("standby standby"), "the first stands by")
    until(lambda: first.status["lost"] == {"stalled": 1}, "the first finds out")
    leases.feed(10)
    until(leases.whole, "all is processed")
    assert set(leases.out().values()) == {1}
