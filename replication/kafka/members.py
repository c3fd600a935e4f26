"""Members of a group and owners of its writers, as a function of the records of the group's members topic.

    key ["member", id]           {"kind":"join"|"beat", "session":..., "lease_ms":..., "generation":..., "metadata":...,
                                  "plan":...,"busy":[...]}
                                 no value: it left, or, with a header "seen", its lease ran out
    key ["writer", id, owner]    {"epoch":...}    the owner opened a writer for this transactional id
    key [kind, name]             a note: any text, for a module of its own; no value: it is removed

    join   a live member of that session from now on
    beat   renews the lease, if the member is still live in that very session; else it is void
    plan   grows with each join of a session; a beat with a smaller one renews, and its metadata are void: a member
           joins with new metadata from one process while its beats come from another, which has not read them yet
    busy   of a beat: see `replication/leases.py`; of an idle member it is left out
    seen   the offset of the newest beat or join that the proposer of the removal had read. The removal is void if the
           member renewed its lease after that: a stalled proposer may be late by any time
    epoch  counts if it is larger than any before; of two claims of one epoch the first in the topic wins

Every reader applies the same records in the same order, so all see the same members, owners and generation. A clock
only makes a member *propose* the removal of another (a record without value). The topic's records then hold for all
members, also for the removed one, which learns it by its next beat. One member alone writes each key (except for
removals), so that compaction keeps every record that counts. Versions before notes pass over those records.

Rules of this file: pure; `now_ms` is the reader's own monotonic time, `stamp_ms` the broker's. A lease runs from the
moment at which the reader saw it renewed, so no member's wall clock matters. The reader ages only records from before
its beginning by the broker's stamps: it did not see when those arrived.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from standfast.replication.leases import IDLE, Busy, has_most_left
from standfast.replication.log import GroupView, Member, Note, Record
from standfast.replication.shapes import Count, Shape, dump, read
from standfast.store.errors import InvalidRequest

MEMBERS_SUFFIX = "-standfast-members"  # <group>-standfast-members, 1 partition
SEEN = "seen"  # header of a removal
_MEMBER = "member"
_WRITER = "writer"
T = TypeVar("T")


class Presence(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """A join or a beat; later versions may add fields."""

    kind: str
    session: str
    lease_ms: int
    generation: int
    metadata: str
    plan: int = 0
    busy: tuple[Count, ...] = ()


class MemberClaim(Shape, frozen=True, forbid_unknown_fields=False):
    """The epoch with which a member opened a writer."""

    epoch: int


class Owner(NamedTuple):
    """The member that last opened a writer for a transactional id, and the writer's epoch."""

    member_id: str
    epoch: int


@dataclass(slots=True)
class MemberLease:
    """A live member. `old`: all its records are from before this reader began."""

    member_id: str
    metadata: str
    session: str
    lease_ms: int
    deadline_ms: int
    stamp_ms: int
    old: bool
    plan: int = 0
    offset: int = -1  # of the newest join or beat
    busy: tuple[int, ...] = ()


