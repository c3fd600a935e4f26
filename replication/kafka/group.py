"""A group on Kafka: members and owners on its members topic, committed offsets as Kafka's own.

    join, heartbeat, view, leave, owners ──> board.py
    committed, commit                    ──> the group's offsets, where every Kafka tool sees them

While the group has a live consumer of Kafka's own protocol (the external consumer), the broker refuses commits of other
clients. It takes a transaction's commit, which the transactional id fences, so offsets are then committed that way.
With the generation and member id of the consumer that read the records the broker checks those too
(`member_metadata`), and a consumer that lost its partition commits nothing more.

A consumer of the group that never joins asks for offsets, not the admin client: librdkafka's admin call for them ends
the process (SIGSEGV) when the broker that it asks is not the group's coordinator any more.

Rules of this file: all offsets of a commit are checked first, so that a bad one changes nothing.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from standfast.replication.checks import check_commit, check_join
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.errors import BROKEN, PASSING, PERMISSION, UNKNOWN_TOPIC, client_errors, error_of
from standfast.replication.kafka.members_topic import Board
from standfast.replication.kafka.records import kafka_offsets
from standfast.replication.leases import IDLE, Busy
from standfast.replication.log import (
    LOST_END,
    Committed,
    ConsumerMember,
    GroupCommit,
    GroupView,
    Notes,
    OffsetsOpen,
    WriterClaim,
)
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import GROUP, Need, topic_needs
from standfast.store.clock import SystemClock
from standfast.store.errors import Closed, Fenced, InternalError

STABLE_EXTRA_S = 2.0  # an open transaction may hold back the offsets for so much longer than its timeout
# The broker's codes for a commit from outside of a group that has live members.
_ALIVE = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS}
    | {KafkaError.NON_EMPTY_GROUP, KafkaError.STALE_MEMBER_EPOCH}
)
_NO_COORDINATOR = frozenset({KafkaError._TIMED_OUT, KafkaError._WAIT_COORD})
FIRST_LOOK_S = 1.0
# Partitions that are asked for alone, to find open transactions; each found one takes FIRST_LOOK_S, and a lease waits.
ASKED_ALONE_MAX, HELD_MAX = 200, 5
EVENTS = 100
_METADATA_MAGIC = b"CGMDv2:"
_GENERATION = struct.Struct("=i")


class KafkaGroup:
    """Group of a Kafka log. Several threads may use it."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        board: Board,
        transact: Callable[[GroupCommit], None],
        closed: Callable[[KafkaGroup], None],
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._board = board
        self._transact = transact
        self._forget = closed
        self._clock = SystemClock()
        self._consumer: Consumer | None = None
        self._asking = threading.Lock()
        self._asker: Consumer | None = None
        self._joined = False
        self._closed = False

    def join(self, member_id: str, metadata: str = "", *, lease_ms: int = 3_000) -> GroupView:
        """Become (or stay, with new metadata) a member until the lease runs out or leave() is called.

        A longer lease of this member's session that still runs keeps its length.
        """
        self._check_open()
        check_join(member_id, metadata, lease_ms)
        self._joined = True
        with self._asking:
            self._ready_asker()  # a member soon asks for offsets, so the client can connect meanwhile
        return self._board.join(member_id, metadata, lease_ms)

    def heartbeat(self, member_id: str, *, lease_ms: int | None = None, busy: Busy = IDLE) -> GroupView:
        """Renew the lease, for `lease_ms` from now on (None: as it is). Raises Fenced if it had run out: join again."""
        self._check_open()
        return self._board.beat(member_id, lease_ms, busy)

    def view(self) -> GroupView:
        """Live members now."""
        self._check_open()
        return self._board.view()

    def leave(self, member_id: str, *, only: Callable[[str], bool] | None = None) -> None:
        """Stop being a member; no error for an id that is not a member. See the port."""
        self._check_open()
        self._board.leave(member_id, only)

    def watch(self) -> None:
        """None: a look at the members topic finds its changes."""
        self._check_open()

    def owners(self) -> dict[str, str]:
        """Transactional id -> id of the member that last opened a writer for it in this group's name."""
        self._check_open()
        return self._board.owners()

    def notes(self) -> Notes:
        """The facts that the group keeps, by kind and name."""
        self._check_open()
        return self._board.notes()

    def note(self, notes: Mapping[tuple[str, str], str | None]) -> None:
        """Write these notes in their order, in one request; None removes one."""
        self._check_open()
        self._board.note(notes)

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        only: Callable[[TopicPartition], bool] | None = None,
    ) -> dict[TopicPartition, Committed]:
        """Committed offsets of these partitions (all of the group if None); partitions without one are absent.

        Waits for offsets of a transaction that is still open, or committed a moment ago, as long as it may last. Raises
        Unavailable after that: the older offsets are no answer, since a caller would process records twice with them.
        Measured: while ten tasks of the group commit 20 times a second, some transaction is nearly always open, so that
        a request for all of the group took 22 s. `only` leaves out the partitions that the caller does not need.
        """
        self._check_open()
        wanted = None if partitions is None else [TopicPartition(*source) for source in partitions]
        if wanted is not None and not wanted:
            return {}
        # A member will commit too, so its error names READ, the permission for that, which implies DESCRIBE.
        operation = "READ" if self._joined else "DESCRIBE"
        needs = (Need(GROUP, self._name, operation), *topic_needs((at.topic for at in wanted or ()), operation))
        what = f"offsets of group {self._name!r}"
        again = PASSING | BROKEN
        return self._cluster.patiently(what, lambda: self._offsets(wanted, only), *needs, passing=again)

    def commit(
        self,
        offsets: Mapping[TopicPartition, Committed],
        member: ConsumerMember | None = None,
        claim: WriterClaim | None = None,
    ) -> None:
        """Commit all of these offsets or none, without records. Raises UnknownStore for an absent partition.

        With `member`, the broker refuses the commit (Fenced) if that is no member of that generation any more. The
        client can name the member only in a transaction, so this is one, of offsets alone. With a claim and no member,
        this reads the owner from the members topic first, and an outdated claim is Fenced: the broker's request carries
        no claim, so an owner that stalls right after that check may still commit.
        """
        self._check_open()
        check_commit(self._name, offsets)
        if not offsets:
            if claim is not None:
                self._check_claim(claim)
            return
        self._cluster.check_new(offsets, "READ")
        if member is not None:
            self._transact(GroupCommit(self._name, offsets, member))
            return
        if claim is not None:
            self._check_claim(claim)
        if self._consumer is None:
            self._consumer = self._cluster.consumer(self._name)
        commit = GroupCommit(self._name, offsets)
        what = f"committing offsets of group {self._name!r}"
        # Not repeated after a broken connection: by then a newer owner may have committed larger offsets.
        if not self._cluster.patiently(what, lambda: self._commit(offsets), *commit_needs(commit)):
            # The group has live consumers: the broker then takes offsets of other clients only in a transaction.
            self._transact(commit)

    def close(self) -> None:
        """Close the clients without leaving the group. Twice is fine."""
        with self._asking:
            clients = () if self._closed else (self._asker, self._consumer)
            self._closed = True
        self._cluster.release(*clients)
        self._forget(self)

    def forked(self) -> None:
        """As in `forks.Owned`; called by its log."""
        self._closed, self._asking = True, threading.Lock()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"group {self._name!r} of {self._cluster.where} was closed: open a new one")

    def _check_claim(self, claim: WriterClaim) -> None:
        held = self._board.owner(claim.transactional_id)
        if held is None or held.epoch != claim.epoch:
            newer = "a newer writer" if held is None else f"epoch {held.epoch} of {held.member_id!r}"
            raise Fenced(
                f"writer of {claim.transactional_id!r} with epoch {claim.epoch} was fenced by {newer}: no offsets were "
                "committed, give up the task"
            )

    def _commit(self, offsets: Mapping[TopicPartition, Committed]) -> bool:
        """Commit as a client that never joined; False if the group has members, so that the broker refuses it."""
        if self._consumer is None:
            self._consumer = self._cluster.consumer(self._name)
        try:
            with client_errors():
                answer = self._consumer.commit(offsets=kafka_offsets(offsets), asynchronous=False)
            failed = next((one.error for one in answer or () if one.error is not None), None)
        except KafkaException as error:
            failed = _said(self._consumer, error)
        if failed is not None and failed.code() not in _ALIVE:
            raise KafkaException(failed)
        return failed is None

    def _ready_asker(self) -> Consumer:
        """The consumer that asks for offsets; call with `_asking` held."""
        self._check_open()
        if self._asker is None:
            self._asker = self._cluster.consumer(self._name, isolation_level="read_committed")
        return self._asker

    def _ask(self, asked: list[KafkaPartition], timeout_s: float) -> list[KafkaPartition]:
        """The committed offsets of these partitions, from the brokers.

        Measured with librdkafka 2.16: a client without the permission to find its coordinator reports that as an
        event, and lets the request wait for its whole timeout. So the first look at events comes soon.
        """
        with self._asking:
            asker = self._ready_asker()
            try:
                with client_errors():
                    return asker.committed(asked, min(timeout_s, FIRST_LOOK_S))
            except KafkaException as error:
                said = _said(asker, error)
                if said.code() not in _NO_COORDINATOR:
                    raise KafkaException(said) from error
            try:
                with client_errors():
                    return asker.committed(asked, timeout_s)
            except KafkaException as error:
                said = _said(asker, error)
                if said.code() == KafkaError._TIMED_OUT and (known := self._impatiently(asked)) is not None:
                    raise self._hanging(asker, known, timeout_s) from error
                raise KafkaException(said) from error

    def _impatiently(self, asked: list[KafkaPartition]) -> list[KafkaPartition] | None:
        """The answer of the brokers to a request that ignores open transactions; None if there is no answer."""
        impatient = self._cluster.consumer(self._name, isolation_level="read_uncommitted")
        try:
            with client_errors():
                return impatient.committed(asked, self._cluster.timeout_s)
        except KafkaException:
            return None
        finally:
            self._cluster.release(impatient)

    def _hanging(self, asker: Consumer, known: list[KafkaPartition], waited_s: float) -> OffsetsOpen:
        """The error about partitions whose offsets are in an open transaction; it names the first ones."""
        held: list[TopicPartition] = []
        # Those with an offset first: of a request for all partitions of a cluster most are not the group's.
        for at in sorted(known, key=lambda at: at.offset < 0)[:ASKED_ALONE_MAX]:
            if len(held) < HELD_MAX and self._is_held(asker, at):
                held.append(TopicPartition(at.topic, at.partition))
        return OffsetsOpen(
            f"{self._cluster.where}: offsets of group {self._name!r} are in a transaction that is not over after "
            f"{waited_s:.0f} s, so its committed offsets are not known yet: the read is tried again. If this persists, "
            "another client's transaction.timeout.ms is longer, or " + LOST_END,
            held,
        )

    def _is_held(self, asker: Consumer, at: KafkaPartition) -> bool:
        """Whether the offset of this partition is not answered, while the brokers answer others."""
        try:
            with client_errors():
                asker.committed([KafkaPartition(at.topic, at.partition)], min(FIRST_LOOK_S, self._cluster.timeout_s))
        except KafkaException as error:
            return error_of(error).code() == KafkaError._TIMED_OUT
        return False

    def _offsets(
        self, wanted: list[TopicPartition] | None, only: Callable[[TopicPartition], bool] | None
    ) -> dict[TopicPartition, Committed]:
        sources = self._cluster.partitions() if wanted is None else wanted
        asked = [KafkaPartition(*source) for source in sources if only is None or only(source)]
        # No less than the transaction timeout: a killed broker writes the markers of committed transactions when it is
        # back.
        stable_s = self._cluster.patience_s(self._cluster.transaction_ms / 1_000 + STABLE_EXTRA_S)
        answer = self._ask(asked, stable_s) if asked else []
        found = {}
        for at in answer:
            if at.error is not None and at.error.code() not in UNKNOWN_TOPIC:
                raise KafkaException(at.error)
            if at.error is None and at.offset >= 0:
                found[TopicPartition(at.topic, at.partition)] = Committed(at.offset, _text(at))
        return dict(sorted(found.items()))


