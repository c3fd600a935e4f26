"""Groups of the embedded log: members with leases, generation, leader, owners, committed offsets.

    live        a member whose lease has not run out and was taken in this boot of the machine
    generation  grows by one for each member that comes, leaves or runs out
    leader      first live member by id

Rules of this file: leases are compared on the machine's monotonic clock together with its boot id. The next write to
the group removes, under the lock, members whose lease ran out; until then no view shows them. This file must not know
of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from standfast.replication.checks import check_commit, check_join
from standfast.replication.embedded.busy import find_busy, forget_busy, store_busy
from standfast.replication.embedded.db import Database, Transaction
from standfast.replication.embedded.group_watch import EmbeddedGroupWatch, note_change
from standfast.replication.embedded.notes import find_notes, store_notes
from standfast.replication.embedded.sums import check_seal, seal
from standfast.replication.leases import IDLE, Busy, has_most_left
from standfast.replication.log import Committed, ConsumerMember, EnteredView, GroupView, Member, Notes, WriterClaim
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import Clock
from standfast.store.errors import Fenced


class EmbeddedGroup:
    """Group of the embedded log. Several threads may use it."""

    def __init__(
        self, db: Database, name: str, clock: Clock, boot: str, closed: Callable[[EmbeddedGroup], None]
    ) -> None:
        self._db = db
        self._name = name
        self._clock = clock
        self._boot = boot
        self._closed = closed
        self._live: dict[str, tuple[int, int]] = {}  # as of the last view: lease and deadline of each live member
        self._ended: frozenset[str] = frozenset()

    def join(self, member_id: str, metadata: str = "", *, lease_ms: int = 3_000) -> GroupView:
        """Become (or stay, with new metadata) a member until the lease runs out or leave() is called.

        A longer lease that still runs keeps its length: the process that renews it may not know of a shorter one yet.
        """
        check_join(member_id, metadata, lease_ms)
        # Not patient, like every call about leases: the background thread that calls it also reads for standbys.
        with self._db.lock(patient=False), self._db.mutex, self._db.guard, self._db.write() as run:
            now_ms = self._clock.monotonic_ms()
            expired = self._expire(run, now_ms)
            row = run.execute(
                "SELECT lease_ms FROM members WHERE group_name = ? AND member_id = ?", (self._name, member_id)
            ).fetchone()
            entered = row is None
            lease_ms = lease_ms if entered else max(lease_ms, int(row[0]))
            run.execute(
                "INSERT OR REPLACE INTO members (group_name, member_id, metadata, boot_id, lease_ms, deadline_ms) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (self._name, member_id, metadata, self._boot, lease_ms, now_ms + lease_ms),
            )
            if entered:
                self._grow(run, 1)
                store_busy(run, self._name, member_id)
            view = self._view(run, now_ms)
        if entered or expired:
            note_change(self._db.path)
        return EnteredView(*view) if entered else view

    def heartbeat(self, member_id: str, *, lease_ms: int | None = None, busy: Busy = IDLE) -> GroupView:
        """Renew the lease, for `lease_ms` from now on (None: as it is). Raises Fenced if it had run out: join again."""
        # No lease survives the boot after a power loss, so this write need not wait for the disk.
        with self._db.lock(patient=False), self._db.mutex, self._db.guard, self._db.write(durable=False) as run:
            now_ms = self._clock.monotonic_ms()
            expired = self._expire(run, now_ms)
            renewed = run.execute(
                "UPDATE members SET lease_ms = coalesce(?1, lease_ms), deadline_ms = ?2 + coalesce(?1, lease_ms) "
                "WHERE group_name = ?3 AND member_id = ?4",
                (lease_ms, now_ms, self._name, member_id),
            ).rowcount
            if renewed:
                store_busy(run, self._name, member_id, busy)
            view = self._view(run, now_ms)
        if expired:
            note_change(self._db.path)
        if not renewed:  # raised after the transaction: within it, it would roll back the removal of other members
            raise Fenced(
                f"{member_id!r} is not a member of group {self._name!r} (its lease ran out, or it never joined): "
                "give up its tasks and join again"
            )
        return view

    def view(self) -> GroupView:
        """Live members now."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            return self._view(run, self._clock.monotonic_ms())

    def leave(self, member_id: str, *, only: Callable[[str], bool] | None = None) -> None:
        """Stop being a member; no error for an id that is not a member. See the port."""
        with self._db.lock(patient=False), self._db.mutex, self._db.guard, self._db.write() as run:
            expired = self._expire(run, self._clock.monotonic_ms())
            found = run.execute(
                "SELECT metadata FROM members WHERE group_name = ? AND member_id = ?", (self._name, member_id)
            ).fetchone()
            left = found is not None and (only is None or only(found[0]))
            if left:
                run.execute("DELETE FROM members WHERE group_name = ? AND member_id = ?", (self._name, member_id))
                self._grow(run, 1)
                store_busy(run, self._name, member_id)
        if left or expired:
            note_change(self._db.path)

    def watch(self) -> EmbeddedGroupWatch:
        """Waits for changes of the members. See the port."""
        return EmbeddedGroupWatch(self._db.path)

    def owners(self) -> dict[str, str]:
        """Transactional id -> id of the member that last opened a writer for it in this group's name."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            rows = run.execute(
                "SELECT transactional_id, group_name, owner, epoch, boot_id, seal FROM writers WHERE group_name = ? "
                "ORDER BY transactional_id",
                (self._name,),
            ).fetchall()
        for row in rows:
            check_seal(f"writer {row[0]!r}", row[-1], *row[:-1])
        return {row[0]: row[2] for row in rows}

    def notes(self) -> Notes:
        """The facts that the group keeps, by kind and name."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            return find_notes(run, self._name)

    def note(self, notes: Mapping[tuple[str, str], str | None]) -> None:
        """Write these notes, all or none; None removes one."""
        if notes:
            with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
                store_notes(run, self._name, notes, self._clock.wall_ms())

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        only: Callable[[TopicPartition], bool] | None = None,
    ) -> dict[TopicPartition, Committed]:
        """Committed offsets of these partitions (all of the group if None); partitions without one are absent."""
        with self._db.mutex, self._db.guard, self._db.read() as run:
            rows = run.execute(
                "SELECT group_name, topic, partition, position, metadata, seal FROM committed WHERE group_name = ? "
                "ORDER BY topic, partition",
                (self._name,),
            ).fetchall()
        for row in rows:
            check_seal(f"group {self._name!r}, committed offset of {row[1]}-{row[2]}", row[-1], *row[:-1])
        found = {TopicPartition(topic, number): Committed(offset, text) for _, topic, number, offset, text, _ in rows}
        if partitions is not None:
            found = {TopicPartition(*source): found[source] for source in partitions if source in found}
        return found if only is None else {at: one for at, one in found.items() if only(at)}

    def commit(
        self,
        offsets: Mapping[TopicPartition, Committed],
        member: ConsumerMember | None = None,
        claim: WriterClaim | None = None,
    ) -> None:
        """Commit all of these offsets or none, without records. Raises Fenced for the claim of a replaced writer."""
        check_commit(self._name, offsets)
        with self._db.lock(), self._db.mutex, self._db.guard, self._db.write() as run:
            # In the same transaction: an owner that stalled before its offsets could else commit them after another
            # one has taken over the task and begun at lower ones.
            if claim is not None:
                check_claim(run, claim)
            store_commit(run, self._name, offsets)

    def close(self) -> None:
        """Close the connection without leaving the group. Twice is fine."""
        self._db.close()
        self._closed(self)

    def _expire(self, run: Transaction, now_ms: int) -> bool:
        """Remove members whose lease ran out; returns whether there was one."""
        # The monotonic clock starts over with each boot, so a deadline of another boot means nothing.
        gone = run.execute(
            "DELETE FROM members WHERE group_name = ? AND NOT (boot_id = ? AND deadline_ms > ?)",
            (self._name, self._boot, now_ms),
        )
        self._grow(run, gone.rowcount)
        if gone.rowcount:
            forget_busy(run, self._name)
        return gone.rowcount > 0

    def _grow(self, run: Transaction, by: int) -> None:
        if by:
            run.execute(
                "INSERT INTO groups (name, generation) VALUES (?1, ?2) "
                "ON CONFLICT (name) DO UPDATE SET generation = generation + ?2",
                (self._name, by),
            )

    def _view(self, run: Transaction, now_ms: int) -> GroupView:
        # The database picks the live ones: a large group is looked at several times a second by each member.
        live = run.execute(
            "SELECT member_id, metadata, lease_ms, deadline_ms FROM members "
            "WHERE group_name = ? AND boot_id = ? AND deadline_ms > ? ORDER BY member_id",
            (self._name, self._boot, now_ms),
        ).fetchall()
        stored = run.execute("SELECT count(*) FROM members WHERE group_name = ?", (self._name,)).fetchone()[0]
        members = tuple(Member(*one[:2]) for one in live)
        before, self._live = self._live, {name: (lease_ms, deadline_ms) for name, _, lease_ms, deadline_ms in live}
        gone = {name for name in before.keys() - self._live.keys() if has_most_left(*before[name], now_ms)}
        if gone or not self._ended.isdisjoint(self._live):
            self._ended = (self._ended | gone) - self._live.keys()
        busy = find_busy(run, self._name)
        if busy:
            busy = {name: busy[name] for name, _ in members if name in busy}
        # The next write removes the members that ran out; counting them already keeps generation and members equal.
        generation = self._generation(run) + stored - len(members)
        return GroupView(generation, members[0].member_id if members else None, members, busy, self._ended)

    def _generation(self, run: Transaction) -> int:
        row = run.execute("SELECT generation FROM groups WHERE name = ?", (self._name,)).fetchone()
        return 0 if row is None else int(row[0])


