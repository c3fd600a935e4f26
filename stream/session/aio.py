"""The session for asyncio callers.

    async with aio.Session(app=..., ...) as session:
        await session.wait_ready(30)
        session.task(0).store("aircraft").put(...)          # store calls are short and stay plain
        await session.commit({("flights", 0): 4712})

    consumer = AIOConsumer(session.consumer_settings())     # confluent_kafka.aio; or the blocking one in a thread, with
    await consumer.subscribe(["flights"], on_assign=session.on_assign, on_revoke=session.on_revoke,
                             on_lost=session.on_lost)       # the callbacks of session.blocking

Rules of this file: no logic of a session; blocking calls (opening, assigning, waiting, committing, closing) run in a
worker thread (thread_calls.py: a cancelled await), one commit at a time, everything else is the session's own.
Arguments and help come from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from standfast.replication.offsets import TaskId
from standfast.store.arguments import checked
from standfast.store.errors import Closed, InvalidRequest
from standfast.stream.session.of_app import Elsewhere
from standfast.stream.session.session import Session as BlockingSession
from standfast.stream.session.session_tasks import source_partitions
from standfast.stream.source_offsets import checked_shape
from standfast.stream.steps import NotBegun
from standfast.stream.task.task import Task
from standfast.stream.task.task_commits import Offsets
from standfast.stream.thread_calls import Caller, ThreadCalls

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


# Cancelled calls that the next call waits for, by name. A snapshot may take minutes, so only the next one waits for it.
ASSIGNING = frozenset({"assign", "grow", "on_assign", "on_revoke", "on_lost", "reopen", "poll_once"})
CHANGING = ASSIGNING | {"commit"}


def _in_thread(
    method: Callable[Concatenate[BlockingSession, P], T], after: Collection[str] = CHANGING, *, kept: bool = True
) -> Callable[Concatenate[Session, P], Coroutine[Any, Any, T]]:
    """A method of the blocking session, to be awaited: it runs in a worker thread, `after` cancelled calls.

    `kept`: if it is cancelled itself, others wait for it.
    """

    @wraps(method)
    async def call(self: Session, /, *given: P.args, **named: P.kwargs) -> T:
        await self._calls.settled(after)
        blocking = self.blocking
        return await self._calls.run(method.__name__, lambda _: method(blocking, *given, **named), kept=kept)

    return call


def _described(method: Callable[..., object]) -> Callable[[F], F]:
    """Decorator of a method with the help of one of the blocking session."""

    def decorate(own: F) -> F:
        own.__doc__ = method.__doc__
        return own

    return decorate


def _kept(
    opens: Callable[Concatenate[BlockingSession, P], None],
) -> Callable[[Callable[[Session, Callable[[], BlockingSession]], None]], Callable[Concatenate[Session, P], None]]:
    """Decorator of an __init__ that receives a function to open the blocking session, with that session's arguments."""

    def decorate(init: Callable[[Session, Callable[[], BlockingSession]], None]) -> Any:
        @wraps(opens)
        def with_arguments(self: Session, /, *given: Any, **named: Any) -> None:
            init(self, partial(BlockingSession, *given, **named))

        return with_arguments

    return decorate


class _Same(Generic[T]):
    """An attribute of the blocking session by the same name, with its help."""

    def __init__(self, get: Callable[[BlockingSession], T]) -> None:
        self._get = get

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, one: Session | None, owner: type | None = None) -> T:
        # On the class itself, help() and inspect find the description that the blocking session has.
        described: Any = getattr(BlockingSession, self._name, self)
        return described if one is None else self._get(one.blocking)