class Members:
    """The state after the records applied so far."""

    def __init__(self) -> None:
        self.generation = 0
        self.leases: dict[str, MemberLease] = {}
        self.owners: dict[str, Owner] = {}
        self.notes: dict[tuple[str, str], Note] = {}
        self._known: set[str] = set()  # ids seen before: a beat without lease counts only for an unknown id
        self._ended: set[str] = set()  # as in the view
        self._newest_ms = 0
        self._old: set[str] = set()  # members whose lease is old
        self._view: GroupView | None = None  # None: members or metadata have changed since
        self._beats: dict[
            bytes | None, tuple[bytes | None, str, MemberLease]
        ] = {}  # the last beat that counted, by key

    def apply(self, records: Iterable[Record], now_ms: int, *, old: bool) -> None:
        """Apply records in their order. `old`: they were written before this reader began.

        Raises InvalidRequest for a record that no member wrote: another program writes to the topic.
        """
        for record in records:
            self._newest_ms = max(self._newest_ms, record.timestamp)
            if self._repeats(record, now_ms, old):
                continue
            kind, *names = _parse(record.key)
            if kind == _MEMBER and len(names) == 1:
                self._apply_member(names[0], record, now_ms, old)
                if names[0] in self.leases:
                    self._ended.discard(names[0])
            elif kind == _WRITER and len(names) == 2 and record.value is not None:
                epoch = _typed(record.value, MemberClaim).epoch
                if names[0] not in self.owners or epoch > self.owners[names[0]].epoch:
                    self.owners[names[0]] = Owner(names[1], epoch)
            elif kind not in (_MEMBER, _WRITER) and len(names) == 1:
                self._apply_note((kind, names[0]), record)
        for name in self._old:
            lease = self.leases[name]
            # The newest stamp stands for the brokers' clock now, which this reader cannot ask for.
            age_ms = max(self._newest_ms - lease.stamp_ms, 0)
            lease.deadline_ms = min(lease.deadline_ms, now_ms + max(lease.lease_ms - age_ms, 0))

    def run_out(self, now_ms: int) -> list[str]:
        """Members whose lease has run out, by the records that this reader has seen."""
        return sorted(lease.member_id for lease in self.leases.values() if now_ms >= lease.deadline_ms)

    def hold(self, waited_ms: int, now_ms: int) -> None:
        """Lengthen leases by a time in which this reader got no records through no fault of any member."""
        for lease in self.leases.values():
            lease.deadline_ms = min(lease.deadline_ms + waited_ms, now_ms + lease.lease_ms)

    def extend(self, now_ms: int) -> None:
        """Give every member its whole lease again, after a time in which this reader could not read."""
        for lease in self.leases.values():
            lease.deadline_ms = now_ms + lease.lease_ms

    def view(self) -> GroupView:
        """Live members by id."""
        # Beats of idle members change none of it, and in a large group there are hundreds of those a second.
        if self._view is None or self._view.generation != self.generation:
            members = tuple(Member(name, lease.metadata) for name, lease in sorted(self.leases.items()))
            ended = frozenset(self._ended)
            busy = {name: Busy.of(lease.busy) for name, lease in self.leases.items() if lease.busy}
            self._view = GroupView(self.generation, members[0].member_id if members else None, members, busy, ended)
        return self._view

    def _repeats(self, record: Record, now_ms: int, old: bool) -> bool:
        """Renew a lease by a beat that is byte by byte the one before: most are, hundreds a second in a large group."""
        if (known := self._beats.get(record.key)) is None:
            return False
        value, name, lease = known
        if record.value != value or self.leases.get(name) is not lease or old != lease.old:
            return False
        lease.deadline_ms, lease.stamp_ms, lease.offset = now_ms + lease.lease_ms, record.timestamp, record.offset
        return True

    def _apply_note(self, key: tuple[str, str], record: Record) -> None:
        if record.value is None:
            self.notes.pop(key, None)
            return
        try:
            self.notes[key] = Note(record.value.decode(), record.timestamp)
        except UnicodeDecodeError as error:
            raise _foreign(record.value) from error

    def _apply_member(self, name: str, record: Record, now_ms: int, old: bool) -> None:
        known = name in self._known
        self._known.add(name)
        if record.value is None:
            lease = self.leases.get(name)
            # Without the header the member has left by itself, which always counts.
            seen = next((int(text or b"0") for header, text in record.headers if header == SEEN), record.offset)
            if lease is not None and lease.offset <= seen:
                del self.leases[name]
                if has_most_left(lease.lease_ms, lease.deadline_ms, now_ms):
                    self._ended.add(name)
                self._old.discard(name)
                self._beats.pop(record.key, None)
                self.generation += 1
            return
        said = _typed(record.value, Presence)
        lease = self.leases.get(name)
        if said.kind != "join":
            if (lease is None and known) or (lease is not None and lease.session != said.session):
                return  # void: the member was removed before, or joined again in another session
            self.generation = max(self.generation, said.generation)
        elif lease is None:
            self.generation = max(self.generation, said.generation) + 1
        metadata, plan = said.metadata, said.plan
        if said.kind != "join" and lease is not None and plan < lease.plan:
            metadata, plan = lease.metadata, lease.plan
        if lease is None or lease.metadata != metadata or lease.busy != said.busy:
            self._view = None
        deadline_ms = now_ms + said.lease_ms
        at = (deadline_ms, record.timestamp, old, plan, record.offset)
        self.leases[name] = MemberLease(name, metadata, said.session, said.lease_ms, *at, said.busy)
        (self._old.add if old else self._old.discard)(name)
        if said.kind != "join":
            self._beats[record.key] = record.value, name, self.leases[name]


def member_key(member_id: str) -> bytes:
    """Key of a member's records."""
    return json.dumps([_MEMBER, member_id]).encode()


def member_value(
    kind: str, session: str, lease_ms: int, generation: int, metadata: str, plan: int, busy: Busy = IDLE
) -> bytes:
    """Value of a join or a beat."""
    return dump(Presence(kind, session, lease_ms, generation, metadata, plan, busy.numbers))


def removal_headers(lease: MemberLease) -> list[tuple[str, bytes]]:
    """Headers of the removal of a member whose lease ran out: the offset of the newest beat that this reader saw."""
    return [(SEEN, str(lease.offset).encode())]


def claim(transactional_id: str, owner: str, epoch: int) -> tuple[bytes, bytes]:
    """Key and value of a claim to a transactional id."""
    return json.dumps([_WRITER, transactional_id, owner]).encode(), json.dumps({"epoch": epoch}).encode()


def note_key(kind: str, name: str) -> bytes:
    """Key of a note."""
    return json.dumps([kind, name]).encode()


def _parse(key: bytes | None) -> list[str]:
    parts = _typed(key, list[str])
    if not parts:
        raise _foreign(key)
    return parts


def _typed(found: bytes | None, kind: type[T]) -> T:
    try:
        return read(found or b"", kind)
    except ValueError as error:
        raise _foreign(found) from error


def _foreign(found: bytes | None) -> InvalidRequest:
    return InvalidRequest(
        f"the members topic holds {found!r:.80}, which no member wrote: keep other programs from writing to it, or "
        "use another application name"
    )
