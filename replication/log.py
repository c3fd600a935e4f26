"""The log port: the operations of a partitioned, replayable log that standfast uses.

    Log ── admin     topics: create, describe, delete
        ── reader    assign, seek, pause, fetch; begin and end offsets
        ── writer    fenced by an epoch; append (acknowledged), or transact (records and offsets, all or nothing)
        ── group     members with a lease, generation, leader, committed offsets with metadata

Rules of this file: no outside library. Offsets increase strictly but need not be contiguous, so readers move by
`Fetched.next_offset`, never by the last record. Every log passes `tests/contract/test_log_contract.py`. Operations of
one log only (truncate, compact now) are not in the port.

Errors: UnknownStore for an absent topic or partition, StateLost with reason "offset-out-of-range" for a position
outside begin..end, Fenced for a writer that a newer one replaced, Unavailable when the log does not answer,
Closed after close, InvalidRequest for errors of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

from standfast.replication.leases import IDLE, Busy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.permissions import Need
from standfast.replication.record_limits import TopicLimits
from standfast.store.arguments import checked
from standfast.store.errors import BadConfig, StandfastError, Unavailable

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

# A store whose position is older than nine tenths of it may have missed deletes and is rebuilt; Kafka's own default is
# one day.
DELETE_RETENTION_DEFAULT_MS = 7 * 24 * 3_600_000


class Record(NamedTuple):
    """One record as read. `timestamp` is milliseconds since the epoch; a None value is a tombstone."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Outgoing(NamedTuple):
    """One record to write. Writers also take plain tuples of the same shape, for hot paths."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers = ()


class LockHolder(NamedTuple):
    """Holder of a log's lock: process id (0: not written yet), time of taking it (wall clock), and duration in ms."""

    pid: int
    since_ms: int
    held_ms: int

    def __str__(self) -> str:
        who = f"process {self.pid}" if self.pid else "a process of unknown id"
        return f"{who} for {self.held_ms / 1_000:.1f} s"


class Fetched(NamedTuple):
    """Records of one partition from one fetch.

    `next_offset` = max(last record + 1, position, end-of-partition offset) is where the next fetch begins.
    `at_end` is True if the fetch saw the end of the partition.
    """

    source: TopicPartition
    records: Sequence[Record]
    next_offset: int
    at_end: bool


@checked(BadConfig, exact=())
@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The fate of old records. Times in milliseconds, -1 = for ever.

    `cleanup` holds "compact", "delete" or both; `extra` has further settings of the log by their own names.
    """

    cleanup: frozenset[str] = frozenset({"delete"})
    retention_ms: int = -1
    delete_retention_ms: int = DELETE_RETENTION_DEFAULT_MS
    min_compaction_lag_ms: int = 0
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the log describes it. `topic_id` changes when a topic of the same name is recreated.

    `ahead_max_ms`: the log refuses a record whose timestamp lies further ahead of its clock; None: no bound.
    `record_max_bytes`: the largest batch of records, even of one, that it takes; None: no bound.
    """

    name: str
    topic_id: str
    partitions: int
    policy: TopicPolicy
    replication: int = 1
    ahead_max_ms: int | None = None
    record_max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TopicSurvey:
    """A topic as the operators of the log see it.

    `replicas` are the brokers of each partition and `in_sync` the number of them that are up to date. `settings` has
    all settings in force for the topic, the log's defaults too, by the log's own names; empty for a log without any.
    """

    info: TopicInfo
    replicas: tuple[tuple[int, ...], ...] = ()
    in_sync: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """Live brokers by id (empty for a log without brokers), their settings, and topics; None: no such topic."""

    brokers: tuple[int, ...]
    settings: Mapping[str, str]
    topics: Mapping[str, TopicSurvey | None]


class Committed(NamedTuple):
    """A group's committed offset (next to process) of one partition with its metadata text."""

    offset: int
    metadata: str = ""


# The last words of an error about a transaction that does not end.
LOST_END = (
    "the brokers lost the end of a transaction, as Kafka may where a partition has no leader when a transaction ends "
    "(KAFKA-20734): kafka-transactions.sh finds it (find-hanging) and ends it (abort); verify the stores after that"
)


class TransactionOpen(Unavailable):
    """Records of a task's changelog are in a transaction that is not over, so its rows are not known yet.

    Other tasks need not wait for it.
    """

    service = "the coordinator of an open transaction"
    of_task = True
    event = "task_waits_for_transaction"