def lease_left_ms(run: Transaction, group: str, member_id: str, now_ms: int, boot: str) -> int | None:
    """Milliseconds until the lease of a live member runs out; None if it is none."""
    row = run.execute(
        "SELECT deadline_ms FROM members WHERE group_name = ? AND member_id = ? AND boot_id = ? AND deadline_ms > ?",
        (group, member_id, boot, now_ms),
    ).fetchone()
    return None if row is None else int(row[0]) - now_ms


def check_claim(run: Transaction, claim: WriterClaim) -> None:
    """Raise Fenced if a newer writer was opened for the id; call it within the transaction that it guards."""
    transactional_id, epoch = claim
    row = find_writer(run, transactional_id)
    if row is None or row[1] != epoch:
        why = "has no writer in this log any more" if row is None else f"was fenced by epoch {row[1]} of {row[0]!r}"
        raise Fenced(f"writer of {transactional_id!r} with epoch {epoch} {why}: nothing was written, give up the task")


def find_writer(run: Transaction, transactional_id: str) -> tuple[str, int] | None:
    """Last owner and epoch of a transactional id. Raises Corruption if the row's seal does not match."""
    row = run.execute(
        "SELECT transactional_id, group_name, owner, epoch, boot_id, seal FROM writers WHERE transactional_id = ?",
        (transactional_id,),
    ).fetchone()
    if row is None:
        return None
    check_seal(f"writer {transactional_id!r}", row[-1], *row[:-1])
    return row[2], row[3]


def store_commit(run: Transaction, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
    """Write checked offsets within a transaction.

    The partitions need not exist in this log: an external consumer may read its sources from another one.
    """
    for source, (offset, metadata) in offsets.items():
        columns = (group, *source, offset, metadata)
        run.execute(
            "INSERT INTO committed (group_name, topic, partition, position, metadata, seal) "
            "VALUES (?1, ?2, ?3, ?4, ?5, ?6) "
            "ON CONFLICT (group_name, topic, partition) DO UPDATE SET position = ?4, metadata = ?5, seal = ?6",
            (*columns, seal(*columns)),
        )
