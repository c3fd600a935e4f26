"""An application: sources, processors and stores, run over the tasks that fall to this instance.

    app = App("delays", log=..., state_dir=..., stores=[...])
    @app.source("flights", key=serde.string, value=serde.json)
    class Board(Processor): ...
    app.run()

Rules of this file: declaration and life cycle; the loop itself is `standfast.stream.loop`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, Unpack

from standfast.replication.listeners import Listener
from standfast.replication.open_log import open_log
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import check_topic
from standfast.store.serde import Serde
from standfast.store.specs import StoreSpec
from standfast.stream.loop import Loop
from standfast.stream.processor import Processor, Source, SourceRecord
from standfast.stream.session import Session
from standfast.stream.settings import SessionOptions

P = TypeVar("P", bound=type[Processor])


class App:
    """A stream application. Its tasks, one per partition of its sources, are shared out among live instances."""

    def __init__(
        self,
        name: str,
        *,
        log: str,
        state_dir: str | Path,
        stores: Sequence[StoreSpec] = (),
        commit_interval_ms: int = 1_000,
        clock: Clock | None = None,
        listeners: Iterable[Listener] = (),
        **settings: Unpack[SessionOptions],
    ) -> None:
        if not isinstance(commit_interval_ms, int) or commit_interval_ms < 1:
            raise BadConfig([f"commit_interval_ms must be a whole number of at least 1, not {commit_interval_ms!r}"])
        self.name = name
        self.commit_interval_ms = commit_interval_ms
        self.clock: Clock = clock or SystemClock()
        self.sources: list[tuple[Source, type[Processor]]] = []
        self.session: Session | None = None
        self._log_address = log
        self._state_dir = state_dir
        self._stores = tuple(stores)
        self._listeners = tuple(listeners)
        self._settings = settings
        self._stop = threading.Event()

    def source(
        self,
        topic: str,
        *,
        key: Serde[Any],
        value: Serde[Any],
        timestamp: Callable[[SourceRecord], int] | None = None,
    ) -> Callable[[P], P]:
        """Class decorator: the processor reads this topic; used several times, it reads several topics."""
        check_topic(topic)

        def register(processor: P) -> P:
            if not (isinstance(processor, type) and issubclass(processor, Processor)):
                raise InvalidRequest(f"source {topic!r}: decorate a subclass of standfast.Processor, not {processor!r}")
            self.sources.append((Source(topic, key, value, timestamp), processor))
            return processor

        return register

    def open(self) -> Session:
        """Open the session (state directory, log, membership); run() does it too."""
        if self.session is None:
            shared: SessionOptions = {**self._settings, "partitions": self._partitions(), "placement": "shared"}
            self.session = Session(
                self.name,
                log=self._log_address,
                state_dir=self._state_dir,
                stores=self._stores,
                clock=self.clock,
                listeners=self._listeners,
                **shared,
            )
        return self.session

    def run(self) -> None:
        """Process until stop() or SIGTERM/SIGINT; commits and closes cleanly at the end.

        An exception of a processor ends the run after closing: what was not committed is processed again by the
        next run.
        """
        session = self.open()
        previous = self._catch_signals()
        try:
            loop = Loop(session, self.sources, commit_interval_ms=self.commit_interval_ms, clock=self.clock)
            try:
                while not self._stop.is_set():
                    loop.poll_once(timeout_ms=50)
                loop.commit_all()
            finally:
                loop.close()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            session.close()
            self.session = None

    def stop(self) -> None:
        """Ask run() to end; may be called from any thread."""
        self._stop.set()

    def _partitions(self) -> int:
        if not self.sources:
            raise BadConfig([f"application {self.name!r} has no source: add one with @app.source(topic, ...)"])
        log = open_log(self._log_address, clock=self.clock)
        try:
            counts = {}
            for source, _ in self.sources:
                info = log.admin.describe_topic(source.topic)
                if info is None:
                    raise BadConfig([f"source topic {source.topic!r} does not exist in {self._log_address}: create it"])
                counts[source.topic] = info.partitions
        finally:
            log.close()
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
            raise BadConfig([f"sources of one application need equal partition counts, but {listed}"])
        return next(iter(counts.values()))

    def _catch_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        def stop(_number: int, _frame: FrameType | None) -> None:
            self.stop()

        return {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
