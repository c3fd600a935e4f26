"""State and source offsets stay one cut at the RESP server: the connections whose offsets a commit accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from standfast.ops.sidecar.control.assignment import wanted_of
from standfast.ops.sidecar.control.schema import Assignment, Source, Task
from standfast.store.clock import ManualClock
from standfast.store.errors import InvalidRequest, Unavailable
from support.resp import Desk


def commit(seq: int, offset: int, *more: str | int, partition: int = 0) -> tuple[Any, ...]:
    """A commit of one source offset."""
    return "SF.COMMIT", "SEQ", seq, *more, "OFFSETS", "t", partition, offset


def test_offsets_of_another_partition_are_refused(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    assert "partition 1 of 't'" in talk.refused(*commit(1, 500, partition=1))
    assert talk("GET", "a") == b"1", "nothing of it is lost"
    assert talk(*commit(1, 500)) == [1, 1, 1]
    assert desk.talk(partition=1)("SF.OFFSETS") == []


def test_offsets_do_not_go_back(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    assert talk(*commit(1, 200)) == [1, 1, 1]
    assert "goes back from 200 to 199" in talk.refused(*commit(2, 199))
    assert talk(*commit(1, 200)) == [1, 1, 1]
    assert talk(*commit(2, 200)) == [1, 2, 0]
    assert talk("SF.OFFSETS") == [b"t", 0, 200]


def test_assigned_sources_are_of_the_partition_of_their_task() -> None:
    sources = (Source("t", 1),)
    assert wanted_of(Assignment(1, (Task(1, "active", sources),))).sources == {1: (("t", 1),)}
    sources = (Source("t", 1), Source("t", 3))
    with pytest.raises(InvalidRequest, match="task 1 cannot have partition 3 of 't'"):
        wanted_of(Assignment(1, (Task(1, "active", sources),)))


def test_offsets_are_taken_only_from_who_knows_the_state(desk: Desk) -> None:
    talk, unaware = desk.talk(), desk.talk()
    assert unaware.refused(*commit(2, 200)).startswith("FENCED partition 0: this connection has neither")
    assert "neither" in str(unaware.exec(("GET", "a"), commit(2, 200)))
    assert talk("SF.OFFSETS") == []
    assert talk(*commit(2, 200)) == [1, 2, 0], "it took the offsets up"
    assert unaware(*commit(2, 200)) == [1, 2, 0], "a repeat changes nothing"
    assert unaware(*commit(3, 300, "EPOCH", 1)) == [1, 3, 0]
    assert unaware.exec(("SET", "a", "1"), commit(4, 400)) == [b"OK", [1, 4, 1]], "it wrote"
    assert unaware(*commit(5, 500)) == [1, 5, 0]
    assert desk.talk()("SF.COMMIT") == [1, None, 0], "without offsets there is nothing to be wrong about"


def test_retry_after_the_task_was_opened_anew_is_no_commit(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    talk(*commit(1, 100))
    desk.session.task(0).fail(RuntimeError("planted"))
    desk.session.reopen(0)
    desk.session.wait_ready(10)
    again = desk.talk()
    assert again.refused(*commit(2, 200)).startswith("FENCED partition 0: this connection has neither")
    assert again("SF.OFFSETS") == [b"t", 0, 100]
    assert again(*commit(2, 200)) == [2, 2, 0]
    desk.engine.begin_generation(7)
    assert again("SELECT", 0) == b"OK"
    assert "neither" in again.refused(*commit(3, 300)), "what it knew was of the generation before"


def test_checkpoint_that_fails_does_not_undo_the_commit(desk: Desk, tmp_path: Path, clock: ManualClock) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    stores = desk.session.task(0).stores
    flush = stores.flush

    def full() -> None:
        raise Unavailable("planted: the disk is full")

    stores.flush = full  # type: ignore[method-assign]
    assert talk(*commit(1, 100, "CHECKPOINT")) == [1, 1, 1]
    assert talk(*commit(1, 100, "CHECKPOINT")) == [1, 1, 1]
    stores.flush = flush  # type: ignore[method-assign]
    assert talk("SF.OFFSETS") == [b"t", 0, 100]
    assert (desk.engine.statistics().commits, desk.engine.statistics().commits_failed) == (1, 0)


def test_stream_time_is_undone_with_the_rest(desk: Desk) -> None:
    talk = desk.talk()
    assert talk("SF.TIME", 1_000) == 1_000
    talk(*commit(1, 1))
    assert "nothing of it was applied" in str(talk.exec(("SF.TIME", 999_999), ("SF.WPUT", "kv", "a", 1, "b")))
    assert talk("SF.TIME") == 1_000
    assert talk("SF.TIME", 999_999) == 999_999
    talk.connection.close()
    again = desk.talk()
    assert again("SF.TIME") == 1_000
    assert again("SET", "a", "1") == b"OK"
    refused = again.refused("SF.COMMIT", "OFFSETS", "t", 0, 2)
    assert refused.startswith("FENCED"), "records of that time may have been someone's"
    assert again("SF.OFFSETS") == [b"t", 0, 1]
