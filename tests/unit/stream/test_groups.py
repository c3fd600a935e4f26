"""Sub-topologies: task groups of one session, each with its own stores, partitions and source topics."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from standfast.ops.client.client import Client
from standfast.ops.http.server import OpsServer
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.specs import StoreSpec
from standfast.stream.task.groups import TaskGroup, all_specs, all_task_ids
from support.sessions import Bench

TEXT = sf.serde.string
COUNTS = sf.KeyValueStore("counts", TEXT, TEXT)
TOTALS = sf.KeyValueStore("totals", TEXT, TEXT)
ZERO, ONE = TaskId(0, 1), TaskId(1, 1)


def group(partitions: int, *specs: StoreSpec, topics: tuple[str, ...] | None = ()) -> TaskGroup:
    return TaskGroup(partitions, specs, None if topics is None else frozenset(topics))


GROUPS = {0: group(3, COUNTS, topics=("in",)), 1: group(2, TOTALS, topics=("mid",))}


def grouped(bench: Bench, directory: str = "a", **settings: Any) -> sf.Session:
    return bench.session(directory, **{"stores": (), "partitions": None, "groups": GROUPS, **settings})


def running(bench: Bench, directory: str = "a", **settings: Any) -> sf.Session:
    session = grouped(bench, directory, **settings)
    session.assign(active=all_task_ids(GROUPS))
    session.wait_ready(30)
    return session


def test_tasks_of_two_groups_have_their_own_stores_partitions_and_changelogs(bench: Bench) -> None:
    session = running(bench)
    assert sorted(map(str, session.all_tasks())) == ["0_0", "0_1", "0_2", "1_0", "1_1"]
    assert sorted(session.tasks()) == [0, 1, 2]
    assert [sorted(session.task(one).stores.stores) for one in (ZERO, ONE)] == [["counts"], ["totals"]]
    partitions = {info.name: info.partitions for info in bench.log.admin.topics()}
    assert partitions == {"app-counts-changelog": 3, "app-totals-changelog": 2}
    assert session.specs == (COUNTS, TOTALS) == all_specs(GROUPS)
    with pytest.raises(sf.UnknownStore):
        session.task(ONE).store("counts")
    with pytest.raises(sf.InvalidRequest, match="task 1_2 is not assigned"):
        session.task(TaskId(1, 2))


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_task_takes_only_committed_offsets_of_its_own_groups_topics(bench: Bench, guarantee: str) -> None:
    first = running(bench, guarantee=guarantee)
    first.task(1).store("counts").put("a", "1")
    first.task(1).commit({("in", 1): 5})
    first.task(ONE).store("totals").put("b", "2")
    first.task(ONE).progress["emitted"] = 9
    first.task(ONE).commit({("mid", 1): 7})
    first.close()
    for directory in ("a", "cold"):
        again = running(bench, directory, guarantee=guarantee)
        assert again.task(1).source_offsets() == {TopicPartition("in", 1): 5}
        assert again.task(ONE).source_offsets() == {TopicPartition("mid", 1): 7}
        assert (again.task(1).progress, again.task(ONE).progress) == ({}, {"emitted": 9})
        assert again.task(1).store("counts").get("a") == "1"
        assert again.task(ONE).store("totals").get("b") == "2"
        again.close()


def test_an_offset_of_another_groups_topic_is_refused_and_changes_nothing(bench: Bench) -> None:
    session = running(bench)
    task = session.task(ONE)
    task.store("totals").put("b", "2")
    with pytest.raises(sf.InvalidRequest, match=r"topic 'in' is not a source of its group \(which has: mid\)"):
        task.commit({("in", 1): 5})
    assert session.log.group("app").committed() == {}
    task.commit({("mid", 1): 5})
    assert task.source_offsets() == {TopicPartition("mid", 1): 5}


def test_shared_placement_shares_out_the_tasks_of_all_groups_and_stands_by_for_them(bench: Bench) -> None:
    first = grouped(bench, "a", placement="shared", standby_replicas=1)
    bench.settle(first)
    assert {str(one): task.role for one, task in first.all_tasks().items()} == dict.fromkeys(
        ("0_0", "0_1", "0_2", "1_0", "1_1"), "active"
    )
    second = grouped(bench, "b", placement="shared", standby_replicas=1)
    bench.settle(first, second)
    assert {task.role for task in second.all_tasks().values()} == {"standby"}
    first.task(ONE).store("totals").put("k", "v")
    first.task(ONE).commit({("mid", 1): 1})
    bench.settle(first, second)
    assert second.read("totals", 1, allow_stale=True).store.get("k") == "v"
    first.close()
    bench.settle(second)
    second.wait_ready(30)
    assert second.task(ONE).store("totals").get("k") == "v"
    assert second.task(ONE).source_offsets() == {TopicPartition("mid", 1): 1}


def test_a_store_is_read_by_its_name_whatever_its_group(bench: Bench) -> None:
    session = running(bench)
    session.task(ONE).store("totals").put("k", "v")
    session.task(ONE).commit()
    assert session.read("totals", 1).store.get("k") == "v"
    assert session.read("counts", 1).store.get("k") is None
    with pytest.raises(sf.InvalidRequest, match="task 1_2 is not assigned"):
        session.read("totals", 2)
    with pytest.raises(sf.UnknownStore, match="no store 'nope': it declares counts, totals"):
        session.read("nope", 0)


def test_http_server_reads_a_store_of_any_group(bench: Bench) -> None:
    session = running(bench)
    session.task(ONE).store("totals").put("k", "v")
    session.task(ONE).commit()
    with OpsServer(session) as server:
        client = Client.of_address(server.address)
        found = client.get("/v1/stores/totals/get", {"key": "k"})
        assert found["rows"][0]["partition"] == 1
        assert [part["partition"] for part in found["partitions"]] == [0, 1]
        assert client.ask("/v1/stores/counts/scan", {"partition": 2})[0] == 200
        status, absent = client.ask("/v1/stores/totals/scan", {"partition": 2})
        assert (status, "it holds: 0, 1" in absent["message"]) == (409, True)
        assert client.ask("/readyz")[0] == 200


def test_session_commit_commits_group_zero_and_leaves_the_others(bench: Bench) -> None:
    session = running(bench)
    session.task(0).store("counts").put("a", "1")
    session.task(TaskId(1, 0)).store("totals").put("b", "2")
    session.commit({("in", 0): 3, ("in", 1): 4})
    offsets = {at: found.offset for at, found in session.log.group("app").committed().items()}
    assert offsets == {TopicPartition("in", 0): 3, TopicPartition("in", 1): 4}
    assert session.read("totals", 0).store.get("b") is None


def test_a_failed_task_of_any_group_is_opened_again_by_its_id(bench: Bench) -> None:
    session = running(bench)
    session.task(ONE).store("totals").put("k", "v")
    session.task(ONE).commit({("mid", 1): 1})
    session.task(ONE).fail(RuntimeError("of the application"))
    session.reopen(ONE)
    session.wait_ready(30)
    assert session.task(ONE).store("totals").get("k") == "v"
    assert session.task(1).store("counts").get("k") is None
    with pytest.raises(sf.InvalidRequest, match="task 1_7 is not assigned"):
        session.reopen(TaskId(1, 7))


def test_a_group_without_stores_keeps_its_progress_in_the_log_alone(bench: Bench) -> None:
    bench.log.admin.create_topic("mid", 1, TopicPolicy())
    groups = {0: group(1, topics=("in",)), 1: group(1, TOTALS, topics=("mid",))}
    first = grouped(bench, groups=groups)
    first.assign(active=[0])
    first.wait_ready(30)
    first.task(0).send("mid", b"k", b"v", 1, partition=0)
    first.task(0).observe("in", 0, 77)
    first.task(0).commit({("in", 0): 2})
    first.close()
    second = grouped(bench, "b", groups=groups)
    second.assign(active=[TaskId(0, 0)])
    second.wait_ready(30)
    assert second.task(0).source_offsets() == {TopicPartition("in", 0): 2}
    assert second.task(0).stream_times == {"in/0": 77}


def test_consumer_callbacks_find_the_group_by_the_topic(bench: Bench) -> None:
    session = grouped(bench)
    session.on_assign(None, [TopicPartition("in", 1), TopicPartition("mid", 0)])
    assert sorted(map(str, session.all_tasks())) == ["0_1", "1_0"]
    session.on_revoke(None, [TopicPartition("mid", 0)])
    assert sorted(map(str, session.all_tasks())) == ["0_1"]


def test_task_of_an_unknown_group_or_partition_is_refused(bench: Bench) -> None:
    session = grouped(bench)
    with pytest.raises(sf.InvalidRequest, match="task 2_0 does not exist: the groups are 0, 1"):
        session.assign(active=[TaskId(2, 0)])
    with pytest.raises(sf.InvalidRequest, match="partition 2 does not exist: give whole numbers from 0 below 2"):
        session.assign(standby=[TaskId(1, 2)])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"groups": {}}, "groups is empty"),
        ({"stores": [COUNTS]}, "leave `stores` and `partitions` out"),
        ({"partitions": 2}, "leave `stores` and `partitions` out"),
        ({"groups": {-1: group(1)}}, "numbered with whole numbers from 0"),
        ({"groups": {0: group(0)}}, "partitions must be a whole number of at least 1, not 0"),
        ({"groups": {0: group(1, COUNTS), 1: group(1, COUNTS)}}, "store 'counts' is declared 2 times"),
        ({"groups": {0: group(1, topics=("t",)), 1: group(1, topics=("t",))}}, "belongs to groups 0 and 1"),
        ({"groups": {0: group(1, topics=None), 1: group(1)}}, "group 0 names no topics"),
        ({"groups": {0: group(1, topics=("a/b",))}}, "group 0: topic name 'a/b' is not usable"),
        (
            {"groups": {0: group(1, sf.KeyValueStore("t", TEXT, TEXT, source_topic="other"), topics=("t",))}},
            "store 't' is read from topic 'other', which is not among the group's topics",
        ),
    ],
)
def test_unusable_groups_are_refused(bench: Bench, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(sf.BadConfig) as refused:
        grouped(bench, **settings)
    assert problem in str(refused.value)


def test_problems_of_all_groups_changelogs_are_told_before_any_is_made(bench: Bench) -> None:
    for store in ("counts", "totals"):
        bench.log.admin.create_topic(f"app-{store}-changelog", 9, TopicPolicy(frozenset({"compact"})))
    more = {**GROUPS, 2: group(1, sf.KeyValueStore("new", TEXT, TEXT), topics=("new",))}
    with pytest.raises(sf.BadConfig) as refused:
        grouped(bench, groups=more)
    assert len(refused.value.problems) == 2
    assert bench.log.admin.describe_topic("app-new-changelog") is None


def test_statistics_name_tasks_by_group_and_partition(bench: Bench) -> None:
    statistics = running(bench).statistics()
    assert [task.task for task in statistics.tasks] == ["0_0", "0_1", "0_2", "1_0", "1_1"]
    assert [(store.store, store.partition) for store in statistics.tasks[4].stores] == [("totals", 1)]


# -- kept times and sent records of a task's commit --------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("what", ["progress", "stream_times"])
def test_times_that_moved_alone_are_committed_with_the_known_offsets(bench: Bench, guarantee: str, what: str) -> None:
    first = bench.active(guarantee=guarantee)
    task = first.task(0)
    task.commit({("src", 0): 3})
    getattr(task, what)["src/0"] = 50
    task.commit()
    assert first.log.group("app").committed()[TopicPartition("src", 0)].offset == 3
    assert task.stores.cut.sources == {"src/0": 3}
    first.close()
    for directory in ("a", "elsewhere"):
        again = bench.active(directory, guarantee=guarantee)
        assert getattr(again.task(0), what) == {"src/0": 50}
        assert again.task(0).source_offsets() == {TopicPartition("src", 0): 3}
        again.close()


def test_times_that_moved_before_any_offset_is_known_are_kept_locally(bench: Bench) -> None:
    first = bench.active()
    first.task(0).progress["emitted"] = 5
    first.task(0).commit()
    assert first.log.group("app").committed() == {}
    first.close()
    assert bench.active().task(0).progress == {"emitted": 5}


def test_a_commit_after_which_nothing_changed_does_nothing(bench: Bench) -> None:
    heard: list[object] = []

    class Ears(sf.Listener):
        def on_commit(self, task: TaskId, sources: object) -> None:
            heard.append(sources)

    first = bench.active(listeners=[Ears()])
    task = first.task(0)
    task.commit()
    task.progress["emitted"] = 5
    task.commit({("src", 0): 1})
    task.commit()
    task.commit({})
    assert heard == [{TopicPartition("src", 0): 1}]
    first.close()
    bench.active(listeners=[Ears()]).task(0).commit()  # restored rows are no change
    assert len(heard) == 1


def test_rows_committed_without_offsets_take_moved_progress_into_the_log(bench: Bench) -> None:
    first = bench.active()
    task = first.task(0)
    task.commit({("src", 0): 1})
    task.store("kv").put("k", "v")
    task.progress["emitted"] = 8
    task.commit()
    first.close()
    assert bench.active("elsewhere").task(0).progress == {"emitted": 8}


def test_discard_takes_progress_and_stream_times_back(bench: Bench) -> None:
    task = bench.active().task(0)
    held = task.progress
    task.progress["emitted"] = 1
    task.observe("src", 0, 10)
    task.commit({("src", 0): 1})
    task.progress["emitted"] = 2
    task.progress["other"] = 3
    task.observe("src", 0, 20)
    task.discard()
    assert (held, task.stream_times) == ({"emitted": 1}, {"src/0": 10})


def test_sent_headers_are_written_to_the_log_and_counted(bench: Bench) -> None:
    bench.log.admin.create_topic("out", 1, TopicPolicy())
    task = bench.active().task(0)
    task.send("out", b"key", b"value", 5, partition=0, headers=(("name", b"content"), ("none", None)))
    assert task.stores.buffer.size_bytes == len("keyvaluenamecontentnone")
    task.commit()
    assert task.stores.buffer.size_bytes == 0
    reader = bench.log.reader()
    reader.assign({TopicPartition("out", 0): 0})
    (record,) = reader.fetch(10)[0].records
    assert record == (0, 5, b"key", b"value", (("name", b"content"), ("none", None)))


@pytest.mark.parametrize(
    ("part", "arguments"),
    [
        ("key", {"key": b"123456"}),
        ("value", {"value": b"123456"}),
        ("headers", {"headers": (("123", b"456"),)}),
    ],
)
def test_a_sent_record_over_the_value_limit_is_refused_and_changes_nothing(
    bench: Bench, part: str, arguments: dict[str, Any]
) -> None:
    task = bench.active(value_max_bytes=5).task(0)
    record: dict[str, Any] = {"key": b"12345", "value": b"12345", **arguments}
    with pytest.raises(sf.InvalidRequest, match=rf"{part} of 6 bytes for topic 'out' is over the limit of 5 bytes"):
        task.send("out", **record, partition=0)
    assert task.stores.buffer.size_bytes == 0
    task.send("out", b"12345", b"12345", partition=0, headers=(("12", b"345"),))
