"""Writers of the simulated log.

    EmbeddedWriter   each call is one effect: claim, records and offsets at once
    KafkaWriter      append    the owner is looked up, then the records are written
                     transact  init (if it is the first, or the last failed) ─> begin ─> meanwhile ─> end
                               its process may end between any two of them; the coordinator then aborts

Rules of this file: a call that gets no answer after its records may have reached the log is CommitUnknown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from simulator.log.access import Access
from simulator.log.cluster import Begun, Ending, Offsets, Owner, Refused, SimLog
from simulator.log.partition import Batch, Began, checked
from standfast.replication.checks import check_commit
from standfast.replication.log import Batches, GroupCommit, WriterClaim
from standfast.replication.offsets import TopicPartition
from standfast.replication.record_limits import RecordRefused, TopicLimits, alone_bytes, fix_of
from standfast.store.errors import Closed, CommitUnknown, Fenced, Held, StandfastError, Unavailable
from standfast.store.timestamps import duration_text

T = TypeVar("T")
Rows = dict[TopicPartition, Batch]
Meanwhile = Callable[[], None] | None


class SimWriter(ABC):
    """What both kinds of LogWriter have. `claim` is None for a producer."""

    marks_transactions = False

    def __init__(self, access: Access, closed: Callable[[SimWriter], None], claim: WriterClaim | None) -> None:
        self._access = access
        self._log = access.log
        self._forget = closed
        self.claim = claim
        self._closed = False

    @property
    def epoch(self) -> int:
        """Epoch of the transactional id when this writer was opened; 0 for a producer."""
        return self.claim.epoch if self.claim is not None else 0

    @property
    def limits(self) -> TopicLimits:
        """The limits of topics, as far as this process knows them."""
        return self._access.limits

    @abstractmethod
    def append(self, batches: Batches, *, meanwhile: Meanwhile = None) -> dict[TopicPartition, int]:
        """See LogWriter."""

    @abstractmethod
    def transact(
        self, batches: Batches, commit: GroupCommit | None = None, *, meanwhile: Meanwhile = None
    ) -> dict[TopicPartition, int]:
        """See LogWriter."""

    def close(self) -> None:
        """Close the writer; the transactional id keeps its owner. Twice is fine."""
        self._closed = True
        self._forget(self)

    def _checked(self, batches: Batches, least_ms: int) -> Rows:
        if self._closed:
            raise Closed(f"this writer of {self._log.where} was closed: open a new one")
        return {
            TopicPartition(*source): checked(TopicPartition(*source), batches[source], least_ms) for source in batches
        }


class EmbeddedWriter(SimWriter):
    """Writer of a log like the embedded one."""

    def __init__(
        self, access: Access, closed: Callable[[SimWriter], None], claim: WriterClaim | None, began: Began
    ) -> None:
        super().__init__(access, closed, claim)
        self._began = began

    def append(self, batches: Batches, *, meanwhile: Meanwhile = None) -> dict[TopicPartition, int]:
        """Write and wait for the acknowledgement; all or nothing."""
        return self._write("log.append", batches, None)

    def transact(
        self, batches: Batches, commit: GroupCommit | None = None, *, meanwhile: Meanwhile = None
    ) -> dict[TopicPartition, int]:
        """Write records and commit group offsets, all or nothing."""
        if commit is not None:
            check_commit(commit.group, commit.offsets)
        return self._write("log.transact", batches, commit)

    def _write(self, name: str, batches: Batches, commit: GroupCommit | None) -> dict[TopicPartition, int]:
        rows = self._checked(batches, 0)

        def effect() -> dict[TopicPartition, int]:
            if self.claim is not None:
                check_claim(self._log, self.claim)
            ends = self._log.append(rows, self._began)
            if commit is not None:
                self._log.commit(commit.group, commit.offsets)
            if self.claim is not None:
                self._log.on_write(*self.claim)
            return ends

        return self._access.write_once(name, effect, rows)


class KafkaWriter(SimWriter):
    """Writer of a log like Kafka; a producer has a transactional id of its own and no owner."""

    marks_transactions = True

    def __init__(
        self, access: Access, closed: Callable[[SimWriter], None], name: str, owner: Owner | None = None
    ) -> None:
        super().__init__(access, closed, None if owner is None else WriterClaim(name, owner.epoch))
        self._name = name
        self._owner = owner
        self._producer_epoch: int | None = None  # None: the next transaction initialises
        self._fenced = False

    def open(self) -> None:
        """Fence every older producer of the id."""
        self._initialise()
        self._check_owner()  # again: a newer claim may have come while the broker fenced for this one

    def append(self, batches: Batches, *, meanwhile: Meanwhile = None) -> dict[TopicPartition, int]:
        """Write and wait for the acknowledgement. At least once: no broker fences it, so the owner is looked up."""
        rows = self._checked(batches, 1)
        self._check_fenced()
        self._check_owner()
        self._check_sizes(rows)

        def effect() -> dict[TopicPartition, int]:
            if self._owner is not None and self._look() != self._owner:
                self._log.on_late(self._name)
            return self._log.append(rows, None)

        ends = self._access.write_once("log.append", effect, rows)
        if meanwhile is not None:
            try:
                meanwhile()
            except StandfastError as error:
                if isinstance(error, Unavailable):
                    raise CommitUnknown(f"{self._log.where}: {error}, while records were on their way") from error
                error.in_doubt = not isinstance(error, Fenced)
                raise
        return ends

    def transact(
        self, batches: Batches, commit: GroupCommit | None = None, *, meanwhile: Meanwhile = None
    ) -> dict[TopicPartition, int]:
        """Write records and commit group offsets, all or nothing. Returns the position after the records."""
        if commit is not None:
            check_commit(commit.group, commit.offsets)
        rows = self._checked(batches, 1)
        self._check_fenced()
        offsets = commit.offsets if commit is not None else {}
        self._access.call("log.describe", lambda: [self._log.partition(source) for source in (*rows, *offsets)])
        self._check_sizes(rows)
        empty = [source for source, batch in rows.items() if not batch.keys]
        others = {source: self._log.partition(source).end for source in empty}
        if not offsets and len(empty) == len(rows):
            return others
        if self._producer_epoch is None:
            self._initialise()
        return self._attempt(rows, commit if offsets else None, meanwhile) | others

    def _attempt(self, rows: Rows, commit: GroupCommit | None, meanwhile: Meanwhile) -> dict[TopicPartition, int]:
        """One transaction. An error aborts it; without an answer to its end, only an abort is certain."""
        epoch, self._producer_epoch = self._producer_epoch or 0, None
        opened: list[int] = []
        asked = False

        def begin() -> Begun:
            member = commit.member if commit is not None else None
            begun = self._log.begin(self._name, epoch, rows, _offsets_of(commit), member)
            opened.append(begun.number)
            if self.claim is not None:
                self._log.on_write(*self.claim)
            return begun

        try:
            begun = self._patiently(lambda: self._access.write("log.begin", begin, rows))
            if begun.refused is not None:
                raise begun.refused
            if meanwhile is not None:
                meanwhile()
            asked = True
            self._access.write("log.transact", lambda: self._log.end(self._name, epoch, opened[0], commits=True))
        except Exception as error:
            aborted = not opened or self._abort(epoch, opened[0])
            if isinstance(error, Refused):
                refused = self._refused()
                self._fenced = isinstance(refused, Fenced)
                raise refused from error
            if asked and not aborted and isinstance(error, Unavailable):
                what = f"{self._log.where}: transaction of {self._name!r}"
                raise CommitUnknown(f"{what}: no answer to its end, so it may or may not be written") from error
            if aborted and not isinstance(error, StandfastError | Ending):
                self._producer_epoch = epoch
            raise
        self._producer_epoch = epoch
        return begun.ends

    def _abort(self, epoch: int, number: int) -> bool:
        """Abort a transaction; returns whether the broker confirmed that."""
        try:
            self._access.write("log.abort", lambda: self._log.end(self._name, epoch, number, commits=False))
        except (Unavailable, Refused):
            return False
        return True

    def _initialise(self) -> None:
        self._check_owner()  # it fences the current holder of the id, so a writer that lost the id must not do it
        init = partial(self._log.init_producer, self._name)
        self._producer_epoch = self._patiently(lambda: self._access.write("log.open_writer", init))

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call again while the coordinator still ends the last transaction of this id."""
        for _ in range(3):
            try:
                return call()
            except Ending:
                producer = self._log.producers[self._name]
                if not self._access.wait_until(partial(self._log.is_idle, producer), self._log.timeout_ms):
                    break
        raise Unavailable(f"{self._log.where}: the last transaction of {self._name!r} does not end: try again")

    def _check_fenced(self) -> None:
        if self._fenced:
            raise self._refused()

    def _check_owner(self) -> None:
        if self._owner is not None and (held := self._held()) != self._owner:
            raise self._lost_to(held)

    def _held(self) -> Owner | None:
        return self._access.call("log.owner", self._look)

    def _look(self) -> Owner | None:
        assert self._owner is not None
        return self._log.group(self._owner.group).owners.get(self._name)

    def _refused(self) -> Fenced | Unavailable:
        """Why the broker refuses this writer: a newer one, or a transaction that took too long."""
        if self._owner is not None and (held := self._held()) != self._owner:
            return self._lost_to(held)
        return Unavailable(
            f"{self._log.where}: the broker refuses the writer of {self._name!r} with epoch {self.epoch}, though it is "
            "still the owner: its transaction took too long, and nothing of it was written: open the task again"
        )

    def _lost_to(self, held: Owner | None) -> Fenced:
        newer = "a newer writer" if held is None else f"epoch {held.epoch} of {held.member_id!r}"
        return Fenced(
            f"writer of {self._name!r} with epoch {self.epoch} was fenced by {newer}: nothing was written, give up the "
            "task"
        )

    def _check_sizes(self, rows: Rows) -> None:
        """Raise RecordRefused for a record that is larger than its topic takes."""
        for source, batch in rows.items():
            topic = self._log.topics.get(source.topic)
            if topic is None or not batch.keys:
                continue
            most = self._log.info(topic).record_max_bytes or 0
            if self.limits.unasked([source.topic]):
                self.limits.note(source.topic, most)
            headers = batch.headers or [()] * len(batch.keys)
            for key, value, own in zip(batch.keys, batch.values, headers, strict=True):
                if len(key or b"") + len(value or b"") < most // 2 and not own:
                    continue
                size = alone_bytes(key, value, own)
                if size > most:
                    self.limits.refuse(source.topic, key, value, own)
                    text = f"{self._log.where}: {source}: a record of {size} bytes with key {key!r:.200} is larger than"
                    text += f" the limit of {most} bytes of its topic: {fix_of(source.topic)}"
                    raise RecordRefused(text, *source, key, size)


