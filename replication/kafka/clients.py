"""Clients of librdkafka, destroyed by their owners and never by the garbage collector.

    keep(client)      a strong reference, so that the client is no garbage
    release(client)   for an owner that has stopped using it: a consumer, an admin client or a compiled producer is
                      destroyed at once, one of confluent_kafka drops its unsent records and joins the unused ones
    owner is gone     its clients wait in a queue for the next call of any owner
    any call          unused producers to which no frame and no traceback refers are destroyed
    Askers            consumers that answer questions of several threads, each released after its last question

librdkafka ends the process (SIGABRT, "calling rd_kafka_destroy() from librdkafka owned thread") if a client is
destroyed in one of its own threads. Those threads run the callbacks of admin requests, in Python, so that the garbage
collector may run there as in any other thread. A log is garbage in a cycle, and so would be its clients.

A producer of confluent_kafka is not closed: measured with version 2.16, `close` aborts an open transaction and waits
for the answer without limit, so that a writer whose broker went away would never raise its error. Dropping the last
reference destroys a producer without asking a broker; the error that its owner raises keeps it for a while, in the
traceback.

Rules of this file: only threads of this process's own may call `keep` and `release`, as is so for all calls of a log. A
client must not refer to its owner, or the owner would never be garbage.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from standfast.replication.kafka.errors import client_errors, translated
from standfast.replication.kafka.producer import PythonProducer
from standfast.store.process import forks

T = TypeVar("T")


class _Waiting:
    """Clients to be destroyed, `left` by owners that are gone, or `unused`. Those of a parent process never are."""

    def __init__(self) -> None:
        # A SimpleQueue, because `put` may be called by the garbage collector while another `put` is under way.
        self.left: SimpleQueue[dict[int, Any]] = SimpleQueue()
        self.unused: deque[list[Producer]] = deque()  # each in a list, so that its references can be counted
        forks.dies_in_child(self)

    def forked(self) -> None:
        """As in `forks.Owned`."""
        forks.keep_for_good((self.left, self.unused))
        self.left, self.unused = SimpleQueue(), deque()


_waiting = _Waiting()
_OWN_REFERENCES = 2  # the list's, and that of the argument of `sys.getrefcount`


class Clients:
    """The clients of one owner. Several threads may use it."""

    def __init__(self, owner: object) -> None:
        self._kept: dict[int, Any] = {}
        self._forked = False
        forks.dies_in_child(self)
        # Runs in whichever thread the garbage collector does, so it only hands the clients over.
        weakref.finalize(owner, _waiting.left.put, self._kept).atexit = False

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, client: T) -> T:
        """Keep a client until `release`, or until its owner is gone; returns it."""
        destroy_left()
        self._kept[id(client)] = client
        return client

    def forked(self) -> None:
        """As in `forks.Owned`: the clients stay as they are, since their threads are in the parent."""
        self._forked = True

    def release(self, client: object) -> None:
        """End a client, and drop its unsent records; None and a second call change nothing."""
        if self._forked:
            return
        destroy_left()
        kept = self._kept.pop(id(client), None)
        if kept is not None:
            _end(kept)


@dataclass(slots=True)
class _Asker:
    client: Consumer
    users: int = 0
    retired: bool = False


class Askers:
    """Consumers that read nothing and answer questions about offsets, one for each isolation level. For any thread.

    The isolation level is a setting of the client and decides which end it reports: that of the committed records, or
    that of all. A consumer is released when the last question that uses it is over.
    """

    def __init__(self, make: Callable[[str], Consumer], release: Callable[[Consumer], None]) -> None:
        """`make` opens a consumer of an isolation level."""
        self._make = make
        self._release = release
        self._mutex = threading.Lock()
        self._by_level: dict[str, _Asker] = {}

    @contextmanager
    def use(self, level: str) -> Iterator[Consumer]:
        """The consumer of this level, for the block."""
        with self._mutex:
            one = self._by_level.get(level)
            if one is None:
                one = self._by_level[level] = _Asker(self._make(level))
            one.users += 1
        try:
            yield one.client
        finally:
            with self._mutex:
                one.users -= 1
                unused = one.retired and not one.users
            if unused:
                self._release(one.client)

    def close(self) -> None:
        """Release all consumers; one that a question uses, when that is over."""
        with self._mutex:
            askers, self._by_level = list(self._by_level.values()), {}
            for one in askers:
                one.retired = True
            unused = [one for one in askers if not one.users]
        for one in unused:
            self._release(one.client)

    def renew(self, client: Consumer) -> None:
        """Take another consumer for questions from now on. For a caller within `use`; twice is fine."""
        with self._mutex:
            for one in self._by_level.values():
                one.retired = one.retired or one.client is client
            self._by_level = {level: one for level, one in self._by_level.items() if not one.retired}


def destroy_left() -> None:
    """Destroy the clients of owners that are gone, and the unused producers that no caller refers to any more."""
    while True:
        try:
            kept = _waiting.left.get_nowait()
        except Empty:
            break
        while kept:
            _end(kept.popitem()[1])
    for _ in range(len(_waiting.unused)):
        try:
            only = _waiting.unused.popleft()
        except IndexError:  # another thread is at it
            return
        if sys.getrefcount(only[0]) > _OWN_REFERENCES:
            _waiting.unused.append(only)
        else:
            only.clear()  # the last reference, dropped in this thread


def _end(client: Any) -> None:
    try:
        with client_errors():
            if isinstance(client, AdminClient):
                client.__exit__(None, None, None)  # its only call that ends it
            elif isinstance(client, PythonProducer):
                client.client.purge()  # else it would go on sending for as long as it is referred to
                _waiting.unused.append([client.client])
            else:
                client.close()
    except KafkaException as error:
        raise translated(error, "closing a client of Kafka") from error
