"""An application restored under another name: whole from its files and from its changelogs alone, or refused."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Committed, Log, Outgoing, TopicPolicy
from standfast.replication.metadata_parts import source_offsets
from standfast.replication.offsets import TopicPartition
from standfast.replication.topics.claims import Claim, claims_of
from standfast.replication.topics.restoring import Restoring, as_record, mark_of, read_mark
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.snapshot import clone
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.clone import Cloned, clone_app
from standfast.restore.snapshot.names import file_key
from standfast.restore.snapshot.opening import open_storage
from standfast.store.errors import BadConfig, Corruption, Fenced, InvalidRequest, Unavailable
from support.sessions import KINDS, START_MS, Bench, four_stores, operate

KV = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


def running(bench: Bench, tasks: tuple[int, ...] = (0,), stores: list[Any] = KV) -> sf.Session:
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"), restore=False)
    session = bench.session(partitions=len(tasks), stores=stores, snapshots=policy)
    session.assign(active=tasks)
    session.wait_ready(30)
    return session


def snapshotted(bench: Bench) -> sf.Session:
    """A session whose task 0 has one row, with a snapshot of it."""
    session = running(bench)
    session.task(0).store("kv").put("a", "1")
    session.task(0).commit()
    session.snapshot(0)
    return session


def copied(bench: Bench, name: str = "copy", **settings: Any) -> Cloned:
    storage = open_storage(str(bench.root / "snaps"), "app")
    newest = {one.snapshot.task: one.snapshot for one in reversed(listed(storage).whole)}
    given: dict[str, Any] = {
        "parts": list(newest.values()),
        "state_dir": bench.root / "b",
        "log": bench.log,
        **settings,
    }
    return clone_app(storage, given.pop("parts"), name=name, clock=bench.clock, **given)


def opened(bench: Bench, directory: str, tasks: int = 1, stores: list[Any] = KV, name: str = "copy") -> sf.Session:
    session = sf.Session(name, log=bench.address, state_dir=bench.root / directory, stores=stores, partitions=tasks,
                         background=False, clock=bench.clock)  # fmt: skip
    bench.opened.append(session)
    session.assign(active=range(tasks))
    session.wait_ready(30)
    return session


def digests(session: sf.Session, task: int = 0) -> dict[str, Digest]:
    return {name: digest_rows(session.task(task).store(name).logical_rows()) for name in KINDS}


def sources(bench: Bench, records: int, partitions: int = 1) -> None:
    bench.log.admin.create_topic("flights", partitions, TopicPolicy())
    with closing(bench.log.producer()) as producer:
        for partition in range(partitions):
            producer.append({TopicPartition("flights", partition): [Outgoing(b"k", b"v", 0)] * records})


def commit(session: sf.Session, task: int, offset: int, **rows: str | None) -> None:
    for key, value in rows.items():
        session.task(task).store("kv").put(key, value)
    session.task(task).commit({("flights", task): offset})


def rows(session: sf.Session, task: int = 0) -> dict[str, str]:
    with session.task(task).store("kv").all() as found:
        return dict(found)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_every_kind_of_store_is_whole_from_its_files_and_from_its_changelogs_alone(bench: Bench, seed: int) -> None:
    session = running(bench, stores=four_stores())
    operate(session.task(0), Random(seed), 200)
    session.snapshot(0)
    expected, times = digests(session), dict(session.task(0).stores.cut.stores)
    operate(session.task(0), Random(seed + 100), 50)
    done = copied(bench)
    assert [(one.task, one.rows > 50) for one in done.tasks] == [("0_0", True)]
    assert bench.log.admin.describe_topic(mark_of("copy").topic) is None

    local = opened(bench, "b", stores=four_stores())
    assert digests(local) == expected
    assert not local.counters.restored_records
    local.close()
    cold = opened(bench, "c", stores=four_stores())
    assert digests(cold) == expected
    assert sum(cold.counters.restored_records.values()) == done.tasks[0].rows
    assert {name: cold.task(0).store(name).rows.observed_ms for name in ("win", "ses")} == {
        name: times[name].observed_ms for name in ("win", "ses")
    }
    history = {
        (number, hours): cold.task(0).store("ver").get(f"k{number}", times["ver"].observed_ms - hours * 3_600_000)
        for number in range(30)
        for hours in range(24)
    }
    cold.close()
    # The same reads of history at every moment that is kept, deletes included.
    again = opened(bench, "b", stores=four_stores())
    for (number, hours), found in history.items():
        at_ms = times["ver"].observed_ms - hours * 3_600_000
        assert again.task(0).store("ver").get(f"k{number}", at_ms) == found, (number, hours)


def test_its_source_offsets_and_times_are_those_of_the_cut(bench: Bench) -> None:
    sources(bench, 10, 2)
    session = running(bench, (0, 1))
    for task in (0, 1):
        session.task(task).stream_times[f"flights/{task}"] = START_MS + task
        commit(session, task, 4 + task, a=f"old {task}")
        session.snapshot(task)
        commit(session, task, 9, a="new")
    done = copied(bench)
    assert [one.sources for one in done.tasks] == [{"flights/0": 4}, {"flights/1": 5}]
    committed = bench.log.group("copy").committed()
    assert {at.partition: found.offset for at, found in committed.items()} == {0: 4, 1: 5}
    metadata = CommitMetadata.from_text(committed[TopicPartition("flights", 1)].metadata)
    assert metadata is not None
    assert metadata.stream_times == {"flights/1": START_MS + 1}
    for directory in ("b", "cold"):
        new = opened(bench, directory, 2)
        assert [rows(new, task) for task in (0, 1)] == [{"a": "old 0"}, {"a": "old 1"}]
        assert [new.task(task).source_offsets() for task in (0, 1)] == [
            {TopicPartition("flights", 0): 4},
            {TopicPartition("flights", 1): 5},
        ]
        new.close()
    assert bench.log.group("app").committed()[TopicPartition("flights", 0)].offset == 9
    assert rows(session) == {"a": "new"}


def test_a_task_with_numbers_for_several_texts_has_all_of_them_under_the_new_name(bench: Bench) -> None:
    sources(bench, 10)
    rng, stores = (
        Random(5),
        [sf.KeyValueStore(name, sf.serde.string, sf.serde.string) for name in ("kv", "b", "c", "d")],
    )
    session = running(bench, stores=stores)
    kept = {f"number:{number}": rng.randrange(2**63) for number in range(600)}
    session.task(0).progress.update(kept)
    commit(session, 0, 4, a="x")
    session.snapshot(0)
    copied(bench)
    found = bench.log.group("copy").committed()
    assert len(found) > 1
    assert set(source_offsets(found)) == {TopicPartition("flights", 0)}
    cold = opened(bench, "c", stores=stores)
    assert cold.task(0).progress == kept
    assert cold.task(0).source_offsets() == {("flights", 0): 4}
    session.close()
    # A second restore: the pieces of the first application are no offsets that a snapshot lacks.
    copied(bench, "second")


def test_a_dry_run_changes_nothing(bench: Bench) -> None:
    snapshotted(bench)
    names, groups = bench.log.admin.topic_names(), bench.log.admin.groups()
    done = copied(bench, dry_run=True)
    assert (done.dry_run, done.topics) == (True, ("copy-kv-changelog",))
    assert (bench.log.admin.topic_names(), bench.log.admin.groups()) == (names, groups)
    assert not (bench.root / "b").exists()


def test_a_name_in_use_is_refused_and_stays_as_it_is(bench: Bench) -> None:
    snapshotted(bench)
    copied(bench)
    end = bench.log.reader().bounds([TopicPartition("copy-kv-changelog", 0)])
    with pytest.raises(InvalidRequest, match=r"exists already: it has topics .*; .*0_0 holds state"):
        copied(bench)
    assert bench.log.reader().bounds([TopicPartition("copy-kv-changelog", 0)]) == end
    with pytest.raises(InvalidRequest, match="it has topics"):
        copied(bench, state_dir=bench.root / "c")
    with pytest.raises(InvalidRequest, match="own name"):
        copied(bench, "app")
    bench.log.admin.create_topic("flights", 1, TopicPolicy())
    bench.log.group("third").commit({TopicPartition("flights", 0): Committed(0)})
    with pytest.raises(InvalidRequest, match="committed offsets or members"):
        copied(bench, "third")
    assert not (bench.root / "b/third").exists()
    assert "third-kv-changelog" not in bench.log.admin.topic_names()


def test_a_task_without_a_snapshot_is_refused(bench: Bench) -> None:
    session = running(bench, (0, 1, 2))
    for task in (0, 1):
        session.task(task).store("kv").put("a", "1")
        session.task(task).commit()
    session.snapshot(0)
    with pytest.raises(InvalidRequest, match="tasks 0_1 have no snapshot"):
        copied(bench)
    session.snapshot(1)
    assert [one.task for one in copied(bench).tasks] == ["0_0", "0_1"]  # 0_2 has never logged anything
    assert opened(bench, "b", 3).task(2).store("kv").get("a") is None


def test_source_offsets_that_no_snapshot_has_are_refused(bench: Bench) -> None:
    sources(bench, 5)
    session = snapshotted(bench)
    commit(session, 0, 3, a="2")
    with pytest.raises(InvalidRequest, match="offsets of flights-0 are committed, and no snapshot has them"):
        copied(bench)
    done = copied(bench, stateless={TopicPartition("flights", 0): Committed(2, "mine")})
    ours = CommitMetadata(0).to_text()  # whoever made the old commit
    assert bench.log.group("copy").committed() == {TopicPartition("flights", 0): Committed(2, ours)}
    assert done.tasks[0].sources == {}


def test_source_records_that_are_gone_are_refused(bench: Bench) -> None:
    sources(bench, 5)
    session = running(bench)
    commit(session, 0, 2, a="1")
    session.snapshot(0)
    commit(session, 0, 5, a="2")
    bench.embedded.truncate(TopicPartition("flights", 0), 4)
    with pytest.raises(InvalidRequest, match="records of flights-0 from offset 2 to 4 are gone"):
        copied(bench)


def test_topics_between_tasks_need_a_common_point_and_begin_empty(bench: Bench) -> None:
    bench.log.admin.create_topic("app-words-repartition", 1, TopicPolicy())
    with closing(bench.log.producer()) as producer:
        producer.append({TopicPartition("app-words-repartition", 0): [Outgoing(b"k", b"v", 0)] * 5})
    session = running(bench)
    session.task(0).store("kv").put("a", "1")
    session.task(0).stream_times["app-words-repartition/0"] = START_MS
    session.task(0).commit({("app-words-repartition", 0): 5})
    session.snapshot(0)
    with pytest.raises(InvalidRequest, match="restore a coordinated checkpoint"):
        copied(bench)
    done = copied(bench, coordinated=True)
    assert done.topics == ("copy-kv-changelog", "copy-words-repartition")
    where = TopicPartition("copy-words-repartition", 0)
    assert bench.log.reader().bounds([where])[where].end == 0
    found = bench.log.group("copy").committed()[where]
    metadata = CommitMetadata.from_text(found.metadata)
    assert metadata is not None
    assert (found.offset, metadata.stream_times) == (0, {"copy-words-repartition/0": START_MS})
    assert opened(bench, "b").task(0).source_offsets() == {where: 0}


def test_an_offset_of_a_source_of_ones_own_goes_with_the_name(bench: Bench) -> None:
    bench.log.admin.create_topic("app-tail-source-offsets", 1, TopicPolicy())
    session = running(bench)
    session.task(0).store("kv").put("a", "1")
    session.task(0).commit({("app-tail-source-offsets", 0): 17})
    session.snapshot(0)
    copied(bench)
    committed = bench.log.group("copy").committed()
    assert {str(at): found.offset for at, found in committed.items()} == {"copy-tail-source-offsets-0": 17}


def test_rows_without_a_changelog_come_with_the_files(bench: Bench) -> None:
    stores = [*KV, sf.KeyValueStore("own", sf.serde.string, sf.serde.string, logging=False)]
    session = running(bench, stores=stores)
    session.task(0).store("own").put("a", "1")
    session.task(0).store("kv").put("b", "2")
    session.task(0).commit()
    session.snapshot(0)
    assert copied(bench).topics == ("copy-kv-changelog",)
    assert opened(bench, "b", stores=stores).task(0).store("own").get("a") == "1"


def test_rows_with_a_lower_timestamp_than_the_log_takes_are_equal_from_files_and_from_changelogs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Kafka, whose client would write a row of 1970 as one of now, which no age removes."""
    stores = [*four_stores(), sf.KeyValueStore("own", sf.serde.string, sf.serde.string, logging=False)]
    session = running(bench, stores=stores)
    task = session.task(0)
    for name, *put in (("kv", 0), ("win", 0, 0), ("ses", 0, 5, "v", 0), ("ver", 0)):
        task.store(name).put("low", *(put if len(put) > 2 else ("v", *put)))
    task.store("ver").put("low", "v5", 5)
    task.store("ver").put("gone", "v", 0)
    task.store("ver").delete("gone", 1)
    task.store("kv").put("late", "v", START_MS)
    task.store("own").put("a", "1")
    task.commit()
    session.snapshot(0)
    before = digests(session)
    session.close()
    monkeypatch.setattr(EmbeddedLog, "least_timestamp_ms", property(lambda log: 1))
    done = copied(bench)
    local, cold = opened(bench, "b", stores=stores), opened(bench, "cold", stores=stores)
    assert digests(local) == digests(cold)
    assert list(local.task(0).store("kv").logical_rows()) == list(cold.task(0).store("kv").logical_rows())
    assert [(key, at) for key, at, _ in local.task(0).store("kv").logical_rows()] == [(b"late", START_MS), (b"low", 1)]
    newest = local.task(0).store("ver").get("low")
    assert newest is not None
    assert (newest.value, newest.valid_from) == ("v5", 5)
    assert local.task(0).store("ver").get("gone") is None
    assert local.task(0).store("own").get("a") == "1"
    # The log gives every row of these stores, and the files none.
    assert {name for name, *_ in local.counters.restored_records} == {"kv", "win", "ver"}
    assert sum(local.counters.restored_records.values()) == done.tasks[0].rows - 1
    assert local.counters.wipes == {}
    assert {name for name, found in digests(local).items() if found == before[name]} == {"ses"}


