"""The tailer on a real log and real stores: limits of source topics, memory, failures of one task.

The rules of the state machine itself are in test_standby.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NoReturn

import pytest

import standfast as sf
from standfast.replication.listeners import Listeners
from standfast.replication.log import Committed, Outgoing, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.applier import ChangelogApplier
from standfast.replication.tail.tailer import Tailer
from standfast.store.errors import Unavailable
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.task_stores import TaskStores
from support.sessions import Bench

SOURCE = TopicPartition("table", 0)
SPEC = sf.KeyValueStore("table", sf.serde.string, sf.serde.string)


@pytest.fixture
def applier(bench: Bench) -> Iterator[ChangelogApplier]:
    """A store whose changelog is the source topic `table`."""
    info = bench.log.admin.create_topic("table", 1, TopicPolicy(frozenset({"compact"})))
    shared = RocksShared(8 << 20)
    stores = TaskStores(bench.root / "t", "app", "0_0", [SPEC], shared, now_ms=bench.clock.wall_ms)
    yield ChangelogApplier(TaskId(0, 0), stores, {"table": info}, bench.clock)
    stores.close()


def produce(bench: Bench, count: int, first: int = 0) -> None:
    batch = [Outgoing(b"%05d" % number, b"v", number) for number in range(first, first + count)]
    bench.log.producer().append({SOURCE: batch})


def tail(bench: Bench, applier: ChangelogApplier) -> Tailer:
    tailer = Tailer(bench.log, bench.log.group("app"), Listeners())
    tailer.add(applier, limited=frozenset({SOURCE}))
    tailer.allow(True)
    return tailer


def rows(applier: ChangelogApplier) -> dict[str, str]:
    with applier.stores.committed_view("table").all() as found:
        return dict(found)


def no_answer(positions: object) -> NoReturn:
    raise Unavailable("no answer")


def test_rows_wait_with_their_positions_where_the_log_does_not_answer_a_write(
    bench: Bench, applier: ChangelogApplier, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(bench, 3)
    info = bench.log.admin.describe_topic("table")
    assert info is not None
    with closing(bench.log.reader()) as reader:
        tagged = ChangelogApplier(applier.task, applier.stores, {"table": info}, bench.clock, reader)
        reader.add({SOURCE: 0})
        tagged.stage(SOURCE, reader.fetch(10)[0].records, 3)
        with monkeypatch.context() as away:
            away.setattr(reader, "epoch_tags", no_answer)
            with pytest.raises(Unavailable):
                tagged.write()
        assert tagged.position(SOURCE) is None
        assert rows(applier) == {}
        tagged.write()  # such as of another changelog of the task, which now has the limit that it waited for
        stored = tagged.position(SOURCE)
        assert stored is not None
        assert stored.offset == 3
        assert len(rows(applier)) == 3


def test_source_topic_as_changelog_is_followed_up_to_the_committed_offset(
    bench: Bench, applier: ChangelogApplier
) -> None:
    produce(bench, 10)
    group = bench.log.group("app")
    tailer = tail(bench, applier)
    tailed = tailer.changelogs[SOURCE]
    assert tailed.machine.limit == 0  # nothing committed: no record may be applied
    assert tailer.poll_once(1).applied == 0
    assert tailed.paused
    group.commit({SOURCE: Committed(4)})
    assert tailer.poll_once(2).applied == 0  # limits are read at the commit tick, not in between
    tailer.commit_tick(3)
    assert (tailed.machine.position, tailed.paused) == (4, True)
    group.commit({SOURCE: Committed(10)})
    tailer.commit_tick(4)
    assert (tailed.machine.position, tailed.paused) == (10, False)
    assert [key for key, _ in applier.stores.store("table").all()] == [f"{number:05}" for number in range(10)]
    position = applier.position(SOURCE)
    assert position is not None
    assert position.offset == 10
    tailer.close()


def test_limit_of_a_standby_never_moves_back(bench: Bench, applier: ChangelogApplier) -> None:
    produce(bench, 10)
    group = bench.log.group("app")
    group.commit({SOURCE: Committed(6)})
    tailer = tail(bench, applier)
    tailer.poll_once(1)
    group.commit({SOURCE: Committed(2)})
    tailer.commit_tick(2)
    assert tailer.changelogs[SOURCE].machine.limit == 6
    assert tailer.changelogs[SOURCE].machine.position == 6
    tailer.close()


def test_what_waits_beyond_a_far_limit_is_bounded_and_nothing_is_lost(bench: Bench, applier: ChangelogApplier) -> None:
    produce(bench, 30_000)
    group = bench.log.group("app")
    group.commit({SOURCE: Committed(1)})
    tailer = tail(bench, applier)
    for now_ms in range(20):
        tailer.poll_once(now_ms)
        tailer.commit_tick(now_ms)
    assert tailer.changelogs[SOURCE].machine.statistics().kept_records <= 10_000
    group.commit({SOURCE: Committed(30_000)})
    for now_ms in range(20, 40):
        tailer.commit_tick(now_ms)
        tailer.poll_once(now_ms)
    assert tailer.changelogs[SOURCE].machine.position == 30_000
    assert sum(1 for _ in applier.stores.store("table").all()) == 30_000
    tailer.close()


def test_standby_that_was_not_allowed_to_start_is_given_nothing(bench: Bench, applier: ChangelogApplier) -> None:
    produce(bench, 10)
    tailer = Tailer(bench.log, bench.log.group("app"), Listeners())
    tailer.add(applier)
    tailer.poll_once(1)
    tailer.commit_tick(2)
    assert applier.position(SOURCE) is None
    tailer.allow(True)
    tailer.poll_once(3)
    assert applier.position(SOURCE) is not None
    tailer.close()
