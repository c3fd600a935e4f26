"""One connection of the RESP server, without its socket: requests in, bytes out, in order.

    push(requests) ─> run ─> take() -> bytes to write
                       │
       waits           ├─ Offload      a commit or a long scan runs elsewhere     the shell calls `done`
                       ├─ MustWait     its task commits, or too many others scan  the task or `Scans` calls back
                       └─ Until        SF.WAITREADY                               the shell calls `poll` now and then

Rules of this file: no socket, no thread, no loop. Requests of one connection are answered in their order, so while it
waits nothing of it runs. A refusal answers one request; only bytes that are no request end the connection. Commands
find their stores through `stores`, whose `reads` and `writes` hold for one run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, NamedTuple, TypeAlias

from standfast.ops.shared.error_codes import (
    BAD_REQUEST,
    LIMIT,
    NOAUTH,
    TOO_LARGE,
    Refused,
    message_of,
    reason_of,
)
from standfast.ops.sidecar.engine.engine import TaskEngine
from standfast.ops.sidecar.engine.statistics import MethodCounters
from standfast.ops.sidecar.engine.task import MustWait, Waited
from standfast.ops.sidecar.resp.budget import Budget, request_bytes
from standfast.ops.sidecar.resp.replies import NIL, QUEUED, error, plain_error
from standfast.ops.sidecar.resp.stores import EVERYTHING, ConnectionStores, Grant
from standfast.store.errors import StandfastError
from standfast.store.log import as_event, logger

RUN_REQUESTS_MAX = 512  # then other connections get their turn
RUN_BYTES_MAX = 1 << 20
CROWDED = "the requests of all clients take the memory that limits.replies_max gives them: send it again later"
LARGE_BYTES = 4096  # replies below are bounded by their number


class CallLimits(NamedTuple):
    """Limits of one step: `batch_ops` requests of a MULTI, or keys of one command, with `batch_bytes` in all.

    `wait_ms`: the longest wait that a client may ask for.
    """

    batch_ops: int = 10_000
    batch_bytes: int = 16 << 20
    wait_ms: int = 3_600_000

    def check_keys(self, keys: int) -> None:
        """Raise Refused TOO_LARGE for a command over more keys than one step takes."""
        if keys > self.batch_ops:
            raise Refused(TOO_LARGE, f"{keys} keys in one command: {self.batch_ops} at most, split it")


USUAL = CallLimits()

Authenticate: TypeAlias = Callable[[bytes], "Grant | None"]


class Offload(NamedTuple):
    """Work that may take long: `work` in any thread, then `then` in the engine's, whose reply is the answer."""

    work: Callable[[], None]
    then: Callable[[], bytes]


class Until(NamedTuple):
    """An answer that comes later: `ask` is called from time to time until it returns one."""

    ask: Callable[[], bytes | None]


Answer: TypeAlias = "bytes | Offload | Until"
Handler: TypeAlias = Callable[["Connection", list[bytes]], Answer]
# Several requests in one step, from the first on: the number of answered requests, and the reply to each of them.
Run: TypeAlias = Callable[["Connection", Iterable[list[bytes]]], tuple[int, bytes]]


@dataclass(slots=True)
class Command:
    """One command: its handler, how many arguments with its name, and where it may stand.

    `kind`: "read" and "write" belong to a task and may stand in a MULTI; "open" needs no authentication; "multi" is run
    at once within one; "refused" is a command of Redis that is not there, and its handler says why.
    `run` answers several that stand together, where that is quicker. `store`: whose right it needs: that of its
    first argument ("named"), of the connection's store ("own"), of the whole task ("task"), or none ("").
    """

    name: str
    handler: Handler
    least: int
    most: int
    counters: MethodCounters
    kind: str = ""
    run: Run | None = None
    store: str = ""


