"""The players of the scenario `windows`: the windows of a record, and counts over them.

`Bounds`, the windows of `standfast.stream.windows`:

    tumbling size=10 grace=2 | hopping size=10 advance=5 | sliding difference=10 | session gap=10 | unlimited start=100
    windows 9 10                  the windows of a record at each of these times

`Counts`, counts over real window stores on the test driver; no cache, so every update is seen:

    new tumbling updates finals size=10 grace=5     the windows, and the topics: each update | on close
    record a 20 | restart
    results | updated | all                         of `updates` | with how many were dropped | of each topic

Rules of this file: a count of None takes a result back.
"""

from __future__ import annotations

from functools import partialmethod
from typing import Any

from standfast.store import serde
from standfast.store.results import Windowed
from standfast.store.specs import SessionStore, StoreSpec, WindowStore
from standfast.stream.app.app import App
from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE
from standfast.stream.windows import (
    AnyWindows,
    HoppingWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    UnlimitedWindows,
    Window,
)
from worked_examples.driven import Driven
from worked_examples.script import Player

KINDS = {
    "tumbling": TumblingWindows,
    "hopping": HoppingWindows,
    "sliding": SlidingWindows,
    "session": SessionWindows,
    "unlimited": UnlimitedWindows,
}


def windows_of(kind: str, numbers: dict[str, int]) -> AnyWindows:
    """Windows of a kind; its numbers are milliseconds."""
    return KINDS[kind](**{f"{name}_ms": number for name, number in numbers.items()})  # type: ignore[no-any-return]


class Bounds(Player):
    """One kind of windows after the other."""

    def begin(self, kind: str, **numbers: int) -> Any:
        """Begin with these windows."""
        self.kind = windows_of(kind, numbers)

    tumbling = partialmethod(begin, "tumbling")
    hopping = partialmethod(begin, "hopping")
    sliding = partialmethod(begin, "sliding")
    session = partialmethod(begin, "session")
    unlimited = partialmethod(begin, "unlimited")

    def windows(self, *times: str) -> list[list[Window]]:
        """The windows of a record at each of these times."""
        assert not isinstance(self.kind, SessionWindows), "records decide where sessions lie"
        return [list(self.kind.windows_for(int(time))) for time in times]

    def value(self, answer: Any) -> Any:
        """The windows of one record."""
        (windows,) = answer
        return [{"start": start, "end": end} for start, end in windows]


TOPIC = "clicks"
EMITS = {"updates": ON_WINDOW_UPDATE, "finals": ON_WINDOW_CLOSE}


class Counts(Driven):
    """One application after the other."""

    def new(self, kind: str, *outputs: str, **numbers: int) -> None:
        """Declare an application that counts by key and window into each topic."""
        windows, self.outputs = windows_of(kind, numbers), outputs
        # A store for each topic: two counts over one store would count each record twice.
        app = App("windows", stores=[_store(f"counts-{topic}", windows) for topic in outputs])
        clicks = app.stream(TOPIC).group_by_key()
        for topic in outputs:
            clicks.window(windows).count(f"counts-{topic}", emit=EMITS[topic]).to(topic)
        self.open(app)

    def record(self, key: str, timestamp: str) -> None:
        """Pipe a record."""
        self.running.pipe(TOPIC, key, "x", int(timestamp))

    def results(self, topic: str = "updates") -> list[dict[str, Any]]:
        """Key, window and count of the results since the last look."""
        found = []
        for record in self.running.read(topic):
            assert isinstance(record.key, Windowed)
            key, start, end = record.key
            found.append({"key": key, "start": start, "end": end, "count": record.value})
        return found

    def updated(self) -> dict[str, Any]:
        """The results, and the number of dropped records."""
        return {"updated": self.results(), "dropped": self.dropped()}

    def all(self) -> dict[str, Any]:
        """The results of each topic, and the number of dropped records."""
        return {**{topic: self.results(topic) for topic in self.outputs}, "dropped": self.dropped()}


def _store(name: str, windows: AnyWindows) -> StoreSpec:
    kept = windows.retention_safe_ms
    if isinstance(windows, SessionWindows):
        return SessionStore(name, serde.string, serde.int64, retention_ms=kept, caching=False)
    return WindowStore(
        name, serde.string, serde.int64, window_size_ms=windows.size_ms, retention_ms=kept, caching=False
    )
