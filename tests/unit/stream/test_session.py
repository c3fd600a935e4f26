"""The session on real parts: one cut, gate, standbys, take-over, fencing, cold restore, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.clock import SystemClock
from support.sessions import DAY_MS, HOUR_MS, Bench, four_stores


def fill(session: sf.Session, count: int = 20, *, offset: int = 0, partition: int = 0) -> None:
    """Write to all four kinds and commit with a source offset."""
    task = session.task(partition)
    for number in range(offset, offset + count):
        task.store("kv").put(f"k{number % 7}", f"v{number}", timestamp=number)
        task.store("win").put(f"k{number % 5}", f"w{number}", number * HOUR_MS)
        task.store("ses").put(f"k{number % 3}", number * HOUR_MS, number * HOUR_MS + 5, f"s{number}")
        task.store("ver").put("k", f"h{number}", number * HOUR_MS)
        task.observe("src", partition, number)
    task.commit({("src", partition): offset + count})


def contents(session: sf.Session, partition: int = 0) -> dict[str, list[object]]:
    """Every committed row of every store, as a user reads them."""
    views = {name: session.read(name, partition, allow_stale=True).store for name in ("kv", "win", "ses", "ver")}
    return {
        "kv": list(views["kv"].all()),
        "win": list(views["win"].all()),
        "ses": list(views["ses"].all()),
        "ver": list(views["ver"].range("k", 0, 10**15)),
    }


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_commit_survives_a_reopen_and_uncommitted_writes_do_not(bench: Bench, guarantee: str) -> None:
    first = bench.active(guarantee=guarantee)
    fill(first)
    before = contents(first)
    first.task(0).store("kv").put("k0", "uncommitted")
    first.close()
    again = bench.active(guarantee=guarantee)
    assert contents(again) == before
    assert again.task(0).source_offsets() == {TopicPartition("src", 0): 20}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_cold_restore_has_equal_rows_stream_time_and_source_offsets(bench: Bench, guarantee: str) -> None:
    first = bench.active(guarantee=guarantee)
    fill(first, 60)
    before = contents(first)
    observed = {name: store.rows.observed_ms for name, store in first.task(0).stores.stores.items()}
    first.close()
    cold = bench.active("elsewhere", guarantee=guarantee)
    task = cold.task(0)
    assert contents(cold) == before
    assert task.source_offsets() == {TopicPartition("src", 0): 60}
    assert task.stream_times == {"src/0": 59}
    assert {name: store.rows.observed_ms for name, store in task.stores.stores.items()} == observed


def test_late_row_stays_refused_after_a_restart(bench: Bench) -> None:
    first = bench.active()
    fill(first, 60)
    first.close()
    again = bench.active()
    store = again.task(0).store("win")
    store.put("late", "x", 0)
    assert store.fetch("late", 0) is None
    assert store.rows.counters.late_dropped == 1


def test_own_writes_are_read_before_the_commit(bench: Bench) -> None:
    task = bench.active().task(0)
    kv = task.store("kv")
    kv.put_all([("a", "1"), ("b", "2"), ("c", "3")])
    task.commit()
    kv.delete("b")
    kv.put("bb", "4")
    assert list(kv.all()) == [("a", "1"), ("bb", "4"), ("c", "3")]
    assert list(kv.all(reverse=True)) == [("c", "3"), ("bb", "4"), ("a", "1")]
    assert list(kv.range("b", "c")) == [("bb", "4"), ("c", "3")]
    assert list(kv.prefix_scan("b")) == [("bb", "4")]
    assert list(kv.range("c", "a")) == []


def test_gate_keeps_every_task_back_until_all_are_restored(bench: Bench) -> None:
    first = bench.active(partitions=(0, 1))
    fill(first)
    fill(first, 3, partition=1)
    first.close()
    cold = bench.session("cold")
    cold.assign(active=[0, 1])
    assert not cold.ready
    with pytest.raises(sf.NotReady, match=r"task 0_0.*of"):
        cold.task(0)
    with pytest.raises(sf.NotReady, match="gate is shut"):
        cold.task(1)
    cold.wait_ready(30)
    assert cold.task(0).store("kv").get("k0") is not None


@pytest.mark.usefixtures("small_batches")
def test_gate_by_task_opens_each_on_its_own(bench: Bench) -> None:
    first = bench.active(partitions=(0, 1))
    fill(first, 3_000)
    first.close()
    cold = bench.session("cold", gate="task")
    cold.assign(active=[0, 1])
    cold.poll_once()
    assert cold.task(1).store("kv").get("k0") is None
    with pytest.raises(sf.NotReady):
        cold.task(0)


@pytest.mark.usefixtures("small_batches")
def test_standby_gets_nothing_before_every_active_is_restored(bench: Bench) -> None:
    first = bench.active(partitions=(0, 1))
    fill(first, 3_000)
    fill(first, 50, partition=1)
    first.close()
    other = bench.session("other", take_over=False)
    other.assign(active=[0], standby=[1])
    rounds = 0
    while not other.ready:
        assert other.tasks()[1].stores.cut.positions == {}
        other.poll_once()
        rounds += 1
    assert rounds > 5
    bench.settle(other)
    assert other.read("kv", 1, allow_stale=True).lag_records == 0
    assert other.tasks()[1].stores.cut.positions["kv"].offset > 0


def test_standby_is_read_only_if_asked_for_and_says_its_lag(bench: Bench) -> None:
    first = bench.active()
    second = bench.session("b")
    second.assign(standby=[0])
    fill(first)
    with pytest.raises(sf.NotReady, match="allow_stale"):
        second.read("kv", 0)
    behind = second.read("kv", 0, allow_stale=True)
    assert (behind.role, behind.lag_records) == ("standby", 7)
    bench.settle(second)
    caught_up = second.read("kv", 0, allow_stale=True)
    assert caught_up.lag_records == 0
    assert contents(second) == contents(first)
    with pytest.raises(sf.InvalidRequest, match="reading only"):
        caught_up.store.put("k", "v")
    with pytest.raises(sf.NotReady, match="standby"):
        second.task(0)


def test_standby_takes_over_when_the_lease_runs_out_and_the_old_owner_is_fenced(bench: Bench) -> None:
    first = bench.active(lease_ms=1_000)
    fill(first)
    stale = first.task(0)
    second = bench.session("b", lease_ms=1_000)
    second.assign(standby=[0])
    bench.settle(second)
    before = contents(first)
    bench.clock.advance(1_200)  # neither renews: the first to join again is the one that polls
    second._instance.membership.heartbeat(second._group)
    bench.clock.advance(100)
    second.poll_once()
    second.wait_ready(30)
    assert contents(second) == before
    assert second.task(0).source_offsets() == {TopicPartition("src", 0): 20}
    stale.store("kv").put("zombie", "x")
    with pytest.raises(sf.Fenced):
        stale.commit({("src", 0): 99})
    assert second.task(0).store("kv").get("zombie") is None
    assert second.counters.promotions["completed"] == 1
    first.poll_once()
    assert first.counters.fenced == 1
    with pytest.raises(sf.Fenced, match="newer owner"):
        first.task(0)


@pytest.mark.parametrize("reason", ["diverged", "truncated"])
def test_state_that_is_lost_after_another_took_the_task_over_does_not_take_it_back(bench: Bench, reason: str) -> None:
    first = bench.active()
    fill(first)
    second = bench.active("b")
    first.tasks()[0].fail(sf.StateLost("its rows do not fit the log", reason=reason))
    first.poll_once()
    fill(second, 3, offset=20)
    assert second.task(0).source_offsets() == {TopicPartition("src", 0): 23}
    assert first.counters.fenced == 1


def test_standby_that_promoted_itself_is_a_standby_again_when_its_owner_comes(bench: Bench) -> None:
    """The second run of a program whose standby owned the task at the end of the first."""
    standby = bench.session("b", lease_ms=1_000)
    standby.assign(active=[0])
    standby.close()
    standby = bench.session("b", lease_ms=1_000)
    standby.assign(standby=[0])
    bench.settle(standby)
    assert standby.tasks()[0].role == "active"  # no other instance is there
    standby.task(0).store("kv").put("k0", "gone")
    owner = bench.active("a", lease_ms=1_000)
    bench.settle(standby)
    assert (standby.tasks()[0].role, standby.ready, standby.missing()) == ("standby", True, ())
    with pytest.raises(sf.NotReady, match="standby"):
        standby.task(0)
    with pytest.raises(sf.Fenced):
        standby.commit({("src", 0): 1})
    fill(owner)
    bench.settle(standby)
    assert contents(standby) == contents(owner)
    owner.close()
    bench.settle(standby)
    assert standby.tasks()[0].role == "active"
    assert standby.task(0).source_offsets() == {TopicPartition("src", 0): 20}


def test_standby_that_was_left_out_of_the_assignment_does_not_come_back(bench: Bench) -> None:
    standby = bench.session("b")
    standby.assign(active=[0])
    standby.assign(standby=[0, 1])
    standby.close()
    standby = bench.session("b")
    standby.assign(standby=[0, 1])
    bench.settle(standby)
    bench.active("a")
    bench.clock.advance(100)
    standby.poll_once()  # it sees the newer owner
    standby.assign(standby=[1])
    bench.settle(standby)
    assert list(standby.tasks()) == [1]


def test_live_owner_is_not_taken_over(bench: Bench) -> None:
    first = bench.active(lease_ms=1_000)
    second = bench.session("b", lease_ms=1_000)
    second.assign(standby=[0])
    for _ in range(30):
        bench.clock.advance(300)
        for session in (first, second):
            session._instance.membership.heartbeat(session._group)
            session.poll_once()
    assert second.tasks()[0].role == "standby"
    first.task(0).store("kv").put("still", "mine")
    first.task(0).commit()


def test_leaving_hands_over_at_once(bench: Bench) -> None:
    first = bench.active()
    fill(first)
    second = bench.session("b")
    second.assign(standby=[0])
    bench.settle(second)
    first.close()
    bench.settle(second)
    assert second.task(0).store("kv").get("k0") is not None


def test_shared_placement_takes_free_tasks_and_stands_by_for_the_rest(bench: Bench) -> None:
    first = bench.session("a", placement="shared", standby_replicas=1)
    bench.settle(first)
    second = bench.session("b", placement="shared", standby_replicas=1)
    bench.settle(first, second)
    assert {task.role for task in first.tasks().values()} == {"active"}
    assert {task.role for task in second.tasks().values()} == {"standby"}
    assert first.statistics().standbys_missing == 0


def test_too_few_instances_for_the_standbys_is_said(bench: Bench) -> None:
    alone = bench.session("a", placement="shared", standby_replicas=2)
    bench.settle(alone)
    assert alone.statistics().standbys_missing == 4  # two tasks, two replicas each


def test_second_owner_of_one_state_directory_is_refused_naming_the_first(bench: Bench) -> None:
    bench.session("a")
    with pytest.raises(sf.Held, match=r"held by pid \d+"):
        bench.session("a")


def test_assigning_a_task_again_changes_nothing(bench: Bench) -> None:
    session = bench.active()
    task = session.task(0)
    task.store("kv").put("a", "uncommitted")
    session.assign(active=[0])
    assert session.task(0) is task
    assert task.store("kv").get("a") == "uncommitted"


def test_listeners_hear_of_restore_standby_and_commit(bench: Bench) -> None:
    heard: list[str] = []

    class Ears(sf.Listener):
        def on_restore_start(
            self, task: TaskId, store: str, changelog: object, start: int, end: int, reason: str
        ) -> None:
            heard.append(f"restore {store} {start}..{end} {reason}")

        def on_restore_end(self, task: TaskId, store: str, changelog: object, records: int) -> None:
            heard.append(f"restored {store} {records}")

        def on_standby_batch(
            self, task: TaskId, store: str, changelog: object, position: int, records: int, end: int
        ) -> None:
            heard.append(f"standby {store} {position} of {end}")

        def on_commit(self, task: TaskId, sources: object) -> None:
            heard.append(f"commit {task}")

    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
    first = bench.active(stores=stores, listeners=[Ears()])
    first.task(0).store("kv").put("a", "1")
    first.task(0).commit({("src", 0): 1})
    assert heard == ["restore kv 0..0 no-local-state", "restored kv 0", "commit 0_0"]
    heard.clear()
    second = bench.session("b", stores=stores, listeners=[Ears()])
    second.assign(standby=[0])
    bench.settle(second)
    assert heard == ["standby kv 1 of 1"]
    heard.clear()
    first.close()
    bench.active("cold", stores=stores, listeners=[Ears()])
    assert heard == ["restore kv 0..1 no-local-state", "restored kv 1"]


def test_memory_stores_restore_from_the_beginning(bench: Bench) -> None:
    first = bench.active(stores=four_stores(engine="memory"))
    fill(first, 40)
    before = contents(first)
    first.close()
    again = bench.active(stores=four_stores(engine="memory"))
    assert contents(again) == before
    assert again.task(0).source_offsets() == {TopicPartition("src", 0): 40}


def test_stores_are_added_and_dropped_between_runs(bench: Bench) -> None:
    first = bench.active()
    fill(first)
    rows = contents(first)["kv"]
    first.close()
    kept = [four_stores()[0], sf.KeyValueStore("new", sf.serde.string, sf.serde.string)]
    second = bench.active(stores=kept)
    assert list(second.task(0).store("kv").all()) == rows
    assert list(second.task(0).store("new").all()) == []
    second.close()
    third = bench.active()
    assert contents(third)["win"] != []  # dropped locally, and back from its changelog


def test_changed_definition_is_refused_with_what_changed_and_nothing_changes(bench: Bench) -> None:
    first = bench.active()
    fill(first)
    before = contents(first)
    first.close()
    changed = four_stores()
    changed[0] = sf.KeyValueStore("kv", sf.serde.string, sf.serde.json)
    session = bench.session(stores=changed)
    with pytest.raises(sf.InvalidRequest, match=r"store 'kv'.*value: 'string' -> 'json'.*new name"):
        session.assign(active=[0])
    session.close()
    assert contents(bench.active()) == before


def test_partition_count_changed_is_refused_with_the_fix(bench: Bench) -> None:
    bench.active().close()
    with pytest.raises(sf.BadConfig, match="has 2 partitions but the application has 3"):
        bench.session(partitions=3)


def test_wrong_topic_policy_is_refused_with_the_fix(bench: Bench) -> None:
    bench.log.admin.create_topic("app-kv-changelog", 2, TopicPolicy(frozenset({"delete"}), retention_ms=1))
    bench.log.admin.create_topic("app-win-changelog", 2, TopicPolicy(frozenset({"compact", "delete"}), retention_ms=5))
    with pytest.raises(sf.BadConfig) as refused:
        bench.session()
    assert len(refused.value.problems) == 2
    assert "set cleanup.policy=compact on the topic" in refused.value.problems[0]
    assert f"set retention.ms={2 * DAY_MS} on the topic" in refused.value.problems[1]
    assert bench.log.admin.describe_topic("app-ses-changelog") is None  # no topic was created


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"guarantee": "maybe"}, "guarantee must be one of"),
        ({"standby_replicas": -1}, "standby_replicas"),
        ({"memory_bytes": 5}, "memory_bytes"),
        ({"lease_ms": 1}, "lease_ms"),
        ({"placement": "shared", "partitions": None}, "needs partitions"),
        ({"stores": [four_stores()[0], four_stores()[0]]}, "declared 2 times"),
    ],
)
def test_unusable_setting_is_refused(bench: Bench, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(sf.BadConfig, match=problem):
        bench.session(**settings)


def test_all_unusable_settings_are_told_at_once(bench: Bench) -> None:
    with pytest.raises(sf.BadConfig) as refused:
        bench.session(guarantee="maybe", gate="open", lease_ms=0)
    assert len(refused.value.problems) == 3


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "x" * 129])
def test_names_cannot_leave_the_state_directory(bench: Bench, name: str, tmp_path: Path) -> None:
    with pytest.raises(sf.InvalidRequest, match="is not usable"):
        sf.KeyValueStore(name, sf.serde.string, sf.serde.string)
    with pytest.raises(sf.InvalidRequest, match="is not usable"):
        sf.Session(name, log=bench.address, state_dir=tmp_path / "s", stores=[])
    assert not (tmp_path / "s").exists()


def test_unknown_store_is_named_with_those_that_exist(bench: Bench) -> None:
    with pytest.raises(sf.UnknownStore, match=r"no store 'nope'.*kv, ses, ver, win"):
        bench.active().task(0).store("nope")


def test_bad_source_offset_changes_nothing(bench: Bench) -> None:
    task = bench.active().task(0)
    task.store("kv").put("a", "1")
    with pytest.raises(sf.InvalidRequest, match="next offset"):
        task.commit({("src", 0): -1})
    task.commit({("src", 0): 1})
    assert task.source_offsets() == {TopicPartition("src", 0): 1}


def test_outputs_are_written_in_the_commits_transaction(bench: Bench) -> None:
    bench.log.admin.create_topic("out", 1, TopicPolicy())
    task = bench.active().task(0)
    task.send("out", b"k", b"v", 5)
    reader = bench.log.reader()
    reader.assign({TopicPartition("out", 0): 0})
    assert not [record for batch in reader.fetch(10) for record in batch.records]
    task.commit({("src", 0): 1})
    assert [record[:4] for batch in reader.fetch(10) for record in batch.records] == [(0, 5, b"k", b"v")]


def test_failed_task_is_opened_again_and_goes_on(bench: Bench) -> None:
    session = bench.active()
    fill(session)
    before = contents(session)
    task = session.task(0)
    task.send("no-such-topic", b"k", b"v", 5)
    task.store("kv").put("k0", "lost")
    with pytest.raises(sf.UnknownStore, match="no-such-topic"):
        task.commit({("src", 0): 21})
    with pytest.raises(sf.Closed, match="opened again"):
        task.store("kv")
    session.reopen(0)
    session.wait_ready(30)
    assert contents(session) == before
    assert session.task(0).source_offsets() == {TopicPartition("src", 0): 20}


def test_closed_session_says_so(bench: Bench) -> None:
    session = bench.active()
    session.close()
    session.close()
    with pytest.raises(sf.Closed):
        session.task(0)


def test_statistics_are_a_snapshot_of_everything(bench: Bench) -> None:
    session = bench.active()
    fill(session)
    statistics = session.statistics()
    assert statistics.ready
    (task,) = statistics.tasks
    assert (task.role, task.state, task.sources) == ("active", "running", {"src/0": 20})
    kv = next(store for store in task.stores if store.store == "kv")
    assert (kv.position, kv.end, kv.lag, kv.logged_records) == (7, 7, 0, 7)


def test_observed_time_from_the_log_survives_a_discard(bench: Bench) -> None:
    first = bench.active()
    fill(first, 60)
    first.close()
    # The changelog alone no longer shows the reached stream time; the commit's metadata does.
    bench.embedded.truncate(TopicPartition("app-win-changelog", 0), 60)
    cold = bench.active("cold")
    task = cold.task(0)
    observed = task.store("win").rows.observed_ms
    assert observed == 59 * HOUR_MS
    task.discard()
    assert task.store("win").rows.observed_ms == observed


def test_what_stops_the_background_work_is_raised_at_the_next_call(bench: Bench) -> None:
    class Stops(sf.Listener):
        def on_restore_end(self, task: TaskId, store: str, changelog: object, records: int) -> None:
            raise KeyboardInterrupt("as a signal handler raises it")

    session = bench.session(background=True, clock=SystemClock(), listeners=[Stops()])
    session.assign(active=[0])
    for _ in range(2):  # with its own error: a caller that meets Unavailable retries for ever
        with pytest.raises(KeyboardInterrupt, match="as a signal handler raises it"):
            session.wait_ready(30)
