"""Writers of a Kafka log: one transactional producer for each transactional id, and an idempotent one for appends.

    transact   begin -> offsets -> records -> commit          aborted whole, or committed whole
               time-out, refused record: abort; the next call recreates the producer
               a newer producer of the id: Fenced, for ever; a transaction that took too long: as a time-out
    append     acks from all replicas, waits for every record's delivery; no transaction, so the broker cannot fence
               it: before each append the writer reads the id's owner from the members topic

A transaction's records are on their way while its offsets are. A moment after the last transaction offsets go first,
because the broker refuses the next transaction's first step for the few milliseconds in which it still ends the last
one, and that step is the one that the client repeats soonest.

Rules of this file: every check comes before the client gets the first record. The end of a commit that got no answer
is unknown: the writer reports that, and the next call settles it before it does anything else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from standfast.replication.checks import check_commit
from standfast.replication.kafka.bounds import bounds_of
from standfast.replication.kafka.cluster import RETRY_MS, Cluster
from standfast.replication.kafka.errors import FENCED, TOO_LARGE, VAGUE, error_of
from standfast.replication.kafka.group import commit_needs, member_metadata
from standfast.replication.kafka.members import Owner
from standfast.replication.kafka.members_topic import Board
from standfast.replication.kafka.producer import Delivered, ProducerClient
from standfast.replication.kafka.records import Columns, Unsent, checked
from standfast.replication.kafka.survey import learn_limits
from standfast.replication.log import Batches, GroupCommit, WriterClaim
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import TRANSACTIONAL_ID, Need, write_needs
from standfast.replication.record_limits import RecordRefused, TopicLimits, fix_of, most_bytes
from standfast.store.clock import SystemClock
from standfast.store.errors import Closed, CommitUnknown, Fenced, StandfastError, Unavailable
from standfast.store.failpoint import reach
from standfast.store.names import few
from standfast.store.timestamps import duration_text

# The brokers end a transaction in the background, in a few milliseconds, after they have acknowledged its commit.
SETTLE_MS = 50
# The client collects records until a flush (see LINGER_MS), so a short one sends them before the caller's own work.
SEND_S = 0.001
# After a batch that was refused the client purges all others of the transaction at once.
ANSWERS_S = 1.0

Rows = Mapping[TopicPartition, Columns]


class Fence:
    """The claim that makes a writer the only one of its transactional id. `board` is None for a producer."""

    def __init__(self, transactional_id: str, epoch: int = 0, owner: str = "", board: Board | None = None) -> None:
        self.transactional_id = transactional_id
        self.epoch = epoch
        self._owner = owner
        self._board = board

    def check(self) -> None:
        """Raise Fenced if another writer has claimed the id since."""
        if self._board is None:
            return
        held = self._board.owner(self.transactional_id)
        if held != (self._owner, self.epoch):
            raise self._lost_to(held)

    def refused(self, *, in_doubt: bool = False) -> Fenced | Unavailable:
        """The reason why the broker refuses this writer now. `in_doubt`: it may have taken a commit before.

        The broker's answer is the same for a writer that a newer one replaced and for one whose transaction took too
        long, but the second still owns its task: only the members topic separates the two.
        """
        what = f"the broker refuses the writer of {self.transactional_id!r} with epoch {self.epoch}"
        if self._board is not None:
            try:
                held = self._board.owner(self.transactional_id)
            except Unavailable as error:
                return Unavailable(
                    f"{what}, nothing was written, and it is unknown whether a newer one exists: {error}"
                )
            if held != (self._owner, self.epoch):
                return self._lost_to(held, in_doubt=in_doubt)
        return Unavailable(
            f"{what}, though it is still the owner: its transaction was not over within transaction.timeout.ms, or a "
            "request of an earlier opening of the task reached the broker late. Nothing of it was written: open the "
            "task again, and raise transaction.timeout.ms of the log address if this recurs"
        )

    def _lost_to(self, held: Owner | None, *, in_doubt: bool = False) -> Fenced:
        newer = "a newer writer" if held is None else f"epoch {held.epoch} of {held.member_id!r}"
        outcome = "its last commit may or may not be written" if in_doubt else "nothing was written"
        return Fenced(
            f"writer of {self.transactional_id!r} with epoch {self.epoch} was fenced by {newer}: "
            f"{outcome}, give up the task"
        )


class BatchRefused(Exception):
    """The broker, or the client, refused these records for the size of their batch."""

    def __init__(self, pieces: Rows, error: KafkaError) -> None:
        super().__init__(error)
        self.pieces, self.error = pieces, error


class KafkaWriter:
    """LogWriter of a Kafka log."""

    def __init__(
        self,
        cluster: Cluster,
        fence: Fence,
        metadata_of: Callable[[str], Any],
        closed: Callable[[KafkaWriter], None],
        prepared: ProducerClient | None = None,
    ) -> None:
        self._cluster = cluster
        self._fence = fence
        self._metadata_of = metadata_of  # group name -> group metadata for send_offsets_to_transaction
        self._forget = closed
        self._clock = SystemClock()
        self._prepared = prepared  # for the first transaction, connected, if `prepare` made one
        self._plain: ProducerClient | None = None
        self._transactional: ProducerClient | None = None
        self._fenced = False
        self._closed = False
        self._ended_ms = self._clock.monotonic_ms()  # the last commit, or the opening
        self._using = threading.RLock()  # of the producers, by a call that is under way
        self._depth = 0

    @property
    def epoch(self) -> int:
        """Epoch of the transactional id when this writer was opened; 0 for a producer."""
        return self._fence.epoch

    @property
    def claim(self) -> WriterClaim | None:
        """The id and the epoch of the claim on the members topic; None for a producer."""
        return WriterClaim(self._fence.transactional_id, self._fence.epoch) if self._fence.epoch else None

    @property
    def marks_transactions(self) -> bool:
        """True: the broker writes a marker into each partition at a transaction's end."""
        return True

    @property
    def limits(self) -> TopicLimits:
        """Those of the log, which learns them from each description of a topic and from each refusal."""
        return self._cluster.limits

    def open(self) -> None:
        """Fence every older producer of the id at the broker."""
        with self._use():
            self._ready()
        self._fence.check()  # again: a newer claim may have come while the broker fenced for this one

    def append(self, batches: Batches, *, meanwhile: Callable[[], None] | None = None) -> dict[TopicPartition, int]:
        """Write and wait for the acknowledgement, and do `meanwhile` before. Returns next offset per partition.

        When it raises CommitUnknown, or an error that is `in_doubt`, some of the records may have been written.
        """
        self._check_open()
        rows = self._checked(batches)
        self._check_fenced()
        self._fence.check()
        self._check_exist(rows)
        with self._use():
            return self._append(rows, meanwhile)

    def _append(self, rows: Rows, meanwhile: Callable[[], None] | None) -> dict[TopicPartition, int]:
        if self._plain is None:
            self._plain = self._cluster.connected(self._cluster.producer())
        plain = self._plain
        others = self._ends_of_empty(rows)
        unsent = Unsent(rows, self._cluster.limits)
        try:
            while True:
                try:
                    self._deliver(plain, unsent, meanwhile=meanwhile)
                    break
                except BatchRefused as refused:
                    self._narrow(refused)
                    unsent.cut()
                    meanwhile = None
        except BaseException as error:
            self._plain = None  # its sequence numbers of records may be off
            what = f"writing to {few(rows)}"
            if isinstance(error, KafkaException):
                why = self._cluster.reason(plain, error, transactional=False)
                raise self._in_doubt(self._cluster.translate(why, what, *write_needs(rows)), what) from error
            if isinstance(error, StandfastError):
                raise self._in_doubt(error, what) from error
            raise
        finally:
            if self._plain is None:
                self._cluster.release(plain)
        return unsent.ends | others

    def transact(
        self, batches: Batches, commit: GroupCommit | None = None, *, meanwhile: Callable[[], None] | None = None
    ) -> dict[TopicPartition, int]:
        """Write records and commit group offsets, all or nothing. Returns the position after each partition's records.

        Raises Fenced if a newer writer was opened, UnknownStore or InvalidRequest for a bad partition or record: in
        each case nothing was written. CommitUnknown if the end of the commit is not known.
        """
        self._check_open()
        if commit is not None:
            check_commit(commit.group, commit.offsets)
        rows = self._checked(batches)
        self._check_fenced()
        offsets = commit.offsets if commit is not None else {}
        self._check_exist(rows, offsets)
        others = self._ends_of_empty(rows)  # before the commit: a failure after it would look like a failed commit
        if not offsets and not any(rows.values()):
            return others
        with self._use():
            return self._transact(rows, commit, meanwhile) | others

    def _transact(
        self, rows: Rows, commit: GroupCommit | None, meanwhile: Callable[[], None] | None
    ) -> dict[TopicPartition, int]:
        renumbers = False
        while True:
            try:
                return self._attempt(rows, commit, meanwhile, renumbers=renumbers)
            except BatchRefused as refused:
                # Aborted as a whole, and written again with smaller batches. The client learns that its sequence
                # numbers are off from the first batch after that, and takes new ones with the next abort.
                renumbers = bool(refused.pieces)
                self._check_fenced()
                meanwhile = None
                if renumbers:
                    try:
                        self._narrow(refused)
                    except BaseException:  # this write ends here; the next one gets a producer with numbers of its own
                        self._cluster.release(self._transactional)
                        self._transactional = None
                        raise

    def _attempt(
        self, rows: Rows, commit: GroupCommit | None, meanwhile: Callable[[], None] | None, *, renumbers: bool
    ) -> dict[TopicPartition, int]:
        """One transaction. Raises BatchRefused once it is aborted, if a smaller batch, or the same, may be taken."""
        producer = self._ready()
        asked = False  # whether the broker was asked to commit
        unsent = Unsent(rows, self._cluster.limits)
        try:
            producer.begin()
            if commit is not None and commit.offsets and self._settled():
                # Before its offsets, so that the brokers get both at the same time.
                self._deliver(producer, unsent, partial(self._send_offsets, producer, commit), meanwhile)
            else:
                if commit is not None and commit.offsets:
                    self._send_offsets(producer, commit)
                self._deliver(producer, unsent, meanwhile=meanwhile)
            asked = True
            self._commit(producer)
            self._ended_ms = self._clock.monotonic_ms()
        except BaseException as error:
            if not isinstance(error, KafkaException):
                self._abort(producer, keeps=isinstance(error, BatchRefused))
                raise
            why = self._cluster.reason(producer, error, transactional=True)  # while the transaction is still there
            again = renumbers and why.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
            in_doubt = not self._abort(producer, keeps=again) and asked
            if again and not in_doubt:
                raise BatchRefused({}, why) from error
            raise self._meaning(why, self._needs(rows, commit), in_doubt=in_doubt) from error
        return unsent.ends

    def close(self) -> None:
        """Drop the producers; the transactional id keeps its owner. Twice is fine.

        Another thread may be in a call of this writer: that call goes on, and drops the producers at its end.
        """
        if not self._closed:
            self._closed = True
            self._release_unused()
            self._forget(self)

    def forked(self) -> None:
        """As in `forks.Owned`; called by its log."""
        self._closed = True

    @contextmanager
    def _use(self) -> Iterator[None]:
        """The block uses the producers, so that a `close` meanwhile leaves them to its end."""
        try:
            with self._using:
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1
        finally:
            if self._closed:
                self._release_unused()

    def _release_unused(self) -> None:
        """Release the producers, unless a call is under way: destroying a client under a call ends the process."""
        if not self._using.acquire(blocking=False):
            return
        try:
            if not self._depth:  # else a signal handler closes the writer within a call of the same thread
                self._cluster.release(self._prepared, self._plain, self._transactional)
                self._prepared = self._plain = self._transactional = None
        finally:
            self._using.release()

    def _settled(self) -> bool:
        """Whether the brokers are likely to have ended the last transaction."""
        return self._clock.monotonic_ms() - self._ended_ms >= SETTLE_MS

    # -- one transaction ----------------------------------------------------------------------------------------------

    def _ready(self) -> ProducerClient:
        """The transactional producer; a new one if the last transaction failed."""
        if self._transactional is None:
            if self._closed:
                raise Closed(f"writer of {self._fence.transactional_id!r} was closed: open a new one")
            made, self._prepared = self._prepared, None
            producer = made or self._cluster.connected(self._cluster.transactional(self._fence.transactional_id))
            with self._cluster.released_on_error(producer):
                self._initialise(producer)
            self._transactional = producer
        return self._transactional

    def _initialise(self, producer: ProducerClient) -> None:
        what = f"opening the writer of {self._fence.transactional_id!r}"
        # `init_transactions` fences the current holder of the id, so a writer that lost the id must not call it.
        self._fence.check()
        need = Need(TRANSACTIONAL_ID, self._fence.transactional_id, "WRITE")
        try:
            self._cluster.run(what, lambda: producer.init_transactions(self._cluster.timeout_s), need)
        except Fenced as error:
            self._fence.check()  # a newer claim is Fenced for ever; without one the task only needs another opening
            raise Unavailable(
                f"{self._cluster.where}: {what}: another producer of this id was initialised at the same time, "
                "though no owner claimed it since: try again"
            ) from error

    def _send_offsets(self, producer: ProducerClient, commit: GroupCommit) -> None:
        metadata = self._metadata_of(commit.group)
        if commit.member is not None:
            metadata = member_metadata(metadata, commit.member)
        producer.offsets(commit.offsets, metadata, self._cluster.timeout_s)

    def _commit(self, producer: ProducerClient) -> None:
        deadline_ms = self._clock.monotonic_ms() + self._cluster.timeout_ms
        while True:
            left_s = max(deadline_ms - self._clock.monotonic_ms(), 1) / 1_000
            try:
                producer.commit(left_s)
                return
            except KafkaException as error:
                if not error_of(error).retriable() or self._clock.monotonic_ms() >= deadline_ms:
                    raise

    def _abort(self, producer: ProducerClient, *, keeps: bool = False) -> bool:
        """End a failed transaction; returns whether the broker confirmed the abort.

        The producer is not used again, unless it `keeps` after a confirmed abort: after a record that the broker
        refused, its sequence numbers are off.
        """
        self._transactional = None
        try:
            producer.abort(self._cluster.timeout_s)
            if keeps:
                producer.delivered()  # the answers of this transaction are no answers of the next one
                self._transactional = producer
        except KafkaException as error:
            self._fenced = self._fenced or _says_fenced(error_of(error))
            return False
        finally:
            if self._transactional is None:
                self._cluster.release(producer)
        return True

    def _needs(self, rows: Rows, commit: GroupCommit | None) -> tuple[Need, ...]:
        """Permissions that a transaction takes."""
        written = [source for source, batch in rows.items() if batch]
        own = Need(TRANSACTIONAL_ID, self._fence.transactional_id, "WRITE")
        return (*write_needs(written), *(commit_needs(commit) if commit is not None else ()), own)

    def _meaning(self, found: KafkaError, needs: tuple[Need, ...], *, in_doubt: bool) -> Exception:
        """The port's error for one of a transaction; `in_doubt`: the commit was sent, and its abort is not certain."""
        what = f"transaction of {self._fence.transactional_id!r}"
        if self._fenced or _says_fenced(found):
            refused = self._fence.refused(in_doubt=in_doubt)
            self._fenced = isinstance(refused, Fenced)
            return refused
        translated = self._cluster.translate(found, what, *needs)
        return self._in_doubt(translated, f"{what} ({found.name()})") if in_doubt else translated

    def _in_doubt(self, error: StandfastError, what: str) -> StandfastError:
        """The error, marked as in doubt: the brokers may have taken the write, in whole or in part."""
        if isinstance(error, Unavailable):
            return CommitUnknown(
                f"{self._cluster.where}: {what}: no answer to its end, so it may or may not be written: open the "
                "task again and go on from its source offsets"
            )
        error.in_doubt = not isinstance(error, Fenced)
        return error

    # -- records ------------------------------------------------------------------------------------------------------

    def _ends_of_empty(self, rows: Rows) -> dict[TopicPartition, int]:
        """Next offsets of the partitions that get no record."""
        empty = [source for source, batch in rows.items() if not batch]
        return {source: bounds.end for source, bounds in bounds_of(self._cluster, empty, committed=False).items()}

    def _deliver(
        self,
        producer: ProducerClient,
        unsent: Unsent,
        offsets: Callable[[], None] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Give all records to the client, send `offsets`, do `meanwhile`, and wait for each record.

        Records of a topic that takes only small batches go in several rounds, each of which waits; all others in the
        first one. Raises BatchRefused, with the records of that round that were refused.
        """
        while True:
            self._round(producer, unsent, offsets, meanwhile)
            offsets = meanwhile = None
            if not unsent:
                return
            reach("writer.piece")

    def _round(
        self,
        producer: ProducerClient,
        unsent: Unsent,
        offsets: Callable[[], None] | None,
        meanwhile: Callable[[], None] | None,
    ) -> None:
        """Write the next piece of each partition."""
        pieces = unsent.round()
        # A second after the client's own time-out, whose errors name the reason.
        deadline_ms = self._clock.monotonic_ms() + self._cluster.timeout_ms + 1_000
        try:
            for source, batch in pieces.items():
                self._produce(producer, source, batch, deadline_ms)
            if offsets is not None:
                offsets()
            if meanwhile is not None:
                producer.flush(SEND_S)
                meanwhile()
        except KafkaException as error:
            if error_of(error).code() in VAGUE:  # a batch that was refused ends the transaction under all others
                producer.flush(ANSWERS_S)
                _check_sizes(producer.delivered(), pieces)
            raise
        # The client counts events, such as a token that is due, among its records. One that came behind the last
        # acknowledgement is served by the next flush; taken for a record, it would put all of them in doubt.
        while True:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            producer.flush(max(left_ms, 1) / 1_000)
            if left_ms <= 0 or not len(producer):
                break
        answers = producer.delivered()
        for source, found in answers.items():
            if found.error is not None and found.error.code() not in TOO_LARGE:
                if found.error.code() in VAGUE:  # as above
                    _check_sizes(answers, pieces)
                self._cluster.forget(source.topic)
                raise self._delivery_error(source, found.error, found.size)
            if found.error is None and found.next_offset is None:
                raise Unavailable(
                    f"{self._cluster.where}: {source}: no acknowledgement within "
                    f"{duration_text(self._cluster.timeout_ms)}: try again"
                )
        if len(producer):
            raise Unavailable(
                f"{self._cluster.where}: {len(producer)} records were not acknowledged within "
                f"{duration_text(self._cluster.timeout_ms)}: try again"
            )
        for source, found in answers.items():
            if found.error is None and found.next_offset is not None:
                unsent.acknowledged(source, found.next_offset)
        _check_sizes(answers, pieces)

    def _narrow(self, refused: BatchRefused) -> None:
        """Let the next batches of these topics be smaller. Raises RecordRefused if one record is at fault."""
        limits = self._cluster.limits
        learn_limits(self._cluster, dict.fromkeys(source.topic for source in refused.pieces))  # lowered since, maybe
        for source, piece in refused.pieces.items():
            if len(piece) == 1:
                limits.refuse(source.topic, *piece.record(0))
                raise self._refused_record(source, piece, refused.error)
            fitting = piece.pieces(limits.batch_bytes(source.topic))
            for one in fitting:
                if len(one) == 1 and limits.problem(source.topic, *one.record(0)):
                    raise self._refused_record(source, one, refused.error)
            if len(fitting) == 1:  # by all that is known it should have been taken
                limits.narrow(source.topic, sum(most_bytes(*piece.record(at)) for at in range(len(piece))))

    def _refused_record(self, source: TopicPartition, one: Columns, error: KafkaError) -> RecordRefused:
        key, size, most = one.keys[0], one.size_of(0), self._cluster.limits.record_bytes(source.topic)
        limit = "" if most is None else f" of {most} bytes"
        return RecordRefused(
            f"{self._cluster.where}: {source}: a record of {size} bytes with key {key!r:.200} is larger than the limit"
            f"{limit} of its topic ({error.name()}): {fix_of(source.topic)}",
            *source, key, size,
        )  # fmt: skip

    def _produce(self, producer: ProducerClient, source: TopicPartition, batch: Columns, deadline_ms: int) -> None:
        """Give a partition's records to the client; raises Unavailable if its queue stays full."""
        at = 0
        while at < len(batch):
            left_ms = deadline_ms - self._clock.monotonic_ms()
            try:
                taken = producer.produce(source, batch, at, max(left_ms, 0))
            except KafkaException as error:
                found = error_of(error)
                if found.code() in TOO_LARGE:  # for the client itself
                    raise BatchRefused({source: batch.piece(at, at + 1)}, found) from error
                if found.code() != KafkaError._UNKNOWN_PARTITION or left_ms < 0:
                    raise self._delivery_error(source, found, batch.size_of(at)) from error
                self._learn_partitions(producer, source)
                continue
            if taken == at and left_ms < 0:
                raise Unavailable(f"{self._cluster.where}: {source}: the client's queue stayed full: try again")
            at = taken

    def _learn_partitions(self, producer: ProducerClient, source: TopicPartition) -> None:
        """Refresh the producer's metadata: the partition exists, but was added after this client's last request."""
        self._cluster.reading(f"writing to {source}", partial(producer.learn, source.topic))
        self._clock.sleep_ms(RETRY_MS)

    def _delivery_error(self, source: TopicPartition, error: KafkaError, size: int) -> Exception:
        """The error for a refused record of so many bytes."""
        if error.code() in FENCED or error.code() in VAGUE:
            return KafkaException(error)
        what = f"writing to {source}, a record of {size} bytes"
        return self._cluster.translate(error, what, *write_needs([source]))

    # -- checks -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"writer of {self._fence.transactional_id!r} was closed: open a new one")

    def _check_fenced(self) -> None:
        if self._fenced:
            refused = self._fence.refused()
            self._fenced = isinstance(refused, Fenced)
            raise refused

    def _checked(self, batches: Batches) -> Rows:
        sources = [TopicPartition(*source) for source in batches]
        return {source: checked(source, batches[source]) for source in sources}

    def _check_exist(
        self,
        written: Mapping[TopicPartition, object],
        committed: Mapping[TopicPartition, object] = MappingProxyType({}),
    ) -> None:
        """Raise UnknownStore for an absent partition; one that was found a moment ago counts as present."""
        reads, writes = ({source[0] for source in some} for some in (committed, written))
        self._cluster.check_new((*written, *committed), dict.fromkeys(reads, "READ") | dict.fromkeys(writes, "WRITE"))
        if unasked := self._cluster.limits.unasked(writes):
            learn_limits(self._cluster, unasked)


def _check_sizes(answers: Mapping[TopicPartition, Delivered], pieces: Rows) -> None:
    """Raise BatchRefused with the pieces of these partitions that were refused for their size."""
    refused = {source: one.error for source, one in answers.items() if one.error and one.error.code() in TOO_LARGE}
    if refused:
        raise BatchRefused({source: pieces[source] for source in refused}, next(iter(refused.values())))


def _says_fenced(error: KafkaError) -> bool:
    return error.code() in FENCED or (error.fatal() and "fenced" in error.str().lower())
