"""The loop on real parts: poll, process, commit; gate, requests, full buffers, failures, take-over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.stream.record import Record
from standfast.stream.runtime.loop import Loop
from standfast.stream.topology.assembly import assemble
from standfast.stream.topology.processor import Context
from support.sessions import Bench, lock_held

STORES = [sf.KeyValueStore("count", sf.serde.string, sf.serde.int64)]


class Count(sf.Processor):
    """Counts records by key; requests a commit at key "commit", fails at key "fail"."""

    closed = 0

    def init(self, context: Context) -> None:
        self.context = context
        self.store = context.store("count")

    def process(self, record: Record) -> None:
        if record.key == "fail":
            raise ValueError("the processor fails")
        self.store.put(record.key, (self.store.get(record.key) or 0) + 1)
        if record.key == "commit":
            self.context.commit()

    def close(self) -> None:
        Count.closed += 1


def feed(bench: Bench, keys: list[str], partition: int = 0, first_ms: int = 0) -> None:
    bench.log.admin.create_topic("src", 2, TopicPolicy())
    batch = [Outgoing(key.encode(), b"v", first_ms + number) for number, key in enumerate(keys)]
    bench.log.producer().append({TopicPartition("src", partition): batch})


class Running:
    """An application whose session and loop are driven by the test."""

    def __init__(
        self,
        bench: Bench,
        processor: type[sf.Processor] = Count,
        directory: str = "a",
        settle: bool = True,
        **given: Any,
    ) -> None:
        source = {name: given.pop(name) for name in ("timestamp", "on_error") if name in given}
        self.app = sf.App(
            "app", log=bench.address, state_dir=bench.root / directory, stores=STORES, clock=bench.clock,
            standby_replicas=1, **given,
        )  # fmt: skip
        self.app.source("src", key=sf.serde.string, value=sf.serde.bytes, **source)(processor)
        assembled = assemble(self.app.builder, bench.log.admin, bench.address)
        self.session = self.app.open_session(
            assembled, bench.address, bench.root / directory, bench.clock, background=False, alone=True
        )
        bench.opened.append(self.session)
        if settle:
            bench.settle(self.session)
        self.loop = Loop(
            self.session, assembled.topology, self.app.runner_settings(assembled, bench.clock),
            commit_interval_ms=1_000, restart=self.app.restart, clock=bench.clock,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Any]:
        return iter((self.session, self.loop))


def counts(session: sf.Session, partition: int = 0) -> dict[str, int]:
    """Committed rows."""
    return dict(session.read("count", partition).store.all())


def test_records_are_processed_and_committed_at_the_interval(bench: Bench) -> None:
    feed(bench, ["a", "b", "a"])
    session, loop = Running(bench)
    assert loop.poll_once() == 3
    assert counts(session) == {}
    bench.clock.advance(999)
    loop.poll_once()
    assert counts(session) == {}
    bench.clock.advance(1)
    loop.poll_once()
    assert counts(session) == {"a": 2, "b": 1}
    assert session.task(0).source_offsets() == {TopicPartition("src", 0): 3}
    loop.close()


def test_commit_asked_for_by_a_processor_follows_the_current_record(bench: Bench) -> None:
    feed(bench, ["a", "commit", "a"])
    session, loop = Running(bench)
    loop.poll_once()
    assert counts(session) == {"a": 1, "commit": 1}
    assert session.task(0).source_offsets() == {TopicPartition("src", 0): 2}
    loop.close()


def test_full_buffer_commits_after_the_current_record(bench: Bench) -> None:
    feed(bench, [f"key-{number}" for number in range(2_000)])
    session, loop = Running(bench, cache_max_bytes=1)  # raised to the smallest cache size
    while loop.poll_once():
        pass
    assert session.counters.commits["committed"] >= 3
    assert len(counts(session)) > 500
    loop.close()


def test_sources_are_paused_at_the_disk_floor_while_what_was_processed_is_committed(bench: Bench) -> None:
    feed(bench, ["a", "b"])
    session, loop = Running(bench, disk_floor_bytes=1)
    disk = session.disk
    assert loop.poll_once() == 2
    feed(bench, ["c"])
    disk.floor_bytes = 2 * disk.free_bytes  # free is half of it, which is above the reserve
    disk.look()
    bench.clock.advance(1_000)
    assert loop.poll_once() == 0
    assert counts(session) == {"a": 1, "b": 1}
    disk.floor_bytes = 1
    disk.look()
    assert loop.poll_once() == 1
    loop.close()


def test_uncommitted_records_are_processed_again_after_a_restart(bench: Bench) -> None:
    feed(bench, ["a", "commit", "b", "b"])
    session, loop = Running(bench)
    loop.poll_once()
    loop.close()  # without a commit
    session.close()
    again, loop = Running(bench)
    loop.poll_once()
    loop.commit_all()
    assert counts(again) == {"a": 1, "b": 2, "commit": 1}
    loop.close()


@pytest.mark.usefixtures("small_batches")
def test_nothing_is_fetched_while_the_gate_is_shut(bench: Bench) -> None:
    feed(bench, ["a"])
    first, loop = Running(bench)
    task = first.task(0)
    for number in range(8_000):
        task.store("count").put(f"{number:06}", 1)
    task.commit()
    loop.close()
    first.close()
    cold, loop = Running(bench, directory="cold", settle=False)
    cold.poll_once()
    cold.poll_once()
    assert not cold.ready
    assert loop.poll_once() == 0
    cold.wait_ready(30)
    assert loop.poll_once() == 1
    loop.close()


def test_timestamp_extractor_gives_the_records_time(bench: Bench) -> None:
    feed(bench, ["a"])
    session, loop = Running(bench, timestamp=lambda record: 77)
    loop.poll_once()
    loop.commit_all()
    view = session.read("count", 0).store
    assert view.get_with_timestamp("a") == (1, 77)
    assert session.task(0).stream_times == {"src/0": 77, "task": 77}
    loop.close()


def test_context_speaks_of_the_record_in_hand(bench: Bench) -> None:
    feed(bench, ["a", "b"], first_ms=5)
    seen: list[tuple[object, ...]] = []

    class Look(sf.Processor):
        def init(self, context: Context) -> None:
            self.context = context

        def process(self, record: Record) -> None:
            context = self.context
            seen.append((context.task_id, context.topic, context.partition, context.offset, context.timestamp))
            with pytest.raises(sf.InvalidRequest, match="not connected"):
                context.store("other")

    _, loop = Running(bench, Look)
    loop.poll_once()
    assert seen == [("0_0", "src", 0, 0, 5), ("0_0", "src", 0, 1, 6)]
    loop.close()


def test_fenced_task_leaves_the_loop_and_the_others_go_on(bench: Bench) -> None:
    feed(bench, ["a"])
    feed(bench, ["b"], partition=1)
    session, loop = Running(bench)
    loop.poll_once()
    bench.log.writer("app-0-0", group="app", owner="somebody else")
    loop.commit_all()
    session.poll_once()
    feed(bench, ["b", "b"], partition=1)
    assert loop.poll_once() == 2
    loop.commit_all()
    assert counts(session, 1) == {"b": 3}
    assert session.counters.fenced == 1
    loop.close()


def test_application_runs_until_stopped_and_commits_at_the_end(bench: Bench) -> None:
    feed(bench, ["a", "b", "a"])
    app = sf.App("app", log=bench.address, state_dir=bench.root / "a", stores=STORES, commit_interval_ms=60_000)
    arrived = threading.Event()

    @app.source("src", key=sf.serde.string, value=sf.serde.bytes)
    class Last(Count):
        def process(self, record: Record) -> None:
            super().process(record)
            if self.context.offset == 2:
                arrived.set()

    runner = threading.Thread(target=app.run)
    runner.start()
    assert arrived.wait(30)
    app.stop()
    runner.join(30)
    after = bench.active(stores=STORES, partitions=(0, 1))
    assert counts(after) == {"a": 2, "b": 1}


def test_exception_of_a_processor_ends_the_run_and_loses_nothing(bench: Bench) -> None:
    feed(bench, ["a", "fail"])
    app = sf.App("app", log=bench.address, state_dir=bench.root / "a", stores=STORES, restart=sf.NoRestart())
    app.source("src", key=sf.serde.string, value=sf.serde.bytes)(Count)
    with pytest.raises(ValueError, match="the processor fails"):
        app.run()
    after = bench.active(stores=STORES, partitions=(0, 1))
    assert counts(after) == {}
    assert after.task(0).source_offsets() == {}


def test_application_without_a_usable_source_is_refused(bench: Bench) -> None:
    app = sf.App("app", log=bench.address, state_dir=bench.root / "a", stores=STORES)
    with pytest.raises(sf.BadConfig, match="has no source"):
        app.open()
    app.source("absent", key=sf.serde.string, value=sf.serde.bytes)(Count)
    with pytest.raises(sf.BadConfig, match="does not exist"):
        app.open()
    bench.log.admin.create_topic("one", 1, TopicPolicy())
    bench.log.admin.create_topic("two", 2, TopicPolicy())
    other = sf.App("app", log=bench.address, state_dir=bench.root / "a", stores=STORES)
    for topic in ("one", "two"):
        other.source(topic, key=sf.serde.string, value=sf.serde.bytes)(Count)
    with pytest.raises(sf.BadConfig, match="equal partition counts, but one has 1, two has 2"):
        other.open()
    with pytest.raises(sf.InvalidRequest, match="subclass"):
        other.source("one", key=sf.serde.string, value=sf.serde.bytes)(int)  # type: ignore[type-var]


def test_records_are_processed_and_committed_while_background_work_holds_the_session(bench: Bench) -> None:
    """An opening of another task holds the session's lock, on Kafka for a second and more."""
    feed(bench, ["a", "commit"])
    session, loop = Running(bench)
    with lock_held(session) as holder:
        assert loop.poll_once() == 2
        assert holder.is_alive(), "the lock was free again before the records were processed"
    assert counts(session) == {"a": 1, "commit": 1}
    loop.close()
