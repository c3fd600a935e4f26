"""The clients that write the application's input: one by one, and a second one in transactions.

    feeder   idempotent: each record counts at once
    client   some records in a transaction, which stays open for a while and hides all behind it; a fourth is aborted

Rules of this file: the world's own hands, which meet no fault. `Truth` learns of a record as it gets its offset, so
that the plain computation goes in the order of the log.
"""

from __future__ import annotations

from collections import Counter

from simulator.hand import Hand
from simulator.log.partition import Batch
from simulator.plan import Plan
from simulator.programs import IN, Fed, Truth
from simulator.world import World
from standfast.replication.offsets import TopicPartition

NAME = "client"  # its transactional id
SHARE = 4  # one record in so many is the client's
AT_ONCE = 5
AGAIN_MS = 10
OPEN_MS = (30, 200, 2_000)  # at most


class Clients:
    """See the head of this file."""

    def __init__(self, plan: Plan, world: World, hand: Hand, truth: Truth) -> None:
        self._plan = plan
        self._world = world
        self._hand = hand
        self._truth = truth
        self._numbers: Counter[int] = Counter()  # the next one of each partition
        self.over = not plan.client  # the last transaction has ended
        self._share = plan.records // SHARE if plan.client else 0

    def feed(self) -> None:
        """The feeder."""
        plan, draws = self._plan, self._world.draws
        for index in range(plan.records - self._share):
            self._world.wait(2 * draws.number("feed", index) * plan.feed_ms / plan.records)
            partition = draws.below(plan.partitions, "partition", index)
            while self._hand.log.outage([TopicPartition(IN, partition)]):  # or the other client takes this number
                self._world.wait(AGAIN_MS)
            record = self._drawn(partition, index, index)
            self._add(record, self._hand.write(IN, partition, record.key, _value(record), record.timestamp))

    def transact(self) -> None:
        """The client."""
        plan, draws, log = self._plan, self._world.draws, self._hand.log
        left, turn = self._share, 0
        epoch = log.init_producer(NAME)
        while left:
            turn += 1
            self._world.wait(draws.number(NAME, "wait", turn) * 4 * plan.feed_ms / plan.records)
            commits = draws.below(4, NAME, "commits", turn) > 0
            partition = draws.below(plan.partitions, NAME, "partition", turn)
            count = min(left, 1 + draws.below(AT_ONCE, NAME, "count", turn))
            at = TopicPartition(IN, partition)
            begin = log.partition(at).end
            now = int(self._world.now_ms * plan.records / plan.feed_ms)
            records = []
            for number in range(count):
                records.append(self._drawn(partition, now, plan.records + 10 * turn + number))
                if commits:
                    self._add(records[-1], begin + number)
            left -= count if commits else 0
            rows = {
                at: Batch(
                    [one.key.encode() for one in records],
                    [_value(one).encode() for one in records],
                    [one.timestamp for one in records],
                )
            }
            if not log.kafka:  # such a transaction is not seen before its end
                if commits:
                    log.append(rows, None)
                continue
            begun = log.begin(NAME, epoch, rows, None, None)
            self._world.wait(draws.number(NAME, "open", turn) * draws.choice(OPEN_MS, NAME, "long", turn))
            log.end(NAME, epoch, begun.number, commits=commits)
        self.over = True

    def _drawn(self, partition: int, time: int, index: int) -> Fed:
        """The next record of a partition."""
        draws = self._world.draws
        late_ms = draws.below(6_000, "late", index) if draws.below(5, "is late", index) == 0 else 0
        key = f"k{draws.below(self._plan.keys, 'key', index)}"
        return Fed(partition, self._numbers[partition], key, time * 250 + 10_000 - late_ms)

    def _add(self, record: Fed, offset: int) -> None:
        self._numbers[record.partition] += 1
        self._truth.add(record, offset)


def _value(record: Fed) -> str:
    return f"{record.partition}/{record.number}"
