"""Clients of librdkafka, destroyed by their owners and never by the garbage collector.

    keep(client)      a strong reference, so that the client is no garbage
    release(client)   destroyed at once; for an owner that has stopped using it
    owner is gone     its clients wait in a queue for the next `keep` of any owner

librdkafka ends the process (SIGABRT, "calling rd_kafka_destroy() from librdkafka owned thread") if a client is
destroyed in one of its own threads. Those threads run the callbacks of admin requests, in Python, so that the garbage
collector may run there as in any other thread. A log is garbage in a cycle, and so would be its clients.

Rules of this file: only threads of this process's own may call `keep` and `release`, as is so for all calls of a log. A
client must not refer to its owner, or the owner would never be garbage.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

T = TypeVar("T")

# A SimpleQueue, because `put` may be called by the garbage collector while another `put` is under way.
_left: SimpleQueue[dict[int, Any]] = SimpleQueue()


class Clients:
    """The clients of one owner. Several threads may use it."""

    def __init__(self, owner: object) -> None:
        self._kept: dict[int, Any] = {}
        # Runs in whichever thread the garbage collector does, so it only hands the clients over.
        weakref.finalize(owner, _left.put, self._kept).atexit = False

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, client: T) -> T:
        """Keep a client until `release`, or until its owner is gone; returns it."""
        destroy_left()
        self._kept[id(client)] = client
        return client

    def release(self, client: object) -> None:
        """Destroy a client, and drop its unsent records; None and a second call change nothing."""
        kept = self._kept.pop(id(client), None)
        if kept is not None:
            _destroy(kept)


def destroy_left() -> None:
    """Destroy the clients of owners that are gone."""
    while True:
        try:
            kept = _left.get_nowait()
        except Empty:
            return
        while kept:
            _, client = kept.popitem()
            _destroy(client)


def _destroy(client: Any) -> None:
    if isinstance(client, AdminClient):
        client.__exit__(None, None, None)  # its only call that ends it
    elif isinstance(client, Producer):
        client.purge()  # else `close` would wait for records that no caller awaits any more
        closing: Any = client  # the library's types lack the argument
        # A producer that was fenced says so once more, after it was destroyed; its owner has had that error already.
        with suppress(KafkaException, SystemError):
            closing.close(timeout=0)
    else:
        client.close()