@checked(InvalidRequest)
class Session(Elsewhere):
    """The asyncio variant of `standfast.Session`, with the same arguments and errors; opened by `async with`.

    A cancelled await returns at once, and its thread goes on. The next call that changes tasks waits for it, and raises
    its error if it failed. A cancelled opening is closed, and so are the tasks that a cancelled `assign` opened. A
    cancelled commit may be made or not: its offsets go with the next one then. A cancelled `close` goes on to its end.
    """

    @_kept(BlockingSession.__init__)
    def __init__(self, open_session: Callable[[], BlockingSession]) -> None:
        self._open = open_session
        self._session: BlockingSession | None = None
        self._calls = ThreadCalls()
        # Commits run in worker threads, where two of them would overlap.
        self._commits = asyncio.Lock()
        # Offsets of commits that were cancelled while they waited for others, and the tasks that were open then.
        self._put_off: list[tuple[Mapping[TaskId, Task], Offsets]] = []

    @property
    def blocking(self) -> BlockingSession:
        """The blocking session, once the `async with` block was entered."""
        if self._session is None:
            raise InvalidRequest("use `async with aio.Session(...) as session`: it is opened there")
        return self._session

    async def __aenter__(self) -> Session:
        await self._calls.settled({"open", "close"})
        self._calls = ThreadCalls()  # without calls of a session that is closed
        self._session = await self._calls.run("open", lambda _: self._open(), undo=_close_opened)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    grow = _in_thread(BlockingSession.grow)
    on_revoke = _in_thread(BlockingSession.on_revoke)
    on_lost = _in_thread(BlockingSession.on_lost)
    reopen = _in_thread(BlockingSession.reopen)
    snapshot = _in_thread(BlockingSession.snapshot, ASSIGNING | {"snapshot"})
    poll_once = _in_thread(BlockingSession.poll_once, ASSIGNING)
    statistics = _in_thread(BlockingSession.statistics, (), kept=False)
    look_at_group = _in_thread(BlockingSession.look_at_group, (), kept=False)

    app = _Same(lambda session: session.app)
    clock = _Same(lambda session: session.clock)
    consumer_settings = _Same(lambda session: session.consumer_settings)
    counters = _Same(lambda session: session.counters)
    disk = _Same(lambda session: session.disk)
    http_address = _Same(lambda session: session.http_address)
    instance_id = _Same(lambda session: session.instance_id)
    listeners = _Same(lambda session: session.listeners)
    log = _Same(lambda session: session.log)
    missing = _Same(lambda session: session.missing)
    external_consumer = _Same(lambda session: session.external_consumer)
    progress = _Same(lambda session: session.progress)
    read = _Same(lambda session: session.read)
    read_only = _Same(lambda session: session.read_only)
    reader = _Same(lambda session: session.reader)
    ready = _Same(lambda session: session.ready)
    restores = _Same(lambda session: session.restores)
    specs = _Same(lambda session: session.specs)
    state_path = _Same(lambda session: session.state_path)
    task = _Same(lambda session: session.task)
    tasks = _Same(lambda session: session.tasks)
    all_tasks = _Same(lambda session: session.all_tasks)
    open_tasks = _Same(lambda session: session.open_tasks)

    @_described(BlockingSession.assign)
    async def assign(
        self, active: Iterable[int | str | TaskId] = (), standby: Iterable[int | str | TaskId] = ()
    ) -> None:
        await self._calls.settled(CHANGING)
        blocking = self.blocking
        before = {one: (task, task.role) for one, task in blocking.held_tasks().items()}
        undo = partial(_close_assigned, blocking, before)
        await self._calls.run("assign", lambda _: blocking.assign(active, standby), undo=undo)

    @_described(BlockingSession.wait_ready)
    async def wait_ready(self, timeout_s: float | None = None) -> None:
        await self._calls.settled(ASSIGNING)
        blocking = self.blocking

        def wait(caller: Caller) -> None:
            blocking.wait_until_ready(timeout_s, lambda: caller.gone)

        await self._calls.run("wait_ready", wait, kept=False)

    async def on_assign(self, consumer: Any, partitions: Iterable[Any]) -> None:
        """See Session.on_assign; the consumer is an asyncio one."""
        # Here, because only sessions under a consumer of their own need the Kafka client.
        from standfast.replication.kafka.consumer import drive_async

        given = source_partitions("on_assign", partitions)
        await self._calls.settled(CHANGING)
        blocking = self.blocking
        blocking.external_consumer.of_asyncio = True
        steps = blocking.external_consumer.assigned(consumer, given)
        try:
            await drive_async(consumer, steps, lambda job: self._calls.run("on_assign", lambda _: job()))
        except asyncio.CancelledError:
            self._calls.follow("on_assign", partial(blocking.on_revoke, consumer, given))
            raise

    async def commit(self, source_offsets: Mapping[tuple[str, int], int]) -> None:
        """See Session.commit. Writes that come before it returns are the next commit's; leave the consumer alone.

        If its await is cancelled, it may be made or not, and its offsets go with the next commit then. InvalidRequest
        within an `exclusive` block of this thread, for whose end the commit would wait.
        """
        blocking = self.blocking
        # Of this moment: neither a dictionary that the caller fills again after a cancellation, nor a task that is
        # opened again meanwhile, may give this commit other offsets.
        offsets: Offsets = dict(checked_shape(source_offsets).items())
        tasks = blocking.held_tasks()
        if any(task.is_exclusive for task in tasks.values()):
            raise InvalidRequest(
                "aio.Session.commit within a block of task.exclusive() would wait for the end of that block, and the "
                "block for it: commit after the block, or call task.commit() in it"
            )
        not_begun: tuple[type[BaseException], ...] = (BaseException,)  # errors after which the next commit takes them
        try:
            async with self._commits:
                await self._calls.settled(CHANGING)
                not_begun = (asyncio.CancelledError,)
                given, loop = offsets, blocking.external_consumer
                if loop.of_asyncio:
                    from standfast.replication.kafka.consumer import drive_async

                    # On the event loop: the consumer's methods are coroutines; only the commit itself blocks.
                    steps = loop.committing(offsets)
                    given = await drive_async(
                        loop.consumer, steps, lambda job: self._calls.run("commit", lambda _: job())
                    )
                put_off, self._put_off, not_begun = self._put_off, [], ()
                await self._calls.run("commit", partial(_commit, blocking, tasks, given, put_off))
        except BaseException as error:
            if isinstance(error, not_begun):
                self._put_off.append((tasks, offsets))
            raise

    @_described(BlockingSession.close)
    async def close(self) -> None:
        await self._calls.settled({"close"})
        await self._calls.run("close", partial(_close, self.blocking, self._calls.take("commit")))