class OffsetsOpen(TransactionOpen):
    """Committed offsets are in a transaction that is not over, so they are not known yet.

    `partitions` are those in it, as far as that is known: the offsets of others can be read.
    """

    def __init__(self, message: str, partitions: Iterable[TopicPartition] = ()) -> None:
        super().__init__(message)
        self.partitions = frozenset(partitions)


class Member(NamedTuple):
    """A live member of a group; `metadata` is the text of its join."""

    member_id: str
    metadata: str


class GroupView(NamedTuple):
    """A group as one member sees it: live members by id, the leader (first by id), the generation.

    `busy`: the members that were busy at their last renewal. `ended`: those that are gone with more than half of their
    lease left, as far as this reader saw them live: they left, or their process has ended.
    """

    generation: int
    leader: str | None
    members: tuple[Member, ...]
    busy: Mapping[str, Busy] = MappingProxyType({})
    ended: frozenset[str] = frozenset()


class EnteredView(GroupView):
    """The view that `join` returns to a new member: at its first join, or after its lease had run out."""

    __slots__ = ()  # else each view would have a dictionary beside its tuple


class Note(NamedTuple):
    """A fact that a group keeps beside its members, with the time at which the log took it."""

    text: str
    at_ms: int


# (kind, name) -> note. Each kind is one module's own: `claim` and `ask` of `replication.topics.claims`.
Notes: TypeAlias = Mapping[tuple[str, str], Note]


class ConsumerMember(NamedTuple):
    """A member of a group by the log's own protocol (a user's own consumer), as of its reading the records."""

    generation: int
    member_id: str


class WriterClaim(NamedTuple):
    """A writer's ownership of its transactional id: the epoch that it got at its opening."""

    transactional_id: str
    epoch: int


class GroupCommit(NamedTuple):
    """Source offsets to commit for a group, each with metadata of at most 4,096 bytes.

    With `member` the log refuses the commit (Fenced) once that is no member of that generation; a log without
    consumers of its own checks the group alone.
    """

    group: str
    offsets: Mapping[TopicPartition, Committed]
    member: ConsumerMember | None = None


Batches: TypeAlias = Mapping[TopicPartition, Sequence[Outgoing]]