def test_stores_in_memory_are_refused(bench: Bench) -> None:
    stores = [*KV, sf.KeyValueStore("fast", sf.serde.string, sf.serde.string, engine="memory")]
    session = running(bench, stores=stores)
    session.task(0).store("kv").put("b", "2")
    session.task(0).commit()
    session.snapshot(0)
    with pytest.raises(InvalidRequest, match=r"stores in memory \(fast\)"):
        copied(bench)


def test_a_damaged_snapshot_is_found_before_the_log_has_anything(bench: Bench) -> None:
    snapshotted(bench)
    snapshot = listed(open_storage(str(bench.root / "snaps"), "app")).whole[0].snapshot
    largest = max(snapshot.files, key=lambda file: file.bytes)
    damaged = bench.root / "snaps/app" / file_key(largest.sha256)
    damaged.write_bytes(b"x" * largest.bytes)
    names = bench.log.admin.topic_names()
    with pytest.raises(Corruption):
        copied(bench)
    assert bench.log.admin.topic_names() == names
    assert not (bench.root / "b/copy/0_0").exists()


class Broken(Exception):
    """A run that ends at a place, as a kill ends it: without any tidying of the log."""


@pytest.mark.parametrize(
    "place",
    [
        *("clone.rows", "clone.placed"),
        *(pytest.param(f"clone.{place}", marks=pytest.mark.long) for place in ("marked", "topics", "written", "whole")),
    ],
)
def test_a_broken_run_lets_nothing_start_and_the_same_run_completes_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(clone, "BATCH_RECORDS", 2)
    sources(bench, 5, 2)
    session = running(bench, (0, 1))
    for task in (0, 1):
        commit(session, task, 3, **{f"k{number}": f"{task}" for number in range(5)})
        session.snapshot(task)

    def broken(name: str) -> None:
        if name == place:
            raise Broken(name)

    monkeypatch.setattr(clone, "reach", broken)
    with pytest.raises(Broken):
        copied(bench)
    monkeypatch.setattr(clone, "reach", lambda name: None)
    for directory in ("b", "elsewhere"):
        with pytest.raises(InvalidRequest, match="is being restored under this name"):
            opened(bench, directory, 2)
    newest = [one.snapshot for one in listed(open_storage(str(bench.root / "snaps"), "app")).whole]
    commit(session, 0, 5, a="later")
    session.snapshot(0)
    with pytest.raises(InvalidRequest, match="has other snapshots"):
        copied(bench)
    done = copied(bench, parts=newest)
    assert done.resumed
    for directory in ("b", "cold"):
        new = opened(bench, directory, 2)
        for task in (0, 1):
            assert rows(new, task) == {f"k{number}": f"{task}" for number in range(5)}
            assert new.task(task).source_offsets() == {TopicPartition("flights", task): 3}
        new.close()


