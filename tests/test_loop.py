"""The loop on real parts: poll, process, commit; gate, requests, full buffers, failures, take-over."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fix_sessions import Bench

import standfast as sf
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.stream.loop import Loop
from standfast.stream.processor import Context, Source, SourceRecord

STORES = [sf.KeyValueStore("count", sf.serde.string, sf.serde.int64)]


class Count(sf.Processor):
    """Counts records by key; asks for a commit at key "commit", fails at key "fail"."""

    closed = 0

    def init(self, context: Context) -> None:
        self.context = context
        self.store = context.store("count")

    def process(self, record: SourceRecord) -> None:
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


def shared(bench: Bench, directory: str = "a", **settings: Any) -> sf.Session:
    session = bench.session(directory, stores=STORES, placement="shared", standby_replicas=1, **settings)
    bench.settle(session)
    return session


def loop_on(bench: Bench, session: sf.Session, processor: type[sf.Processor] = Count, **source: Any) -> Loop:
    entry = Source("src", sf.serde.string, sf.serde.bytes, **source)
    return Loop(session, [(entry, processor)], commit_interval_ms=1_000, clock=bench.clock)


def counts(session: sf.Session, partition: int = 0) -> dict[str, int]:
    """Committed rows."""
    return dict(session.read("count", partition).store.all())


def test_records_are_processed_and_committed_at_the_interval(bench: Bench) -> None:
    feed(bench, ["a", "b", "a"])
    session = shared(bench)
    loop = loop_on(bench, session)
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
    session = shared(bench)
    loop = loop_on(bench, session)
    loop.poll_once()
    assert counts(session) == {"a": 1, "commit": 1}
    assert session.task(0).source_offsets() == {TopicPartition("src", 0): 2}
    loop.close()


def test_full_buffer_commits_after_the_current_record(bench: Bench) -> None:
    feed(bench, [f"key-{number}" for number in range(2_000)])
    session = shared(bench, cache_max_bytes=1)  # raised to the smallest cache there is
    loop = loop_on(bench, session)
    while loop.poll_once():
        pass
    assert session.counters.commits["committed"] >= 3
    assert len(counts(session)) > 500
    loop.close()


def test_uncommitted_records_are_processed_again_after_a_restart(bench: Bench) -> None:
    feed(bench, ["a", "commit", "b", "b"])
    session = shared(bench)
    loop = loop_on(bench, session)
    loop.poll_once()
    loop.close()  # without a commit
    session.close()
    again = shared(bench)
    loop = loop_on(bench, again)
    loop.poll_once()
    loop.commit_all()
    assert counts(again) == {"a": 1, "b": 2, "commit": 1}
    loop.close()


@pytest.mark.usefixtures("small_batches")
def test_nothing_is_fetched_while_the_gate_is_shut(bench: Bench) -> None:
    feed(bench, ["a"])
    first = shared(bench)
    task = first.task(0)
    for number in range(8_000):
        task.store("count").put(f"{number:06}", 1)
    task.commit()
    first.close()
    cold = bench.session("cold", stores=STORES, placement="shared")
    cold.poll_once()
    cold.poll_once()
    assert not cold.ready
    loop = loop_on(bench, cold)
    assert loop.poll_once() == 0
    cold.wait_ready(30)
    assert loop.poll_once() == 1
    loop.close()


def test_timestamp_extractor_gives_the_records_time(bench: Bench) -> None:
    feed(bench, ["a"])
    session = shared(bench)
    loop = loop_on(bench, session, timestamp=lambda record: 77)
    loop.poll_once()
    loop.commit_all()
    view = session.read("count", 0).store
    assert view.get_with_timestamp("a") == (1, 77)
    assert session.task(0).stream_times == {"src/0": 77}
    loop.close()


def test_context_speaks_of_the_record_in_hand(bench: Bench) -> None:
    feed(bench, ["a", "b"], first_ms=5)
    seen: list[tuple[object, ...]] = []

    class Look(sf.Processor):
        def init(self, context: Context) -> None:
            self.context = context

        def process(self, record: SourceRecord) -> None:
            context = self.context
            seen.append((context.task_id, context.topic, context.partition, context.offset, context.timestamp))
            with pytest.raises(sf.InvalidRequest, match="not declared"):
                context.store("other")

    session = shared(bench)
    loop = loop_on(bench, session, Look)
    loop.poll_once()
    assert seen == [("0_0", "src", 0, 0, 5), ("0_0", "src", 0, 1, 6)]
    loop.close()


def test_fenced_task_leaves_the_loop_and_the_others_go_on(bench: Bench) -> None:
    feed(bench, ["a"])
    feed(bench, ["b"], partition=1)
    session = shared(bench)
    loop = loop_on(bench, session)
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
        def process(self, record: SourceRecord) -> None:
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
    app = sf.App("app", log=bench.address, state_dir=bench.root / "a", stores=STORES)
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
