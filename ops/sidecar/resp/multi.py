"""MULTI, EXEC, DISCARD: one atomic apply into the bound task, over any of its stores.

    MULTI, SF.PUT a .., SF.WPUT b .., EXEC             all of it or nothing; not durable yet
    MULTI, SF.PUT a .., SF.COMMIT SEQ 7 ... , EXEC     and durable: repeated under the same number, the writes are not
                                                       made again, and the replies are the first ones

Rules of this file: EXEC answers every request at once, in the engine's thread, but for the commit at its end.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from hashlib import blake2b

from standfast.ops.shared.error_codes import BAD_BATCH, INTERNAL, TOO_LARGE, Refused, message_of, reason_of
from standfast.ops.sidecar.engine.commit import ALONE, CommitAnswer, CommittedBatch
from standfast.ops.sidecar.engine.task import MustWait
from standfast.ops.sidecar.resp.commit import answer_reply, commit_request, run_commit
from standfast.ops.sidecar.resp.connection import Answer, Command, Connection
from standfast.ops.sidecar.resp.replies import OK, plain_error, replies
from standfast.ops.sidecar.resp.scans import BYTES_MAX
from standfast.store.errors import StandfastError

COMMIT = "SF.COMMIT"
# One batch per task is kept, and many tasks may be open.
REPLIES_KEPT_BYTES = 64 << 10

Queue = list[tuple[Command, list[bytes]]]


def multi(c: Connection, args: list[bytes]) -> Answer:
    """MULTI: keep the requests that follow."""
    c.begin_multi()
    return OK


def discard(c: Connection, args: list[bytes]) -> Answer:
    """DISCARD: drop the kept requests."""
    c.end_multi()
    return OK


def execute(c: Connection, args: list[bytes]) -> Answer:
    """EXEC: run the kept requests: all of them, or none."""
    queue, spoilt = c.end_multi()
    if spoilt:
        return plain_error("EXECABORT Transaction discarded because of previous errors.")
    if not queue:
        return replies([])
    touched: set[tuple[str, bool]] = set()
    c.stores.touched = touched
    try:
        return _execute(c, queue, touched)
    except MustWait:
        c.keep_multi(queue)
        raise
    finally:
        c.stores.touched = None


def _execute(c: Connection, queue: Queue, touched: Set[tuple[str, bool]]) -> Answer:
    names = [command.name for command, _ in queue]
    if COMMIT in names[:-1]:
        raise Refused(BAD_BATCH, "SF.COMMIT must be the last request of a MULTI; nothing of this MULTI was applied")
    if names[-1] != COMMIT:
        return replies(_apply(c, queue))
    c.stores.check_may_write()
    request = commit_request(queue[-1][1])
    # Before anything is applied: offsets from a connection that missed a discard must not bring writes with them.
    repeated = c.engine.check_commit(c.binding, request)
    digest = _digest(c, queue[:-1])
    if repeated is not None:
        return _repeat(c, repeated, digest)
    c.stores.forget()  # so that every store of the batch is found within it
    answers = _apply(c, queue[:-1])
    small = sum(map(len, answers)) <= REPLIES_KEPT_BYTES
    kept = CommittedBatch(tuple(answers) if small else tuple([OK] * len(answers)), digest, frozenset(touched))
    return run_commit(c, request, kept, lambda answer: replies([*answers, answer_reply(c, answer)]))


def _repeat(c: Connection, answer: CommitAnswer, digest: bytes) -> bytes:
    """The first replies, for the same batch, to a client that may use every store that it touched."""
    if answer.kept.digest != digest:
        raise Refused(BAD_BATCH, "this SEQ was committed with another batch: give the next commit a new number")
    # Kept replies went to any sender of the number once, whatever its token allowed.
    for store, write in sorted(answer.kept.touched):
        c.stores.check(store, write=write)
    return replies([*answer.kept.replies, answer_reply(c, answer)])


def _digest(c: Connection, queue: Queue) -> bytes:
    """Digest of the requests before the commit, and of the default store that they may mean."""
    if not queue:
        return ALONE.digest
    parts = [[(c.binding.store or "").encode()], *([command.name.encode(), *args[1:]] for command, args in queue)]
    whole = blake2b(digest_size=16)
    for part in parts:
        # With lengths, so that two different batches never give the same bytes.
        whole.update(b"%d:" % len(part))
        for one in part:
            whole.update(b"%d:%b" % (len(one), one))
    return whole.digest()


def _apply(c: Connection, queue: Queue) -> list[bytes]:
    timestamp_ms, now_ms = c.binding.timestamp_ms, c.now_ms
    left = [BYTES_MAX]
    steps = [partial(_step, c, number, command, args, left) for number, (command, args) in enumerate(queue, 1)]
    try:
        # Reads alone need no savepoint, and do not wait for a commit.
        if all(command.kind == "read" for command, _ in queue):
            return [step() for step in steps]
        return c.engine.apply(c.binding, steps)
    except BaseException:
        # An SF.TIME of the failed batch would stay otherwise.
        c.binding.timestamp_ms, c.now_ms = timestamp_ms, now_ms
        raise


def _step(c: Connection, number: int, command: Command, args: list[bytes], left: list[int]) -> bytes:
    """Run one request; `left` is the number of bytes that the reply to all of them may still have."""
    command.counters.calls += 1
    try:
        answer = command.handler(c, args)
    except StandfastError as failure:
        raise Refused(
            reason_of(failure),
            f"{message_of(failure)} (request {number} of this MULTI, {command.name}; nothing of it was applied)",
        ) from failure
    if not isinstance(answer, bytes):
        raise Refused(INTERNAL, f"{command.name} cannot be answered within MULTI")
    left[0] -= len(answer)
    if left[0] < 0:
        raise Refused(TOO_LARGE, f"more than {BYTES_MAX} bytes in the reply to this MULTI; nothing of it was applied")
    return answer
