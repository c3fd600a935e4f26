"""Credit-based flow control between one fetcher and the appliers of many partitions.

      log ──fetched──> queue of the partition ──a credit each──> in the applier's hand ──applied──> credit returns
                       (backlog; the fetcher's)      Sent(batch, backlog)

    own credits        each partition's own buffers, `credits` of add(); they return to that partition only
    floating credits   a pool for all; each goes to the largest backlog without own credits, in a tie to the partition
                       favoured longest ago, and returns to the pool

    FETCHING ──queue at the high mark, or at its share of the bytes, or all queues full──> PAUSED
    PAUSED ──queue empty, or down to the low marks while not all queues are full──────────> FETCHING

Invariants, in any order of events:
  * A partition's batches are sent in the order in which they were fetched, each once. Without a credit they stay in
    their queue: only remove() drops batches.
  * One slow partition stops only itself: its own credits are gone, it holds at most `floating_per_partition_max`
    floating ones, and its queue at most its share of the bytes. The others keep theirs; only while all queues
    together are full (batches larger than a share, or shares that just shrank) are they fetched batch by batch.
  * Memory: queues hold at most `queue_bytes_max`, one batch a partition, and batches under way when a partition was
    paused; appliers hold at most `hand_bytes_max` and the own credits of every partition.
  * Pausing makes some readers drop their prefetch, so the marks lie apart (hysteresis).

Semantics of Flink's credit-based network stack: exclusive and floating buffers, the backlog sent with each buffer.
Here both sides are one machine, so a floating credit is given only where own ones ran out, and spent in the same step.

Rules of this file: pure; no I/O, clock or thread, and it never looks into a batch. The shell calls it under one lock.
An illegal event raises and changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InternalError, InvalidRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CreditLimits:
    """Bounds, in batches and in bytes of keys and values. Raises InvalidRequest for contradictory bounds."""

    floating_batches: int = 8
    floating_per_partition_max: int = 4
    hand_bytes_max: int = 64 << 20
    queue_batches_high: int = 8
    queue_batches_low: int = 2
    queue_bytes_max: int = 64 << 20

    def __post_init__(self) -> None:
        if self.floating_batches < 0 or self.floating_per_partition_max < 0:
            raise InvalidRequest(
                f"credits: floating_batches {self.floating_batches} and floating_per_partition_max "
                f"{self.floating_per_partition_max} must be 0 or more"
            )
        if self.hand_bytes_max < 1 or self.queue_bytes_max < 1:
            raise InvalidRequest(
                f"credits: hand_bytes_max {self.hand_bytes_max} and queue_bytes_max {self.queue_bytes_max} "
                "must be at least 1"
            )
        if not 0 <= self.queue_batches_low < self.queue_batches_high:
            raise InvalidRequest(
                f"credits: queue_batches_low {self.queue_batches_low} must be 0 or more and below "
                f"queue_batches_high {self.queue_batches_high}"
            )


@dataclass(frozen=True, slots=True)
class Arrived(Generic[T]):
    """A batch from the reader: its partition, and its size in bytes for the bounds."""

    partition: TopicPartition
    batch: T
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Sent(Generic[T]):
    """A batch for the applier, which gives this same value back to `applied` when it is done with it.

    `backlog` is the number of the partition's batches behind it; `number` is unique to each Sent.
    """

    partition: TopicPartition
    batch: T
    size_bytes: int
    backlog: int
    floating: bool
    number: int


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """The shell's next actions: hand out `send` in this order; pause and resume before the next fetch.

    `dropped` are the batches that remove() dropped, oldest first.
    """

    send: tuple[Sent[T], ...] = ()
    pause: tuple[TopicPartition, ...] = ()
    resume: tuple[TopicPartition, ...] = ()
    dropped: tuple[T, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionCredits:
    """State of one partition: `credits` are unspent own ones; `in_hand` counts batches that are not applied yet."""

    credits: int
    backlog: int
    backlog_bytes: int
    in_hand: int
    floating_in_hand: int
    paused: bool


@dataclass(frozen=True, slots=True)
class CreditStatistics:
    """Counters since the machine was made, and its present state."""

    partitions: dict[TopicPartition, PartitionCredits]
    floating_free: int
    queue_bytes: int
    hand_bytes: int
    sent_batches: int
    pauses: int


@dataclass(slots=True)
class _Partition(Generic[T]):
    """One partition. credits + own_in_hand always equals the `credits` of add()."""

    credits: int
    queue: deque[tuple[T, int]] = field(default_factory=deque)
    queue_bytes: int = 0
    own_in_hand: int = 0
    floating_in_hand: int = 0
    favoured: int = 0
    paused: bool = False


class Credits(Generic[T]):
    """The queues of a fetcher and the credits of its appliers. The shell chooses the type of batches."""

    def __init__(self, limits: CreditLimits | None = None) -> None:
        self._limits = limits if limits is not None else CreditLimits()
        self._partitions: dict[TopicPartition, _Partition[T]] = {}
        # With the partition object, since its name may be removed and added again while the batch is in hand.
        self._in_hand: dict[int, tuple[Sent[T], _Partition[T]]] = {}
        self._floating_free = self._limits.floating_batches
        self._queue_bytes = self._hand_bytes = 0
        self._sent = self._pauses = self._turns = 0

    def add(self, partition: TopicPartition, credits: int = 2) -> Decision[T]:
        """Add a partition with `credits` buffers of its own, granted by its applier. Shares of the queues shrink."""
        if partition in self._partitions:
            raise InvalidRequest(f"credits: {partition} was added already; remove it first")
        if credits < 1:
            raise InvalidRequest(f"credits: {partition} needs at least one credit of its own, got {credits}")
        self._partitions[partition] = _Partition(credits)
        return self._settle()

    def fetched(self, arrived: Iterable[Arrived[T]]) -> Decision[T]:
        """Queue the batches of one fetch, at most one a partition; a paused partition's may still arrive.

        Raises InternalError for an unknown partition or one that occurs twice.
        """
        batches = list(arrived)
        # All are checked before the first is queued, since an illegal event must change nothing.
        seen: set[TopicPartition] = set()
        for one in batches:
            held = self._partitions.get(one.partition)
            if held is None:
                raise InternalError(f"credits: a batch of {one.partition} arrived, but no applier takes that partition")
            if one.partition in seen or one.size_bytes < 0:
                raise InternalError(
                    f"credits: {one.partition} occurs twice in one fetch, or with {one.size_bytes} bytes"
                )
            seen.add(one.partition)
        for one in batches:
            held = self._partitions[one.partition]
            held.queue.append((one.batch, one.size_bytes))
            held.queue_bytes += one.size_bytes
            self._queue_bytes += one.size_bytes
        return self._settle()

    def applied(self, *done: Sent[T]) -> Decision[T]:
        """Free the credits of batches that their applier has applied or given up.

        Report batches of a partition that was removed meanwhile, too: their memory counts until then. Raises
        InternalError, with nothing changed, if one is not in hand.
        """
        seen: set[int] = set()
        for sent in done:
            # By identity: an equal copy would free its credit twice.
            if sent.number in seen or self._in_hand.get(sent.number, (None,))[0] is not sent:
                raise InternalError(
                    f"credits: batch {sent.number} of {sent.partition} is not in hand; was it reported twice?"
                )
            seen.add(sent.number)
        for sent in done:
            _, held = self._in_hand.pop(sent.number)
            self._hand_bytes -= sent.size_bytes
            # `held` may be of a removed partition: its own credits end with it, a floating one must return.
            if sent.floating:
                held.floating_in_hand -= 1
                self._floating_free += 1
            else:
                held.own_in_hand -= 1
                held.credits += 1
        return self._settle()

    def remove(self, partition: TopicPartition) -> Decision[T]:
        """Drop a partition and its queue; the applier must still report batches in its hand.

        For a seek: remove, then add; batches fetched before belong to the old position.
        """
        if partition not in self._partitions:
            raise InvalidRequest(f"credits: {partition} was not added, or was removed before")
        held = self._partitions.pop(partition)
        # Bytes in hand stay counted: the applier has those batches in memory until it reports them.
        self._queue_bytes -= held.queue_bytes
        return self._settle(dropped=tuple(batch for batch, _ in held.queue))

    def paused(self, partition: TopicPartition) -> bool:
        """Whether the fetcher must not fetch the partition now; False for an unknown partition."""
        held = self._partitions.get(partition)
        return held is not None and held.paused

    def statistics(self) -> CreditStatistics:
        """An immutable snapshot."""
        partitions = {
            name: PartitionCredits(
                held.credits,
                len(held.queue),
                held.queue_bytes,
                held.own_in_hand + held.floating_in_hand,
                held.floating_in_hand,
                held.paused,
            )
            for name, held in self._partitions.items()
        }
        return CreditStatistics(
            partitions, self._floating_free, self._queue_bytes, self._hand_bytes, self._sent, self._pauses
        )

    def _settle(self, dropped: tuple[T, ...] = ()) -> Decision[T]:
        """Spend credits while there are batches for them, then find queues that are too long or short again."""
        send: list[Sent[T]] = []
        # Own credits first: a floating one spent on a partition that has its own would be missing to one that has none.
        for name, held in self._partitions.items():
            while held.queue and held.credits:
                held.credits -= 1
                held.own_in_hand += 1
                send.append(self._send(name, held, floating=False))
        while self._floating_free and (neediest := self._neediest()) is not None:
            held = self._partitions[neediest]
            self._turns += 1
            held.favoured = self._turns
            self._floating_free -= 1
            held.floating_in_hand += 1
            send.append(self._send(neediest, held, floating=True))
        pause = tuple(name for name, held in self._partitions.items() if not held.paused and self._too_long(held))
        resume = tuple(name for name, held in self._partitions.items() if held.paused and self._short_again(held))
        for name in (*pause, *resume):
            self._partitions[name].paused = name in pause
        self._pauses += len(pause)
        return Decision(tuple(send), pause, resume, dropped)

    def _send(self, name: TopicPartition, held: _Partition[T], *, floating: bool) -> Sent[T]:
        batch, size_bytes = held.queue.popleft()
        held.queue_bytes -= size_bytes
        self._queue_bytes -= size_bytes
        self._hand_bytes += size_bytes
        self._sent += 1
        sent = Sent(name, batch, size_bytes, len(held.queue), floating, self._sent)
        self._in_hand[sent.number] = (sent, held)
        return sent

    def _neediest(self) -> TopicPartition | None:
        """The partition for the next floating credit: the largest backlog of those that may have one more."""
        # Only floating credits obey this bound: its own ones must always let a partition go on.
        room = self._limits.hand_bytes_max - self._hand_bytes
        waiting = (
            (len(held.queue), -held.favoured, name)
            for name, held in self._partitions.items()
            if held.queue
            and held.floating_in_hand < self._limits.floating_per_partition_max
            and held.queue[0][1] <= room
        )
        best = max(waiting, key=lambda one: one[:2], default=None)
        return None if best is None else best[2]

    def _too_long(self, held: _Partition[T]) -> bool:
        # An empty queue may always take one batch, even if all others are full: no partition waits for another.
        return bool(held.queue) and (
            len(held.queue) >= self._limits.queue_batches_high
            or held.queue_bytes >= self._share_bytes
            or self._queue_bytes >= self._limits.queue_bytes_max
        )

    def _short_again(self, held: _Partition[T]) -> bool:
        low, high = self._limits.queue_batches_low, self._limits.queue_batches_high
        return not held.queue or (
            len(held.queue) <= low
            and held.queue_bytes <= self._share_bytes * low // high
            and held.queue_bytes < self._share_bytes
            and self._queue_bytes < self._limits.queue_bytes_max
        )

    @property
    def _share_bytes(self) -> int:
        # It shrinks with each partition, so that all queues together stay within the bound.
        return self._limits.queue_bytes_max // max(len(self._partitions), 1)