def check_claim(log: SimLog, claim: WriterClaim) -> None:
    """Raise Fenced if a newer writer was opened for the id, in a log like the embedded one."""
    held = log.writers.get(claim.transactional_id)
    if held is None or held.epoch != claim.epoch:
        why = "has no writer any more" if held is None else f"was fenced by epoch {held.epoch} of {held.member_id!r}"
        name, epoch = claim
        raise Fenced(f"writer of {name!r} with epoch {epoch} {why}: nothing was written, give up the task")


def open_embedded(
    access: Access, closed: Callable[[SimWriter], None], name: str, owner: Owner, if_free: bool
) -> SimWriter:
    """Take over the transactional id in one atomic step."""
    log = access.log

    def effect() -> WriterClaim:
        held = log.writers.get(name)
        if if_free and held is not None and held.member_id != owner.member_id:
            _check_free(log, name, owner.group, held)
        taken = owner._replace(epoch=(held.epoch if held is not None else 0) + 1)
        log.writers[name] = taken
        log.version += 1
        log.on_claim(name, held, taken)
        return WriterClaim(name, taken.epoch)

    claim = access.write("log.open_writer", effect, patient=False)
    return EmbeddedWriter(access, closed, claim, Began(f"{log.next_number():016x}"))


def open_kafka(
    access: Access, closed: Callable[[SimWriter], None], name: str, owner: Owner, if_free: bool
) -> SimWriter:
    """Claim the transactional id, then fence at the broker: another process may claim it in between."""
    log = access.log

    def claim() -> Owner:
        group = log.group(owner.group)
        group.expire(log.clock.monotonic_ms())
        group.board = True
        held = group.owners.get(name)
        if if_free and held is not None and held.member_id != owner.member_id:
            _check_free(log, name, owner.group, held)
        taken = group.owners[name] = owner._replace(epoch=(held.epoch if held is not None else 0) + 1)
        log.version += 1
        log.on_claim(name, held, taken)
        return taken

    made = KafkaWriter(access, closed, name, access.write("log.claim", claim))
    made.open()
    return made


def _check_free(log: SimLog, name: str, group: str, held: Owner) -> None:
    lease = log.group(group).leases.get(held.member_id)
    left_ms = 0 if lease is None else lease.deadline_ms - log.clock.monotonic_ms()
    if left_ms > 0:
        raise Held(
            f"{name!r} belongs to {held.member_id!r}, a live member of group {group!r} with {duration_text(left_ms)} "
            "of lease left: claim it when that member has left or its lease has run out"
        )


def _offsets_of(commit: GroupCommit | None) -> tuple[str, Offsets] | None:
    return None if commit is None else (commit.group, commit.offsets)
