"""A read-only log, through which replicas follow another application's changelogs.

    ReadOnlyLog ── reader, admin.describe_topic, topics, survey, ...      the log's own
                ── group.committed                                        the log's own
                ── group.join, heartbeat, view, leave, owners             answered here: one member, not published
                ── every call that would write                            InvalidRequest

Rules of this file: no call that changes the log may pass; `tests/unit/replication/test_read_only.py` compares the file
with the port, so that a new method must be put on one side or the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from standfast.replication.leases import IDLE, Busy
from standfast.replication.log import (
    Committed,
    ConsumerMember,
    Group,
    GroupView,
    GroupWatch,
    LockHolder,
    Log,
    LogAdmin,
    LogReader,
    LogWriter,
    Member,
    Notes,
    TopicInfo,
    TopicPolicy,
    WriterClaim,
)
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InvalidRequest, StandfastError
from standfast.store.names import few


def _refuse(what: str) -> NoReturn:
    raise InvalidRequest(f"{what}: this log belongs to another application and was opened to read only")


class ReadOnlyLog:
    """A log without writers; closing it closes the log underneath."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._admin = ReadOnlyAdmin(log.admin)

    @property
    def address(self) -> str:
        """Address of the log underneath."""
        return self._log.address

    @property
    def least_timestamp_ms(self) -> int:
        """Least timestamp of the log underneath."""
        return self._log.least_timestamp_ms

    @property
    def remote(self) -> bool:
        """As the log underneath."""
        return self._log.remote

    @property
    def admin(self) -> LogAdmin:
        """The admin's reading methods."""
        return self._admin

    def reader(self, *, narrow: bool = False) -> LogReader:
        """A reader of the log underneath: readers commit nothing."""
        return self._log.reader(narrow=narrow)

    def writer(self, transactional_id: str, *, group: str, owner: str, if_free: bool = False) -> LogWriter:
        """Raise InvalidRequest."""
        _refuse(f"no writer {transactional_id!r}")

    def prepare(self, transactional_ids: Iterable[str]) -> None:
        """Raise InvalidRequest, unless the ids are empty."""
        names = few(transactional_ids)
        # A replica's session calls this with no ids; a refusal of that would keep it from being assigned.
        if names:
            _refuse(f"no writers {names}")

    def producer(self) -> LogWriter:
        """Raise InvalidRequest."""
        _refuse("no producer")

    def group(self, name: str) -> Group:
        """The committed offsets of a group, without being a member."""
        return ReadOnlyGroup(self._log.group(name))

    def notes_of(self, groups: Iterable[str]) -> dict[str, Notes | None]:
        """See Log."""
        return self._log.notes_of(groups)

    def lock_holder(self) -> LockHolder | None:
        """See Log."""
        return self._log.lock_holder()

    def trouble(self) -> StandfastError | None:
        """See Log."""
        return self._log.trouble()

    def care(self, now_ms: int) -> None:
        """Do nothing: the log's writers do its housekeeping."""

    def hasten(self) -> None:
        """See Log."""
        self._log.hasten()

    def close(self) -> None:
        """Close the log."""
        self._log.close()


class ReadOnlyAdmin:
    """The reading methods of an admin."""

    def __init__(self, admin: LogAdmin) -> None:
        self._admin = admin
        # Bound by name, not by __getattr__: a new method of the port must not pass unseen.
        self.describe_topic = admin.describe_topic
        self.topics = admin.topics
        self.topic_names = admin.topic_names
        self.survey = admin.survey
        self.groups = admin.groups
        self.consumers = admin.consumers
        self.first_offsets = admin.first_offsets
        self.lacking = admin.lacking

    def create_topic(self, name: str, partitions: int, policy: TopicPolicy) -> TopicInfo:
        """Raise InvalidRequest."""
        _refuse(f"topic {name!r} is not created")

    def delete_topic(self, name: str) -> None:
        """Raise InvalidRequest."""
        _refuse(f"topic {name!r} is not deleted")

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Raise InvalidRequest."""
        _refuse(f"topic {name!r} gets no partitions")

    def change_topic(self, name: str, settings: Mapping[str, str]) -> TopicInfo:
        """Raise InvalidRequest."""
        _refuse(f"topic {name!r} is not changed")

    def delete_group(self, name: str) -> None:
        """Raise InvalidRequest."""
        _refuse(f"group {name!r} is not deleted")

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Raise InvalidRequest."""
        _refuse("no records are deleted")


class ReadOnlyGroup:
    """Another application's group, without membership in it."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._members: tuple[Member, ...] = ()

    def join(self, member_id: str, metadata: str = "", *, lease_ms: int = 3_000) -> GroupView:
        """Become the only member of a view that exists in this object alone."""
        self._members = (Member(member_id, metadata),)
        return self.view()

    def heartbeat(self, member_id: str, *, lease_ms: int | None = None, busy: Busy = IDLE) -> GroupView:
        """The view; there is no lease to renew."""
        return self.view()

    def view(self) -> GroupView:
        """The member that joined here, if any, as a view."""
        # A constant generation: no other member ever joins, so there is no rebalance to notice.
        return GroupView(1, self._members[0].member_id if self._members else None, self._members)

    def leave(self, member_id: str, *, only: Callable[[str], bool] | None = None) -> None:
        """Forget the member, of which the log never knew."""
        self._members = ()

    def watch(self) -> GroupWatch | None:
        """The watch of the group underneath."""
        return self._group.watch()

    def owners(self) -> dict[str, str]:
        """No owners: this group opens no writers."""
        return {}

    def notes(self) -> Notes:
        """The notes of the group underneath."""
        return self._group.notes()

    def note(self, notes: Mapping[tuple[str, str], str | None]) -> None:
        """Raise InvalidRequest."""
        _refuse("no notes are written")

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        only: Callable[[TopicPartition], bool] | None = None,
    ) -> dict[TopicPartition, Committed]:
        """Committed offsets of the group underneath."""
        return self._group.committed(partitions, only=only)

    def commit(
        self,
        offsets: Mapping[TopicPartition, Committed],
        member: ConsumerMember | None = None,
        claim: WriterClaim | None = None,
    ) -> None:
        """Raise InvalidRequest."""
        _refuse("no offsets are committed")

    def close(self) -> None:
        """Close the group underneath."""
        self._group.close()
