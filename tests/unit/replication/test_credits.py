"""Credits: the promises of the machine one by one, then random histories against its invariants.

Rules of this file: in the random histories the shell is a good one: it does not fetch paused partitions, and it reports
every batch once. The rules are played step by step in tests/scenarios/credits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from standfast.replication.credits import Arrived, CreditLimits, Credits, Decision, Sent
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InternalError, InvalidRequest
from support.machines import machine_settings

A, B, C, D = (TopicPartition("changelog", number) for number in range(4))
BATCH_BYTES_MAX = 40


def arrived(partition: TopicPartition, batch: int, size_bytes: int = 1) -> list[Arrived[int]]:
    return [Arrived(partition, batch, size_bytes)]


def sent(decision: Decision[int]) -> list[int]:
    return [one.batch for one in decision.send]


def test_partition_that_nobody_applies_never_blocks_another() -> None:
    credits: Credits[int] = Credits()
    credits.add(A)
    credits.add(B)
    paused: set[TopicPartition] = set()
    came: list[int] = []
    for number in range(200):
        decision = credits.fetched([Arrived(one, number, 10) for one in (A, B) if one not in paused])
        paused |= set(decision.pause)
        for one in decision.send:
            if one.partition == B:
                came.append(one.batch)
                assert B not in credits.applied(one).pause
    assert came == list(range(200))
    assert paused == {A}


def test_every_other_partition_keeps_its_own_credits_while_one_holds_the_pool() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=3, floating_per_partition_max=3))
    credits.add(A, credits=1)
    for number in range(6):
        credits.fetched(arrived(A, number))
    assert credits.statistics().floating_free == 0
    for other in (B, C, D):
        credits.add(other, credits=2)
        assert sent(credits.fetched(arrived(other, 1))) == [1]
        assert sent(credits.fetched(arrived(other, 2))) == [2]
        assert sent(credits.fetched(arrived(other, 3))) == []


def test_partition_holds_no_more_of_the_pool_than_it_may() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=5, floating_per_partition_max=2))
    credits.add(A, credits=1)
    assert [number for number in range(6) if sent(credits.fetched(arrived(A, number)))] == [0, 1, 2]
    assert credits.statistics().floating_free == 3


def test_free_credit_goes_to_the_largest_backlog_and_with_a_tie_in_turn() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=1))
    for partition in (A, B, C):
        credits.add(partition, credits=1)
    credits.fetched([Arrived(partition, 0, 1) for partition in (A, B, C)])
    (held,) = credits.fetched(arrived(A, 1)).send
    for number in range(1, 4):
        credits.fetched([Arrived(partition, number, 1) for partition in (B, C)])
    order = []
    for _ in range(6):
        (held,) = credits.applied(held).send
        assert held.floating
        order.append((held.partition, held.backlog))
    # Equal backlogs: each in turn.
    assert order == [(B, 2), (C, 2), (B, 1), (C, 1), (B, 0), (C, 0)]


def test_even_backlogs_take_turns_even_if_one_is_filled_up_again_at_once() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=1))
    for partition in (A, B, C):
        credits.add(partition, credits=1)
    credits.fetched([Arrived(partition, 0, 1) for partition in (A, B, C)])
    (held,) = credits.fetched(arrived(A, 1)).send
    credits.fetched([Arrived(B, 1, 1), Arrived(C, 1, 1)])
    order = []
    for number in range(2, 8):
        (held,) = credits.applied(held).send
        credits.fetched(arrived(held.partition, number))
        order.append(held.partition)
    assert order == [B, C, B, C, B, C]


def test_too_large_a_head_lets_the_next_backlog_have_the_floating_credit() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=1, hand_bytes_max=100))
    credits.add(A, credits=1)
    credits.add(B, credits=1)
    credits.fetched([Arrived(A, 0, 10), Arrived(B, 0, 10)])
    assert sent(credits.fetched([Arrived(A, 1, 500)])) == []
    assert sent(credits.fetched([Arrived(A, 2, 1)])) == []
    assert [one.partition for one in credits.fetched([Arrived(B, 1, 10)]).send] == [B]


def test_batch_larger_than_every_bound_still_goes_through_on_an_own_credit() -> None:
    credits: Credits[int] = Credits(CreditLimits(hand_bytes_max=10, queue_bytes_max=10))
    credits.add(A, credits=1)
    (first,) = credits.fetched(arrived(A, 0, 1_000)).send
    assert credits.fetched(arrived(A, 1, 1_000)) == Decision(pause=(A,))
    decision = credits.applied(first)
    assert (sent(decision), decision.resume) == ([1], (A,))


def test_more_partitions_than_bytes_still_go_on_batch_by_batch() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=0, queue_bytes_max=2))
    partitions = [TopicPartition("t", number) for number in range(5)]
    for partition in partitions:
        assert credits.add(partition, credits=1) == Decision()
    for partition in partitions:
        (one,) = credits.fetched(arrived(partition, 0)).send
        assert credits.fetched(arrived(partition, 1)).pause == (partition,)
        decision = credits.applied(one)
        assert (sent(decision), decision.resume) == ([1], (partition,))


def test_short_queue_is_not_fetched_again_while_all_queues_together_are_full() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=0, queue_bytes_max=100))
    credits.add(A, credits=1)
    credits.add(B, credits=1)
    (_, held) = credits.fetched([Arrived(A, 0, 1), Arrived(B, 0, 1)]).send
    assert credits.fetched([Arrived(B, 1, 2)]).pause == ()
    assert credits.fetched([Arrived(A, 1, 120), Arrived(B, 2, 2)]).pause == (A, B)
    decision = credits.applied(held)  # one batch of 2 bytes is left, below every mark of its own
    assert (sent(decision), decision.resume) == ([1], ())
    decision = credits.applied(decision.send[0])
    assert (sent(decision), decision.resume) == ([2], (B,))  # empty: batch by batch


def test_batches_without_bytes_count_as_batches() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=0, queue_batches_high=3))
    credits.add(A, credits=1)
    decisions = [credits.fetched(arrived(A, number, 0)) for number in range(4)]
    assert [decision.pause for decision in decisions] == [(), (), (), (A,)]


def test_removed_partition_lets_its_queue_go_and_makes_room() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=0, queue_bytes_max=100))
    credits.add(A, credits=1)
    credits.add(B, credits=1)
    credits.fetched([Arrived(A, 0, 1), Arrived(B, 0, 1)])
    assert credits.fetched([Arrived(A, 1, 60), Arrived(B, 1, 20)]).pause == (A,)
    assert credits.fetched([Arrived(B, 2, 25)]).pause == (B,)
    decision = credits.remove(A)
    assert decision.dropped == (1,)
    assert decision.resume == ()  # 45 of 100 bytes, but the low mark is at a quarter
    assert credits.statistics().queue_bytes == 45


def test_batch_of_a_removed_partition_counts_until_it_is_told() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=1))
    credits.add(A, credits=1)
    (own,) = credits.fetched(arrived(A, 0, 10)).send
    (floating,) = credits.fetched(arrived(A, 1, 10)).send
    credits.remove(A)
    assert credits.statistics().hand_bytes == 20
    credits.add(A, credits=1)
    (again,) = credits.fetched(arrived(A, 0, 5)).send  # the new credit, not the old one
    assert credits.fetched(arrived(A, 1, 5)).send == ()
    assert sent(credits.applied(own)) == []
    assert sent(credits.applied(floating)) == [1]
    credits.applied(again)
    assert credits.statistics().partitions[A].credits == 1


def test_what_is_not_in_hand_cannot_be_applied() -> None:
    credits: Credits[int] = Credits()
    credits.add(A)
    (one,) = credits.fetched(arrived(A, 0)).send
    with pytest.raises(InternalError, match="changelog-0 is not in hand"):
        credits.applied(Sent(A, 0, 1, 0, floating=False, number=1))
    before = credits.statistics()
    credits.applied(one)
    with pytest.raises(InternalError, match="was it reported twice"):
        credits.applied(one)
    assert before.hand_bytes == 1
    assert credits.statistics().hand_bytes == 0


def test_several_batches_are_told_at_once_and_none_if_one_is_wrong() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=0))
    credits.add(A, credits=2)
    (first,), (second,) = (credits.fetched(arrived(A, number)).send for number in range(2))
    before = credits.statistics()
    with pytest.raises(InternalError, match="was it reported twice"):
        credits.applied(first, second, first)
    assert credits.statistics() == before
    credits.applied(first, second)
    assert credits.statistics().partitions[A].credits == 2


def test_what_was_under_way_when_a_partition_was_paused_waits_in_its_queue() -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=0, queue_batches_high=2, queue_batches_low=0))
    credits.add(A, credits=1)
    (first,) = credits.fetched(arrived(A, 0)).send
    assert credits.fetched(arrived(A, 1)).pause == ()
    assert credits.fetched(arrived(A, 2)).pause == (A,)
    assert credits.paused(A)
    assert credits.fetched(arrived(A, 3)) == Decision()
    came = []
    for _ in range(3):
        decision = credits.applied(first)
        (first,) = decision.send
        came.append((first.batch, decision.resume))
    assert came == [(1, ()), (2, ()), (3, (A,))]


@pytest.mark.parametrize(
    "batches",
    [
        [Arrived(A, 2, 1), Arrived(B, 1, 1)],
        [Arrived(A, 2, 1), Arrived(A, 3, 1)],
        [Arrived(A, 2, -1)],
    ],
    ids=["unknown", "twice", "negative"],
)
def test_fetch_with_an_illegal_batch_changes_nothing_at_all(batches: list[Arrived[int]]) -> None:
    credits: Credits[int] = Credits(CreditLimits(floating_batches=0, queue_batches_high=1, queue_batches_low=0))
    credits.add(A, credits=1)
    before = credits.statistics()
    with pytest.raises(InternalError):
        credits.fetched(batches)
    assert credits.statistics() == before


@pytest.mark.parametrize(
    "limits",
    [
        {"floating_batches": -1},
        {"floating_per_partition_max": -1},
        {"hand_bytes_max": 0},
        {"queue_bytes_max": 0},
        {"queue_batches_low": 8},
        {"queue_batches_low": -1},
    ],
)
def test_limits_that_contradict_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        CreditLimits(**limits)


def test_decisions_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Decision().send = ()  # type: ignore[misc]


class CreditMachine(RuleBasedStateMachine):
    """A good shell with four partitions: fetched, waiting and in-hand batches, as plain lists."""

    @initialize(
        floating=st.integers(0, 3),
        floating_max=st.integers(0, 2),
        hand_bytes=st.sampled_from([1, 60, 500]),
        queue_bytes=st.sampled_from([1, 60, 500]),
        high=st.integers(1, 5),
    )
    def begin(self, floating: int, floating_max: int, hand_bytes: int, queue_bytes: int, high: int) -> None:
        self.limits = CreditLimits(floating, floating_max, hand_bytes, high, high // 3, queue_bytes)
        self.credits: Credits[int] = Credits(self.limits)
        self.own: dict[TopicPartition, int] = {}
        self.waiting: dict[TopicPartition, deque[tuple[int, int]]] = {}
        self.paused: set[TopicPartition] = set()
        self.in_hand: list[Sent[int]] = []
        self.own_gone: list[Sent[int]] = []  # in hand of partitions that were removed
        self.next_batch = 0

    def carry_out(self, decision: Decision[int]) -> None:
        for one in decision.send:
            # In order, each once: sent batches are the head of the waiting ones.
            batch, size_bytes = self.waiting[one.partition].popleft()
            assert (one.batch, one.size_bytes) == (batch, size_bytes)
            assert one.backlog == len(self.waiting[one.partition])
            self.in_hand.append(one)
        assert not self.paused & set(decision.pause)
        assert self.paused >= set(decision.resume)
        assert not set(decision.pause) & set(decision.resume)
        self.paused = self.paused - set(decision.resume) | set(decision.pause)

    @rule(partition=st.sampled_from([A, B, C, D]), own=st.integers(1, 3))
    def add(self, partition: TopicPartition, own: int) -> None:
        if partition in self.own:
            with pytest.raises(InvalidRequest):
                self.credits.add(partition, own)
            return
        self.own[partition] = own
        self.waiting[partition] = deque()
        self.carry_out(self.credits.add(partition, own))

    @rule(sizes=st.dictionaries(st.sampled_from([A, B, C, D]), st.integers(0, BATCH_BYTES_MAX), min_size=1))
    def fetch(self, sizes: dict[TopicPartition, int]) -> None:
        batches = []
        for partition, size_bytes in sizes.items():
            if partition in self.own and partition not in self.paused:
                batches.append(Arrived(partition, self.next_batch, size_bytes))
                self.waiting[partition].append((self.next_batch, size_bytes))
                self.next_batch += 1
        self.carry_out(self.credits.fetched(batches))

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        one = self.in_hand.pop(data.draw(st.integers(0, len(self.in_hand) - 1)))
        if one in self.own_gone:
            self.own_gone.remove(one)
        self.carry_out(self.credits.applied(one))

    @rule(partition=st.sampled_from([A, B, C, D]))
    def remove(self, partition: TopicPartition) -> None:
        if partition not in self.own:
            with pytest.raises(InvalidRequest):
                self.credits.remove(partition)
            return
        gone = self.waiting[partition]
        self.own_gone += [one for one in self.in_hand if one.partition == partition and one not in self.own_gone]
        self.waiting[partition] = deque()
        decision = self.credits.remove(partition)
        assert decision.dropped == tuple(batch for batch, _ in gone)
        assert partition not in decision.pause + decision.resume
        del self.own[partition], self.waiting[partition]
        self.paused.discard(partition)
        self.carry_out(decision)

    @invariant()
    def the_books_agree(self) -> None:
        now = self.credits.statistics()
        assert now.partitions.keys() == self.own.keys()
        assert now.floating_free == self.limits.floating_batches - sum(one.floating for one in self.in_hand)
        assert now.floating_free >= 0
        for partition, one in now.partitions.items():
            mine = [sent for sent in self.in_hand if sent.partition == partition and sent not in self.own_gone]
            assert one.credits == self.own[partition] - sum(not sent.floating for sent in mine)
            assert one.credits >= 0
            assert one.floating_in_hand == sum(sent.floating for sent in mine)
            assert one.floating_in_hand <= self.limits.floating_per_partition_max
            assert (one.backlog, one.in_hand) == (len(self.waiting[partition]), len(mine))
            assert one.paused == (partition in self.paused)

    @invariant()
    def no_partition_starves(self) -> None:
        for partition, one in self.credits.statistics().partitions.items():
            if one.backlog:
                # It waits only for its own applier, which has all its own credits in hand.
                assert one.credits == 0, partition
                assert one.in_hand >= self.own[partition], partition
            else:
                assert not one.paused, partition

    @invariant()
    def nobody_is_resumed_only_to_be_paused_again(self) -> None:
        now = self.credits.statistics()
        share = self.limits.queue_bytes_max // max(len(self.own), 1)
        for partition, one in now.partitions.items():
            if one.backlog and not one.paused:
                assert now.queue_bytes < self.limits.queue_bytes_max, partition
                assert one.backlog < self.limits.queue_batches_high, partition
                assert one.backlog_bytes < share, partition

    @invariant()
    def a_free_floating_credit_is_wanted_by_nobody(self) -> None:
        now = self.credits.statistics()
        room = self.limits.hand_bytes_max - now.hand_bytes
        for partition, waiting in self.waiting.items():
            may_have = now.partitions[partition].floating_in_hand < self.limits.floating_per_partition_max
            assert not (now.floating_free and waiting and may_have and waiting[0][1] <= room)

    @invariant()
    def memory_is_bounded(self) -> None:
        now = self.credits.statistics()
        assert now.queue_bytes == sum(size for waiting in self.waiting.values() for _, size in waiting)
        assert now.hand_bytes == sum(one.size_bytes for one in self.in_hand)
        most = self.limits.queue_bytes_max + len(self.most_partitions()) * BATCH_BYTES_MAX
        assert now.queue_bytes < most or not now.queue_bytes
        own = sum(one.size_bytes for one in self.in_hand if not one.floating)
        assert now.hand_bytes <= self.limits.hand_bytes_max + own
        assert all(len(waiting) <= self.limits.queue_batches_high for waiting in self.waiting.values())

    def most_partitions(self) -> list[TopicPartition]:
        return [partition for partition in (A, B, C, D) if partition in self.own]

    def teardown(self) -> None:
        """Once all appliers go on, every fetched batch comes out and every partition is fetched again."""
        if not hasattr(self, "credits"):
            return
        while self.in_hand:
            self.carry_out(self.credits.applied(self.in_hand.pop(0)))
        assert not any(self.waiting.values())
        assert not self.paused
        now = self.credits.statistics()
        assert (now.queue_bytes, now.hand_bytes, now.floating_free) == (0, 0, self.limits.floating_batches)
        assert {partition: one.credits for partition, one in now.partitions.items()} == self.own


TestCreditMachine = CreditMachine.TestCase
TestCreditMachine.settings = machine_settings(max_examples=100, steps=40)
TestCreditMachine = pytest.mark.slow(TestCreditMachine)
