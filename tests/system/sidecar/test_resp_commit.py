"""Commits, sessions and generations of the RESP server: acknowledged writes stay, lost ones are reported."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import hiredis
import pytest

import standfast as sf
from standfast.ops.shared.error_codes import NOT_ACTIVE, RESTORING, Refused
from standfast.store.clock import ManualClock
from support.resp import Desk, Talk, open_session
from support.session_source import SessionSource

OFFSETS = ("GROUP", "app", "OFFSETS", "flights", 0)


def reopened(desk: Desk, root: Path, clock: ManualClock) -> dict[bytes, bytes]:
    """The rows that another instance has in store kv of partition 0: only committed ones."""
    with open_session(root, clock, state_dir=root / "elsewhere") as session:
        session.assign(active=[0])
        session.wait_ready(10)
        return dict(session.task(0).store("kv").all())


def test_commit_keeps_state_and_offsets_as_one_cut(desk: Desk, tmp_path: Path, clock: ManualClock) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    talk("SF.PUT", "other", "b", "2")
    assert talk("SF.COMMIT", "SEQ", 1, *OFFSETS, 12) == [1, 1, 2]
    talk("SET", "a", "uncommitted")
    assert talk("SF.OFFSETS") == [b"flights", 0, 12]
    assert reopened(desk, tmp_path, clock) == {b"a": b"1"}


def test_repeated_number_answers_what_the_first_did(desk: Desk) -> None:
    talk, other = desk.talk(), desk.talk()
    talk("SET", "a", "1")
    first = talk("SF.COMMIT", "SEQ", 7, *OFFSETS, 12)
    assert other("SF.COMMIT", "SEQ", 7, *OFFSETS, 12) == first
    assert other("SF.COMMIT", "SEQ", 7, "EPOCH", 1, *OFFSETS, 12) == first
    assert desk.engine.statistics().commits == 1
    assert "below 7" in talk.refused("SF.COMMIT", "SEQ", 6, *OFFSETS, 12)
    assert "other offsets" in talk.refused("SF.COMMIT", "SEQ", 7, *OFFSETS, 13)
    talk("SET", "a", "2")
    assert "has written since" in talk.refused("SF.COMMIT", "SEQ", 7, *OFFSETS, 12)  # a repeated reply would be false
    assert other("SF.COMMIT", "SEQ", 7, *OFFSETS, 12) == first
    assert talk("SF.COMMIT", "SEQ", 8, *OFFSETS, 13) == [1, 8, 1]


WRONG: list[tuple[tuple[Any, ...], str]] = [
    (("SEQ",), "expected SEQ n"),
    (("SEQ", "x"), "SEQ must be"),
    (("SEQ", -1), "SEQ must be"),
    (("SEQ", 1, "SEQ", 2), "each once"),
    (("NIX", 1), "expected SEQ n"),
    (("OFFSETS",), "OFFSETS takes"),
    (("OFFSETS", "t", 0), "OFFSETS takes"),
    (("OFFSETS", "t", 0, -5), "offset must be"),
    (("OFFSETS", "t", "x", 5), "partition must be"),
    (("OFFSETS", "t", 0, 5, "t", 0, 6), "twice"),
    (("OFFSETS", "../t", 0, 5), "topic"),
    (("OFFSETS", b"\xff", 0, 5), "UTF-8"),
    (("GROUP", "another", "OFFSETS", "t", 0, 5), "group 'another'"),
    (("GEN", 3), "give both"),
    (("MEMBER", "m"), "give both"),
]


def test_commit_that_cannot_be_is_refused_and_changes_nothing(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    for arguments, why in WRONG:
        assert why in talk.refused("SF.COMMIT", *arguments)
    assert talk("SF.COMMIT", "SEQ", 1) == [1, 1, 1]


def test_stale_epoch_is_fenced(desk: Desk) -> None:
    talk = desk.talk()
    assert talk.refused("SF.COMMIT", "SEQ", 1, "EPOCH", 0).startswith("FENCED epoch 0")
    assert desk.engine.statistics().refusals["SF.COMMIT", "STALE_EPOCH"] == 1


def test_checkpoint_flushes(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    task = desk.session.task(0)
    assert task.stores.statistics("kv").sst_bytes == 0
    talk("SF.COMMIT", "SEQ", 1, "CHECKPOINT")
    assert task.stores.statistics("kv").sst_bytes > 0


def test_multi_is_one_step_over_several_stores(desk: Desk) -> None:
    talk, other = desk.talk(), desk.talk()
    assert talk("MULTI") == b"OK"
    assert talk("SET", "a", "1") == b"QUEUED"
    assert talk("SF.WPUT", "win", "k", 0, "w") == b"QUEUED"
    assert talk("GET", "a") == b"QUEUED"
    assert other("GET", "a") is None
    assert talk("EXEC") == [b"OK", b"OK", b"1"]
    assert other("GET", "a") == b"1"
    assert other("SF.WGET", "win", "k", 0) == b"w"


def test_multi_that_fails_changes_nothing(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "before")
    answer = talk.exec(("SET", "a", "1"), ("SF.PUT", "other", "b", "2"), ("SF.PUT", "win", "k", "v"), ("SET", "c", "3"))
    assert isinstance(answer, hiredis.ReplyError)
    assert "request 3 of this MULTI, SF.PUT; nothing of it was applied" in str(answer)
    assert talk("MGET", "a", "c") == [b"before", None]
    assert talk("SF.GET", "other", "b") is None


def test_request_that_cannot_be_kept_spoils_the_multi(desk: Desk) -> None:
    talk = desk.talk()
    for spoiling in (("EXPIRE", "a", 1), ("GET",), ("SELECT", 1), ("SF.STATUS",), ("HELLO", "3")):
        assert talk("MULTI") == b"OK"
        assert talk("SET", "a", "1") == b"QUEUED"
        assert talk.refused(*spoiling).startswith("ERR")
        assert talk.refused("EXEC").startswith("EXECABORT")
        assert talk("GET", "a") is None
    assert talk("MULTI") == b"OK"
    assert "nested" in talk.refused("MULTI")
    assert talk("DISCARD") == b"OK"
    assert "without MULTI" in talk.refused("EXEC")
    assert "without MULTI" in talk.refused("DISCARD")
    assert talk.exec() == []


def test_multi_with_its_commit_is_applied_once(desk: Desk) -> None:
    talk = desk.talk()
    batch = (("SF.PUT", "kv", "n", "1", "NX"), ("SF.VPUT", "ver", "k", "v", "TS", 5), ("SF.COMMIT", "SEQ", 1))
    first = talk.exec(*batch)
    assert first == [b"OK", -1, [1, 1, 2]]
    again = desk.talk()
    talk("SET", "n", "2")
    assert again.exec(*batch) == first
    assert again("GET", "n") == b"2"
    assert "has written since" in str(talk.exec(*batch))
    assert talk("GET", "n") == b"2"
    assert desk.engine.statistics().commits == 1
    assert "another batch" in str(again.exec(("GET", "n"), *batch))
    assert "must be the last" in str(talk.exec(("SF.COMMIT",), ("SET", "a", "1")))
    assert "below 1" in str(talk.exec(("SET", "a", "1"), ("SF.COMMIT", "SEQ", 0)))
    assert talk("GET", "a") is None


def test_lost_connection_discards_what_it_wrote_and_nobody_goes_on_unaware(desk: Desk) -> None:
    writer, other, reader = desk.talk(), desk.talk(), desk.talk()
    writer("SET", "a", "1")
    writer("SF.COMMIT", "SEQ", 1, *OFFSETS, 5)
    other("SET", "b", "2")
    reader("GET", "a")
    writer("SET", "a", "lost")
    writer.connection.close()
    again = desk.talk()
    assert again("GET", "a") == b"1"
    assert again("GET", "b") is None
    for request in (("GET", "a"), ("SET", "c", "3"), ("SF.COMMIT", "SEQ", 2)):
        assert other.refused(*request).startswith("FENCED")
    assert reader("GET", "a") == b"1"
    for talk in (again, other, reader):
        assert talk.refused("SF.COMMIT", "SEQ", 2, *OFFSETS, 6).startswith("FENCED")
    assert again("SF.OFFSETS") == [b"flights", 0, 5]
    assert again("SET", "c", "3") == b"OK"
    assert other.refused("SET", "d", "4").startswith("FENCED")
    assert other("SELECT", 0) == b"OK"
    assert other("SET", "d", "4") == b"OK"
    assert other.refused("SF.COMMIT", "SEQ", 2, *OFFSETS, 6).startswith("FENCED")
    assert again("SF.COMMIT", "SEQ", 2, *OFFSETS, 6) == [1, 2, 2]


def test_who_begins_anew_begins_without_the_writes_of_others(desk: Desk) -> None:
    before, after = desk.talk(), desk.talk()
    before("SET", "a", "1")
    before("SF.COMMIT", "SEQ", 1, *OFFSETS, 5)
    before("SET", "a", "half done")  # its application was killed, and the server has not noticed yet
    assert after("SF.OFFSETS") == [b"flights", 0, 5]
    assert after("GET", "a") == b"1"
    assert before.refused("SF.COMMIT", "SEQ", 2, *OFFSETS, 6).startswith("FENCED partition 0: another connection began")
    assert after("SET", "a", "2") == b"OK"
    before.connection.close()
    assert after("SF.COMMIT", "SEQ", 2, *OFFSETS, 6) == [1, 2, 1]
    after("SET", "a", "3")
    assert after("SF.OFFSETS") == [b"flights", 0, 6]
    assert after("GET", "a") == b"2"


def test_connection_that_wrote_nothing_takes_nothing_along(desk: Desk) -> None:
    writer, reader = desk.talk(), desk.talk()
    writer("SET", "a", "1")
    reader("GET", "a")
    reader.connection.close()
    assert writer("SF.COMMIT", "SEQ", 1) == [1, 1, 1]
    writer.connection.close()
    assert desk.talk()("SET", "b", "2") == b"OK"


def test_client_that_leaves_its_partition_leaves_its_writes(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    assert talk("SELECT", 1) == b"OK"
    assert talk("GET", "a") is None
    assert talk("SELECT", 0) == b"OK"
    assert talk("GET", "a") is None
    refused = talk.refused("SF.COMMIT", *OFFSETS, 6)
    assert refused.startswith("FENCED partition 0: ")
    assert "uncommitted writes were discarded" in refused
    assert talk("SET", "a", "1") == b"OK"


def test_new_generation_discards_and_fences(desk: Desk) -> None:
    desk.engine.begin_generation(3)
    talk = desk.talk()
    talk("SET", "a", "1")
    desk.engine.begin_generation(3)
    assert talk("GET", "a") == b"1"
    desk.engine.begin_generation(4)
    for request in (("GET", "a"), ("SET", "a", "2"), ("SF.COMMIT",)):
        assert talk.refused(*request).startswith("FENCED")
    assert desk.talk()("GET", "a") is None
    assert talk("SELECT", 0) == b"OK"
    assert talk("SET", "a", "2") == b"OK"
    with pytest.raises(Refused, match="older than the assigned 4"):
        desk.engine.begin_generation(3)


def test_others_wait_while_a_commit_runs_and_reads_go_on(desk: Desk) -> None:
    talk, other, third = desk.talk(), desk.talk(), desk.talk(partition=1)
    talk("SET", "a", "1")
    desk.hold = True
    talk.send("SF.COMMIT", "SEQ", 1)
    talk.send("GET", "a")
    assert talk.replies() == []
    assert other("GET", "a") == b"1"
    other.send("SET", "b", "2")
    other.send("GET", "b")
    assert other.replies() == []
    assert third("SET", "c", "3") == b"OK"
    exec_waits = desk.talk()
    exec_waits.send("MULTI")
    exec_waits.send("SET", "m", "4")
    exec_waits.send("EXEC")
    assert exec_waits.replies() == [b"OK", b"QUEUED"]
    desk.hold = False
    desk.release()
    assert talk.replies() == [[1, 1, 1], b"1"]
    assert other.replies() == [b"OK", b"2"]
    assert exec_waits.replies() == [[b"OK"]]


def test_client_that_leaves_during_its_commit_loses_nothing(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    desk.hold = True
    talk.send("SF.COMMIT", "SEQ", 1, *OFFSETS, 5)
    talk.connection.close()
    again = desk.talk()
    again.send("SF.COMMIT", "SEQ", 1, *OFFSETS, 5)
    desk.hold = False
    desk.release()
    assert again.replies() == [[1, 1, 1]]
    assert again("SET", "b", "2") == b"OK"


def test_generation_that_begins_during_a_commit_lets_it_through(desk: Desk) -> None:
    talk, other = desk.talk(), desk.talk()
    talk("SET", "a", "1")
    other("GET", "a")
    desk.hold = True
    talk.send("SF.COMMIT", "SEQ", 1)
    other.send("SET", "b", "2")
    freed: list[int] = []
    desk.engine.begin_generation(1)
    desk.engine.when_free(0, lambda: freed.append(1))
    assert not freed
    desk.hold = False
    desk.release()
    assert freed == [1]
    assert talk.replies() == [[1, 1, 1]]
    (refused,) = other.replies()
    assert str(refused).startswith("FENCED")


def test_commit_that_fails_leaves_nothing_half_and_says_so(desk: Desk, tmp_path: Path, clock: ManualClock) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    with open_session(tmp_path, clock, state_dir=tmp_path / "thief") as thief:
        thief.assign(active=[0])  # a newer owner of the task
        assert talk.refused("SF.COMMIT", "SEQ", 1).startswith("FENCED")
    assert talk.refused("GET", "a").startswith("FENCED")
    statistics = desk.engine.statistics()
    assert (statistics.commits, statistics.commits_failed) == (0, 1)


def test_task_that_was_opened_anew_is_not_written_unaware(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    talk("SF.COMMIT", "SEQ", 1)
    talk("SET", "a", "2")
    desk.session.task(0).fail(RuntimeError("planted"))
    desk.session.reopen(0)
    desk.session.wait_ready(10)
    assert talk.refused("GET", "a").startswith("FENCED")
    again = desk.talk()
    assert again("SET", "a", "3") == b"OK"
    refused = again.refused("SF.COMMIT", "SEQ", 1, "EPOCH", 2, *OFFSETS, 6)
    assert refused.startswith("FENCED partition 0: ")
    assert "the task was reopened" in refused
    assert again("SF.OFFSETS") == []
    assert again("GET", "a") == b"1"
    assert again("SF.COMMIT", "SEQ", 1) == [2, 1, 0]


def test_partition_that_is_not_here_is_not_assigned(desk: Desk) -> None:
    talk = desk.talk(partition=3)
    for request in (("GET", "a"), ("SET", "a", "1"), ("SF.COMMIT",), ("SF.OFFSETS",), ("SF.WAITREADY", 1000)):
        assert talk.refused(*request).startswith("NOTASSIGNED partition 3")
    unbound = desk.talk(None)
    assert unbound.refused("GET", "a").startswith("ERR no default store")
    assert "database number" in unbound.refused("SELECT", "x")


def test_standby_is_readonly_and_the_gate_is_loading(desk: Desk) -> None:
    session = desk.session
    session.assign(active=[0, 2], standby=[1])
    standby, restoring = desk.talk(partition=1), desk.talk(partition=2)
    for request in (("GET", "a"), ("SET", "a", "1"), ("SF.WPUT", "win", "k", 0, "v"), ("SF.COMMIT",)):
        assert standby.refused(*request).startswith("READONLY")
        assert restoring.refused(*request).startswith("LOADING")
    assert desk.talk().refused("GET", "a").startswith("LOADING")  # the gate opens for all of them together
    restoring.send("SF.WAITREADY", 60_000)
    assert restoring.replies() == []
    assert restoring.connection.poll()
    session.wait_ready(10)
    assert not restoring.connection.poll()
    assert restoring.replies() == [b"OK"]
    assert restoring("GET", "a") is None


def test_wait_for_the_gate_ends_at_its_time(desk: Desk, clock: ManualClock) -> None:
    desk.session.assign(active=[2])
    talk = desk.talk(partition=2)
    talk.send("SF.WAITREADY", 500)
    clock.advance(499)
    assert talk.connection.poll()
    clock.advance(1)
    assert not talk.connection.poll()
    (refused,) = talk.replies()
    assert str(refused).startswith("LOADING")
    assert talk.refused("SF.WAITREADY", 0).startswith("LOADING")


def test_partition_of_another_process_is_told_as_it_is(desk: Desk) -> None:
    source = SessionSource(desk.session, {2: "standby", 3: "restoring: 41 %"}.get)
    with pytest.raises(Refused) as standby:
        source.running(2)
    with pytest.raises(Refused, match="41 %") as restoring:
        source.running(3)
    assert (standby.value.reason, restoring.value.reason) == (NOT_ACTIVE, RESTORING)


def test_draining_takes_no_writes_and_still_commits(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    desk.engine.drain()
    assert talk.refused("SET", "b", "2").startswith("LOADING the sidecar is draining")
    assert talk("GET", "a") == b"1"
    assert talk("SF.COMMIT", "SEQ", 1) == [1, 1, 1]


def test_lease_that_ran_out_discards(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    desk.engine.discard(0, "the lease of the application ran out")
    assert talk.refused("GET", "a").startswith("FENCED partition 0: the lease")
    again = desk.talk()
    assert again.refused("SF.COMMIT", "EPOCH", 1, *OFFSETS, 6).startswith("FENCED")
    assert again("SF.OFFSETS") == []
    assert again("SET", "a", "2") == b"OK"
    assert again("SF.COMMIT", *OFFSETS, 6) == [1, None, 1]


def test_status_tells_and_changes_nothing(desk: Desk) -> None:
    talk = desk.talk()
    talk("HELLO", "3")
    talk("SET", "a", "1")
    found = talk("SF.STATUS")
    assert found[b"state"] == b"READY"
    assert found[b"stores"][b"win"] == b"window"
    assert found[b"uncommitted_bytes"] > 0
    assert found[b"epoch"] == 1
    talk.connection.close()
    again = desk.talk()
    again("HELLO", "3")
    assert b"discarded" in again("SF.STATUS")[b"lost"]
    assert again.refused("SF.COMMIT", "EPOCH", 1, *OFFSETS, 6).startswith("FENCED")
    again("SELECT", 3)
    assert again("SF.STATUS")[b"state"] == b"NOT_ASSIGNED"


def test_memory_store_and_plain_store_take_bytes(tmp_path: Path, clock: ManualClock) -> None:
    raw = sf.serde.bytes
    stores = [
        sf.KeyValueStore("mem", raw, raw, engine="memory"),
        sf.KeyValueStore("plain", raw, raw, timestamped=False, caching=False),
    ]
    with open_session(tmp_path, clock, stores=stores) as session:
        session.assign(active=[0])
        session.wait_ready(10)
        talk: Talk = Desk(session).talk("plain")
        talk("SET", "a", "1")
        talk("SF.PUT", "mem", "a", "2")
        assert talk("SF.COMMIT") == [1, None, 2]
        assert [talk("GET", "a"), talk("SF.GET", "mem", "a")] == [b"1", b"2"]
        assert "keeps no timestamps" in talk.refused("SF.GET", "plain", "a", "WITHTS")


def test_task_that_was_opened_anew_without_a_loss_goes_on(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    talk("SF.COMMIT", "SEQ", 1)
    desk.session.task(0).fail(RuntimeError("planted"))
    desk.session.reopen(0)
    desk.session.wait_ready(10)
    assert talk.refused("SET", "a", "2").startswith("FENCED")
    assert desk.talk()("SET", "a", "2") == b"OK"


# Too long for the texts of a commit, packed as well.
LONG = [f"topic{Random(number).randbytes(100).hex()}" for number in range(200)]


@pytest.mark.parametrize("gone", ["later", "meanwhile"])
def test_commit_that_is_refused_leaves_its_writes_to_those_who_made_them(desk: Desk, gone: str) -> None:
    talk, other = desk.talk(), desk.talk()
    task = desk.session.task(0)
    talk("SET", "a", "1")
    task.progress.update(dict.fromkeys(LONG, 1))
    assert "over the limit" in talk.refused("SF.COMMIT", "SEQ", 1)
    task.progress.clear()
    assert talk("SF.COMMIT", "SEQ", 1) == [1, 1, 1]
    talk("SET", "a", "2")
    task.progress.update(dict.fromkeys(LONG, 1))
    desk.hold = gone == "meanwhile"
    other.send("SF.COMMIT", "SEQ", 2)
    talk.connection.close()
    desk.hold = False
    desk.release()
    other.run()
    (refused,) = other.replies()
    assert "over the limit" in str(refused)
    assert desk.talk()("GET", "a") == b"1"
    assert desk.talk().refused("SF.COMMIT", "SEQ", 3, "EPOCH", 1, *OFFSETS, 6).startswith("FENCED")
