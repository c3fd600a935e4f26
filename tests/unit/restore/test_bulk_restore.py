"""Bulk restore: the same rows as batches and as the live store, for every kind of store, in any number of runs."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import standfast as sf
from standfast.replication.listeners import Listener
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.plan import HISTORY_MISSING
from standfast.restore.replay.bulk import BulkLoader
from standfast.restore.replay.bulk_plan import LEVEL0_FILES_MAX
from standfast.restore.replay.jobs import Failed, Job
from standfast.restore.replay.run_builder import RunBuilder
from standfast.restore.replay.worker import Worker
from standfast.store import window_key
from standfast.store.errors import Corruption, StateLost, Unavailable
from standfast.store.native_module import SWITCH
from standfast.store.process.interrupts import Flag
from standfast.store.rocks.engine import RocksEngine
from standfast.stream.session.host import BULK_WAIT_S
from support.bulk import BATCHES, BULK, digests, drive, loader
from support.sessions import DAY_MS, HOUR_MS, START_MS, Bench, four_stores, operate

pytestmark = pytest.mark.slow


class Told(Listener):
    """A listener's events of restores."""

    def __init__(self) -> None:
        self.batches: dict[str, list[tuple[int, int]]] = {}
        self.ended: dict[str, int] = {}
        self.lost: list[str] = []

    def on_batch_restored(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int
    ) -> None:
        self.batches.setdefault(store, []).append((position, records))

    def on_restore_end(self, task: TaskId, store: str, changelog: TopicPartition, records: int) -> None:
        self.ended[store] = records

    def on_state_lost(self, task: TaskId, reason: str) -> None:
        self.lost.append(reason)


def all_kinds() -> list[Any]:
    text = sf.serde.string
    return [
        *four_stores(),
        sf.KeyValueStore("plain", text, text, timestamped=False, caching=False),
        sf.WindowStore(
            "dup", text, text, window_size_ms=HOUR_MS, retention_ms=DAY_MS, retain_duplicates=True, caching=False
        ),
        sf.KeyValueStore("mem", text, text, engine="memory"),
    ]


