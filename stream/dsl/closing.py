"""When the windows of an aggregation close, and what becomes of records that come too late: its settings.

Rules of this file: plain frozen data; the settings are checked where the aggregation is declared, and carried out in
`standfast.stream.dsl.windowed_aggregate`.
"""

from __future__ import annotations

from dataclasses import dataclass

from standfast.store.arguments import is_whole
from standfast.store.errors import InvalidRequest
from standfast.store.names import check_topic
from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE, EmitStrategy
from standfast.stream.topology.policy import StepOptions
from standfast.stream.windows import AnyWindows, UnlimitedWindows


class WindowOptions(StepOptions, total=False):
    """The keyword arguments of a windowed aggregation beside its functions; see Closing."""

    emit: EmitStrategy
    close_after_ms: int | None
    late: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowClosing:
    """When windows close, and what becomes of late records.

    emit            ON_WINDOW_UPDATE: each update; ON_WINDOW_CLOSE: each window once, when it closes
    close_after_ms  milliseconds without a record of this step, by the wall clock, that close every open window
    late            topic for records that no open window takes; without it they are dropped and counted
    name            of the step; its skipped records are counted under it. None: from the store
    on_error        "fail", "skip" (counted) or "dead_letter"; None: as the step before
    dead_letter     topic for failed records, as they were read, with headers that say why
    """

    emit: EmitStrategy = ON_WINDOW_UPDATE
    close_after_ms: int | None = None
    late: str | None = None

    def problems(self, windows: AnyWindows) -> list[str]:
        """The problems of the settings for these windows, each with its fix."""
        problems = []
        if not isinstance(self.emit, EmitStrategy):
            problems.append(f"emit must be ON_WINDOW_UPDATE or ON_WINDOW_CLOSE, not {self.emit!r}")
        elif self.emit is ON_WINDOW_CLOSE and isinstance(windows, UnlimitedWindows):
            problems.append("emit=ON_WINDOW_CLOSE never gives a result of a window without end: use ON_WINDOW_UPDATE")
        if self.close_after_ms is not None and not is_whole(self.close_after_ms, 1):
            problems.append(
                f"close_after_ms must be a whole number of milliseconds of at least 1, not {self.close_after_ms!r}"
            )
        elif self.close_after_ms is not None and self.emit is not ON_WINDOW_CLOSE:
            problems.append("close_after_ms closes windows to give their results: it needs emit=ON_WINDOW_CLOSE")
        if self.late is not None:
            try:
                check_topic(self.late)
            except InvalidRequest as error:
                problems.append(f"late: {error}")
            if isinstance(windows, UnlimitedWindows):
                problems.append("late: no record is too late for a window without end: leave it out")
        return problems
