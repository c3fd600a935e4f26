"""A group of the simulated log.

Rules of this file: leases run by the world's clock. A log like Kafka differs: a lease that ran out ends when a member
looks; a member that joined again through another client is Fenced at the first one; offsets in a transaction that is
not over are waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from simulator.log.access import Access
from simulator.log.cluster import GroupData, Lease
from simulator.log.writer import KafkaWriter, check_claim
from standfast.replication.checks import check_commit, check_join
from standfast.replication.leases import IDLE, Busy
from standfast.replication.log import (
    LOST_END,
    Committed,
    ConsumerMember,
    EnteredView,
    GroupCommit,
    GroupView,
    Note,
    Notes,
    OffsetsOpen,
    WriterClaim,
)
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import Closed, Fenced

STABLE_EXTRA_MS = 2_000  # an open transaction may hold back offsets for so much longer than its time-out
NAMED_MAX = 5


class SimGroup:
    """Group of the simulated log."""

    def __init__(self, access: Access, name: str, closed: Callable[[SimGroup], None]) -> None:
        self._access = access
        self._log = access.log
        self._name = name
        self._forget = closed
        self._committer: KafkaWriter | None = None
        self._closed = False

    def join(self, member_id: str, metadata: str = "", *, lease_ms: int = 3_000) -> GroupView:
        """Become (or stay, with new metadata) a member until the lease runs out or leave() is called."""
        self._check_open()
        check_join(member_id, metadata, lease_ms)
        key, kafka, session = (self._name, member_id), self._log.kafka, self._access.session

        def effect() -> GroupView:
            data, now_ms = self._begin()
            data.board = True
            lease = data.leases.get(member_id)
            stays = lease is not None and (not kafka or lease.session == self._access.sessions.get(key))
            least_ms = lease.lease_ms if lease is not None and stays else 0
            # A longer lease keeps its length: the process that renews it may not know of a shorter one yet.
            most_ms = max(lease_ms, least_ms)
            busy = lease.busy if lease is not None and not kafka else None
            since_ms = now_ms if lease is None else lease.since_ms
            data.leases[member_id] = Lease(metadata, most_ms, now_ms + most_ms, session, busy, since_ms)
            self._access.sessions[key] = session
            self._log.version += 1
            if lease is not None:
                return data.view(now_ms)
            data.generation += 1
            return EnteredView(*data.view(now_ms))

        return self._access.write("group.join", effect, patient=False)

    def heartbeat(self, member_id: str, *, lease_ms: int | None = None, busy: Busy = IDLE) -> GroupView:
        """Renew the lease, for `lease_ms` from now on (None: as it is). Raises Fenced if it had run out: join again."""
        self._check_open()
        key = (self._name, member_id)

        def effect() -> GroupView:
            data, now_ms = self._data, self._log.clock.monotonic_ms()
            if not self._log.kafka:
                data.expire(now_ms)
            lease = data.leases.get(member_id)
            self._log.version += 1
            if lease is None or (self._log.kafka and self._access.sessions.get(key, lease.session) != lease.session):
                self._access.sessions.pop(key, None)
                raise Fenced(
                    f"{member_id!r} is not a member of group {self._name!r} (its lease ran out, it joined again "
                    "elsewhere, or it never joined): give up its tasks and join again"
                )
            lease.lease_ms = lease.lease_ms if lease_ms is None else lease_ms
            lease.deadline_ms = now_ms + lease.lease_ms
            lease.busy = busy if busy.numbers else None
            data.expire(now_ms)  # in a log like Kafka no member had looked until now, so a late renewal counts
            return data.view(now_ms)

        return self._access.write("group.heartbeat", effect, patient=False)

    def view(self) -> GroupView:
        """Live members now."""
        self._check_open()

        def effect() -> GroupView:
            data, now_ms = self._data, self._log.clock.monotonic_ms()
            if self._log.kafka:
                data.expire(now_ms)
            return data.view(now_ms)

        return self._access.call("group.view", effect)

    def watch(self) -> None:
        """None: a world's sessions have no thread that waits."""

    def leave(self, member_id: str, *, only: Callable[[str], bool] | None = None) -> None:
        """Stop being a member; no error for an id that is not a member. See the port."""
        self._check_open()
        key = (self._name, member_id)

        def effect() -> None:
            data, now_ms = self._begin()
            lease, session = data.leases.get(member_id), self._access.sessions.pop(key, None)
            self._log.version += 1
            if lease is None or (only is not None and not only(lease.metadata)):
                return
            if not self._log.kafka or session in (None, lease.session):
                data.remove(member_id, now_ms)

        self._access.write("group.leave", effect, patient=False)

    def owners(self) -> dict[str, str]:
        """Transactional id -> id of the member that last opened a writer for it in this group's name."""
        self._check_open()

        def effect() -> dict[str, str]:
            owners = self._data.owners if self._log.kafka else self._log.writers
            return {name: one.member_id for name, one in sorted(owners.items()) if one.group == self._name}

        return self._access.call("group.owners", effect)

    def notes(self) -> Notes:
        """The facts that the group keeps, by kind and name."""
        self._check_open()
        return self._access.call("group.notes", lambda: dict(sorted(self._data.notes.items())))

    def note(self, notes: Mapping[tuple[str, str], str | None]) -> None:
        """Write these notes, all or none; None removes one."""
        self._check_open()

        def effect() -> None:
            data = self._data
            data.board = True
            now_ms = (self._log if self._log.kafka else self._access).clock.wall_ms()
            for key, text in notes.items():
                data.notes.pop(key, None)
                if text is not None:
                    data.notes[key] = Note(text, now_ms)
            self._log.version += 1

        if notes:
            self._access.write("group.note", effect)

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        only: Callable[[TopicPartition], bool] | None = None,
    ) -> dict[TopicPartition, Committed]:
        """Committed offsets of these partitions (all of the group if None); partitions without one are absent.

        Of a log like Kafka, raises OffsetsOpen if some of them stay in a transaction that is not over.
        """
        self._check_open()
        wanted = None if partitions is None else [TopicPartition(*source) for source in partitions]

        def asked(source: TopicPartition) -> bool:
            return (wanted is None or source in wanted) and (only is None or only(source))

        def unknown() -> list[TopicPartition]:
            return [source for source in self._log.unknown_offsets(self._name) if asked(source)]

        def effect() -> dict[TopicPartition, Committed] | list[TopicPartition]:
            if self._log.kafka and (open_ones := unknown()):
                return open_ones
            return {source: one for source, one in sorted(self._data.committed.items()) if asked(source)}

        found = self._access.call("log.committed", effect)
        if isinstance(found, list):
            self._access.wait_until(lambda: not unknown(), self._log.transaction_ms + STABLE_EXTRA_MS)
            found = self._access.call("log.committed", effect)
        if isinstance(found, list):
            raise OffsetsOpen(
                f"{self._log.where}: offsets of group {self._name!r} are in a transaction that is not over, so its "
                "committed offsets are not known yet: the read is tried again. If this persists, another client's "
                "transaction.timeout.ms is longer, or " + LOST_END,
                found[:NAMED_MAX],
            )
        return found

    def commit(
        self,
        offsets: Mapping[TopicPartition, Committed],
        member: ConsumerMember | None = None,
        claim: WriterClaim | None = None,
    ) -> None:
        """Commit all of these offsets or none, without records. Raises Fenced for the claim of a replaced writer."""
        self._check_open()
        check_commit(self._name, offsets)
        if self._log.kafka:
            self._commit_to_brokers(offsets, member, claim)
            return

        def effect() -> None:
            if claim is not None:
                check_claim(self._log, claim)
                self._log.on_write(*claim)
            self._log.commit(self._name, offsets)

        self._access.write_once("log.commit", effect, offsets)

    def close(self) -> None:
        """Close without leaving the group. Twice is fine."""
        self._closed = True
        self._forget(self)

    @property
    def _data(self) -> GroupData:
        return self._log.group(self._name)

    def _begin(self) -> tuple[GroupData, int]:
        """The group without members whose lease ran out, and the time."""
        data, now_ms = self._data, self._log.clock.monotonic_ms()
        data.expire(now_ms)
        return data, now_ms

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"group {self._name!r} of {self._log.where} was closed: open a new one")

    def _commit_to_brokers(
        self, offsets: Mapping[TopicPartition, Committed], member: ConsumerMember | None, claim: WriterClaim | None
    ) -> None:
        """As the Kafka log does: the claim is looked up first, and a group with consumers takes a transaction only."""
        if offsets:
            self._access.call("log.describe", lambda: [self._log.partition(source) for source in offsets])
        if claim is not None and (member is None or not offsets):
            held = self._access.call("log.owner", lambda: self._data.owners.get(claim.transactional_id))
            if held is None or held.epoch != claim.epoch:
                newer = "a newer writer" if held is None else f"epoch {held.epoch} of {held.member_id!r}"
                raise Fenced(
                    f"writer of {claim.transactional_id!r} with epoch {claim.epoch} was fenced by {newer}: no offsets "
                    "were committed, give up the task"
                )
        if not offsets:
            return
        taken = member is None and self._access.write("log.commit", lambda: self._commit_alone(offsets), offsets)
        if not taken:
            if self._committer is None:
                name = f"{self._name}-standfast-commits-{self._log.next_number()}"
                self._committer = KafkaWriter(self._access, lambda _: None, name)
            self._committer.transact({}, GroupCommit(self._name, offsets, member))

    def _commit_alone(self, offsets: Mapping[TopicPartition, Committed]) -> bool:
        if self._data.consumers:
            return False
        self._log.commit(self._name, offsets)
        return True