@pytest.mark.parametrize(
    "place",
    ["clone.rows", *(pytest.param(place, marks=pytest.mark.long) for place in ("clone.marked", "clone.placed"))],
)
def test_an_interrupt_says_what_is_left_and_the_same_command_completes_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    session = snapshotted(bench)

    def interrupted(name: str) -> None:
        if name == place:
            raise KeyboardInterrupt

    monkeypatch.setattr(clone, "reach", interrupted)
    with pytest.raises(KeyboardInterrupt):
        copied(bench)
    assert "interrupted; it does not start until the same restore has run again" in caplog.text
    monkeypatch.setattr(clone, "reach", lambda name: None)
    session.task(0).store("kv").put("b", "2")
    session.task(0).commit()
    session.snapshot(0)  # as a schedule does
    flags = ["--from", str(bench.root / "snaps"), "--app", "app", "--log", bench.address]
    flags += ["--as", "copy", "--state-dir", str(bench.root / "b")]
    assert main(["snapshot", "restore", *flags]) == 0
    for directory in ("b", "cold"):
        assert rows(opened(bench, directory)) == {"a": "1"}
        bench.opened[-1].close()


def test_unfinished_restore_whose_snapshot_is_gone_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshotted(bench)

    def broken(name: str) -> None:
        if name == "clone.rows":
            raise Broken(name)

    monkeypatch.setattr(clone, "reach", broken)
    with pytest.raises(Broken):
        copied(bench)
    storage = open_storage(str(bench.root / "snaps"), "app")
    for one in listed(storage).whole:
        (bench.root / "snaps/app" / one.snapshot.name.key).unlink()
    flags = ["--from", str(bench.root / "snaps"), "--app", "app", "--log", bench.address]
    assert main(["snapshot", "restore", *flags, "--as", "copy", "--state-dir", str(bench.root / "b")]) == 2
    assert "began with a snapshot of task 0_0 that" in capsys.readouterr().err
    assert bench.log.admin.describe_topic(mark_of("copy").topic) is not None


