"""Turns of clients that have much to do, so that a client with little is answered at once.

    reads of one turn of the loop: SLICE_MS of work ─> the rest waits, the first come first ─> SLICE_MS ─> loop ─> ...

Rules of this file: it knows no request. A client stands in it once. Between two slices the loop reads its sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from standfast.store.clock import Clock

SLICE_MS = 4


class WaitingClient(Protocol):
    """A client with more to do."""

    def turn(self) -> None:
        """Do a part of it; more is added again."""
        ...


class Turns:
    """The clients that wait for their turn. To be used on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._waiting: deque[WaitingClient] = deque()
        self._there: set[WaitingClient] = set()
        self._working = False
        self._slice_ms: int | None = None  # begin of the work in this turn of the loop

    def __len__(self) -> int:
        return len(self._waiting)

    def free(self) -> bool:
        """Whether a client that has much to do may begin now."""
        now_ms = self._clock.monotonic_ms()
        if self._slice_ms is None:
            self._slice_ms = now_ms
            if not self._waiting:
                self._loop.call_soon(self._end_slice)
        return not self._waiting and now_ms - self._slice_ms < SLICE_MS

    def add(self, client: WaitingClient) -> None:
        """Give a client its turn after those that wait."""
        if client not in self._there:
            self._there.add(client)
            self._waiting.append(client)
            if not self._working:
                self._working = True
                self._loop.call_soon(self._work)

    def _end_slice(self) -> None:
        self._slice_ms = None

    def _work(self) -> None:
        began_ms = self._clock.monotonic_ms()
        try:
            # Each once: those that are added meanwhile come after the sockets were read.
            for _ in range(len(self._waiting)):
                client = self._waiting.popleft()
                self._there.discard(client)
                client.turn()
                if self._clock.monotonic_ms() - began_ms >= SLICE_MS:
                    break
        finally:
            # Also after a client's own error, which the loop reports: the others go on.
            self._slice_ms = None
            self._working = bool(self._waiting)
            if self._working:
                self._loop.call_soon(self._work)
