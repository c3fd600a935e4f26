"""The session for asyncio callers.

    async with aio.Session(app=..., ...) as session:
        await session.wait_ready(30)
        session.task(0).store("aircraft").put(...)          # store calls are short and stay plain
        await session.commit({("flights", 0): 4712})

    consumer = AIOConsumer(session.consumer_settings())     # confluent_kafka.aio; or the blocking one in a thread, with
    await consumer.subscribe(["flights"], on_assign=session.on_assign, on_revoke=session.on_revoke,
                             on_lost=session.on_lost)       # the callbacks of session.blocking

Rules of this file: no logic; blocking calls (opening, assigning, waiting, committing, closing) run in a worker thread,
one call at a time per task, everything else is the session's own. Arguments and help come from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from standfast.store.errors import InvalidRequest
from standfast.stream.session.session import Session as BlockingSession
from standfast.stream.session.session_tasks import source_partitions

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    method: Callable[Concatenate[BlockingSession, P], T],
) -> Callable[Concatenate[Session, P], Coroutine[Any, Any, T]]:
    """A method of the blocking session, to be awaited: it runs in a worker thread."""

    @wraps(method)
    async def call(self: Session, /, *given: P.args, **named: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.blocking, *given, **named)

    return call


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


class Session:
    """The asyncio variant of `standfast.Session`, with the same arguments and errors; opened by `async with`."""

    @_kept(BlockingSession.__init__)
    def __init__(self, open_session: Callable[[], BlockingSession]) -> None:
        self._open = open_session
        self._session: BlockingSession | None = None
        # Commits run in worker threads, where two of them would overlap.
        self._commits = asyncio.Lock()

    @property
    def blocking(self) -> BlockingSession:
        """The blocking session, once the `async with` block was entered."""
        if self._session is None:
            raise InvalidRequest("use `async with aio.Session(...) as session`: it is opened there")
        return self._session

    async def __aenter__(self) -> Session:
        self._session = await asyncio.to_thread(self._open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    assign = _in_thread(BlockingSession.assign)
    grow = _in_thread(BlockingSession.grow)
    wait_ready = _in_thread(BlockingSession.wait_ready)
    on_revoke = _in_thread(BlockingSession.on_revoke)
    on_lost = _in_thread(BlockingSession.on_lost)
    reopen = _in_thread(BlockingSession.reopen)
    snapshot = _in_thread(BlockingSession.snapshot)
    poll_once = _in_thread(BlockingSession.poll_once)
    statistics = _in_thread(BlockingSession.statistics)
    look_at_group = _in_thread(BlockingSession.look_at_group)
    close = _in_thread(BlockingSession.close)

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

    async def on_assign(self, consumer: Any, partitions: Iterable[Any]) -> None:
        """See Session.on_assign; the consumer is an asyncio one."""
        # Here, because only sessions under a consumer of their own need the Kafka client.
        from standfast.replication.kafka.consumer import drive_async

        given = source_partitions("on_assign", partitions)
        self.external_consumer.of_asyncio = True
        await drive_async(consumer, self.external_consumer.assigned(consumer, given))

    async def commit(self, source_offsets: Mapping[tuple[str, int], int]) -> None:
        """See Session.commit. Neither write to the stores nor poll the consumer until it returns."""
        async with self._commits:
            loop = self.external_consumer
            if loop.of_asyncio:
                from standfast.replication.kafka.consumer import drive_async

                # Taken before the steps: a task that is opened again meanwhile must not get this commit's offsets.
                tasks = self.all_tasks()
                # On the event loop: the consumer's methods are coroutines; only the commit itself blocks.
                source_offsets = await drive_async(loop.consumer, loop.committing(source_offsets))
                await asyncio.to_thread(self.blocking.commit_tasks, tasks, source_offsets)
            else:
                await asyncio.to_thread(self.blocking.commit, source_offsets)


Session.__doc__ = f"{Session.__doc__}\n\n{BlockingSession.__doc__}"
