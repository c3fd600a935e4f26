"""Source offsets that another client of the group committed: refused where they differ from the task's own record.

Rules of this file: the embedded log, on which the other client commits through the log's own port, without metadata of
ours; `tests/system/kafka/test_foreign_group_kafka.py` has real consumers.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.doctor.local import local_facts, local_findings
from standfast.ops.sidecar.worker.session import SidecarSession
from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.log import Committed
from standfast.replication.offsets import TopicPartition
from standfast.restore.accepted import ACCEPTED_FILE, Accepted, note_loss, read_accepted
from support.apps import Running, create, write
from support.placement import COUNT, TASKS, Cluster, counts
from support.sessions import Bench, four_stores
from support.tables import COMPACT, COUNTS, TABLE, expected, position, produce, pump, rows
from support.tables import SOURCE as PRICES

BOTH = pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
SOURCE = TopicPartition("src", 0)
OURS = CommitMetadata(0).to_text()
KAFKA_STREAMS = "AgAAAYGXr0Ub"  # the text of Kafka Streams: base64 of a version, a time, ...


def stopped_at(bench: Bench, offset: int, directory: str = "a", **settings: Any) -> None:
    """Commit a row and this source offset of task 0, and close."""
    session = bench.active(directory, **settings)
    commit(session, offset)
    session.close()


def commit(session: sf.Session, offset: int) -> None:
    session.task(0).store("kv").put("k", str(offset))
    session.task(0).commit({SOURCE: offset})


def other_client(bench: Bench, offset: int, metadata: str = "", at: TopicPartition = SOURCE) -> None:
    bench.log.group("app").commit({at: Committed(offset, metadata)})


def in_group(bench: Bench, at: TopicPartition = SOURCE) -> Committed:
    return bench.log.group("app").committed([at])[at]


def offset_of(session: sf.Session) -> int:
    return session.task(0).source_offsets()[SOURCE]


# -- a start ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("theirs", "cost"),
    [(20, "offsets 10 to 19 of src-0 are never processed"), (4, "offsets 4 to 9 of src-0 are processed twice")],
)
@pytest.mark.parametrize("text", ["", KAFKA_STREAMS])
def test_foreign_commit_that_differs_from_the_own_record_is_refused(
    bench: Bench, guarantee: str, theirs: int, cost: str, text: str
) -> None:
    stopped_at(bench, 10, guarantee=guarantee)
    other_client(bench, theirs, text)
    session = bench.session(guarantee=guarantee)
    with pytest.raises(sf.StateLost) as refused:
        session.assign(active=[0])
    told = str(refused.value)
    assert refused.value.reason == "foreign-offsets"
    assert told.startswith("task 0_0: another client of group 'app' committed offsets of its sources")
    assert f"src-0: {theirs}, own record 10" in told
    assert f"accept_foreign_offsets=True): {cost}" in told
    assert f"standfast reset --offsets own --app app --log {bench.address} --state-dir {bench.root}/a`" in told
    assert told.endswith("newer than the record are processed twice (if the task ran elsewhere since)")
    assert in_group(bench) == (theirs, text)
    assert read_accepted(session.state_path) == []


def test_other_tasks_are_opened_where_one_is_refused(bench: Bench) -> None:
    first = bench.active(partitions=(0, 1))
    for partition in (0, 1):
        first.task(partition).commit({("src", partition): 10})
    first.close()
    other_client(bench, 20)
    session = bench.session(gate="task")
    with pytest.raises(sf.StateLost, match="task 0_0"):
        session.assign(active=[0, 1])
    session.assign(active=[1])
    session.wait_ready(30)
    assert session.task(1).source_offsets() == {("src", 1): 10}


@BOTH
def test_record_behind_its_changelogs_says_that_its_offset_costs_records_processed_twice(
    bench: Bench, guarantee: str
) -> None:
    stopped_at(bench, 10, guarantee=guarantee)
    shutil.copytree(bench.root / "a", bench.root / "older")
    stopped_at(bench, 15, guarantee=guarantee)
    other_client(bench, 20)
    session = bench.session("older", guarantee=guarantee)
    with pytest.raises(sf.StateLost, match=r"own record 10.*there are some, since its changelogs are ahead of it"):
        session.assign(active=[0])


@BOTH
@pytest.mark.parametrize("theirs", [20, 4])
def test_consent_goes_on_from_the_foreign_offset_and_is_recorded_once(
    bench: Bench, guarantee: str, theirs: int, caplog: pytest.LogCaptureFixture
) -> None:
    stopped_at(bench, 10, guarantee=guarantee)
    other_client(bench, theirs)
    first = bench.active(guarantee=guarantee, accept_foreign_offsets=True)
    assert offset_of(first) == theirs
    first.close()  # it has committed nothing
    accepted = bench.active(guarantee=guarantee, accept_foreign_offsets=True)
    assert offset_of(accepted) == theirs
    (one,) = read_accepted(accepted.state_path)
    assert (one.task, one.store, one.changelog, one.begin, one.end) == ("0_0", "", "src-0", 10, theirs)
    assert [line for line in caplog.messages if "accepted: offset" in line] == [
        f"task 0_0, accepted: {one.loss}"
    ]  # once
    (finding,) = [one for one in local_findings(local_facts(accepted.state_path, "app")) if one.rule == "loss-accepted"]
    assert "accept_foreign_offsets" in str(finding)


@BOTH
def test_consent_is_needed_once_as_the_next_commit_is_ours_also_without_a_record(bench: Bench, guarantee: str) -> None:
    stopped_at(bench, 10, guarantee=guarantee)
    other_client(bench, 20)
    accepted = bench.active(guarantee=guarantee, accept_foreign_offsets=True)
    accepted.task(0).commit()
    accepted.close()
    assert in_group(bench).offset == 20
    assert CommitMetadata.from_text(in_group(bench).metadata) is not None
    assert offset_of(bench.active(guarantee=guarantee)) == 20


def test_consent_that_cannot_be_recorded_is_none(bench: Bench) -> None:
    stopped_at(bench, 10)
    other_client(bench, 20)
    (bench.root / "a/app" / ACCEPTED_FILE).mkdir()
    session = bench.session(accept_foreign_offsets=True)
    with pytest.raises(sf.InvalidRequest, match="ACCEPTED"):
        session.assign(active=[0])
    assert not session.tasks()


@BOTH
def test_foreign_commit_of_the_recorded_offset_is_followed(bench: Bench, guarantee: str) -> None:
    stopped_at(bench, 10, guarantee=guarantee)
    other_client(bench, 10)
    assert offset_of(bench.active(guarantee=guarantee)) == 10


@BOTH
def test_commit_of_ours_that_differs_from_the_record_is_followed_as_before(bench: Bench, guarantee: str) -> None:
    stopped_at(bench, 10, guarantee=guarantee)
    other_client(bench, 20, OURS)
    assert offset_of(bench.active(guarantee=guarantee)) == 20


@BOTH
def test_without_a_record_of_its_own_a_task_follows_and_says_so(
    bench: Bench, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stopped_at(bench, 10, guarantee=guarantee)
    other_client(bench, 20)
    assert offset_of(bench.active("lost", guarantee=guarantee)) == 20
    assert [record.message for record in caplog.records if "another client" in record.message] == [
        "task 0_0 begins src-0 at offset 20, which another client of group 'app' committed: it has no record of its "
        "own here"
    ]


def test_offsets_of_ours_are_followed_without_a_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stopped_at(bench, 10)
    assert offset_of(bench.active("lost")) == 10
    assert "another client" not in caplog.text


def test_record_that_came_with_a_snapshot_counts_as_the_directorys(bench: Bench) -> None:
    kv = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
    policy = sf.SnapshotPolicy(to=str(bench.root / "snapshots"))
    first = bench.active(stores=kv, snapshots=policy)
    commit(first, 10)
    first.snapshot(0)
    commit(first, 12)
    first.close()
    other_client(bench, 20)
    session = bench.session("lost", stores=kv, snapshots=policy)
    with pytest.raises(sf.StateLost, match=r"src-0: 20, own record 10.*its changelogs are ahead of it"):
        session.assign(active=[0])
    without = bench.active("other", stores=kv)
    assert offset_of(without) == 20


@BOTH
def test_table_over_its_source_topic_is_refused_before_its_rows_move(bench: Bench, guarantee: str) -> None:
    bench.log.admin.create_topic("prices", 2, COMPACT)
    produce(bench, 0, 40)
    stores: list[Any] = [TABLE, COUNTS]
    first = bench.active(stores=stores, guarantee=guarantee)
    pump(bench, first.task(0), 10)
    first.close()
    other_client(bench, 30, at=PRICES)
    session = bench.session(stores=stores, guarantee=guarantee)
    with pytest.raises(sf.StateLost, match="prices-0: 30, own record 10") as refused:
        session.assign(active=[0])
    assert "if the task ran elsewhere since" in str(refused.value)
    session.close()
    other_client(bench, 10, OURS, at=PRICES)  # as `standfast reset --offsets own` does
    again = bench.active(stores=stores, guarantee=guarantee)
    assert (rows(again), position(again.task(0))) == (expected(10), 10)


def test_foreign_commit_in_the_middle_of_a_restore_keeps_the_task_closed(
    bench: Bench, small_batches: None, caplog: pytest.LogCaptureFixture
) -> None:
    stopped_at(bench, 10)
    shutil.copytree(bench.root / "a", bench.root / "older")
    first = bench.active()
    for number in range(2_000):
        first.task(0).store("kv").put(f"k{number}", "v")
    commit(first, 15)
    first.close()
    session = bench.session("older", stores=first.specs)
    session.assign(active=[0])
    session.poll_once()
    assert session.missing()  # it restores
    other_client(bench, 20)
    for _ in range(40):
        bench.clock.advance(100)
        session.poll_once()
    assert not session.ready
    assert "src-0: 20, own record 10" in str(session.tasks()[0].error)
    assert any("accept_foreign_offsets" in line for line in session.missing())
    with pytest.raises(sf.StateLost, match="own record 10"):
        session.reopen(0)
    other_client(bench, 12, OURS)
    session.reopen(0)
    session.wait_ready(30)
    assert offset_of(session) == 12


# -- a take-over ------------------------------------------------------------------------------------------------------


def test_take_over_is_refused_as_other_openings_are_and_the_other_tasks_go_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    stopped_at(bench, 5, "b")  # an older record
    first = bench.active(lease_ms=1_000)
    commit(first, 10)
    second = bench.session("b", lease_ms=1_000, gate="task")
    second.assign(active=[1], standby=[0])
    second.wait_ready(30)
    bench.settle(second)
    other_client(bench, 20)
    bench.clock.advance(1_200)  # the first one is gone
    second._instance.membership.heartbeat(second._group)
    bench.settle(second)
    assert "src-0: 20, own record 5" in str(second.tasks()[0].error)
    with pytest.raises(sf.Closed, match="accept_foreign_offsets"):
        second.task(0)
    second.task(1).store("kv").put("still", "here")
    second.task(1).commit({("src", 1): 1})
    assert [line for line in second.missing() if "src-0: 20, own record 5" in line]
    with pytest.raises(sf.StateLost, match="accept_foreign_offsets"):
        second.reopen(0)
    accepted = bench.active("b2")  # an instance without a record follows, as before
    assert offset_of(accepted) == 20


# -- applications -----------------------------------------------------------------------------------------------------


def app_stopped(bench: Bench, directory: str = "a") -> TopicPartition:
    """An application that processed three records of its topic `in`; returns the partition."""
    create(bench, 1, "in", "out")
    write(bench, "in", *(("k", "1", number) for number in range(3)))
    one = Running(bench, counts, directory, stores=[COUNT], alone=False, settle=False)
    for _ in range(40):
        bench.clock.advance(100)
        one.session.poll_once()
        one.loop.poll_once()
    one.loop.commit_all()
    one.close()
    return TopicPartition("in", 0)


def test_application_ends_at_its_start(bench: Bench) -> None:
    source = app_stopped(bench)
    assert in_group(bench, source).offset == 3
    other_client(bench, 1, at=source)
    app = sf.App("app", log=bench.address, state_dir=bench.root / "a", stores=[COUNT])
    counts(app)
    with pytest.raises(sf.StateLost, match=r"task 0_0.*in-0: 1, own record 3.*--offsets own --app app"):
        app.run()
    assert in_group(bench, source) == (1, "")


@pytest.mark.parametrize("placement", ["managed", "static"])
def test_application_with_consent_goes_on(bench: Bench, placement: Any) -> None:
    source = app_stopped(bench)
    write(bench, "in", ("k", "1", 9))
    other_client(bench, 2, at=source)
    app = sf.App("app", log=bench.address, state_dir=bench.root / "a", stores=[COUNT], accept_foreign_offsets=True,
                 placement=placement)  # fmt: skip
    counts(app)
    session = app.open()
    try:
        if placement == "static":
            session.assign(active=["0_0"])
        session.wait_ready(30)
        assert session.all_tasks().popitem()[1].source_offsets() == {source: 2}
    finally:
        session.close()


def test_application_of_named_tasks_is_refused_where_they_are_named(bench: Bench) -> None:
    source = app_stopped(bench)
    other_client(bench, 1, at=source)
    app = sf.App("app", log=bench.address, state_dir=bench.root / "a", stores=[COUNT], placement="static")
    counts(app)
    session = app.open()
    with closing(session), pytest.raises(sf.StateLost, match="in-0: 1, own record 3"):
        session.assign(active=["0_0"])


def test_instance_beside_others_keeps_a_refused_task_closed_so_that_none_follows_without_a_record(bench: Bench) -> None:
    cluster = Cluster(bench, gate="task")
    cluster.start("a")
    cluster.fill(3)
    cluster.rounds()
    cluster.live["a"].loop.commit_all()
    cluster.stop("a")
    other_client(bench, 1, at=TopicPartition("in", 0))
    cluster.start("a")
    cluster.start("b")
    cluster.rounds(60)
    (line,) = cluster.live["a"].session.missing()
    assert "task 0_0" in line
    assert "in-0: 1, own record 3" in line
    assert cluster.active()["b"]
    assert cluster.live["b"].session.missing() == ()
    cluster.fill(1, first=3)
    cluster.rounds()
    assert len([1 for (key, _), _ in cluster.results().items() if key is not None]) == 4 * TASKS - 1  # all but 0_0's
    assert in_group(bench, TopicPartition("in", 0)) == (1, "")


def test_consumer_of_the_applications_own_commits_what_it_likes_as_before(bench: Bench) -> None:
    session = bench.session()
    session.on_assign(None, [SOURCE])
    session.wait_ready(30)
    commit(session, 10)
    session.close()
    other_client(bench, 20)
    again = bench.session()
    again.on_assign(None, [SOURCE])
    again.wait_ready(30)
    assert offset_of(again) == 20


def test_sessions_that_follow_the_group_take_its_offsets_as_before(bench: Bench) -> None:
    stopped_at(bench, 10)
    other_client(bench, 20)
    session = bench.session(placement="group")
    session.on_assign(None, [SOURCE])
    session.wait_ready(30)
    assert offset_of(session) == 20


def test_sidecar_takes_the_offsets_of_its_clients_consumer_as_before(bench: Bench) -> None:
    stopped_at(bench, 10)
    other_client(bench, 20)
    with closing(
        SidecarSession("app", log=bench.address, state_dir=bench.root / "a", stores=four_stores(), partitions=2)
    ) as session:
        session.hold([0], [])
        session.wait_ready(30)
        assert offset_of(session) == 20


def test_a_consent_is_recorded_once_and_a_torn_line_does_not_hide_the_next(tmp_path: Path) -> None:
    one = Accepted("0_0", "", "src-0", 10, 20, "offset 20", 5)
    (tmp_path / ACCEPTED_FILE).write_text('{"format": "standfast.acc')
    note_loss(tmp_path, one)
    note_loss(tmp_path, one._replace(at_ms=6))
    note_loss(tmp_path, one._replace(end=30))  # another commit of another client
    assert [(found.begin, found.end) for found in read_accepted(tmp_path)] == [(10, 20), (10, 30)]
