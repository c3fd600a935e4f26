"""The simulated log: topics, transactions, writers and groups as data of the world, and the faults that it may turn on.

    SimLog ── topics ── Partition               style "embedded": as the log on SQLite, each call one transaction
           ── producers ── Transaction          style "kafka": markers, last stable offset, a coordinator that aborts
           ── groups: leases, offsets, owners, notes

    open ──(end)──> ended ──(markers, `marker_delay_ms` later)──> gone       open for `transaction_ms`: aborted

Rules of this file: no client, no waiting; each method is one atomic step. Time is the world's clock: leases
and transactions end by themselves, as the next step finds. Nothing here is random.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.calls import Calls
from simulator.log.coordinator import Coordinator
from simulator.log.partition import Batch, Began, Partition
from standfast.replication.leases import Busy, has_most_left
from standfast.replication.log import Committed, ConsumerMember, GroupView, Member, Note, TopicInfo, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.record_limits import MESSAGE_BYTES
from standfast.replication.topics.settings import ahead_max_ms
from standfast.store.clock import Clock
from standfast.store.errors import Fenced, InvalidRequest, UnknownStore
from standfast.store.names import few

Offsets = Mapping[TopicPartition, Committed]
Rows = Mapping[TopicPartition, Batch]


class Owner(NamedTuple):
    """The member that last opened a writer for a transactional id, in a group's name, and the writer's epoch."""

    group: str
    member_id: str
    epoch: int


@dataclass(slots=True)
class Lease:
    """A member of a group since a time; `session` is the log client whose join counts."""

    metadata: str
    lease_ms: int
    deadline_ms: int
    session: int
    busy: Busy | None = None
    since_ms: int = 0


@dataclass(slots=True)
class GroupData:
    """A group. `board`: of a log like Kafka, whether its topic of members exists. `hanging`: offsets of lost ends."""

    generation: int = 0
    leases: dict[str, Lease] = field(default_factory=dict)
    committed: dict[TopicPartition, Committed] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)
    notes: dict[tuple[str, str], Note] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # as in a view
    board: bool = False
    hanging: dict[TopicPartition, None] = field(default_factory=dict)
    consumers: dict[str, int] = field(default_factory=dict)  # live consumers of Kafka's protocol -> their generation

    def remove(self, name: str, now_ms: int) -> None:
        """Remove a member."""
        lease = self.leases.pop(name)
        (self.ended.add if has_most_left(lease.lease_ms, lease.deadline_ms, now_ms) else self.ended.discard)(name)
        self.generation += 1

    def expire(self, now_ms: int) -> None:
        """Remove members whose lease ran out."""
        for name in [name for name, lease in self.leases.items() if lease.deadline_ms <= now_ms]:
            self.remove(name, now_ms)

    def view(self, now_ms: int) -> GroupView:
        """Live members; those whose lease ran out count as removed."""
        live = sorted(name for name, lease in self.leases.items() if lease.deadline_ms > now_ms)
        busy = {name: found for name in live if (found := self.leases[name].busy) is not None}
        members = tuple(Member(name, self.leases[name].metadata) for name in live)
        generation = self.generation + len(self.leases) - len(live)
        return GroupView(
            generation, live[0] if live else None, members, busy, frozenset(self.ended - self.leases.keys())
        )


@dataclass(slots=True)
class Topic:
    """A topic; its id differs from that of an earlier one of its name."""

    name: str
    topic_id: str
    policy: TopicPolicy
    partitions: list[Partition]


@dataclass(slots=True, eq=False)
class Transaction:
    """Records and offsets that became visible together, or never. `commits`: its end, None while it is open."""

    number: int
    producer: str
    opened_ms: int
    parts: list[tuple[Partition, int, int]]  # first offset, end
    offsets: tuple[str, Offsets] | None = None
    commits: bool | None = None
    due_ms: int = 0


@dataclass(slots=True)
class ProducerData:
    """A transactional id as the coordinator knows it."""

    epoch: int = 0
    transaction: Transaction | None = None


class Refused(Exception):
    """The broker does not know this producer any more, by its epoch or its transaction."""


class Ending(Exception):
    """The coordinator still ends the last transaction of this id: ask again."""


class Begun(NamedTuple):
    """An open transaction: its number, the offsets after its records, and why some of them were refused."""

    number: int
    ends: dict[TopicPartition, int]
    refused: InvalidRequest | None


class Outage(NamedTuple):
    """The brokers, or the leader of one partition, do not answer."""

    source: TopicPartition | None
    since_ms: int
    until_ms: int


class SimLog:
    """See the header. `clock` is the world's; `calls` serve clients that bring none of their own."""

    def __init__(self, name: str, clock: Clock, calls: Calls, *, style: str = "embedded") -> None:
        if style not in ("embedded", "kafka"):
            raise ValueError(f"style {style!r}: use embedded or kafka")
        self.name, self.clock, self.calls, self.style = name, clock, calls, style
        self.kafka = style == "kafka"
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, GroupData] = {}
        self.coordinators: dict[str, Coordinator] = {}  # of consumers, by group
        self.writers: dict[str, Owner] = {}  # of a log like the embedded one
        self.producers: dict[str, ProducerData] = {}
        self.transactions: list[Transaction] = []  # not gone yet
        self.version = 0  # grows with every write
        self._numbers = 0
        # For a world that judges: (id, owner before, new owner), (id, epoch) of each write of an owner, and the id of a
        # former owner whose append nothing fenced.
        self.on_claim: Callable[[str, Owner | None, Owner], None] = lambda name, before, taken: None
        self.on_write: Callable[[str, int], None] = lambda name, epoch: None
        self.on_late: Callable[[str], None] = lambda name: None
        # -- settings of the world
        self.timeout_ms = 10_000  # how long a call waits for brokers, or for the lock, that do not answer
        self.transaction_ms = 60_000
        self.marker_delay_ms = 0
        self.id_check_ms = 0  # how long a reader may take a recreated topic for the old one
        self.duplicate_appends = 0  # so many of the next appends are written twice
        self.outages: list[Outage] = []
        self.lost_markers: dict[TopicPartition, None] = {}
        self.lost_offset_ends: dict[str, None] = {}
        self.hanging: list[tuple[Partition, int, int, int, bool]] = []  # transaction, first offset, end, commits

    @property
    def where(self) -> str:
        """The log's name for errors."""
        return f"sim://{self.name}"

    def next_number(self) -> int:
        """A number that this log gave to nothing else."""
        self._numbers += 1
        return self._numbers

    # -- topics -------------------------------------------------------------------------------------------------------

    def find(self, source: TopicPartition) -> Partition | None:
        """The partition, None if there is none."""
        topic = self.topics.get(source[0])
        if topic is None or not 0 <= source[1] < len(topic.partitions):
            return None
        return topic.partitions[source[1]]

    def partition(self, source: TopicPartition) -> Partition:
        """The partition. Raises UnknownStore naming what exists."""
        found = self.find(source)
        if found is None:
            raise self.unknown(*source)
        return found

    def topic(self, name: str) -> Topic:
        """The topic. Raises UnknownStore."""
        if name not in self.topics:
            raise self.unknown(name)
        return self.topics[name]

    def unknown(self, topic: str, number: int = 0) -> UnknownStore:
        """The error for a topic or partition that is not there."""
        if topic in self.topics:
            last = len(self.topics[topic].partitions) - 1
            return UnknownStore(f"topic {topic!r} has no partition {number}, only 0 to {last}")
        if not self.topics:
            return UnknownStore(f"there is no topic {topic!r}, the log has no topics yet: create it first")
        near = difflib.get_close_matches(str(topic), sorted(self.topics), 1)
        hint = f", did you mean {near[0]!r}?" if near else "."
        return UnknownStore(f"there is no topic {topic!r}{hint} The log has: {few(sorted(self.topics))}")

    def create_topic(self, name: str, partitions: int, policy: TopicPolicy) -> Topic:
        """Create a topic; an existing one stays as it is."""
        if name not in self.topics:
            self.topics[name] = Topic(name, f"{self.next_number():032x}", policy, [])
            self.grow(name, partitions)
        return self.topics[name]

    def grow(self, name: str, partitions: int) -> None:
        """Add empty partitions up to that number."""
        topic = self.topics[name]
        for number in range(len(topic.partitions), partitions):
            topic.partitions.append(Partition(TopicPartition(name, number), self.next_number(), topic.policy))
        self.version += 1

    def set_policy(self, name: str, policy: TopicPolicy) -> None:
        """Change the policy of a topic."""
        topic = self.topics[name]
        topic.policy = policy
        for partition in topic.partitions:
            partition.policy = policy
        self.version += 1

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and the offsets that groups committed for it. Raises UnknownStore."""
        self.topic(name)
        del self.topics[name]
        for group in self.groups.values():
            group.committed = {source: one for source, one in group.committed.items() if source.topic != name}
        self.version += 1

    def recreate_topic(self, name: str) -> None:
        """Delete a topic and create it again, empty."""
        topic = self.topic(name)
        self.delete_topic(name)
        self.create_topic(name, len(topic.partitions), topic.policy)

    def info(self, topic: Topic) -> TopicInfo:
        """The topic as the log describes it."""
        about = (topic.name, topic.topic_id, len(topic.partitions), topic.policy)
        if not self.kafka:
            return TopicInfo(*about)
        settings = self.settings(topic.policy)
        return TopicInfo(*about, 1, ahead_max_ms(settings), int(settings[MESSAGE_BYTES]))

    def settings(self, policy: TopicPolicy) -> dict[str, str]:
        """Settings in force for a topic of a log like Kafka, as far as this log knows any."""
        return {
            "min.insync.replicas": "1",
            MESSAGE_BYTES: "1048588",
            "message.timestamp.type": "CreateTime",
            "message.timestamp.after.max.ms": "3600000",
            **policy.extra,
        }

    # -- records ------------------------------------------------------------------------------------------------------

    def append(self, batches: Rows, began: Began | None) -> dict[TopicPartition, int]:
        """Write records outside of a transaction; returns the next offsets. Raises InvalidRequest for refused records.

        A log like Kafka keeps the records of the other partitions then.
        """
        found: list[tuple[Partition, Batch]] = []
        for source, batch in batches.items():
            partition = self.partition(source)
            found.append((partition, batch))
            if not self.kafka and (refusal := self._refusal(partition, batch)) is not None:
                raise refusal
        refused = [one for one in found if self._refusal(*one) is not None]
        for _ in range(2 if self.duplicate_appends > 0 else 1):
            for one in found:
                if one not in refused:
                    self._write(*one, began)
        self.duplicate_appends = max(self.duplicate_appends - 1, 0)
        self.version += 1
        if refused:
            raise self._refusal(*refused[0]) or InvalidRequest()
        return {partition.source: partition.end for partition, _ in found}

    def _refusal(self, partition: Partition, batch: Batch) -> InvalidRequest | None:
        """Why a topic does not take these records."""
        if "compact" in partition.policy.cleanup and None in batch.keys:
            return InvalidRequest(f"{partition.source}: a record without a key cannot go into a compacted topic")
        if self.kafka and batch.keys:
            ahead_ms = ahead_max_ms(self.settings(partition.policy))
            if ahead_ms is not None and max(batch.times) > self.clock.wall_ms() + ahead_ms:
                return InvalidRequest(f"{partition.source}: a timestamp is too far ahead of the broker's clock")
        return None

    def _write(self, partition: Partition, batch: Batch, began: Began | None) -> int:
        now_ms = self.clock.wall_ms()
        if self.kafka and partition.policy.extra.get("message.timestamp.type") == "LogAppendTime":
            batch = batch._replace(times=[now_ms] * len(batch.times))
        return partition.append(batch, now_ms, began)

    # -- transactions of a log like Kafka -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Do what time has brought: abort transactions that took too long, and write the markers that are due."""
        if not self.transactions:
            return
        now_ms = self.clock.monotonic_ms()
        for one in self.transactions:
            if one.commits is None and now_ms - one.opened_ms >= self.transaction_ms:
                self.producers[one.producer].epoch += 1
                one.commits, one.due_ms = False, one.opened_ms + self.transaction_ms + self.marker_delay_ms
        due = [one for one in self.transactions if one.commits is not None and one.due_ms <= now_ms]
        for one in sorted(due, key=lambda one: (one.due_ms, one.number)):
            self._mark(one)

    def due_ms(self) -> int | None:
        """When something changes by itself, by the world's monotonic clock: a marker, an abort; None: nothing will."""
        times = [
            one.opened_ms + self.transaction_ms if one.commits is None else one.due_ms for one in self.transactions
        ]
        return min(times, default=None)

    def init_producer(self, name: str) -> int:
        """Fence older producers of an id and abort what they left open; returns the new epoch. Raises Ending."""
        self.settle()
        producer = self.producers.setdefault(name, ProducerData())
        if producer.transaction is not None:
            if producer.transaction.commits is None:
                producer.epoch += 1
                self._end(producer.transaction, commits=False)
            if producer.transaction is not None:
                raise Ending
        producer.epoch += 1
        return producer.epoch

    def begin(
        self,
        name: str,
        epoch: int,
        batches: Rows,
        offsets: tuple[str, Offsets] | None,
        member: ConsumerMember | None,
    ) -> Begun:
        """Open a transaction with all its records and offsets. One whose records are refused is open, too.

        Raises Refused for a producer of an older epoch, Ending, Fenced for a consumer that is no member any more.
        """
        self.settle()
        producer = self.producers.get(name)
        if producer is None or producer.epoch != epoch:
            raise Refused
        if producer.transaction is not None:
            raise Ending
        found = [(self.partition(source), batch) for source, batch in batches.items() if batch.keys]
        if offsets is not None:
            for source in offsets[1]:
                self.partition(source)
            if member is not None:
                self.check_member(offsets[0], member)
        made = Transaction(self.next_number(), name, self.clock.monotonic_ms(), [], offsets)
        refused = [refusal for one in found if (refusal := self._refusal(*one)) is not None]
        for partition, batch in found:
            taken = batch if self._refusal(partition, batch) is None else Batch()
            first = partition.open[made.number] = self._write(partition, taken, None)
            made.parts.append((partition, first, partition.end))
        producer.transaction = made
        self.transactions.append(made)
        self.version += 1
        return Begun(made.number, {partition.source: end for partition, _, end in made.parts}, (*refused, None)[0])

    def is_idle(self, producer: ProducerData) -> bool:
        """Whether the coordinator has ended the last transaction of an id."""
        self.settle()
        return producer.transaction is None

    def end(self, name: str, epoch: int, number: int, *, commits: bool) -> None:
        """End a producer's transaction. Raises Refused if it is not open, or belongs to a newer epoch."""
        self.settle()
        producer = self.producers[name]
        one = producer.transaction
        if producer.epoch != epoch or one is None or one.number != number or one.commits is not None:
            raise Refused
        self._end(one, commits=commits)

    def _end(self, one: Transaction, *, commits: bool) -> None:
        one.commits, one.due_ms = commits, self.clock.monotonic_ms() + self.marker_delay_ms
        self.settle()

    def _mark(self, one: Transaction) -> None:
        for partition, first, end in one.parts:
            if partition.source in self.lost_markers:
                self.hanging.append((partition, one.number, first, end, bool(one.commits)))
                continue
            if partition.open.pop(one.number, None) is None:
                continue  # lost with the tail of its partition
            partition.mark(first, end, self.clock.wall_ms(), commits=bool(one.commits))
        if one.offsets is not None:
            group = self.group(one.offsets[0])
            if one.offsets[0] in self.lost_offset_ends:
                group.hanging |= dict.fromkeys(one.offsets[1])
            elif one.commits:
                group.committed |= {TopicPartition(*source): Committed(*at) for source, at in one.offsets[1].items()}
        self.transactions.remove(one)
        self.producers[one.producer].transaction = None
        self.version += 1

    # -- groups -------------------------------------------------------------------------------------------------------

    def group(self, name: str) -> GroupData:
        """The group of a name; an absent one begins."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = GroupData()
        return found

    def coordinator(self, group: str) -> Coordinator:
        """The coordinator of a group's consumers."""
        if group not in self.coordinators:
            self.coordinators[group] = Coordinator(self.group(group).consumers, self._count)
        return self.coordinators[group]

    def _count(self, topic: str) -> int:
        return len(self.topics[topic].partitions) if topic in self.topics else 0

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets without records; of a log like the embedded one, of any topic."""
        found = {TopicPartition(*source): Committed(*at) for source, at in offsets.items()}
        if self.kafka:
            for source in found:
                self.partition(source)
        self.group(group).committed |= found
        self.version += 1

    def check_member(self, group: str, member: ConsumerMember) -> None:
        """Raise Fenced for a consumer that is no member of that generation any more."""
        if self.group(group).consumers.get(member.member_id) != member.generation:
            raise Fenced(
                f"{self.where}: the consumer group {group!r} has moved on, and nothing was written: give up the task "
                "until the group assigns its partition again"
            )

    def unknown_offsets(self, group: str) -> dict[TopicPartition, None]:
        """Partitions of a group whose committed offsets are in a transaction that is not over."""
        self.settle()
        found = dict(self.group(group).hanging)
        for one in self.transactions:
            if one.offsets is not None and one.offsets[0] == group:
                found |= dict.fromkeys(one.offsets[1])
        return found

    # -- faults -------------------------------------------------------------------------------------------------------

    def stall(self, duration_ms: int, source: TopicPartition | None = None) -> None:
        """The brokers, or the leader of one partition, answer no call for a while. (Embedded: its lock is held.)"""
        now_ms = self.clock.monotonic_ms()
        self.outages.append(Outage(source, now_ms, now_ms + duration_ms))

    def outage(self, sources: Iterable[TopicPartition] = ()) -> Outage | None:
        """The outage that a call about these partitions meets now."""
        now_ms = self.clock.monotonic_ms()
        self.outages = [one for one in self.outages if one.until_ms > now_ms]
        wanted = (None, *sources)
        return next((one for one in self.outages if one.source in wanted), None)

    def hold(self, source: TopicPartition, duration_ms: int) -> None:
        """Readers see no later record of a partition for a while, though it is acknowledged."""
        now_ms = self.clock.monotonic_ms()
        partition = self.partition(source)
        partition.held = (partition.visible(now_ms), now_ms + duration_ms)

    def lose_marker(self, source: TopicPartition) -> None:
        """From now on transactions do not end in this partition, though the coordinator has ended them."""
        self.lost_markers[source] = None

    def lose_offset_ends(self, group: str) -> None:
        """From now on transactions with offsets of this group do not end there."""
        self.lost_offset_ends[group] = None

    def end_hanging(self, *, late: bool = False) -> None:
        """Abort what `lose_marker` and `lose_offset_ends` left, as an operator does; they hold no more.

        `late`: their own ends come, which were not lost after all.
        """
        for partition, number, first, end, commits in self.hanging:
            if partition.open.pop(number, None) is not None:
                partition.mark(first, end, self.clock.wall_ms(), commits=commits and late)
        for name in self.lost_offset_ends:
            self.group(name).hanging.clear()
        self.lost_markers, self.lost_offset_ends, self.hanging = {}, {}, []
        self.version += 1