def _said(consumer: Consumer, error: KafkaException) -> KafkaError:
    """The refused permission that a consumer reported as an event, if the call only timed out; else the error."""
    found = error_of(error)
    if found.code() not in _NO_COORDINATOR:
        return found
    with client_errors():
        events = [message.error() for message in consumer.consume(EVENTS, 0)]
    return next((event for event in events if event is not None and event.code() in PERMISSION), found)


def _text(at: KafkaPartition) -> str:
    """Metadata of an offset; another program may have committed it."""
    try:
        return at.metadata or ""
    except UnicodeDecodeError as error:
        # The client does not end its copy of the text with a zero: bytes of its memory may follow.
        raw: bytes = error.object
        return raw[: error.start].decode()


def member_metadata(of_group: Any, member: ConsumerMember) -> bytes:
    """Group metadata for a transaction's offsets, for a member of the group that is a client in another process.

        CGMDv2:  generation, 4 bytes of this machine's order  group 0  member 0  1 (no instance id)

    The client makes these bytes for its own consumers only; `of_group` comes from one that never joined. The layout is
    the client's own, so it is compared before it is used. Raises InternalError if the client has another one.
    """
    raw = of_group if isinstance(of_group, bytes) else b""
    group = raw[len(_METADATA_MAGIC) + _GENERATION.size :].partition(b"\0")[0]
    if raw != _metadata(group, -1, b""):
        raise InternalError("this version of the Kafka client describes group members in another way: report it")
    return _metadata(group, member.generation, member.member_id.encode())


def _metadata(group: bytes, generation: int, member: bytes) -> bytes:
    return _METADATA_MAGIC + _GENERATION.pack(generation) + group + b"\0" + member + b"\0\x01"


def commit_needs(commit: GroupCommit) -> tuple[Need, ...]:
    """Permissions that a commit of offsets takes."""
    return (Need(GROUP, commit.group, "READ"), *topic_needs((at[0] for at in commit.offsets), "READ"))
