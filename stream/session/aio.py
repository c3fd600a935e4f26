"""The session for asyncio callers.

    async with aio.Session(app=..., ...) as session:
        await session.wait_ready(30)
        session.task(0).store("aircraft").put(...)          # store calls are short and stay plain
        await session.commit({("flights", 0): 4712})

    consumer = AIOConsumer(session.consumer_settings())     # confluent_kafka.aio; or the blocking one in a thread, with
    await consumer.subscribe(["flights"], on_assign=session.on_assign, on_revoke=session.on_revoke,
                             on_lost=session.on_lost)       # the callbacks of session.blocking

Rules of this file: no logic; what may block (opening, assigning, waiting, committing, closing) runs in a worker
thread, one call at a time per task, everything else is the session's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from standfast.replication.offsets import TaskId
from standfast.store.errors import InvalidRequest
from standfast.stream.session.own_loop import Given
from standfast.stream.session.session import Session as BlockingSession
from standfast.stream.session.session_tasks import ReadView, source_partitions
from standfast.stream.session.statistics import SessionStatistics
from standfast.stream.session.task import Task


class Session:
    """An asyncio face of `standfast.Session`, with the same arguments and errors."""

    def __init__(self, app: str, **settings: Any) -> None:
        self._app = app
        self._settings = settings
        self._session: BlockingSession | None = None
        self._commits = asyncio.Lock()

    @property
    def blocking(self) -> BlockingSession:
        """The session underneath, once the `async with` block was entered."""
        if self._session is None:
            raise InvalidRequest("use `async with aio.Session(...) as session`: it is opened there")
        return self._session

    async def __aenter__(self) -> Session:
        self._session = await asyncio.to_thread(BlockingSession, self._app, **self._settings)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.blocking.close)

    async def assign(self, active: Iterable[int] = (), standby: Iterable[int] = ()) -> None:
        """See Session.assign."""
        await asyncio.to_thread(self.blocking.assign, active, standby)

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """See Session.wait_ready."""
        await asyncio.to_thread(self.blocking.wait_ready, timeout_s)

    async def on_assign(self, consumer: Any, partitions: Iterable[Any]) -> None:
        """See Session.on_assign; the consumer is an asyncio one."""
        from standfast.replication.kafka.consumer import drive_async

        given = source_partitions("on_assign", partitions)
        self.blocking.own_loop.of_asyncio = True
        await drive_async(consumer, self.blocking.own_loop.assigned(consumer, given))

    async def on_revoke(self, consumer: Any, partitions: Iterable[Any]) -> None:
        """See Session.on_revoke."""
        await asyncio.to_thread(self.blocking.on_revoke, consumer, partitions)

    on_lost = on_revoke

    def consumer_settings(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """See Session.consumer_settings."""
        return self.blocking.consumer_settings(given)

    async def commit(self, source_offsets: Mapping[tuple[str, int], int]) -> None:
        """See Session.commit. Neither write to the stores nor poll the consumer until it returns."""
        async with self._commits:
            loop = self.blocking.own_loop
            if loop.of_asyncio:
                from standfast.replication.kafka.consumer import drive_async

                tasks = self.blocking.all_tasks()
                source_offsets = await drive_async(loop.consumer, loop.committing(source_offsets))
                await asyncio.to_thread(self.blocking.commit_tasks, tasks, source_offsets)
            else:
                await asyncio.to_thread(self.blocking.commit, source_offsets)

    async def statistics(self) -> SessionStatistics:
        """See Session.statistics."""
        return await asyncio.to_thread(self.blocking.statistics)

    def task(self, partition: int | TaskId | Given) -> Task:
        """See Session.task."""
        return self.blocking.task(partition)

    def read(self, store: str, partition: int, *, allow_stale: bool = False) -> ReadView:
        """See Session.read."""
        return self.blocking.read(store, partition, allow_stale=allow_stale)