def test_of_two_runs_with_other_snapshots_that_begin_at_once_the_first_mark_counts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = snapshotted(bench)

    def second(name: str) -> None:
        if name == "clone.rows":
            # A second run had found the name free before this one, and writes its mark late.
            mark = read_mark(bench.log, "copy")
            assert mark is not None
            late = as_record(Restoring(mark.app, {"0_0": "another"}), 1)
            bench.log.producer().append({mark_of("copy"): [late]})
            raise Broken(name)

    monkeypatch.setattr(clone, "reach", second)
    with pytest.raises(Broken):
        copied(bench)
    monkeypatch.setattr(clone, "reach", lambda name: None)
    session.task(0).store("kv").put("b", "2")
    session.task(0).commit()
    assert copied(bench).resumed
    assert rows(opened(bench, "cold")) == {"a": "1"}


def test_a_first_run_that_still_lives_is_fenced_by_the_second(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshotted(bench)

    def second(name: str) -> None:
        if name == "clone.rows":
            monkeypatch.setattr(clone, "reach", lambda name: None)
            assert copied(bench, state_dir=bench.root / "other").resumed

    monkeypatch.setattr(clone, "reach", second)
    with pytest.raises(Fenced):
        copied(bench)
    new = opened(bench, "other")
    assert rows(new) == {"a": "1"}
    new.task(0).store("kv").put("a", "2")
    new.task(0).commit()
    new.close()
    assert rows(opened(bench, "cold")) == {"a": "2"}


@pytest.mark.parametrize(
    "place",
    [
        *("rows", "placed"),
        *(pytest.param(place, marks=pytest.mark.long) for place in ("marked", "topics", "written", "whole")),
    ],
)
def test_a_run_that_another_one_overtakes_says_that_it_has_completed_the_restore(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    snapshotted(bench)

    def second(name: str) -> None:
        if name == f"clone.{place}":
            monkeypatch.setattr(clone, "reach", lambda name: None)
            assert copied(bench, state_dir=bench.root / "other").resumed

    monkeypatch.setattr(clone, "reach", second)
    with pytest.raises((Fenced, InvalidRequest)) as found:
        copied(bench)
    assert str(found.value).startswith("another run has completed the restore as 'copy' meanwhile")
    assert "is not restored" not in caplog.text
    assert bench.log.admin.describe_topic(mark_of("copy").topic) is None
    assert rows(opened(bench, "other")) == {"a": "1"}


def test_a_run_that_finds_the_name_in_use_after_another_one_completed_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshotted(bench)
    marked, calls = clone._marked, []

    def late(*given: Any) -> Any:
        calls.append(given)
        found = marked(*given)
        if len(calls) == 2:
            copied(bench, state_dir=bench.root / "other")
        return found

    monkeypatch.setattr(clone, "_marked", late)
    with pytest.raises(InvalidRequest, match=r"exists already.*another restore as 'copy' has begun or completed"):
        copied(bench)
    assert bench.log.admin.describe_topic(mark_of("copy").topic) is None
    assert rows(opened(bench, "other")) == {"a": "1"}


def test_a_mark_that_is_gone_by_the_time_it_is_read_is_none(bench: Bench) -> None:
    assert read_mark(bench.log, "copy") is None


def test_an_instance_that_starts_between_mark_and_topics_keeps_its_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshotted(bench)
    refuse, calls = clone.refuse_used, []

    def late(log: Log, plan: Any, state_dir: Path) -> None:
        calls.append(plan.name)
        if len(calls) == 2:
            log.admin.create_topic("copy-kv-changelog", 1, TopicPolicy(frozenset({"compact"})))
        refuse(log, plan, state_dir)

    monkeypatch.setattr(clone, "refuse_used", late)
    with pytest.raises(InvalidRequest, match="exists already"):
        copied(bench)
    assert bench.log.admin.describe_topic(mark_of("copy").topic) is None
    assert rows(opened(bench, "new")) == {}


def test_an_instance_that_started_before_a_mark_without_a_record_keeps_its_rows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshotted(bench)
    refuse, calls = clone.refuse_used, []

    def killed(log: Log, plan: Any, state_dir: Path) -> None:
        if calls:  # the mark's topic is made, and the name is not looked at again
            raise Broken("killed")
        refuse(log, plan, state_dir)
        calls.append(plan.name)
        live = opened(bench, "live")
        live.task(0).store("kv").put("mine", "1")
        live.task(0).commit()
        live.close()

    monkeypatch.setattr(clone, "refuse_used", killed)
    with pytest.raises(Broken):
        copied(bench)
    assert bench.log.admin.describe_topic(mark_of("copy").topic) is not None
    monkeypatch.setattr(clone, "refuse_used", refuse)
    with pytest.raises(InvalidRequest, match="exists already"):
        copied(bench)
    bench.log.admin.delete_topic(mark_of("copy").topic)
    assert rows(opened(bench, "cold")) == {"mine": "1"}


def test_a_mark_of_another_program_is_named(bench: Bench) -> None:
    bench.log.admin.create_topic(mark_of("copy").topic, 1, TopicPolicy())
    with closing(bench.log.producer()) as producer:
        producer.append({mark_of("copy"): [Outgoing(None, b"{}", 0)]})
    with pytest.raises(Corruption, match="holds no mark of a restore"):
        read_mark(bench.log, "copy")


def test_a_foreign_state_in_the_place_of_a_resumed_task_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshotted(bench)

    def stop(name: str) -> None:
        if name == "clone.whole":
            raise Unavailable("the disk is away")

    monkeypatch.setattr(clone, "reach", stop)
    with pytest.raises(Unavailable):
        copied(bench)
    monkeypatch.setattr(clone, "reach", lambda name: None)
    (bench.root / "other").mkdir()
    copied_state = bench.root / "other/copy"
    shutil.copytree(bench.root / "a/app/0_0", copied_state / "0_0", ignore=shutil.ignore_patterns("LOCK"))
    with pytest.raises(InvalidRequest, match="holds other state"):
        copied(bench, state_dir=bench.root / "other")
    assert copied(bench).resumed


def test_the_new_name_claims_its_topics_and_leaves_the_claims_of_the_old_one(bench: Bench) -> None:
    snapshotted(bench).close()
    old = bench.log.group("app").notes()
    copied(bench, "copy-eu")
    assert bench.log.group("app").notes() == old
    info = bench.log.admin.describe_topic("copy-eu-kv-changelog")
    assert info is not None
    claims = claims_of(bench.log.group("copy-eu").notes())
    assert claims == {"copy-eu-kv-changelog": Claim(info.topic_id, "changelog")}
    with pytest.raises(BadConfig, match="belongs to application 'copy-eu'"):
        opened(bench, "c", name="copy", stores=[sf.KeyValueStore("eu-kv", sf.serde.string, sf.serde.string)])
    assert dict(opened(bench, "b", name="copy-eu").task(0).store("kv").all()) == {"a": "1"}
