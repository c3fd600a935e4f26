"""Events of the sidecar for listeners: task states, restore progress, punctuations, fencing, draining.

    id: 7
    event: task
    data: {"partition": 0, "state": "running"}

Rules of this file: published from any thread, read on the event loop. Each listener has a queue of QUEUE_MAX; one that
reads too slowly loses its stream, and no other listener waits for it. A listener that comes back names the last id it
saw and gets the later events that are still remembered, or a `missed` event.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

QUEUE_MAX = 1_000
REMEMBERED = 1_000


class SidecarEvent(NamedTuple):
    """One event; `data` is JSON text."""

    number: int
    name: str
    data: str

    def encode(self) -> bytes:
        """The event in the format of Server-Sent Events."""
        return f"id: {self.number}\nevent: {self.name}\ndata: {self.data}\n\n".encode()


class EventListener:
    """One stream. `queue` ends with None when its reader was too slow, or when the sidecar ends."""

    def __init__(self) -> None:
        # One place more than events, for the None that ends the stream.
        self.queue: asyncio.Queue[SidecarEvent | None] = asyncio.Queue(QUEUE_MAX + 1)


class Events:
    """The hub."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._numbers = itertools.count(1)
        self._listeners: set[EventListener] = set()
        self._past: deque[SidecarEvent] = deque(maxlen=REMEMBERED)
        self._last = 0
        self.heard: Callable[[str, Mapping[str, Any]], None] | None = None  # called with each event, by its publisher

    def __len__(self) -> int:
        return len(self._listeners)

    def publish(self, name: str, data: Mapping[str, Any]) -> None:
        """Send an event to all listeners. From any thread."""
        if self.heard is not None:
            self.heard(name, data)
        text = json.dumps(data, separators=(",", ":"))
        # Queues belong to the loop, and events come from any thread.
        self._loop.call_soon_threadsafe(self._deliver, name, text)

    def listen(self, after: int | None = None) -> EventListener:
        """A new stream; `after`: the last event that it saw. On the event loop."""
        listener = EventListener()
        if after is not None:
            missed = [event for event in self._past if event.number > after]
            # A number above the last one is of an earlier process, whose numbers began at 1 too.
            if after > self._last or (missed and missed[0].number > after + 1):
                missed.insert(0, SidecarEvent(self._last, "missed", "{}"))
            for event in missed[-QUEUE_MAX:]:
                listener.queue.put_nowait(event)
        self._listeners.add(listener)
        return listener

    def forget(self, listener: EventListener) -> None:
        """Remove a stream that ended."""
        self._listeners.discard(listener)

    def close(self) -> None:
        """End all streams. On the event loop."""
        for listener in list(self._listeners):
            self._end(listener)

    def _deliver(self, name: str, text: str) -> None:
        self._last = next(self._numbers)
        event = SidecarEvent(self._last, name, text)
        self._past.append(event)
        for listener in list(self._listeners):
            if listener.queue.qsize() >= QUEUE_MAX:
                self._end(listener)
            else:
                listener.queue.put_nowait(event)

    def _end(self, listener: EventListener) -> None:
        self._listeners.discard(listener)
        # Room for the None that ends the stream: the queue of a reader that is too slow is full.
        while listener.queue.full():
            listener.queue.get_nowait()
        listener.queue.put_nowait(None)