class RespContext(NamedTuple):
    """The parts that all connections of one server share. `find`: a command by a name in another spelling than `table`.

    `authenticate` None: no connection needs a token. `revision` changes when tokens do: then each is checked again.
    `offload` runs an Offload and then calls `done` of the connection. `scans`: the bound of long scans at a time.
    `budget`: the bytes that all connections hold.
    """

    engine: TaskEngine
    table: dict[bytes, Command]
    find: Callable[[bytes], Command]
    offload: Callable[[Connection, Offload], None]
    cursors: Any
    version: str
    authenticate: Authenticate | None = None
    limits: CallLimits = USUAL
    revision: Callable[[], int] = int
    scans: Any = None
    budget: Budget = Budget(256 << 20)


class Connection:
    """The state of one client."""

    __slots__ = (
        "_context",
        "_last",
        "_out",
        "_queue",
        "_queue_bytes",
        "_queue_held",
        "_revision",
        "_spoilt",
        "_todo",
        "_token",
        "binding",
        "closed",
        "ending",
        "engine",
        "id",
        "label",
        "nil",
        "now_ms",
        "on_resume",
        "reads",
        "stores",
        "version",
        "waiting",
        "writes",
    )  # fmt: skip

    def __init__(self, context: RespContext, number: int, on_resume: Callable[[], None]) -> None:
        self._context = context
        self.engine = context.engine
        self.binding = context.engine.connect()
        self.id = number
        self.label = b""
        self.version = 2
        self.nil = NIL[2]
        self.stores = ConnectionStores(
            context.engine, self.binding, EVERYTHING if context.authenticate is None else None
        )
        self.reads, self.writes = self.stores.reads, self.stores.writes
        self._token: bytes | None = None  # behind the grant
        self._revision = context.revision()
        self.now_ms = 0
        self.waiting: object | None = None  # an Offload, an Until, or an object whose `waiting` calls back
        self.ending = False  # close after the pending replies are written
        self.closed = False
        self.on_resume = on_resume
        self._out: list[bytes] = []
        self._last: bytes | None = None  # the last reply; after it no request is taken
        self._todo: deque[list[bytes]] = deque()
        self._queue: list[tuple[Command, list[bytes]]] | None = None  # of a MULTI
        self._queue_bytes = 0
        self._queue_held = 0  # of the budget
        self._spoilt = False

    @property
    def context(self) -> RespContext:
        """The parts shared with the other connections."""
        return self._context

    @property
    def backlog(self) -> int:
        """Requests that wait for their turn."""
        return len(self._todo)

    @property
    def in_exec(self) -> bool:
        """Whether a MULTI is being applied: then every request is answered at once."""
        return self.stores.touched is not None

    @property
    def in_multi(self) -> bool:
        """Between MULTI and EXEC."""
        return self._queue is not None

    def push(self, requests: Iterable[list[bytes]]) -> None:
        """More requests, to be run after those that wait."""
        self._todo.extend(requests)

    def take(self) -> bytes:
        """The bytes to write now."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    @property
    def polls(self) -> bool:
        """Whether an answer must be asked for again."""
        return isinstance(self.waiting, Until)

    def fail(self, message: str) -> None:
        """Protocol error: answer earlier requests, send the error, then end."""
        self.finish(plain_error(f"ERR {message}"))

    def finish(self, last: bytes = b"") -> None:
        """Take no more requests: answer those that came, send `last`, and end. Only SF.WAITREADY is given up."""
        # The first reason counts: a protocol error is followed by the end of the socket's input.
        if self._last is None:
            self._last = last
        # The gate may stay shut for long, and no client waits for the answer any more.
        if isinstance(self.waiting, Until):
            self.waiting = None
            self._todo.clear()

    @property
    def finishing(self) -> bool:
        """Whether it takes no more requests."""
        return self._last is not None

    def close(self) -> None:
        """The client is gone. Twice is fine."""
        if not self.closed:
            self.closed = True
            self._todo.clear()
            self._out.clear()
            self._drop_queue()
            if isinstance(self.waiting, Until):
                self.waiting = None
            # The shell holds the connection and is called by it: memory in that circle waited for the collector.
            self.on_resume = _gone
            self.stores.close()
            self.engine.disconnect(self.binding)

    def run(self) -> bool:
        """Answer requests until none is left, one must wait, or others should get their turn: then True."""
        if self.waiting is not None or self.closed:
            return False
        self.fresh()
        todo, out = self._todo, self._out.append
        table, find, stores = self._context.table.get, self._context.find, self.stores
        left, size, together = RUN_REQUESTS_MAX, 0, True
        while todo and not self.ending:
            args = todo[0]
            if not args:
                # An empty array is no command; Redis answers nothing to it either.
                todo.popleft()
                continue
            command = table(args[0]) or find(args[0])
            try:
                if self._queue is None and stores.grant is not None and command.least <= len(args) <= command.most:
                    if together and command.run is not None and len(todo) > 1:
                        # Plain SETs of a pipeline in one step cost about half of the same SETs one by one.
                        done, each = command.run(self, islice(todo, left))
                        if done:
                            deque(map(deque.popleft, repeat(todo, done)), maxlen=0)
                            out(each * done)
                            command.counters.calls += done
                            left -= done
                            if not left:
                                return bool(todo) or self._last is not None
                            continue
                        together = False  # one of them is special, or refused: looked for once
                    answer = command.handler(self, args)
                else:
                    answer = self._unusual(command, args)
            except MustWait as wait:
                self._wait_for(wait.held)
                # The request stays in the queue: it runs again from its start once the task is free.
                return False
            except Exception as failure:  # noqa: BLE001  answered to the client; the next request may be a good one
                answer = self.refuse(command.name, failure)
            todo.popleft()
            command.counters.calls += 1
            if type(answer) is not bytes:
                # A commit that began is answered even where the client sends no more.
                if self._last is None or isinstance(answer, Offload):
                    self._wait(answer)
                    return False
                todo.clear()
                break
            out(answer)
            left -= 1
            if len(answer) > LARGE_BYTES:
                size += len(answer)
            if not left or size > RUN_BYTES_MAX:
                return (bool(todo) or self._last is not None) and not self.ending
        if self._last is not None and not self.ending:
            out(self._last)
            self.ending = True
        return False

    def fresh(self) -> None:
        """Begin a run: stores are looked up again, and the time is read again."""
        stamp = self.binding.timestamp_ms
        self.now_ms = self.engine.clock.wall_ms() if stamp is None else stamp
        self.stores.forget()
        revision = self._context.revision()
        if revision != self._revision:
            self._revision = revision
            self._look_again()

    def authenticated(self, grant: Grant, token: bytes) -> None:
        """Set the actor behind the connection from now on."""
        self.stores.grant, self._token, self._revision = grant, token, self._context.revision()

    def _look_again(self) -> None:
        """Check the token again after a reload: a removed one loses its rights, and its uncommitted writes."""
        authenticate, token = self._context.authenticate, self._token
        if authenticate is not None and token is not None:
            self.stores.grant = authenticate(token)
            if self.stores.grant is None:
                self._token = None
                self.end_multi_early()
                self.engine.reset(self.binding)

    def refuse(self, method: str, failure: BaseException) -> bytes:
        """The reply for an error, which is counted by its error code."""
        reason = reason_of(failure)
        self.engine.counters.refusals[method, reason.name] += 1
        if not isinstance(failure, StandfastError):
            # Without the text of the error, which may hold keys or values.
            frames, trace = [], failure.__traceback__
            while trace is not None:
                frames.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
                trace = trace.tb_next
            logger.error(
                "%s: %s at %s",
                method,
                type(failure).__name__,
                " <- ".join(reversed(frames)),
                extra=as_event("resp_failed", method=method, error_class=type(failure).__name__),
            )
        return error(reason, message_of(failure))

    # -- MULTI --------------------------------------------------------------------------------------------------------

    def begin_multi(self) -> None:
        """Keep requests from now on."""
        if self._queue is not None:
            raise Refused(BAD_REQUEST, "MULTI calls can not be nested")
        self._queue, self._queue_bytes, self._spoilt = [], 0, False
        self._queue_held = 0

    def end_multi(self) -> tuple[list[tuple[Command, list[bytes]]], bool]:
        """The kept requests, and whether one of them was refused."""
        if self._queue is None:
            raise Refused(BAD_REQUEST, "EXEC or DISCARD without MULTI")
        queue = self._queue
        self._drop_queue()
        self._queue = None
        return queue, self._spoilt

    def keep_multi(self, queue: list[tuple[Command, list[bytes]]]) -> None:
        """Undo `end_multi`: the EXEC has to wait and comes again."""
        self._queue = queue
        self._queue_held = sum(request_bytes(args) for _, args in queue)
        self._context.budget.queues += self._queue_held

    def end_multi_early(self) -> None:
        """Drop the kept requests, so that their memory is free; EXEC answers that none of them was applied."""
        if self._queue is not None:
            self._spoilt = True
            self._drop_queue()

    def _drop_queue(self) -> None:
        self._context.budget.queues -= self._queue_held
        self._queue_held = 0
        if self._queue is not None:
            self._queue = []

    def _unusual(self, command: Command, args: list[bytes]) -> Answer:
        """A request before login, within MULTI, or with a wrong number of arguments."""
        if self.stores.grant is None and command.kind != "open":
            raise Refused(NOAUTH, "authentication required: AUTH store token")
        wrong = not command.least <= len(args) <= command.most
        if not wrong and (self._queue is None or command.kind == "multi"):
            return command.handler(self, args)
        try:
            if wrong:
                raise Refused(BAD_REQUEST, f"wrong number of arguments for '{command.name}' command")
            return self._keep(command, args)
        except Refused:
            # As in Redis: EXEC of a MULTI with a refused request applies none of it.
            self.end_multi_early()
            raise

    def _keep(self, command: Command, args: list[bytes]) -> Answer:
        """Queue a request of a MULTI. Raises Refused."""
        if command.kind == "refused":
            return command.handler(self, args)
        if command.kind not in ("read", "write"):
            raise Refused(BAD_REQUEST, f"{command.name} is not allowed within MULTI")
        if self._spoilt or self._queue is None:
            return QUEUED  # as in Redis; EXEC drops it
        # Here, and at EXEC again: a client learns of a missing right before it sends the rest.
        self.stores.check_queued(command, args)
        self._queue_bytes += sum(map(len, args))
        limits, budget, held = self._context.limits, self._context.budget, request_bytes(args)
        if len(self._queue) >= limits.batch_ops or self._queue_bytes > limits.batch_bytes:
            raise Refused(TOO_LARGE, f"MULTI takes {limits.batch_ops} requests and {limits.batch_bytes} bytes at most")
        if not budget.takes(held):
            raise Refused(LIMIT, CROWDED)
        self._queue.append((command, args))
        self._queue_held += held
        budget.queues += held
        return QUEUED

    # -- waiting ------------------------------------------------------------------------------------------------------

    def done(self, offload: Offload) -> None:
        """Take the end of an offload's work, and answer."""
        if self.waiting is not offload:
            return
        self.waiting = None
        try:
            answer = offload.then()
        except Exception as failure:  # noqa: BLE001  as in `run`
            answer = self.refuse("SF.COMMIT" if isinstance(failure, StandfastError) else "offload", failure)
        self._answer_late(answer)

    def poll(self) -> bool:
        """Ask an Until again; returns whether it still waits."""
        until = self.waiting
        if not isinstance(until, Until):
            return False
        try:
            answer = until.ask()
        except Exception as failure:  # noqa: BLE001  as in `run`
            answer = self.refuse("SF.WAITREADY", failure)
        if answer is None:
            return True
        self.waiting = None
        self._answer_late(answer)
        return False

    def _answer_late(self, answer: bytes) -> None:
        if not self.closed:
            self._out.append(answer)
            self.on_resume()

    def _wait(self, answer: Answer) -> None:
        self.waiting = answer
        if isinstance(answer, Offload):
            self._context.offload(self, answer)

    def _wait_for(self, held: Waited) -> None:
        self.waiting = held
        held.waiting.append(self._go_on)

    def _go_on(self) -> None:
        self.waiting = None
        if not self.closed:
            self.on_resume()


def _gone() -> None:
    """The call to a shell that is gone."""
