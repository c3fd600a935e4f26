"""Offsets that may be committed with the state of a task: one rule, in the library and at the sidecar's RESP server."""

from __future__ import annotations

import re
from typing import Any

import pytest

import standfast as sf
from standfast.ops.shared.error_codes import BAD_BATCH, Refused
from standfast.ops.sidecar.engine.commit import CommitRequest
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.stream.source_offsets import checked_source_offsets
from support.resp import Desk
from support.sessions import Bench

KV = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
BAD: dict[str, tuple[dict[Any, Any], str]] = {
    "another task's partition": ({("src", 1): 5}, "partition 1 of 'src' does not belong to this task"),
    "back": ({("src", 0): 2}, "src-0 goes back from 3 to 2"),
    "back to the beginning": ({("src", 0): 0}, "src-0 goes back from 3 to 0"),
    "below 0": ({("src", 0): -1}, "source offset of src-0 is -1"),
    "partition -1": ({("src", -1): 5}, "partition -1 of 'src'"),
    "partition as text": ({("src", "0"): 5}, "partition '0' of 'src'"),
    "partition as a truth": ({("src", False): 5}, "partition False of 'src'"),
    "huge partition": ({("src", 2**31): 5}, f"partition {2**31} of 'src'"),
    "huge offset": ({("src", 0): 2**70}, f"source offset of src-0 is {2**70}"),
    "offset beyond the logs": ({("src", 0): 2**62}, f"source offset of src-0 is {2**62}"),
    "offset as text": ({("src", 0): "5"}, "source offset of src-0 is '5'"),
    "offset as a truth": ({("src", 0): True}, "source offset of src-0 is True"),
    "offset as a fraction": ({("src", 0): 5.0}, "source offset of src-0 is 5.0"),
    "topic that none can be": ({("a/b", 0): 5}, "topic name 'a/b' is not usable"),
    "no topic": ({(None, 0): 5}, "topic name None is not usable"),
    "no partition": ({("src",): 5}, r"\('src',\) is not a source partition"),
    "text for both": ({"src-0": 5}, "'src-0' is not a source partition"),
    "one of several": ({("src", 0): 5, ("other", 1): 5}, "partition 1 of 'other'"),
}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("bad", BAD)
def test_offsets_that_cannot_be_committed_change_nothing_and_the_task_lives_on(
    bench: Bench, bad: str, guarantee: str
) -> None:
    offsets, problem = BAD[bad]
    session = bench.active(stores=KV, guarantee=guarantee)
    task = session.task(0)
    task.store("kv").put("k", "first")
    task.commit({("src", 0): 3})
    task.store("kv").put("k", "second")
    with pytest.raises(sf.InvalidRequest, match=problem):
        task.commit(offsets)
    with pytest.raises(sf.InvalidRequest):
        session.commit(offsets)
    assert task.store("kv").get("k") == "second"
    assert session.read("kv", 0).store.get("k") == "first"
    assert {at: one.offset for at, one in bench.log.group("app").committed().items()} == {TopicPartition("src", 0): 3}
    task.commit({("src", 0): 4})
    assert session.read("kv", 0).store.get("k") == "second"


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_offsets_of_one_task_that_are_wrong_commit_no_task_of_the_session(bench: Bench, guarantee: str) -> None:
    session = bench.active(partitions=(0, 1), stores=KV, guarantee=guarantee)
    session.commit({("src", 0): 3, ("src", 1): 3})
    for partition in (0, 1):
        session.task(partition).store("kv").put("k", "v")
    with pytest.raises(sf.InvalidRequest, match=r"src-1 goes back from 3 to 2.*nothing was committed"):
        session.commit({("src", 0): 4, ("src", 1): 2})
    assert [session.read("kv", partition).store.get("k") for partition in (0, 1)] == [None, None]
    assert {one.offset for one in bench.log.group("app").committed().values()} == {3}
    session.commit({("src", 0): 4, ("src", 1): 4})
    assert [session.read("kv", partition).store.get("k") for partition in (0, 1)] == ["v", "v"]


def test_offsets_that_a_failed_commit_left_do_not_go_back_behind_a_later_commit_of_their_task(bench: Bench) -> None:
    session = bench.active(partitions=(0, 1), stores=KV)
    session.commit({("src", 0): 3, ("src", 1): 3})
    session.task(0).fail(RuntimeError("in the middle"))
    with pytest.raises(sf.Closed):
        session.commit({("src", 0): 4, ("src", 1): 4})
    session.task(1).commit({("src", 1): 5})
    session.reopen(0)
    session.wait_ready(30)
    session.commit({})
    assert session.task(1).source_offsets() == {TopicPartition("src", 1): 5}


def test_the_committed_offset_may_be_committed_again(bench: Bench) -> None:
    task = bench.active(stores=KV).task(0)
    for value in "ab":
        task.store("kv").put("k", value)
        task.commit({("src", 0): 3})
    assert task.source_offsets() == {TopicPartition("src", 0): 3}


def test_one_error_names_everything_that_is_wrong() -> None:
    given = {("src", 1): 5, ("src", 0): 2, ("other", 0): 1}
    with pytest.raises(sf.InvalidRequest) as refused:
        checked_source_offsets(given, TaskId(0, 0), frozenset({"src"}), {TopicPartition("src", 0): 3})
    for problem in ("partition 1 of 'src'", "goes back from 3 to 2", "topic 'other' is not a source"):
        assert problem in str(refused.value)
    with pytest.raises(sf.InvalidRequest, match=r"and 5 more; nothing was committed$"):
        checked_source_offsets({("src", -number): 1 for number in range(1, 11)}, TaskId(0, 0), None, {})


@pytest.mark.parametrize("bad", ["below 0", "partition -1", "huge partition", "huge offset", "offset beyond the logs"])
def test_request_at_the_resp_server_has_the_same_rule(bad: str) -> None:
    offsets, problem = BAD[bad]
    with pytest.raises(Refused, match=problem) as refused:
        CommitRequest(offsets=offsets)
    assert refused.value.reason is BAD_BATCH


@pytest.mark.parametrize("bad", ["another task's partition", "back", "offset beyond the logs", "one of several"])
def test_commit_at_the_resp_server_has_the_same_rule(desk: Desk, bad: str) -> None:
    offsets, problem = BAD[bad]
    talk = desk.talk()
    talk("SF.OFFSETS")
    talk("SF.COMMIT", "OFFSETS", "src", 0, 3)
    flat = [part for (topic, partition), offset in offsets.items() for part in (topic, partition, offset)]
    assert re.search(problem, talk.refused("SF.COMMIT", "OFFSETS", *flat))
    assert talk("SF.OFFSETS") == [b"src", 0, 3]
