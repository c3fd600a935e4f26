"""A discard of uncommitted writes, and the connections of its task: fenced ones, others, and their offsets."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from support.resp import Desk, Talk

OFFSETS = ("OFFSETS", "flights", 0)
READ_FIRST = "read the source offsets (SF.OFFSETS)"


def one_shot(desk: Desk, *request: Any) -> None:
    """A client that connects, sends one request and leaves, as redis-cli does with a command on its line."""
    talk = desk.talk()
    talk(*request)
    talk.connection.close()


def committed(talk: Talk, seq: int, offset: int, *options: Any) -> Any:
    """The reply to a commit of this offset of flights-0."""
    return talk("SF.COMMIT", "SEQ", seq, *options, *OFFSETS, offset)


def test_one_shot_write_leaves_the_connections_of_others_readable_and_writable(desk: Desk) -> None:
    reader, idle = desk.talk(), desk.talk()
    assert reader("GET", "a") is None
    one_shot(desk, "SET", "a", "1")
    for talk in (reader, idle, desk.talk()):
        assert talk("GET", "a") is None
        assert talk("SET", "b", "2") == b"OK"
        assert talk("SF.COMMIT") == [1, None, 1]
    one_shot(desk, "SET", "a", "1")
    one_shot(desk, "SET", "a", "1")
    assert desk.talk()("SET", "a", "2") == b"OK"


@pytest.mark.parametrize("epoch", [(), ("EPOCH", 1)])
def test_other_connection_of_a_pool_commits_no_offsets_of_the_rows_of_one_that_died(
    desk: Desk, epoch: tuple[Any, ...]
) -> None:
    first, second = desk.talk(), desk.talk()
    assert [first("SF.OFFSETS"), second("SF.OFFSETS")] == [[], []]
    first("SET", "a", "1")
    assert committed(second, 1, 5, *epoch) == [1, 1, 1]
    first("SET", "a", "row of offsets 5 to 9")
    first.connection.close()
    for talk in (second, desk.talk()):
        assert talk("SET", "b", "2") == b"OK"
        for seq, offset in ((2, 10), (1, 5)):
            refused = talk.refused("SF.COMMIT", "SEQ", seq, *epoch, *OFFSETS, offset)
            assert refused.startswith("FENCED partition 0: ")
            assert READ_FIRST in refused
        assert str(talk.exec(("SET", "c", "3"), ("SF.COMMIT", "SEQ", 2, *epoch, *OFFSETS, 10))).startswith("FENCED")
        assert talk("GET", "c") is None, "the batch of a commit that is refused is not applied"
    assert second("SF.OFFSETS") == [b"flights", 0, 5]
    assert second("GET", "b") is None
    second("SET", "a", "rows of offsets 5 to 9 again")
    assert committed(second, 2, 10, *epoch) == [1, 2, 1]


def test_offsets_are_refused_on_every_connection_that_has_not_read_them_since_the_discard(desk: Desk) -> None:
    first, second, third = desk.talk(), desk.talk(), desk.talk()
    third("SF.OFFSETS")
    one_shot(desk, "SET", "a", "1")
    first("SF.OFFSETS")
    assert committed(first, 1, 5) == [1, 1, 0]
    for talk in (second, third, desk.talk()):
        assert READ_FIRST in talk.refused("SF.COMMIT", "SEQ", 2, "EPOCH", 1, *OFFSETS, 6)
    one_shot(desk, "SET", "a", "1")
    assert READ_FIRST in first.refused("SF.COMMIT", "SEQ", 2, *OFFSETS, 6)
    first("SF.OFFSETS")
    assert committed(first, 2, 6) == [1, 2, 0]


def test_connection_that_wrote_what_was_discarded_is_fenced_until_it_binds_again(desk: Desk) -> None:
    writer, other = desk.talk(), desk.talk()
    writer("SET", "a", "1")
    other("SET", "b", "2")
    other.connection.close()
    for request in (("GET", "a"), ("SET", "a", "1"), ("SF.COMMIT",), ("SF.COMMIT", "SEQ", 1, *OFFSETS, 6)):
        refused = writer.refused(*request)
        assert refused.startswith("FENCED partition 0: uncommitted writes were discarded")
        assert READ_FIRST in refused
    assert desk.talk()("SET", "c", "3") == b"OK"
    assert writer("SELECT", 0) == b"OK"
    assert writer("SET", "a", "1") == b"OK"
    assert READ_FIRST in writer.refused("SF.COMMIT", "SEQ", 1, "EPOCH", 1, *OFFSETS, 6)
    assert writer("SF.COMMIT", "SEQ", 1) == [1, 1, 2]


def test_fenced_connection_that_goes_takes_no_writes_of_others_along(desk: Desk) -> None:
    writer, other, third = desk.talk(), desk.talk(), desk.talk()
    writer("SET", "a", "1")
    other("SET", "b", "2")
    other.connection.close()
    third("SET", "c", "3")
    writer.connection.close()
    assert third("GET", "c") == b"3"
    assert third("SF.COMMIT", "SEQ", 1) == [1, 1, 1]


def test_offsets_read_by_one_connection_discard_and_leave_the_readers_of_the_pool_alone(desk: Desk) -> None:
    writer, reader, later = desk.talk(), desk.talk(), desk.talk()
    reader("SF.OFFSETS")
    writer("SET", "a", "half done")
    assert later("SF.OFFSETS") == []
    assert reader("GET", "a") is None
    assert READ_FIRST in reader.refused("SF.COMMIT", "SEQ", 1, "EPOCH", 1, *OFFSETS, 6)
    assert writer.refused("GET", "a").startswith("FENCED partition 0: another connection began again")
    assert committed(later, 1, 6) == [1, 1, 0]


def test_task_that_was_opened_again_after_a_loss_takes_writes_and_no_offsets_that_were_not_read(desk: Desk) -> None:
    talk = desk.talk()
    talk("SET", "a", "1")
    desk.session.task(0).fail(RuntimeError("planted"))
    desk.session.reopen(0)
    desk.session.wait_ready(10)
    again = desk.talk()
    assert again("SET", "b", "2") == b"OK"
    assert READ_FIRST in again.refused("SF.COMMIT", "SEQ", 1, "EPOCH", 2, *OFFSETS, 6)
    assert again("SF.OFFSETS") == []
    assert committed(again, 1, 6) == [2, 1, 0]


def test_writer_that_goes_after_its_task_failed_leaves_no_offsets_to_who_has_not_read_them(desk: Desk) -> None:
    writer, other = desk.talk(), desk.talk()
    writer("SET", "a", "1")
    desk.session.task(0).fail(RuntimeError("planted"))
    desk.session.reopen(0)
    desk.session.wait_ready(10)
    writer.connection.close()
    assert other("SET", "b", "2") == b"OK"
    assert READ_FIRST in other.refused("SF.COMMIT", "SEQ", 1, *OFFSETS, 6)
    assert other("SF.OFFSETS") == []
    assert committed(other, 1, 6) == [2, 1, 0]


def test_failed_commit_leaves_no_offsets_to_who_has_not_read_them(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    talk, task = desk.talk(), desk.session.task(0)
    talk("SET", "a", "1")

    def fails(*_: object, **__: object) -> None:
        task.fail(sf.Unavailable("planted"))
        raise sf.Unavailable("planted")

    monkeypatch.setattr(task, "commit", fails)
    assert "planted" in talk.refused("SF.COMMIT", "SEQ", 1, *OFFSETS, 6)
    desk.session.reopen(0)
    desk.session.wait_ready(10)
    again = desk.talk()
    assert again("SET", "b", "2") == b"OK"
    assert READ_FIRST in again.refused("SF.COMMIT", "SEQ", 1, "EPOCH", 2, *OFFSETS, 6)


def test_new_generation_brings_its_offsets_with_it(desk: Desk) -> None:
    one_shot(desk, "SET", "a", "1")
    desk.engine.begin_generation(1)
    talk = desk.talk()
    assert committed(talk, 1, 6, "EPOCH", 1) == [1, 1, 0]


def test_status_says_what_was_lost_to_whom_it_concerns(desk: Desk) -> None:
    one_shot(desk, "SET", "a", "1")
    talk = desk.talk()
    talk("HELLO", "3")
    assert b"discarded" in talk("SF.STATUS")[b"lost"]
    talk("SF.OFFSETS")
    assert talk("SF.STATUS")[b"lost"] is None
