"""The fetch pipeline on a real embedded log: lanes that wait for no other, bounded memory, errors, an end in time.

Rules of this file: failures and waits come from a wrapper around the fetch thread's reader. Appliers are the test's own
calls; a slow one does not call.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from standfast.replication.credits import CreditLimits
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Fetched, Outgoing, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.tail.fetch_lane import Lane
from standfast.store.errors import Closed, Corruption, InvalidRequest, StateLost, Unavailable, UnknownStore
from support.fetch import COUNT, P0, P1, P2, failing, flights_log, write
from support.lanes import WAIT_MS, drain, offsets, pipeline_of

SMALL = CreditLimits(
    floating_batches=2, floating_per_partition_max=1, queue_batches_high=3, queue_batches_low=1, queue_bytes_max=1 << 20
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """Three partitions of COUNT records each."""
    with flights_log(tmp_path) as opened:
        yield opened


def until_error(lane: Lane, kind: type[Exception]) -> tuple[list[Fetched], Exception]:
    """The records of a lane before it raises."""
    came: list[Fetched] = []
    while True:
        try:
            fetched = lane.fetch(1_000, WAIT_MS)
        except kind as error:
            return came, error
        assert fetched, "no error comes"
        came += fetched


# -- records -----------------------------------------------------------------------------------------------------------


def test_every_lane_gets_its_partitions_once_and_in_order(log: EmbeddedLog) -> None:
    with pipeline_of(log) as pipeline:
        restore, source = pipeline.lane("restore"), pipeline.lane("source")
        restore.add({P0: 0, P1: 7})
        source.add({P2: 3})
        assert drain(restore, {P0: COUNT, P1: COUNT}) == {P0: list(range(COUNT)), P1: list(range(7, COUNT))}
        assert drain(source, {P2: COUNT}) == {P2: list(range(3, COUNT))}


def test_records_written_later_come_too_and_the_end_is_told(log: EmbeddedLog) -> None:
    with pipeline_of(log, fetch_records_max=1_000) as pipeline:
        lane = pipeline.lane("source")
        lane.add({P0: 0})
        assert lane.fetch(1_000, WAIT_MS)[-1].at_end
        write(log, 3)
        (found,) = lane.fetch(1_000, WAIT_MS)
        assert ([record.offset for record in found.records], found.at_end) == ([20, 21, 22], True)


def test_fetch_gives_no_more_than_asked_for_and_a_fair_share_of_each(log: EmbeddedLog) -> None:
    with pipeline_of(log, fetch_records_max=1_000) as pipeline:
        lane = pipeline.lane("source")
        lane.add({P0: 0, P1: 0})
        assert {len(one.records) for one in lane.fetch(6, WAIT_MS)} == {3}
        assert lane.assignment() == {P0: 3, P1: 3}
        came = {P0: [0, 1, 2], P1: [0, 1, 2]}
        while len(came[P0]) < COUNT or len(came[P1]) < COUNT:
            for one in lane.fetch(7):
                came[one.source] += [record.offset for record in one.records]
                assert one.at_end == (one.next_offset == COUNT)
        assert came == {P0: list(range(COUNT)), P1: list(range(COUNT))}


def test_paused_partition_waits_and_loses_nothing(log: EmbeddedLog) -> None:
    with pipeline_of(log) as pipeline:
        lane = pipeline.lane("standby")
        lane.add({P0: 0, P1: 0})
        lane.pause([P0])
        assert drain(lane, {P1: COUNT}) == {P1: list(range(COUNT))}
        assert lane.assignment()[P0] == 0
        lane.resume([P0])
        assert drain(lane, {P0: COUNT}) == {P0: list(range(COUNT))}


def test_after_a_seek_nothing_comes_that_was_fetched_before(log: EmbeddedLog) -> None:
    with pipeline_of(log) as pipeline:
        lane = pipeline.lane("source")
        lane.add({P0: 0})
        lane.fetch(2, WAIT_MS)
        lane.seek(P0, 15)
        assert drain(lane, {P0: COUNT}) == {P0: [15, 16, 17, 18, 19]}
        lane.seek(P0, 3)
        assert drain(lane, {P0: COUNT}) == {P0: list(range(3, COUNT))}


def test_seek_of_a_partition_whose_queue_is_full_reads_on_from_there(log: EmbeddedLog) -> None:
    write(log, 500)
    with pipeline_of(log, limits=SMALL) as pipeline:
        slow, quick = pipeline.lane("standby"), pipeline.lane("restore")
        slow.add({P0: 0})
        quick.add({P1: 0})
        drain(quick, {P1: COUNT + 500})
        while not pipeline.statistics().credits.partitions[P0].paused:
            quick.fetch(1)
        slow.seek(P0, 400)
        assert drain(slow, {P0: COUNT + 500})[P0] == list(range(400, COUNT + 500))


def test_partition_of_another_lane_is_read_once_that_one_gave_it_up(log: EmbeddedLog) -> None:
    with pipeline_of(log) as pipeline:
        source, restore = pipeline.lane("source"), pipeline.lane("restore")
        source.add({P0: 10})
        restore.add({P0: 2, P1: 0})
        assert drain(restore, {P1: COUNT}) == {P1: list(range(COUNT))}
        assert pipeline.statistics().waiting == 1
        assert drain(source, {P0: COUNT}) == {P0: list(range(10, COUNT))}
        source.remove([P0])
        assert drain(restore, {P0: COUNT}) == {P0: list(range(2, COUNT))}


def test_lane_that_waits_for_a_partition_may_give_it_up_again(log: EmbeddedLog) -> None:
    with pipeline_of(log) as pipeline:
        first, second = pipeline.lane("a"), pipeline.lane("b")
        first.add({P0: 0})
        second.add({P0: 5})
        second.seek(P0, 6)
        second.remove([P0])
        first.remove([P0])
        assert (first.assignment(), second.assignment(), pipeline.statistics().waiting) == ({}, {}, 0)


def test_bad_requests_are_refused_at_once_and_change_nothing(log: EmbeddedLog) -> None:
    with pipeline_of(log) as pipeline:
        lane = pipeline.lane("source")
        lane.assign({P0: 4})
        with pytest.raises(UnknownStore):
            lane.add({P1: 0, TopicPartition("flights", 9): 0})
        with pytest.raises(UnknownStore):
            lane.assign({TopicPartition("absent", 0): 0})
        with pytest.raises(InvalidRequest, match="move it with seek"):
            lane.add({P0: 1})
        with pytest.raises(InvalidRequest, match="position -1"):
            lane.seek(P0, -1)
        with pytest.raises(InvalidRequest, match="flights-1 is not assigned"):
            lane.pause([P1])
        with pytest.raises(InvalidRequest, match="max_records"):
            lane.fetch(0)
        assert lane.assignment() == {P0: 4}
        assert lane.bounds([P0]) == {P0: Bounds(0, COUNT)}


@pytest.mark.slow
def test_random_histories_lose_nothing_and_double_nothing(log: EmbeddedLog) -> None:
    write(log, 400)
    end, parts = COUNT + 400, (P0, P1, P2)
    for seed in range(8):
        random = Random(seed)
        with pipeline_of(log, fetch_records_max=random.choice((1, 7, 50)), limits=SMALL) as pipeline:
            lanes = [pipeline.lane(str(number)) for number in range(3)]
            expected: list[dict[TopicPartition, int]] = [{} for _ in lanes]
            for _ in range(400):
                number = random.randrange(3)
                lane, mine, part = lanes[number], expected[number], random.choice(parts)
                act = random.choice(("add", "remove", "seek", "pause", "resume", "fetch", "fetch", "fetch"))
                if act == "add" and part not in mine:
                    mine[part] = random.randrange(end)
                    lane.add({part: mine[part]})
                elif act == "remove":
                    mine.pop(part, None)
                    lane.remove([part])
                elif act == "seek" and part in mine:
                    mine[part] = random.randrange(end)
                    lane.seek(part, mine[part])
                elif act in ("pause", "resume") and part in mine:
                    getattr(lane, act)([part])
                elif act == "fetch":
                    for one in lane.fetch(random.choice((1, 10, 1_000)), random.choice((0, 1))):
                        got = [record.offset for record in one.records]
                        assert got == list(range(mine[one.source], one.next_offset))
                        mine[one.source] = one.next_offset
                assert dict(lane.assignment()) == mine
            for lane, mine in zip(lanes, expected, strict=True):  # the owner of a partition gets all of it
                lane.resume(mine)
                before = dict(mine)
                came = drain(lane, dict.fromkeys(mine, end)) if set(mine) <= owned(lane) else {}
                assert came == {part: list(range(before[part], end)) for part in came}
                lane.remove(list(mine))


def owned(lane: Lane) -> set[TopicPartition]:
    return {source for source, slot in lane.slots.items() if slot.owned}


# -- no lane waits for another -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_lane_that_never_fetches_holds_nobody_back_and_its_memory_is_bounded(log: EmbeddedLog) -> None:
    write(log, 3_000)
    with pipeline_of(log, fetch_records_max=10, limits=SMALL) as pipeline:
        slow, quick = pipeline.lane("standby"), pipeline.lane("restore")
        slow.add({P0: 0})
        quick.add({P1: 0})
        assert drain(quick, {P1: COUNT + 3_000})[P1] == list(range(COUNT + 3_000))
        held = pipeline.statistics().credits.partitions[P0]
        assert held.paused
        assert held.backlog + held.in_hand <= 3 + 3 + 2  # the mark, the credits, the batches under way
        assert drain(slow, {P0: COUNT + 3_000})[P0] == list(range(COUNT + 3_000))


def test_appliers_in_threads_of_their_own_each_get_everything(log: EmbeddedLog) -> None:
    write(log, 2_000)
    came: dict[TopicPartition, list[int]] = {}

    def apply(lane: Lane, part: TopicPartition) -> None:
        came.update(drain(lane, {part: COUNT + 2_000}, max_records=30))

    with pipeline_of(log, fetch_records_max=40, limits=SMALL) as pipeline:
        threads = []
        for part in (P0, P1, P2):
            lane = pipeline.lane(str(part))
            lane.add({part: 0})
            threads.append(threading.Thread(target=apply, args=(lane, part)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert pipeline.statistics().credits.hand_bytes > 0  # the last batches are not returned yet
    assert came == {part: list(range(COUNT + 2_000)) for part in (P0, P1, P2)}


def test_applier_that_sleeps_is_woken_when_something_comes_for_it(log: EmbeddedLog) -> None:
    woken = threading.Event()
    with pipeline_of(log, wake=woken.set) as pipeline:
        lane = pipeline.lane("standby", woken.set)
        lane.add({P0: 0})
        assert lane.fetch(1) or woken.wait(30)
        assert drain(lane, {P0: COUNT}) == {P0: list(range(COUNT))}


# -- errors ------------------------------------------------------------------------------------------------------------


def test_error_of_a_partition_reaches_its_lane_only_after_what_was_fetched_before(log: EmbeddedLog) -> None:
    with pipeline_of(log, fetch_records_max=4) as pipeline:
        restore, source = pipeline.lane("restore"), pipeline.lane("source")
        restore.add({P0: 0})
        source.add({P1: 0})
        restore.fetch(1, WAIT_MS)
        log.truncate(P0, 18)
        came, error = until_error(restore, StateLost)
        assert error.sources == (P0,)  # type: ignore[attr-defined]
        assert offsets(came, P0) == list(range(1, restore.assignment()[P0]))
        assert drain(source, {P1: COUNT}) == {P1: list(range(COUNT))}
        assert restore.assignment()[P0] < 18
        restore.seek(P0, 18)
        assert drain(restore, {P0: COUNT}) == {P0: [18, 19]}


def test_partition_that_is_kept_after_its_error_is_read_again_and_tells_it_again(log: EmbeddedLog) -> None:
    with pipeline_of(log) as pipeline:
        lane = pipeline.lane("restore")
        lane.add({P0: 50, P1: 0})
        drained = False
        for _ in range(3):
            came, error = until_error(lane, StateLost)
            drained = drained or COUNT - 1 in offsets(came, P1)
            assert "position 50" in str(error)
        write(log, 31)  # the position is within the log's bounds now
        assert drain(lane, {P0: COUNT + 31, P1: COUNT + 31})[P0] == [50]


def test_topic_that_is_deleted_is_told_once_to_the_lane_that_reads_it(log: EmbeddedLog) -> None:
    log.admin.create_topic("gone", 2, TopicPolicy())
    with pipeline_of(log) as pipeline:
        lane, other = pipeline.lane("restore"), pipeline.lane("source")
        lane.add({TopicPartition("gone", number): 0 for number in range(2)})
        other.add({P0: 0})
        log.admin.delete_topic("gone")
        _, error = until_error(lane, UnknownStore)
        assert "gone" in str(error)
        lane.remove([TopicPartition("gone", number) for number in range(2)])
        assert drain(other, {P0: COUNT}) == {P0: list(range(COUNT))}
        assert lane.fetch(1) == []


def test_log_that_does_not_answer_is_told_once_to_every_lane_and_fetching_goes_on(log: EmbeddedLog) -> None:
    with pipeline_of(log, failing(Unavailable("the log is away"))) as pipeline:
        lanes = {part: pipeline.lane(str(part)) for part in (P0, P1)}
        for part, lane in lanes.items():
            lane.add({part: 0})
        with pytest.raises(Unavailable, match="away"):
            until_none(lanes[P0])
        assert drain(lanes[P0], {P0: COUNT}) == {P0: list(range(COUNT))}
        assert drain(lanes[P1], {P1: COUNT}) == {P1: list(range(COUNT))}


def test_damage_in_a_partition_reaches_its_lane_and_the_others_are_read_on(log: EmbeddedLog) -> None:
    with pipeline_of(log) as pipeline:
        restore, source = pipeline.lane("restore"), pipeline.lane("source")
        with closing(sqlite3.connect(log.path)) as connection, connection:
            connection.execute("DELETE FROM log_records WHERE id = (1 << 40) + 3")
        restore.add({P0: 0, P1: 0})
        source.add({P2: 0})
        _came, error = until_error(restore, Corruption)
        assert error.sources == (P0,)  # type: ignore[attr-defined]
        restore.remove([P0])
        assert drain(source, {P2: COUNT}) == {P2: list(range(COUNT))}
        write(log, 2)
        assert drain(restore, {P1: COUNT + 2})[P1][-1] == COUNT + 1


def test_damage_of_the_whole_log_is_told_to_every_lane_and_fetching_goes_on(log: EmbeddedLog) -> None:
    damage = Corruption("the file is damaged")
    damage.of_log = True
    with pipeline_of(log, failing(damage)) as pipeline:
        lanes = {at: pipeline.lane(str(at)) for at in (P0, P1)}
        for at, lane in lanes.items():
            lane.add({at: 0})
        with pytest.raises(Corruption, match="is damaged"):
            until_none(lanes[P0])
        for at, lane in lanes.items():
            with suppress(Corruption):
                lane.fetch(1, 0)
            assert drain(lane, {at: COUNT})[at][-1] == COUNT - 1


def until_none(lane: Lane) -> None:
    while lane.fetch(1, WAIT_MS):
        pass


def test_other_error_ends_the_thread_and_is_raised_once_in_every_lane(log: EmbeddedLog) -> None:
    with pipeline_of(log, failing(Corruption("a damaged page"))) as pipeline:
        lanes = [pipeline.lane(name) for name in ("restore", "source")]
        lanes[0].add({P0: 0})
        for lane in lanes:
            with pytest.raises(Corruption, match="damaged"):
                lane.fetch(1, WAIT_MS)
            with pytest.raises(Closed):
                lane.fetch(1, WAIT_MS)
            lane.remove([P0])


# -- the end -----------------------------------------------------------------------------------------------------------


def test_close_ends_every_wait_and_leaves_no_thread(log: EmbeddedLog) -> None:
    before = set(threading.enumerate())
    ended: list[str] = []

    def wait(lane: Lane) -> None:
        try:
            lane.fetch(1, WAIT_MS)
        except Closed as error:
            ended.append(str(error))

    with pipeline_of(log) as pipeline:
        lanes = [pipeline.lane(str(number)) for number in range(3)]
        threads = [threading.Thread(target=wait, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        pipeline.close()
        for thread in threads:
            thread.join(10)
    assert len(ended) == 3
    assert set(threading.enumerate()) == before


def test_close_while_the_log_holds_the_fetch_returns_within_its_deadline(log: EmbeddedLog) -> None:
    held, released = threading.Event(), threading.Event()

    def hold() -> list[Fetched]:
        held.set()
        released.wait(60)
        return []

    with pipeline_of(log, hold, close_timeout_s=0.2) as pipeline:
        lane = pipeline.lane("source")
        lane.add({P0: 0})
        assert lane.fetch(1) == []
        assert held.wait(30)
        began = time.monotonic()
        with pytest.raises(Unavailable, match="did not end within"):
            pipeline.close()
        assert time.monotonic() - began < 10
        assert pipeline.running
        with pytest.raises(Closed):
            lane.fetch(1, WAIT_MS)
        released.set()
        while pipeline.running:
            time.sleep(0.001)


def test_closed_lane_gives_everything_back_and_its_partitions_are_free(log: EmbeddedLog) -> None:
    with pipeline_of(log) as pipeline:
        first, second = pipeline.lane("a"), pipeline.lane("b")
        first.add({P0: 0})
        first.fetch(3, WAIT_MS)
        first.close()
        first.close()
        statistics = pipeline.statistics().credits
        assert (statistics.hand_bytes, statistics.queue_bytes, statistics.partitions) == (0, 0, {})
        with pytest.raises(Closed):
            first.add({P1: 0})
        second.add({P0: 12})
        assert drain(second, {P0: COUNT}) == {P0: list(range(12, COUNT))}


def test_large_values_count_by_their_bytes(log: EmbeddedLog) -> None:
    log.admin.create_topic("large", 1, TopicPolicy())
    large, producer = TopicPartition("large", 0), log.producer()
    producer.append({large: [Outgoing(b"k", bytes(100_000), 1) for _ in range(60)]})
    producer.close()
    limits = CreditLimits(floating_batches=0, queue_batches_high=50, queue_batches_low=1, queue_bytes_max=500_000)
    with pipeline_of(log, fetch_records_max=1, limits=limits) as pipeline:
        slow, quick = pipeline.lane("standby"), pipeline.lane("restore")
        slow.add({large: 0})
        quick.add({P0: 0})
        while not pipeline.statistics().credits.partitions[large].paused:
            quick.fetch(1, 5)
        assert pipeline.statistics().credits.queue_bytes <= 500_000 + 3 * 110_000
        assert drain(quick, {P0: COUNT}) != {}
        assert drain(slow, {large: 60}) == {large: list(range(60))}
