"""A compacted changelog that lost its head: rows at an earlier position may be the last copy, and none is dropped."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore import accepted
from standfast.restore.accepted import ACCEPTED_FILE, note_accepted, read_accepted
from standfast.restore.plan import FromBeginning, Plan
from standfast.restore.snapshot.storage import Storage
from standfast.restore.verify.preflight import preflight
from standfast.store.clock import SystemClock
from standfast.stream.task import opener
from support.lost_head import KV, ROWS, STORES, all_removed_with_snapshot, behind_with_snapshot, write
from support.sessions import Bench

NOT_READ = r"lost records at its head.*snapshots could not be read"


def behind(bench: Bench) -> sf.Session:
    """An active instance whose log holds 505 records; the rows of instance "b" are at the first 500."""
    first = bench.active(stores=STORES)
    second = bench.session("b", stores=STORES, take_over=False)
    second.assign(standby=[0])
    write(first, 0, ROWS)
    bench.settle(second)
    second.close()
    write(first, ROWS, ROWS + 10)
    bench.embedded.truncate(KV, ROWS + 5)
    return first


@contextmanager
def storage_away(bench: Bench) -> Iterator[None]:
    """The folder of the snapshots cannot be listed meanwhile."""
    kept = bench.root / "snaps/app/tasks"
    kept.rename(bench.root / "away")
    kept.write_bytes(b"no folder")
    yield
    kept.unlink()
    (bench.root / "away").rename(kept)


def offline_rows(bench: Bench, capsys: pytest.CaptureFixture[str]) -> int:
    capsys.readouterr()
    assert main(["scan", "kv", "--limit", "9999", "--json", "--offline", str(bench.root / "b" / "app" / "0_0")]) == 0
    return len(json.loads(capsys.readouterr().out)["rows"])


def test_active_beside_a_compacted_log_without_its_head_is_refused_until_accepted(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    behind(bench).close()
    refused = bench.session("b", stores=STORES)
    with pytest.raises(
        sf.StateLost, match=r"task 0_0: .*app-kv-changelog-0.*below offset 505.*accept_missing"
    ) as error:
        refused.assign(active=[0])
    assert error.value.reason == "history-missing"
    refused.close()
    assert offline_rows(bench, capsys) == ROWS
    accepted = bench.active("b", stores=STORES, accept_missing_history=True)
    assert len(list(accepted.task(0).store("kv").all())) == 5
    assert accepted.counters.wipes == {"truncated": 1}


def test_standby_that_meets_the_lost_head_while_it_tails_stays_closed_with_its_rows(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    first = bench.active(stores=STORES)
    second = bench.session("b", stores=STORES, take_over=False)
    second.assign(standby=[0])
    write(first, 0, ROWS)
    bench.settle(second)
    write(first, ROWS, ROWS + 10)
    bench.embedded.truncate(KV, ROWS + 5)
    bench.settle(second)
    task = second.tasks()[0]
    assert (task.state.value, task.role) == ("closed", "standby")
    assert "below offset 505" in str(task.error)
    assert second.counters.wipes == {}
    second.close()
    assert offline_rows(bench, capsys) == ROWS


@pytest.mark.usefixtures("small_batches")
def test_restore_that_meets_the_lost_head_in_its_middle_keeps_what_it_has(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    for number in range(12):
        write(first, 1_000 * number, 1_000 * (number + 1))
    first.close()
    cold = bench.session("cold", stores=STORES)
    cold.assign(active=[0])
    cold.poll_once()
    bench.embedded.truncate(KV, 11_000)
    with pytest.raises(sf.NotReady, match="below offset 11000 were removed"):
        cold.wait_ready(0.3)
    assert cold.counters.wipes == {}
    assert list((cold.state_path / ".aside").glob("*")) == []


@pytest.mark.parametrize("placement", ["shared", "group"])
def test_standby_that_is_refused_on_opening_stays_closed_and_stops_nothing(
    bench: Bench, placement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    behind(bench).close()
    settings: dict[str, Any] = {"stores": STORES, "placement": placement, "standby_replicas": 1}
    first = bench.session(**settings)
    if placement == "group":
        first._instance.adopt([TaskId(0, 0), TaskId(0, 1)])
    bench.settle(first)
    first.wait_ready(30)
    second = bench.session("b", **settings)
    bench.settle(first, second)
    assert second.counters.wipes == {}
    found = {one.task: one for one in second.statistics().tasks}
    assert (found["0_0"].role, found["0_0"].state, found["0_1"].state) == ("standby", "closed", "standby")
    assert "below offset 505" in found["0_0"].error
    assert (first.ready, second.ready) == (True, True)
    first.close()
    bench.settle(second)
    second.close()
    assert offline_rows(bench, capsys) == ROWS


def test_refused_task_that_is_taken_over_keeps_the_gate_shut_and_says_why(bench: Bench) -> None:
    behind(bench).close()
    only = bench.session("b", stores=STORES, placement="shared")
    bench.settle(only)
    assert not only.ready
    (told,) = only.missing()
    assert "task 0_0 failed" in told
    assert "below offset 505" in told
    assert only.counters.wipes == {}


def test_doctor_names_the_task_that_will_be_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    behind(bench).close()
    capsys.readouterr()
    flags = ["--app", "app", "--log", bench.address, "--state-dir", str(bench.root / "b"), "--json"]
    assert main(["doctor", *flags]) == 1
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["severity"] == "error"]
    assert [(one["rule"], one["where"]) for one in found] == [
        ("history-missing", f"task {TaskId(0, 0)} in {bench.root / 'b' / 'app' / '0_0'}, store 'kv'")
    ]
    assert "below offset 505" in found[0]["what"]
    assert "accept_missing_history" in found[0]["fix"]


# -- no local state ---------------------------------------------------------------------------------------------------


def headless(bench: Bench, before: int = ROWS) -> None:
    """A log of 510 records of which those below `before` were removed, and whose owner is gone."""
    first = bench.active(stores=STORES)
    write(first, 0, ROWS + 10)
    first.close()
    bench.embedded.truncate(KV, before)


def keys(session: sf.Session) -> list[str]:
    return [key for key, _ in session.task(0).store("kv").all()]


def findings(bench: Bench, directory: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    capsys.readouterr()
    main(["doctor", "--app", "app", "--log", bench.address, "--state-dir", str(bench.root / directory), "--json"])
    return {one["rule"]: one for one in json.loads(capsys.readouterr().out)["findings"]}


def test_store_without_local_state_is_not_built_from_the_rest_until_it_is_accepted(bench: Bench) -> None:
    headless(bench)
    refused = bench.session("cold", stores=STORES)
    with pytest.raises(sf.StateLost, match=r"below offset 500 were removed.*no local state.*accept_missing") as error:
        refused.assign(active=[0])
    assert error.value.reason == "history-missing"
    assert not (refused.state_path / ACCEPTED_FILE).exists()
    refused.close()
    standby = bench.session("warm", stores=STORES, take_over=False)
    with pytest.raises(sf.StateLost, match="below offset 500"):
        standby.assign(standby=[0])
    standby.close()
    again = bench.active(stores=STORES)  # whose rows have seen all that was removed
    assert len(keys(again)) == ROWS + 10


def test_store_in_memory_is_not_built_from_the_rest(bench: Bench) -> None:
    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string, engine="memory")]
    first = bench.active(stores=stores)
    write(first, 0, 10)
    first.close()
    bench.embedded.truncate(KV, 5)
    with pytest.raises(sf.StateLost, match="below offset 5 were removed"):
        bench.session(stores=stores).assign(active=[0])


def test_accepted_loss_is_recorded_once_and_holds_for_this_directory(
    bench: Bench, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    headless(bench)
    with caplog.at_level(logging.WARNING):
        accepted = bench.active("cold", stores=STORES, accept_missing_history=True)
    assert len(keys(accepted)) == 10
    (one,) = read_accepted(accepted.state_path)
    assert (one.task, one.store, one.changelog, one.begin, one.end) == ("0_0", "kv", "app-kv-changelog-0", 500, 510)
    assert one.at_ms == bench.clock.wall_ms()
    assert sum("accepted: records below offset 500 were removed" in line for line in caplog.messages) == 1
    accepted.close()
    bench.active("cold", stores=STORES).close()  # it has a position now
    bench.active("cold", stores=STORES, accept_missing_history=True).close()
    assert len(read_accepted(accepted.state_path)) == 1
    found = findings(bench, "cold", capsys)["loss-accepted"]
    assert "records below offset 500" in found["what"]


def test_snapshot_that_has_the_removed_records_is_used_by_itself(bench: Bench) -> None:
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"))
    first = bench.active(stores=STORES, snapshots=policy)
    write(first, 0, ROWS)
    first.snapshot(0)
    write(first, ROWS, ROWS + 10)
    bench.embedded.truncate(KV, ROWS - 100)
    first.close()
    cold = bench.active("cold", stores=STORES, snapshots=policy)
    assert len(keys(cold)) == ROWS + 10
    assert read_accepted(cold.state_path) == []
    cold.close()
    bench.embedded.truncate(KV, ROWS + 5)
    with pytest.raises(sf.StateLost, match="below offset 505 were removed"):
        bench.session("colder", stores=STORES, snapshots=policy).assign(active=[0])


def test_snapshot_that_has_every_record_is_used_where_all_of_them_were_removed(bench: Bench) -> None:
    cold = bench.active("cold", **all_removed_with_snapshot(bench))
    assert (len(keys(cold)), read_accepted(cold.state_path)) == (ROWS, [])


def test_storage_that_does_not_answer_is_waited_for_where_only_a_snapshot_may_have_the_head(bench: Bench) -> None:
    cold = bench.session("cold", **all_removed_with_snapshot(bench))
    with storage_away(bench), pytest.raises(sf.Unavailable, match=NOT_READ):
        cold.assign(active=[0])
    cold.assign(active=[0])
    cold.wait_ready(30)
    assert len(keys(cold)) == ROWS


def test_state_waits_for_a_storage_that_does_not_answer_and_then_gives_way(bench: Bench) -> None:
    settings = behind_with_snapshot(bench)
    with storage_away(bench):
        second = bench.session("b", **settings)
        with pytest.raises(sf.Unavailable, match=NOT_READ):
            second.assign(active=[0])
    second.assign(active=[0])
    second.wait_ready(30)
    assert len(keys(second)) == ROWS + 20


def test_state_is_back_in_its_place_while_the_storage_fails_in_a_download(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = behind_with_snapshot(bench)
    second = bench.session("b", **settings)

    def away(self: Storage, key: str, begin: int, length: int) -> bytes:
        raise sf.Unavailable("the storage does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "read_range", away)
        with pytest.raises(sf.Unavailable, match="snapshots could not be read"):
            second.assign(active=[0])
    assert list((bench.root / "b/app/.aside").iterdir()) == []
    assert offline_rows(bench, capsys) == ROWS
    second.assign(active=[0])
    second.wait_ready(30)
    assert len(keys(second)) == ROWS + 20


@pytest.mark.parametrize("replicas", [0, 1])
def test_task_that_waits_for_its_snapshots_keeps_no_other_task_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, replicas: int
) -> None:
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"))
    first = bench.active(partitions=(0, 1), stores=STORES, snapshots=policy)
    for task in (0, 1):
        first.task(task).store("kv").put("a", "1")
        first.task(task).commit()
        first.snapshot(task)
    first.close()
    bench.embedded.truncate(KV, 1)  # of task 0_0 alone, which is opened first
    asked: list[str] = []

    def away(self: Storage, prefix: str) -> list[Any]:
        asked.append(prefix)
        raise sf.Unavailable("the storage does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "list", away)
        shared: dict[str, Any] = {"placement": "shared", "stores": STORES, "lease_ms": 60_000}
        if replicas:  # as a standby of the owner, which has its state
            owner = bench.session(**shared)
            bench.settle(owner)
            assert {task.role for task in owner.all_tasks().values()} == {"active"}
        second = bench.session("b", **shared, snapshots=policy, standby_replicas=replicas)
        for _ in range(3):
            bench.clock.advance(1_000)
            bench.settle(second)
        assert sorted(map(str, second.all_tasks())) == ["0_1"]
        # Once for each task, however many rounds there were; the listing for the status is another question.
        assert sorted(one for one in asked if one != "tasks") == ["tasks/0_0", "tasks/0_1"]
    for _ in range(10):
        bench.clock.advance(1_000)
        bench.settle(second)
    assert sorted(map(str, second.all_tasks())) == ["0_0", "0_1"]
    assert not any(task.error for task in second.all_tasks().values())


def test_plan_of_a_start_shows_the_snapshot_to_which_state_gives_way(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.clock.advance(SystemClock().wall_ms() - bench.clock.wall_ms())  # the command's own time
    behind_with_snapshot(bench)
    flags = ["--app", "app", "--log", bench.address, "--state-dir", str(bench.root / "b"), "--task", "0_0", "--json"]
    flags = ["restore", "--dry-run", *flags]
    for more, code, source in (["--snapshots", str(bench.root / "snaps")], 0, "snapshot"), ([], 1, "refused"):
        capsys.readouterr()
        assert main([*flags, *more]) == code
        (task,) = json.loads(capsys.readouterr().out)["tasks"]
        assert [(one["store"], one["source"]) for one in task["stores"]] == [("kv", source)]


@pytest.mark.parametrize("role", ["active", "standby"])
def test_state_that_has_not_seen_the_removed_records_gives_way_to_a_snapshot_that_has(bench: Bench, role: str) -> None:
    settings = behind_with_snapshot(bench)
    session = bench.session("b", **settings, take_over=role == "active")
    session.assign(active=[0] if role == "active" else [], standby=[0] if role == "standby" else [])
    bench.settle(session)
    bench.clock.advance(1_000)
    bench.settle(session)
    assert len(list(session.read("kv", 0, allow_stale=True).store.all())) == ROWS + 20
    assert session.counters.wipes == {"history-missing": 1}
    (kept,) = (session.state_path / ".kept").glob("*/0_0")
    assert kept.parent.name.startswith("0_0.history-missing.")
    assert list((session.state_path / ".aside").iterdir()) == []


def test_state_stays_in_its_place_where_the_snapshot_turns_out_to_be_damaged(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = behind_with_snapshot(bench)
    for file in (bench.root / "snaps/app/files").iterdir():
        file.write_bytes(b"\0" * file.stat().st_size)
    for _ in range(2):
        refused = bench.session("b", **settings)
        with pytest.raises(sf.StateLost, match="below offset 505"):
            refused.assign(active=[0])
        refused.close()
        assert [one.name for one in (bench.root / "b/app/.aside").glob("*")] == []
        assert not (bench.root / "b/app/0_0/KEEP").exists()
    assert offline_rows(bench, capsys) == ROWS


def test_rows_without_a_changelog_do_not_give_way_to_a_snapshot(bench: Bench) -> None:
    stores = [*STORES, sf.KeyValueStore("own", sf.serde.string, sf.serde.string, logging=False)]
    settings = behind_with_snapshot(bench, stores)
    with pytest.raises(sf.StateLost, match="below offset 505"):
        bench.session("b", **settings).assign(active=[0])


def test_exchange_that_was_cut_short_is_done_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = behind_with_snapshot(bench)

    def broken(place: str) -> None:
        raise KeyboardInterrupt(place)

    monkeypatch.setattr(opener, "reach", broken)
    with pytest.raises(KeyboardInterrupt):
        bench.session("b", **settings).assign(active=[0])
    bench.opened[-1].close()
    assert not (bench.root / "b/app/0_0").exists()
    monkeypatch.undo()
    plain = bench.session("b", stores=STORES)  # without snapshots the state is back in its place
    with pytest.raises(sf.StateLost, match=r"below offset 505.*local position 500"):
        plain.assign(active=[0])
    plain.close()
    again = bench.active("b", **settings)
    assert len(keys(again)) == ROWS + 20


def test_state_too_old_to_know_the_deletes_is_not_replaced_by_a_part(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    first = bench.active(stores=STORES)
    behind_it = bench.session("b", stores=STORES, take_over=False)
    behind_it.assign(standby=[0])
    write(first, 0, ROWS)
    bench.settle(behind_it)
    behind_it.close()
    write(first, ROWS, ROWS + 10)
    first.close()
    bench.embedded.truncate(KV, ROWS - 10)
    bench.clock.advance(8 * 24 * 3_600_000)
    with pytest.raises(sf.StateLost, match=r"so old that deletes after them may be gone.*last copy"):
        bench.session("b", stores=STORES).assign(active=[0])
    for session in bench.opened:
        session.close()
    assert offline_rows(bench, capsys) == ROWS


@pytest.mark.usefixtures("small_batches")
def test_restore_that_has_no_row_yet_when_the_head_goes_is_refused(bench: Bench) -> None:
    headless(bench, 0)
    cold = bench.session("cold", stores=STORES)
    cold.assign(active=[0])
    bench.embedded.truncate(KV, ROWS)
    with pytest.raises(sf.NotReady, match="below offset 500 were removed"):
        cold.wait_ready(0.3)


def test_plan_and_doctor_say_that_a_start_without_state_would_be_refused(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    headless(bench)
    found = findings(bench, "a", capsys)
    assert (found["head-removed"]["severity"], "history-missing" in found) == ("warning", False)
    assert "partition 0 at 500" in found["head-removed"]["what"]
    (bench.root / "a/app/0_0").rename(bench.root / "moved")
    capsys.readouterr()
    flags = ["--app", "app", "--log", bench.address, "--state-dir", str(bench.root / "a"), "--json"]
    config = bench.root / "stores.toml"
    config.write_text('[stores.kv]\nkind = "keyvalue"\n')
    assert main(["restore", "--dry-run", "--config", str(config), *flags]) == 1
    plan = json.loads(capsys.readouterr().out)
    refused = {one["task"]: one["stores"][0] for one in plan["tasks"]}["0_0"]
    assert (refused["source"], refused["reason"]) == ("refused", "history-missing")


def test_jobs_refuse_a_log_without_its_head_unless_it_is_accepted(bench: Bench) -> None:
    headless(bench)
    with pytest.raises(sf.StateLost, match=r"head are gone \(partition 0 begins at 500\).*--allow-truncated"):
        preflight(bench.log, "app", STORES[0])
    assert preflight(bench.log, "app", STORES[0], allow_truncated=True).truncated == (0,)


# -- another log of the same name -------------------------------------------------------------------------------------


def test_rows_of_a_topic_that_was_replaced_are_kept_for_a_person(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    first = bench.active(stores=STORES)
    write(first, 0, ROWS)
    first.close()
    bench.log.admin.delete_topic(KV.topic)
    bench.log.admin.create_topic(KV.topic, 2, TopicPolicy(frozenset({"compact"})))
    bench.log.producer().append({KV: [Outgoing(b"new", b"2", 5)]})
    again = bench.active(stores=STORES)
    assert keys(again) == ["new"]
    (kept,) = (again.state_path / ".kept").iterdir()
    assert kept.name.startswith("0_0.topic-recreated.")
    again.close()
    capsys.readouterr()
    assert main(["scan", "kv", "--limit", "9999", "--json", "--offline", str(kept / "0_0")]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == ROWS
    assert findings(bench, "a", capsys)["kept-rows"]["where"] == f"directory {kept}"
    bench.active(stores=STORES).close()
    assert list((bench.root / "a/app/.kept").iterdir()) == [kept]


def test_rows_given_up_by_consent_are_kept_for_a_person(bench: Bench) -> None:
    behind(bench).close()
    accepted = bench.active("b", stores=STORES, accept_missing_history=True)
    assert len(keys(accepted)) == 5
    assert [one.name.split(".")[1] for one in (accepted.state_path / ".kept").iterdir()] == ["truncated"]


def test_standby_keeps_the_rows_of_a_replaced_topic_too(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    standby = bench.session("b", stores=STORES, take_over=False)
    standby.assign(standby=[0])
    write(first, 0, ROWS)
    bench.settle(standby)
    first.close()
    standby.close()
    bench.log.admin.delete_topic(KV.topic)
    bench.log.admin.create_topic(KV.topic, 2, TopicPolicy(frozenset({"compact"})))
    bench.log.producer().append({KV: [Outgoing(b"new", b"2", 5)]})
    again = bench.session("b", stores=STORES, take_over=False)
    again.assign(standby=[0])
    bench.settle(again)
    bench.clock.advance(1_000)
    bench.settle(again)
    assert len(list((again.state_path / ".kept").iterdir())) == 1


# -- the record of accepted losses ------------------------------------------------------------------------------------


def test_topic_that_is_emptied_again_under_the_same_name_is_another_loss(bench: Bench) -> None:
    for _ in range(2):
        session = bench.active(stores=STORES, accept_empty_log=True)
        write(session, 0, 3)
        session.close()
        bench.log.admin.delete_topic(KV.topic)
    again = bench.active(stores=STORES, accept_empty_log=True)
    assert keys(again) == []
    assert len({one.topic_id for one in read_accepted(again.state_path)}) == 2
    assert len(list((again.state_path / ".kept").iterdir())) == 2


def lose(folder: Path, partition: int) -> None:
    """Record the accepted loss of one task, as a worker process does."""
    at = TopicPartition("app-kv-changelog", partition)
    applier: Any = SimpleNamespace(task=TaskId(0, partition), store_of={at: "kv"}, topic_id=lambda _: "t")
    plans: dict[TopicPartition, Plan] = {at: FromBeginning(at, "no-local-state", 5, 9, accepted="records were removed")}
    note_accepted(folder, applier, plans, 1)


def test_losses_of_many_workers_at_once_are_all_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meet, read = Barrier(4), accepted.read_accepted

    def together(folder: Path) -> list[accepted.Accepted]:
        found = read(folder)
        meet.wait(10)
        return found

    monkeypatch.setattr(accepted, "read_accepted", together)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda partition: lose(tmp_path, partition), range(4)))
    assert sorted(one.task for one in read(tmp_path)) == ["0_0", "0_1", "0_2", "0_3"]


def test_line_that_a_crash_cut_short_takes_no_other_with_it(tmp_path: Path) -> None:
    lose(tmp_path, 0)
    path = tmp_path / ACCEPTED_FILE
    path.write_bytes(path.read_bytes() + b'{"format": "standfast.acc')
    lose(tmp_path, 1)
    assert [one.task for one in read_accepted(tmp_path)] == ["0_0", "0_1"]


def test_loss_recorded_by_an_earlier_version_is_not_recorded_again(tmp_path: Path) -> None:
    lose(tmp_path, 0)
    path = tmp_path / ACCEPTED_FILE
    before = json.loads(path.read_text())
    del before["topic_id"]
    path.write_text(json.dumps(before) + "\n")
    lose(tmp_path, 0)
    assert [one.topic_id for one in read_accepted(tmp_path)] == [""]


def test_damaged_directory_beside_a_log_without_its_head_is_refused_and_kept_when_accepted(bench: Bench) -> None:
    headless(bench)
    (bench.root / "a/app/0_0/CURRENT").write_bytes(b"spoilt")
    refused = bench.session(stores=STORES)
    with pytest.raises(sf.StateLost, match=r"below offset 500 were removed.*the local rows are corrupt.*last copy"):
        refused.assign(active=[0])
    refused.close()
    assert (bench.root / "a/app/0_0/CURRENT").read_bytes() == b"spoilt"
    accepted = bench.active(stores=STORES, accept_missing_history=True)
    assert len(keys(accepted)) == 10
    (kept,) = (accepted.state_path / ".kept").glob("*/0_0")
    assert (kept / "CURRENT").read_bytes() == b"spoilt"
