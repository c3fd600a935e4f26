"""Request and answer of a sidecar's commit: plain values.

    SF.COMMIT SEQ 7 GROUP g OFFSETS flights 0 4712   ─>  CommitRequest ─> CommitAnswer(epoch, seq, changes)

Rules of this file: pure. A request is checked when it is made, so one that cannot be committed does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from standfast.ops.shared.error_codes import BAD_BATCH, STALE_EPOCH, Refused
from standfast.replication.log import ConsumerMember
from standfast.store.errors import InvalidRequest
from standfast.stream.source_offsets import checked_shape

SEQ_MAX = 2**63 - 1
SOURCES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """One commit. `offsets`: next offset to process by (topic, partition). `seq`, if given, makes it repeatable:
    the same number with the same offsets in the same epoch is answered, and not committed a second time.

    `generation` and `member` are the caller's in its consumer group. `checkpoint`: RocksDB's memtables become files.
    """

    seq: int | None = None
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    group: str | None = None
    generation: int | None = None
    member: str | None = None
    epoch: int | None = None
    checkpoint: bool = False

    def __post_init__(self) -> None:
        for name in ("seq", "generation", "epoch"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= SEQ_MAX:
                raise Refused(BAD_BATCH, f"{name} of a commit is {value}: give a whole number from 0 to 2**63-1")
        if len(self.offsets) > SOURCES_MAX:
            raise Refused(BAD_BATCH, f"{len(self.offsets)} source offsets in one commit: {SOURCES_MAX} at most")
        try:
            checked_shape(self.offsets)
        except InvalidRequest as error:
            raise Refused(BAD_BATCH, str(error)) from error
        # The broker refuses a member without a generation and the reverse, after the transaction has begun.
        if (self.generation is None) != (self.member is None):
            raise Refused(BAD_BATCH, "GEN and MEMBER name a member of the consumer group together: give both")

    @property
    def consumer(self) -> ConsumerMember | None:
        """The consumer that read the records, if the caller named it."""
        if self.generation is None or self.member is None:
            return None
        return ConsumerMember(self.generation, self.member)


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The batch that ended with a commit: its replies, a digest of its requests, and the stores that it touched, each
    with whether it was written. Kept for a client that sends the same batch again."""

    replies: tuple[bytes, ...] = ()
    digest: bytes = b""
    touched: frozenset[tuple[str, bool]] = frozenset()


ALONE = CommittedBatch()  # a commit outside of a batch


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """The acknowledgement: every write before the request survives from now on.

    `changes`: number of records that went to changelogs. A repeat gets the answer of the first.
    """

    epoch: int
    seq: int | None
    changes: int
    kept: CommittedBatch = ALONE


class CommitRepeats:
    """The last numbered commit of one epoch of a task, so that a repeat can be recognised."""

    def __init__(self) -> None:
        self._epoch = -1
        self._request: CommitRequest | None = None
        self._answer: CommitAnswer | None = None

    def answer(self, request: CommitRequest, epoch: int) -> CommitAnswer | None:
        """The answer of the first, if this request repeats it; None for a new commit.

        Raises Refused: STALE_EPOCH for another epoch than the task's, BAD_BATCH for a number that went back, or that
        was used with other offsets.
        """
        if request.epoch is not None and request.epoch != epoch:
            raise Refused(
                STALE_EPOCH, f"epoch {request.epoch} is not the task's epoch, {epoch}: read the source offsets again"
            )
        last, seq = self._request, request.seq
        # Numbers count within one epoch: after a reopen the client learns from the offsets whether its commit happened.
        if seq is None or last is None or last.seq is None or self._epoch != epoch or seq > last.seq:
            return None
        if seq < last.seq:
            raise Refused(BAD_BATCH, f"SEQ {seq} is below {last.seq}, the last of epoch {epoch}: numbers only grow")
        # Other offsets are another commit: answered as a repeat, it would be lost.
        if request.offsets != last.offsets:
            raise Refused(BAD_BATCH, f"SEQ {seq} was committed with other offsets: give the next commit a new number")
        return self._answer

    def keep(self, request: CommitRequest, answer: CommitAnswer) -> None:
        """Remember this request and its answer as the last committed ones."""
        if request.seq is not None:
            self._epoch, self._request, self._answer = answer.epoch, request, answer
