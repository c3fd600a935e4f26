"""SF.COMMIT and its companions: source offsets, stream time, readiness, status.

    SF.COMMIT [SEQ n] [EPOCH e] [CHECKPOINT] [GROUP g [GEN e MEMBER m]] [OFFSETS topic partition offset ...]
        -> [epoch, seq, changes]      every write before it survives from now on; OFFSETS stands last, and
                                      needs EPOCH, or a connection that wrote or asked SF.OFFSETS since the opening;
                                      after a discard, a connection that asked SF.OFFSETS since
    SF.OFFSETS                 -> [topic, partition, offset, ...]   begin there: uncommitted writes are discarded
    SF.TIME [ms]               -> the stream time of the task       and the timestamp of writes that name none
    SF.WAITREADY ms            -> OK once the partition can be used; LOADING after so many milliseconds
    SF.STATUS                  -> a map for people and programs; changes nothing

Rules of this file: from arguments to calls of the engine, and back to replies.
"""

from __future__ import annotations

from collections.abc import Callable

from standfast.ops.shared.error_codes import BAD_REQUEST, NOT_UP_TO_BOUND, RESTORING, Refused, message_of, reason_of
from standfast.ops.sidecar.engine.commit import ALONE, CommitAnswer, CommitRequest, CommittedBatch
from standfast.ops.sidecar.engine.task import Commit
from standfast.ops.sidecar.resp.arguments import text, whole
from standfast.ops.sidecar.resp.connection import Answer, Connection, Offload, Until
from standfast.ops.sidecar.resp.replies import OK, Value, encode, integer, replies
from standfast.store.errors import StandfastError
from standfast.stream.stream_time import CLOCK_KEY

_TAKES = {b"SEQ": 1, b"EPOCH": 1, b"CHECKPOINT": 0, b"GROUP": 1, b"GEN": 1, b"MEMBER": 1}


def commit_request(args: list[bytes]) -> CommitRequest:
    """The request of an SF.COMMIT. Raises Refused."""
    found: dict[bytes, bytes] = {}
    offsets: dict[tuple[str, int], int] = {}
    at = 1
    while at < len(args):
        option = args[at].upper()
        # The list has no end mark, so OFFSETS comes last.
        if option == b"OFFSETS":
            offsets = _offsets(args[at + 1 :])
            break
        takes = _TAKES.get(option)
        if takes is None or option in found or at + takes >= len(args):
            raise Refused(
                BAD_REQUEST,
                f"argument {at} of SF.COMMIT: expected SEQ n, EPOCH e, CHECKPOINT, GROUP g, GEN e, MEMBER m (each "
                "once), and OFFSETS topic partition offset ... at the end",
            )
        found[option] = args[at + takes]
        at += 1 + takes
    numbers = {name: whole(found[name], name.decode()) for name in (b"SEQ", b"EPOCH", b"GEN") if name in found}
    texts = {name: text(found[name], name.decode()) for name in (b"GROUP", b"MEMBER") if name in found}
    return CommitRequest(
        seq=numbers.get(b"SEQ"),
        offsets=offsets,
        group=texts.get(b"GROUP"),
        generation=numbers.get(b"GEN"),
        member=texts.get(b"MEMBER"),
        epoch=numbers.get(b"EPOCH"),
        checkpoint=b"CHECKPOINT" in found,
    )


def _offsets(args: list[bytes]) -> dict[tuple[str, int], int]:
    if not args or len(args) % 3:
        raise Refused(BAD_REQUEST, "OFFSETS takes topic, partition and next offset of each source partition")
    offsets: dict[tuple[str, int], int] = {}
    for topic, partition, offset in zip(args[::3], args[1::3], args[2::3], strict=True):
        source = text(topic, "topic"), whole(partition, "partition", most=2**31 - 1)
        if source in offsets:
            raise Refused(BAD_REQUEST, f"OFFSETS names {source[0]}-{source[1]} twice")
        offsets[source] = whole(offset, "offset")
    return offsets