def _commit(
    blocking: BlockingSession,
    tasks: Mapping[TaskId, Task],
    offsets: Offsets,
    put_off: Iterable[tuple[Mapping[TaskId, Task], Offsets]],
    caller: Caller,
) -> None:
    for tasks_then, offsets_then in put_off:
        blocking.put_off(tasks_then, offsets_then)
    given = blocking.external_consumer.before_commit(offsets)
    with suppress(NotBegun):  # for no other caller: this one is gone
        blocking.commit_tasks(tasks, given, caller)


def _close_opened(opening: Future[BlockingSession]) -> None:
    if opening.exception() is None:  # raised by the call itself
        opening.result().close()


def _close_assigned(
    blocking: BlockingSession, before: Mapping[TaskId, tuple[Task, str]], assigning: Future[None]
) -> None:
    """Keep of the tasks only those that were held before the call."""
    with suppress(Closed):  # the session's close has closed them
        held = blocking.held_tasks()
        kept = {one: task for one, task in held.items() if before.get(one) == (task, task.role)}
        if isinstance(assigning.exception(), InvalidRequest) and held.keys() == kept.keys():
            return  # nothing was assigned
        blocking.assign(*([one for one, task in kept.items() if task.role == role] for role in ("active", "standby")))


def _close(blocking: BlockingSession, left: Iterable[Future[Any]], caller: Caller) -> None:
    try:
        for call in left:
            call.result()
    finally:
        blocking.close()


Session.__doc__ = f"{Session.__doc__}\n\n{BlockingSession.__doc__}"