class LogReader(Protocol):
    """Reads assigned partitions from explicit positions. One thread at a time may use it."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment; every partition begins at its position, not paused."""
        ...

    def assignment(self) -> Mapping[TopicPartition, int]:
        """Assigned partitions with their present positions."""
        ...

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Assign further partitions; the others keep position and pause."""
        ...

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Unassign; absent partitions are no error."""
        ...

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Move the position of an assigned partition."""
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch no more of these until resumed; the position stays."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch them again."""
        ...

    def fetch(self, max_records: int, timeout_ms: int = 0) -> list[Fetched]:
        """Up to `max_records` records over all partitions that are not paused, fair between them.

        Waits up to `timeout_ms` for news. The result has a partition whose next_offset moved even without records, and
        reports a newly reached end once with `at_end`.
        Raises StateLost (reason "offset-out-of-range") naming partition, position, begin and end.
        """
        ...

    def fetch_ready(self, max_records: int) -> list[Fetched]:
        """As `fetch`, of records at hand only: it never waits, may be empty at any time, and leaves errors to `fetch`.

        For a caller that must not wait and would otherwise have another thread fetch.
        """
        ...

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Begin and end offsets now."""
        ...

    def written_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Ends of all written records, also of those in open transactions, which no reader gets yet."""
        ...

    def epoch_tags(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        """Tags of the epochs in which the records before these positions were written.

        An epoch begins with a writer's first record in a partition. Its random tag distinguishes its records from
        others at the same offsets, written after the log was put back to an earlier copy. A partition is absent if it
        has no tag: it is unknown here, no record lies before the position, or the log has other means (Kafka). Any
        thread may call this.
        """
        ...

    def epoch_ends(self, tags: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
        """Ends of the epochs with these tags; 0 if the partition has no such epoch. Absent as in `epoch_tags`."""
        ...

    def close(self) -> None: ...


class LogWriter(Protocol):
    """Writes for one transactional id. Opening a newer writer for that id fences this one."""

    @property
    def epoch(self) -> int:
        """The epoch; it grows by at least one with each writer opened for the same transactional id."""
        ...

    @property
    def claim(self) -> WriterClaim | None:
        """The id and the epoch; None for a producer, which owns no id."""
        ...

    @property
    def marks_transactions(self) -> bool:
        """Whether a transaction takes one more offset of each partition, after its last record, for a marker."""
        ...

    @property
    def limits(self) -> TopicLimits:
        """The largest records that topics of this log take, as far as that is known."""
        ...

    def append(self, batches: Batches, *, meanwhile: Callable[[], None] | None = None) -> dict[TopicPartition, int]:
        """Write and wait for the acknowledgement. Returns next offset per partition. At least once.

        `meanwhile` is work of the caller that needs no answer: a log that waits for one may call it once, in this
        thread, while the records are on their way. Its error fails the write, which is then in doubt.
        """
        ...

    def transact(
        self, batches: Batches, commit: GroupCommit | None = None, *, meanwhile: Callable[[], None] | None = None
    ) -> dict[TopicPartition, int]:
        """Write records and commit group offsets, all or nothing. Returns position after the last record.

        `meanwhile` as for `append`, before the end of the transaction: its error aborts that.
        """
        ...

    def close(self) -> None: ...


class LogAdmin(Protocol):
    """Topic care."""

    def create_topic(self, name: str, partitions: int, policy: TopicPolicy) -> TopicInfo:
        """Create a topic, or describe an existing one unchanged: the caller compares it and reports differences."""
        ...

    def describe_topic(self, name: str) -> TopicInfo | None:
        """The topic, or None if it does not exist."""
        ...

    def topics(self) -> list[TopicInfo]:
        """All topics by name."""
        ...

    def topic_names(self) -> list[str]:
        """Names of all topics, in order, without describing them."""
        ...

    def delete_topic(self, name: str) -> None: ...

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Grow a topic to `partitions` in all; the new ones are empty. Its present number changes nothing.

        Raises UnknownStore for an absent topic, InvalidRequest for a smaller number: Kafka never removes partitions.
        """
        ...

    def change_topic(self, name: str, settings: Mapping[str, str]) -> TopicInfo:
        """Change settings of a topic by their names (`cleanup.policy`, `retention.ms`, ...); the others stay.

        Raises UnknownStore for an absent topic, InvalidRequest for a setting or value that the log refuses.
        """
        ...

    def survey(self, names: Iterable[str]) -> LogSurvey:
        """The operators' view of the log and of these topics."""
        ...

    def groups(self) -> list[str]:
        """Names of the groups that have committed offsets or have members."""
        ...

    def consumers(self, group: str) -> tuple[str, ...]:
        """Live members that joined the group by the log's own protocol (a user's own consumer), not by `Group.join`."""
        ...

    def delete_group(self, name: str) -> None:
        """Delete a group's committed offsets. An absent group is no error; InvalidRequest while it has consumers."""
        ...

    def first_offsets(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """First offset of each partition whose record has this timestamp or a later one; the end if none has.

        Every record below it is older. Raises UnknownStore.
        """
        ...

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Remove records below these offsets; a begin never moves back. InvalidRequest for an offset past the end.

        For topics whose records are of no use after they have been processed.
        """
        ...

    def lacking(self, needs: Iterable[Need]) -> list[str]:
        """Permissions on topics that this log's user lacks: a sentence each, with its fix.

        Topics that do not exist are left out; a log without permissions gives none.
        """
        ...


class GroupWatch(Protocol):
    """Waits for changes of a group's members, so that a take-over need not wait for the next look. One thread waits."""

    def wait(self, within_ms: int) -> bool:
        """Wait until members may have come or gone; False once the time is over, or after `wake`.

        No change is promised to be seen, and a lease that runs out is none: look at the group from time to time.
        """
        ...

    def wake(self) -> None:
        """End the present wait, and each later one, soon. Any thread may call it."""
        ...

    def close(self) -> None:
        """Release its handles; no thread waits any more. Twice is fine."""
        ...


class Group(Protocol):
    """Membership with a lease, and committed offsets."""

    def join(self, member_id: str, metadata: str = "", *, lease_ms: int = 3_000) -> GroupView:
        """Become (or stay, with new metadata) a member until the lease runs out or leave() is called.

        A longer lease that still runs keeps its length. Returns an EnteredView if it was no member just before.
        """
        ...

    def heartbeat(self, member_id: str, *, lease_ms: int | None = None, busy: Busy = IDLE) -> GroupView:
        """Renew the lease, for `lease_ms` from now on (None: as it is).

        Raises Fenced if it had run out and the member was removed: join again.
        """
        ...

    def view(self) -> GroupView:
        """Live members now."""
        ...

    def leave(self, member_id: str, *, only: Callable[[str], bool] | None = None) -> None:
        """Stop being a member; no error for an id that is not a member.

        `only`: not if it is False for the member's metadata, as when another process has joined in its place.
        """
        ...

    def watch(self) -> GroupWatch | None:
        """A wait for changes of the members; None for a log that reports none, whose groups are looked at."""
        ...

    def owners(self) -> dict[str, str]:
        """Transactional id -> id of the member that last opened a writer for it in this group's name."""
        ...

    def notes(self) -> Notes:
        """The facts that the group keeps, by kind and name."""
        ...

    def note(self, notes: Mapping[tuple[str, str], str | None]) -> None:
        """Write these notes in their order, in one request; None removes one. A reader may see the first ones alone."""
        ...

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        only: Callable[[TopicPartition], bool] | None = None,
    ) -> dict[TopicPartition, Committed]:
        """Committed offsets of these partitions (all of the group if None); a partition without one is absent.

        With `only`, of those for which it holds: the others' open transactions are not waited for.
        """
        ...

    def commit(
        self,
        offsets: Mapping[TopicPartition, Committed],
        member: ConsumerMember | None = None,
        claim: WriterClaim | None = None,
    ) -> None:
        """Commit offsets without records; all of them or none. `member` as in GroupCommit.

        With `claim` it raises Fenced, and commits nothing, once a newer writer was opened for its id. The embedded log
        checks that in the transaction of the offsets. Kafka has no such transaction: the broker checks `member`, and
        without one the commit first looks up the owner. Without offsets it only checks the claim.
        """
        ...

    def close(self) -> None: ...


class Log(Protocol):
    """A log by address. Different threads may use its parts; one thread at a time may use each part."""

    @property
    def address(self) -> str: ...

    @property
    def least_timestamp_ms(self) -> int:
        """Least timestamp that the log takes for a record; the largest is `TIMESTAMP_MAX_MS`, on every log."""
        ...

    @property
    def remote(self) -> bool:
        """Whether writes wait for other machines, so that several writers gain by writing at the same time."""
        ...

    @property
    def admin(self) -> LogAdmin: ...

    def reader(self, *, narrow: bool = False) -> LogReader:
        """A reader without assignment. `narrow`: one of several at once, which fetches less ahead.

        Records of a narrow reader may come without their headers.
        """
        ...

    def writer(self, transactional_id: str, *, group: str, owner: str, if_free: bool = False) -> LogWriter:
        """Open a writer and fence every older one of this id.

        With `if_free`, raise Held instead while the id's last owner is another live member of `group`: the check
        and the take-over are one atomic step.
        """
        ...

    def prepare(self, transactional_ids: Iterable[str]) -> None:
        """Hint that writers of these ids will be opened soon. The log may connect for all in advance, but not fence."""
        ...

    def producer(self) -> LogWriter:
        """A writer without fencing, for feeders and tools; its epoch is 0 and transact works too."""
        ...

    def group(self, name: str) -> Group: ...

    def notes_of(self, groups: Iterable[str]) -> dict[str, Notes | None]:
        """The notes of other groups; None for a group whose notes this login may not read. It creates no group."""
        ...

    def lock_holder(self) -> LockHolder | None:
        """The process that has kept all others from writing for a while; None if there is none.

        Never waits; any thread may call it.
        """
        ...

    def trouble(self) -> StandfastError | None:
        """Why the log cannot be written or read now, as far as its files show.

        Unavailable (it names the lock's holder and the duration) or Corruption; None if it seems well, and for a log on
        another machine. It may take a second; one thread at a time may call it.
        """
        ...

    def care(self, now_ms: int) -> object:
        """Housekeeping that a log needs from its clients (retention, compaction); nothing if the log does it itself."""
        ...

    def hasten(self) -> None:
        """The caller is about to close: from now on all calls together wait no longer than one of them may."""
        ...

    def close(self) -> None: ...
