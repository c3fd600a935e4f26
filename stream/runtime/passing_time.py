"""Work of one task as time passes without a record: by the watermark, and by wall-clock silence.

    watermark w      node by node, parents first:   suppressed results go on, if a node below would find them late
                                                    the node's close time becomes w: its windows that end by then close
                                                    the node's timers up to w fire
                     then the caller sends w to the tasks downstream
    silence          of each node that asked for it: once due, suppressed results go on, and the ends of the inputs are
                     asked; once these were processed, and still no record came, the node is called

Node by node, because the output of a node at w must reach the next before that closes its own windows at w. Semantics
of Flink, where an operator passes a watermark on once it has done its work for it.

Rules of this file: it decides the order, and calls given functions; `standfast.stream.silence` decides about silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from standfast.replication.offsets import TopicPartition
from standfast.store.clock import Clock
from standfast.stream.runtime.timers import Timers
from standfast.stream.silence import Silence
from standfast.stream.timer import EVENT_TIME
from standfast.stream.topology.nodes import SinkNode, SourceNode, SubTopology

Offsets = Mapping[TopicPartition, int]


class PassingTime:
    """The processors of one task that follow its watermark or wait for silence. `around(now_ms, work)` does the work
    with no record in hand."""

    def __init__(
        self,
        topology: SubTopology,
        timers: Mapping[str, Timers],
        clock: Clock,
        around: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._topology = topology
        self._timers = timers
        self._clock = clock
        self._around = around
        self._advances: dict[str, Callable[[int], None]] = {}
        self._flushes: dict[str, Callable[[], None]] = {}
        self._silences: list[tuple[Silence, Callable[[], None]]] = []
        self._order: list[str] | None = None  # the nodes with work at a watermark; None: to be found
        self._heeded: set[str] = set()  # nodes whose results a node below, or another task, must not find late

    # --- declared by processors in their init ---

    def on_watermark(self, node: str, advance: Callable[[int], None]) -> None:
        """Call `advance` at each watermark."""
        self._advances[node] = advance
        self._order = None

    def before_watermark(self, node: str, flush: Callable[[], None]) -> None:
        """Call `flush` before a watermark that matters below this node."""
        self._flushes[node] = flush
        self._order = None

    def on_silence(self, after_ms: int, close: Callable[[], None]) -> Callable[[], None]:
        """Call `close` after silence; returns the call that a record makes."""
        silence = Silence(after_ms, self._clock.monotonic_ms())
        self._silences.append((silence, close))

        def heard() -> None:
            silence.heard(self._clock.monotonic_ms())

        return heard

    # --- watermarks ---

    def advance(self, watermark_ms: int) -> Iterator[Callable[[], object]]:
        """The work that is due at a watermark, node by node, parents first.

        One piece may make calls of an asynchronous step, whose results must be in before the next piece.
        """
        if self._order is None:
            self._order = self._work_order()
        for node in self._order:
            flush, advance, timers = self._flushes.get(node), self._advances.get(node), self._timers.get(node)
            if advance is not None:
                yield partial(self._around, watermark_ms, partial(advance, watermark_ms))
            if timers is not None:
                yield partial(timers.fire, EVENT_TIME, watermark_ms)
            # Last: this node's windows and timers may have added to the results it holds back.
            if flush is not None and node in self._heeded:
                yield partial(self._around, watermark_ms, flush)

    def catch_up(self, watermark_ms: int) -> Iterator[Callable[[], object]]:
        """The closing, at the task's start, of windows that an earlier version or topology left open below its
        watermark, node by node."""
        for node in self._topology.processors:
            advance = self._advances.get(node.name)
            if advance is not None:
                yield partial(self._around, watermark_ms, partial(advance, watermark_ms))

    def _work_order(self) -> list[str]:
        """The nodes with work at a watermark, parents first; finds `_heeded`, too."""
        heeding: set[str] = set()  # nodes at or below which a watermark closes windows, or leaves the task
        self._heeded.clear()
        for node in reversed(self._topology.nodes):
            if isinstance(node, SourceNode):
                continue
            name = node.name
            if name in heeding:
                self._heeded.add(name)
            leaves = isinstance(node, SinkNode) and node.internal is not None
            if leaves or name in self._advances or name in heeding:
                heeding.update(node.parents)
        return [
            node.name
            for node in self._topology.processors
            if node.name in self._advances or node.name in self._timers or node.name in self._flushes
        ]

    # --- silence ---

    def restart(self) -> None:
        """Begin every count again, after a time in which the task read nothing."""
        now_ms = self._clock.monotonic_ms()
        for silence, _ in self._silences:
            silence.heard(now_ms)

    def tick(
        self,
        wall_ms: int,
        flush: Callable[[], None],
        ends: Callable[[], Offsets | None],
        consumed: Callable[[], Offsets],
    ) -> None:
        """Call the nodes whose silence is certain. `ends()` are those of the inputs, None while the log is away."""
        now_ms = self._clock.monotonic_ms()
        for silence, close in self._silences:
            if silence.is_due(now_ms) and silence.needs_ends:
                # Results that a node above holds back are records of this one.
                flush()
                if not silence.is_due(now_ms):
                    continue
                found = ends()
                if found is None:
                    silence.heard(now_ms)
                    continue
                silence.ask(found)
            if silence.is_due(now_ms) and silence.is_confirmed(consumed()):
                silence.done()
                self._around(wall_ms, close)