def answer_reply(c: Connection, answer: CommitAnswer) -> bytes:
    """The acknowledgement."""
    return replies([integer(answer.epoch), encode(answer.seq, c.version), integer(answer.changes)])


def commit(c: Connection, args: list[bytes]) -> Answer:
    """SF.COMMIT [SEQ n] [EPOCH e] [CHECKPOINT] [GROUP g [GEN e MEMBER m]] [OFFSETS topic partition offset ...]."""
    return run_commit(c, commit_request(args), ALONE, lambda answer: answer_reply(c, answer))


def run_commit(
    c: Connection, request: CommitRequest, kept: CommittedBatch, reply: Callable[[CommitAnswer], bytes]
) -> Answer:
    """Begin a commit, and answer when it is done; `kept` is the batch before it, for a repeat."""
    c.stores.check_may_write()
    begun = c.engine.begin_commit(c.binding, request)
    if not isinstance(begun, Commit):
        return reply(begun)
    begun.kept = kept
    # In a thread: on the loop, a commit of 500 rows would hold up every client for its sync.
    return Offload(begun.run, lambda: reply(c.engine.end_commit(begun)))


def offsets(c: Connection, args: list[bytes]) -> Answer:
    """SF.OFFSETS: where to read on, with nothing uncommitted; binds the connection again."""
    c.stores.check_may_write()
    found = c.engine.restart(c.binding)
    # Stores are looked up again: the connection is bound to a task that may be another object.
    c.stores.forget()
    flat: list[Value] = []
    for (topic, partition), offset in sorted(found.items()):
        flat += [topic, partition, offset]
    return encode(flat, c.version)


def time(c: Connection, args: list[bytes]) -> Answer:
    """SF.TIME [ms]: the stream time, which never goes back."""
    if len(args) == 1:
        return encode(c.engine.task(c.binding).task.stream_times.get(CLOCK_KEY), c.version)
    stamp = whole(args[1], "stream time")
    c.stores.check_may_write()
    # As a write: the time is undone with a batch that fails, and with the writes of a lost connection.
    times = c.engine.write(c.binding, adds=False).task.stream_times
    times[CLOCK_KEY] = max(stamp, times.get(CLOCK_KEY, stamp))
    c.binding.timestamp_ms = c.now_ms = stamp
    return integer(times[CLOCK_KEY])


def wait_ready(c: Connection, args: list[bytes]) -> Answer:
    """SF.WAITREADY ms: the restore gate as one call."""
    clock = c.engine.clock
    deadline_ms = clock.monotonic_ms() + whole(args[1], "milliseconds", most=c.context.limits.wait_ms)

    def ask() -> bytes | None:
        try:
            c.engine.source.running(c.binding.partition)
        except StandfastError as error:
            waits = reason_of(error) in (RESTORING, NOT_UP_TO_BOUND)
            if not waits or clock.monotonic_ms() >= deadline_ms:
                raise
            return None
        return OK

    answer = ask()
    return Until(ask) if answer is None else answer


def status(c: Connection, args: list[bytes]) -> Answer:
    """SF.STATUS: the task that this connection is bound to, and its state."""
    engine, binding = c.engine, c.binding
    found: dict[str, Value] = {
        "partition": binding.partition,
        "store": binding.store,
        "generation": engine.generation,
        "draining": int(engine.draining),
        "partitions": {str(number): state for number, state in engine.source.partitions().items()},
        "missing": list(engine.source.missing()),
    }
    try:
        held = engine.task(binding)
    except StandfastError as error:
        found |= {"state": reason_of(error).name, "why": message_of(error)}
        return encode(found, c.version)
    task = held.task
    found |= {
        "state": "COMMITTING" if held.commit is not None else "READY",
        "epoch": task.epoch,
        "stores": {name: store.spec.kind for name, store in task.stores.stores.items()},
        "uncommitted_bytes": task.stores.buffer.held_bytes,
        "lost": held.unread(binding) or None,
        "stream_time_ms": task.stream_times.get(CLOCK_KEY),
        "offsets": {f"{at.topic}/{at.partition}": offset for at, offset in sorted(task.source_offsets().items())},
    }
    return encode(found, c.version)
