"""Consumers that read nothing and answer questions about offsets, one for each isolation level, made when first needed.

    use(level) ──> the consumer, in any number of threads ──> no answer? renew ──> the next question gets a new consumer

The isolation level is a setting of the client, and decides which end it reports: that of the committed records, or that
of all.

Rules of this file: a consumer is released when the last question that uses it is over, because destroying a client
under a call ends the process. It must not know the questions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer


@dataclass(slots=True)
class _Asker:
    client: Consumer
    users: int = 0
    retired: bool = False


class Askers:
    """The consumers of one log. Several threads may use it."""

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