def live(bench: Bench, seed: int, count: int = 400) -> sf.Session:
    """A session that has written all kinds of stores."""
    session = bench.active("live", stores=all_kinds(), cache_max_bytes=1 << 20)
    task, rng = session.task(0), random.Random(seed)
    operate(task, rng, count)
    for number in range(count):
        key, value = f"k{rng.randrange(40)}", None if rng.random() < 0.2 else f"w{number}"
        task.store("plain").put(key, value, START_MS + number)
        task.store("mem").put(key, value, START_MS + number)
        task.store("dup").put(key, value or "x", START_MS + number * 600_000 // HOUR_MS * HOUR_MS, START_MS + number)
    task.commit()
    return session


def restored(bench: Bench, directory: str, **how: Any) -> sf.Session:
    session = bench.session(directory, stores=how.pop("stores", all_kinds()), **how)
    session.assign(active=[0])
    drive(session)
    return session


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
@pytest.mark.parametrize("native", ["1", "0"], ids=["compiled", "python"])
def test_bulk_and_batches_restore_what_the_live_store_holds(
    bench: Bench, many_runs: None, monkeypatch: pytest.MonkeyPatch, seed: int, native: str
) -> None:
    monkeypatch.setenv(SWITCH, native)
    first = live(bench, seed)
    expected = digests(first)
    times = first.task(0).stores.cut.stores
    first.close()
    assert digests(restored(bench, "batches", **BATCHES)) == expected
    told = Told()
    session = restored(bench, "bulk", listeners=[told], **BULK)
    assert digests(session) == expected
    assert session.task(0).stores.cut.stores == times
    assert loader(session).statistics().runs >= 10
    spent = session.counters.restore_phases_ns  # workers report theirs with the end of a job
    assert all(spent[phase] > 0 for phase in ("fetch", "decode", "write", "ingest"))
    for name, batches in told.batches.items():
        assert batches == sorted(batches)
        assert sum(records for _, records in batches) == told.ended[name]
    ends = bench.log.reader().bounds(session.task(0).applier.store_of)
    for changelog, bounds in ends.items():
        position = session.task(0).applier.position(changelog)
        assert position is not None and position.offset == bounds.end


@pytest.mark.parametrize("seed", range(2))
def test_rows_that_left_memory_are_restored_without_runs_above_each_other(
    bench: Bench, many_spills: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    first = live(bench, seed)
    expected = digests(first)
    times = first.task(0).stores.cut.stores
    first.close()
    spilled = []
    real = RunBuilder.spill

    def spill(self: RunBuilder) -> bool:
        done = real(self)
        spilled.append(done)
        return done

    monkeypatch.setattr(RunBuilder, "spill", spill)
    session = restored(bench, "bulk", **BULK)
    assert digests(session) == expected
    assert session.task(0).stores.cut.stores == times
    assert spilled.count(True) > 10 and spilled.count(False) > 1, "some become runs on the way"
    assert loader(session).statistics().failures == 0
    assert not list((bench.root / "bulk" / "app").glob(".bulk/**/*.s*"))


def test_files_and_workers_are_gone_afterwards(bench: Bench, many_runs: None) -> None:
    live(bench, 1).close()
    session = restored(bench, "bulk", **BULK)
    deadline = time.monotonic() + 10
    while loader(session).workers:
        session.poll_once()
        assert time.monotonic() < deadline
    assert not list((bench.root / "bulk" / "app").glob(".bulk/**/*.sst"))
    session.close()


def test_versioned_and_memory_stores_are_restored_by_batches(bench: Bench, many_runs: None) -> None:
    live(bench, 2).close()
    session = bench.session("bulk", stores=all_kinds(), **BULK)
    session.assign(active=[0])
    found = session._instance.readiness.restorer.tasks[TaskId(0, 0)].changelogs
    assert {one.store: one.in_bulk for one in found.values()} == {
        **dict.fromkeys(("kv", "win", "ses", "plain", "dup"), True),
        **dict.fromkeys(("ver", "mem"), False),
    }
    drive(session)


def test_few_records_are_restored_by_batches(bench: Bench) -> None:
    live(bench, 2).close()
    session = bench.session("batches", stores=all_kinds())
    session.assign(active=[0])
    found = session._instance.readiness.restorer.tasks[TaskId(0, 0)].changelogs
    assert not any(one.in_bulk for one in found.values())
    drive(session)
    assert not loader(session).statistics().runs


def test_warm_store_takes_the_rest_over_its_rows(bench: Bench, many_runs: None) -> None:
    live(bench, 3).close()
    restored(bench, "warm", **BATCHES).close()
    first = restored(bench, "live", **BATCHES)
    task, rng = first.task(0), random.Random(99)
    operate(task, rng, 300)
    expected = digests(first)
    first.close()
    session = restored(bench, "warm", **BULK)
    assert loader(session).statistics().runs > 0
    assert digests(session) == expected


def test_several_partitions_share_the_workers(bench: Bench, many_runs: None) -> None:
    text = sf.serde.string
    stores = [sf.KeyValueStore("kv", text, text)]
    first = bench.active("live", (0, 1), stores=stores)
    for partition in (0, 1):
        task = first.task(partition)
        for number in range(500):
            task.store("kv").put(f"k{number % 170}", None if number % 11 == 0 else f"{partition}-{number}", number)
            if number % 50 == 0:
                task.commit()
        task.commit()
    expected = digests(first, (0, 1))
    first.close()
    session = bench.session("bulk", stores=stores, **BULK)
    session.assign(active=[0, 1])
    drive(session)
    assert digests(session, (0, 1)) == expected
    assert loader(session).statistics().runs >= 4


def test_store_goes_on_after_a_bulk_restore(bench: Bench, many_runs: None) -> None:
    live(bench, 5).close()
    session = restored(bench, "bulk", **BULK)
    operate(session.task(0), random.Random(7), 100)
    expected = digests(session)
    session.close()
    again = restored(bench, "bulk", **BATCHES)
    assert digests(again) == {**expected, ("mem", 0): digests(again)["mem", 0]}
    other = restored(bench, "other", **BULK)
    assert digests(other) == digests(again)


def test_files_are_in_shape_before_the_gate_opens(bench: Bench, many_runs: None) -> None:
    text = sf.serde.string
    stores = [sf.KeyValueStore("kv", text, text)]
    first = bench.active("live", stores=stores)
    for number in range(1_500):
        first.task(0).store("kv").put(f"k{number % 400}", f"v{number}", number)
    first.task(0).commit()
    for number in range(1_500):
        first.task(0).store("kv").put(f"k{number % 400}", f"w{number}", number)
    first.task(0).commit()
    expected = digests(first)
    first.close()
    session = restored(bench, "bulk", stores=stores, **BULK)
    assert loader(session).statistics().runs > LEVEL0_FILES_MAX + 1
    engine = session.task(0).stores.engine
    assert engine.statistics("kv").properties["num-files-at-level0"] <= LEVEL0_FILES_MAX
    assert digests(session) == expected


def test_session_may_be_closed_while_files_are_put_in_shape(
    bench: Bench, many_runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(bench, 4).close()
    begun, go_on = threading.Event(), threading.Event()
    real = RocksEngine.compact

    def slow(self: RocksEngine, family: str) -> None:
        begun.set()
        go_on.wait(30)
        real(self, family)

    monkeypatch.setattr(RocksEngine, "compact", slow)
    monkeypatch.setattr("standfast.restore.replay.bulk_plan.LEVEL0_FILES_MAX", -1)
    session = bench.session("bulk", stores=all_kinds(), **BULK)
    session.assign(active=[0])
    deadline = time.monotonic() + 60
    while not begun.is_set():
        session.poll_once()
        assert time.monotonic() < deadline
    assert session.missing(), "the gate is shut meanwhile"
    session.close()
    go_on.set()
    monkeypatch.undo()
    again = restored(bench, "bulk", **BATCHES)
    assert digests(again) == digests(restored(bench, "batches", **BATCHES))


# -- skipped records --------------------------------------------------------------------------------------------------

Rows = list[tuple[str, int, int, str | None]]  # key, window start, timestamp, value


def logged(bench: Bench, directory: str, rows: Rows) -> list[Any]:
    """A window store whose changelog holds these records, as any application may have written them."""
    text = sf.serde.string
    name = f"win-{directory}"
    stores = [sf.WindowStore(name, text, text, window_size_ms=60_000, retention_ms=600_000)]
    bench.session(directory, stores=stores, **BATCHES).close()
    bench.log.producer().append(
        {
            TopicPartition(f"app-{name}-changelog", 0): [
                Outgoing(window_key.pack(key.encode(), start), None if value is None else value.encode(), stamp)
                for key, start, stamp, value in rows
            ]
        }
    )
    return stores


def test_expired_records_are_not_even_read(bench: Bench, many_runs: None) -> None:
    rows: Rows = [(f"k{number % 7}", number * 6_000, number * 6_000 + 100, f"v{number}") for number in range(4_000)]
    stores = logged(bench, "x", rows)
    told = Told()
    session = restored(bench, "bulk", stores=stores, listeners=[told], **BULK)
    assert told.ended["win-x"] < 400
    assert digests(session) == digests(restored(bench, "batches", stores=stores, **BATCHES))
    assert session.task(0).stores.cut.stores["win-x"].observed_ms == 3_999 * 6_000


def test_nothing_is_skipped_where_the_log_finds_no_record_as_late_as_its_last_one(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a broker answers where people removed the head: its search ends with the segment of the begin."""
    rows: Rows = [(f"k{number % 7}", number * 6_000, number * 6_000 + 100, f"v{number}") for number in range(400)]
    (spec,) = logged(bench, "x", rows)
    changelog = TopicPartition("app-win-x-changelog", 0)
    info = bench.log.admin.describe_topic(changelog.topic)
    assert info is not None
    worker = Worker(
        bench.log, Job(0, spec, changelog, info.topic_id, 0, 400, tmp_path, 1 << 20, 100), [].append, Flag()
    )
    first, _ = worker._survey(bench.log.reader())
    assert 0 < first < 400
    monkeypatch.setattr(type(bench.log.admin), "first_offsets", lambda admin, times: dict.fromkeys(times, 400))
    assert worker._survey(bench.log.reader())[0] == 0


def test_nothing_is_skipped_where_rows_are_ahead_of_their_records(bench: Bench, many_runs: None) -> None:
    rows: Rows = [(f"k{number % 7}", number * 6_000, 5, f"v{number}") for number in range(2_500)]
    stores = logged(bench, "x", rows)
    told = Told()
    session = restored(bench, "bulk", stores=stores, listeners=[told], **BULK)
    assert told.ended["win-x"] == 2_500
    assert digests(session) == digests(restored(bench, "batches", stores=stores, **BATCHES))


@pytest.mark.long
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "ab", "b", "ac"]),
            st.integers(0, 40).map(lambda minute: minute * 60_000),
            st.integers(0, 59_999),
            st.none() | st.text(max_size=2),
        ),
        max_size=120,
    )
)
def test_any_small_log_of_windows_restores_alike(
    bench: Bench, many_runs: None, rows: list[tuple[str, int, int, str | None]]
) -> None:
    directory = f"d{len(bench.opened)}"
    stores = logged(bench, directory, [(key, start, start + late, value) for key, start, late, value in rows])
    by_batches = restored(bench, directory + "-batches", stores=stores, **BATCHES)
    in_bulk = restored(bench, directory + "-bulk", stores=stores, **BULK)
    assert digests(in_bulk) == digests(by_batches)
    assert in_bulk.task(0).stores.cut.stores == by_batches.task(0).stores.cut.stores
    in_bulk.close()
    by_batches.close()


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3, 100])
def test_failing_workers_cost_time_and_nothing_else(
    bench: Bench, many_runs: None, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    first = live(bench, 6)
    expected = digests(first)
    first.close()
    left, chance = [times], random.Random(times)
    mutex = threading.Lock()
    real = RunBuilder.add

    def fail(self: RunBuilder, records: Any, payload_bytes: int) -> None:
        with mutex:
            if left[0] and chance.random() < 0.3:
                left[0] -= 1
                raise Unavailable("the log is away: try again")
        real(self, records, payload_bytes)

    monkeypatch.setattr(RunBuilder, "add", fail)
    session = restored(bench, "bulk", **BULK)
    assert digests(session) == expected
    assert loader(session).statistics().failures >= min(times, 3)


def test_caller_that_polls_without_a_pause_leaves_the_interpreter_to_the_workers(
    bench: Bench, many_runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(bench, 6).close()
    go_on, real = threading.Event(), Worker.run

    def held(self: Worker) -> None:
        go_on.wait(30)
        real(self)

    monkeypatch.setattr(Worker, "run", held)
    session = bench.session("bulk", stores=all_kinds(), **BULK)
    session.assign(active=[0])
    while session.poll_once():  # other stores are restored by batches
        pass
    began = time.monotonic()
    assert [session.poll_once() for _ in range(10)] == [0] * 10
    assert time.monotonic() - began >= 10 * BULK_WAIT_S, "each of them waited outside the interpreter's lock"
    go_on.set()
    drive(session)
    assert not session._instance.readiness.restorer.waits_for_threads, "without a bulk restore no round waits"


@pytest.mark.parametrize("error", [MemoryError(), ValueError("a bug")])
def test_worker_that_ends_with_any_error_is_done_without(
    bench: Bench, many_runs: None, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    first = live(bench, 6)
    expected = digests(first)
    first.close()

    def fail(self: RunBuilder, records: Any, payload_bytes: int) -> None:
        raise error

    monkeypatch.setattr(RunBuilder, "add", fail)
    session = restored(bench, "bulk", **BULK)
    assert digests(session) == expected
    assert loader(session).statistics().given_back == 5


def test_worker_that_cannot_start_is_done_without(
    bench: Bench, many_runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = live(bench, 6)
    expected = digests(first)
    first.close()
    real = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name.startswith("standfast-build-"):
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert digests(restored(bench, "none", **BULK)) == expected


@pytest.mark.parametrize("rounds", [1, 20])
def test_session_closed_in_the_middle_leaves_no_thread_and_no_file(bench: Bench, many_runs: None, rounds: int) -> None:
    live(bench, 6).close()
    session = bench.session("bulk", stores=all_kinds(), **BULK)
    session.assign(active=[0])
    for _ in range(rounds):
        session.poll_once()
    session.close()
    assert not [one.name for one in threading.enumerate() if one.name.startswith("standfast-build-")]
    assert not list((bench.root / "bulk" / "app").glob(".bulk/**/*.sst*"))


def test_damaged_file_is_noticed_and_batches_do_it(
    bench: Bench, many_runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = live(bench, 6)
    expected = digests(first)
    first.close()
    real = BulkLoader._ingest

    def spoil(self: BulkLoader, load: Any) -> None:
        for path in sorted(load.folder.glob("*.sst")):
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        real(self, load)

    monkeypatch.setattr(BulkLoader, "_ingest", spoil)
    session = restored(bench, "bulk", **BULK)
    assert digests(session) == expected
    assert loader(session).statistics().runs == 0


def test_revoked_in_the_middle_and_assigned_again_goes_on(bench: Bench, many_runs: None) -> None:
    first = live(bench, 8)
    expected = digests(first)
    first.close()
    session = bench.session("bulk", stores=all_kinds(), **BULK)
    for rounds in (3, 30, 100, 200):
        session.assign(active=[0])
        for _ in range(rounds):
            session.poll_once()
            time.sleep(0.002)
        session.assign()
        assert not session._instance.readiness.restorer.tasks
    session.assign(active=[0])
    drive(session)
    assert digests(session) == expected


def failed(session: sf.Session) -> BaseException:
    """Poll until the task fails; its error."""
    deadline = time.monotonic() + 60
    while (error := session._instance.tasks[TaskId(0, 0)].error) is None:
        session.poll_once()
        time.sleep(0.002)
        assert time.monotonic() < deadline
    return error


def truncated(bench: Bench, name: str, **settings: Any) -> sf.Session:
    """A session whose changelogs lose their heads once a bulk restore of them has been ordered."""
    live(bench, 9).close()
    session = bench.session(name, stores=all_kinds(), **BULK, **settings)
    session.assign(active=[0])
    for store in ("kv", "plain"):
        bench.embedded.truncate(TopicPartition(f"app-{store}-changelog", 0), 100)
    return session


def test_log_that_is_truncated_in_a_bulk_restore_gives_no_part_of_the_rows(bench: Bench, many_runs: None) -> None:
    session = truncated(bench, "bulk")
    assert isinstance(error := failed(session), StateLost)
    assert error.reason == HISTORY_MISSING
    assert "records below offset 100 were removed although the topic is only compacted" in str(error)


def test_log_that_is_truncated_in_a_bulk_restore_gives_the_rest_if_the_loss_is_accepted(
    bench: Bench, many_runs: None
) -> None:
    session = truncated(bench, "bulk", accept_missing_history=True)
    drive(session)
    assert digests(session) == digests(restored(bench, "batches", accept_missing_history=True, **BATCHES))


def test_record_of_nobody_fails_the_task_and_names_itself(bench: Bench, many_runs: None) -> None:
    stores = logged(bench, "x", [("a", 0, 1, "v")])
    bench.log.producer().append({TopicPartition("app-win-x-changelog", 0): [Outgoing(b"short", b"v", 1)]})
    session = bench.session("bulk", stores=stores, **BULK)
    session.assign(active=[0])
    assert isinstance(error := failed(session), Corruption)
    assert "the record at offset 1 cannot be a row of the window store" in str(error)


def test_changelog_made_anew_is_another_one(bench: Bench, many_runs: None) -> None:
    live(bench, 9).close()
    session = bench.session("bulk", stores=all_kinds(), **BULK)
    session.assign(active=[0])
    name = "app-kv-changelog"
    info = bench.log.admin.describe_topic(name)
    assert info is not None
    bench.log.admin.delete_topic(name)
    bench.log.admin.create_topic(name, info.partitions, info.policy)
    drive(session)
    assert digests(session)["kv", 0].count == 0
    assert digests(session) == digests(restored(bench, "batches", **BATCHES))


def test_topic_that_goes_away_under_a_worker_is_lost_and_is_not_given_to_batches(bench: Bench, tmp_path: Path) -> None:
    live(bench, 9).close()
    changelog = TopicPartition("app-kv-changelog", 0)
    info = bench.log.admin.describe_topic(changelog.topic)
    assert info is not None
    spec = next(one for one in all_kinds() if one.name == "kv")
    job = Job(0, spec, changelog, info.topic_id, 0, 9, tmp_path, 1 << 20, 100)
    said: list[Any] = []
    worker = Worker(bench.log, job, said.append, Flag())
    read = worker._read

    def gone(*given: Any) -> Any:
        bench.log.admin.delete_topic(changelog.topic)
        return read(*given)

    worker._read = gone  # type: ignore[method-assign]
    worker.run()
    (failed,) = said
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, StateLost)
    assert failed.error.reason == "topic-recreated"
