"""Applications of one aggregation, for tests: a source, the aggregation, and its results with their old values.

Rules of this file: the real parts, run by the test driver. Values in and out are JSON; a result is
(key, start, end, value, old value, timestamp), start and end None without windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from standfast.store import serde
from standfast.store.results import Windowed
from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, WindowStore
from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver
from standfast.stream.dsl.fluent import Table
from standfast.stream.dsl.grouped import GroupedStream, WindowedStream
from standfast.stream.emit import ON_WINDOW_UPDATE, EmitStrategy
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context, Processor
from standfast.stream.windows import AnyWindows, SessionWindows

STORE = "agg"
Build = Callable[[Any, EmitStrategy], Table]


class Result(NamedTuple):
    """One record of a result topic."""

    key: Any
    start: int | None
    end: int | None
    value: Any
    old: Any
    timestamp: int


class Both(Processor):
    """Forwards [value, old value]."""

    stores = ()

    def init(self, context: Context) -> None:
        self.forward = context.forward

    def process(self, record: Record) -> None:
        self.forward(Record(record.key, [record.value, record.old_value], record.timestamp, record.headers))


def add_to_list(key: Any, value: Any, aggregate: list[Any]) -> list[Any]:
    """Changes the aggregate in place, as users do; a value "bad" fails, "none" removes."""
    if value == "bad":
        aggregate.append(value)
        raise ValueError("a bad value")
    if value == "none":
        return None  # type: ignore[return-value]
    aggregate.append(value)
    return aggregate


def merge_lists(key: Any, one: list[Any], other: list[Any]) -> list[Any]:
    one.extend(other)
    return one


def counted(grouped: GroupedStream | WindowedStream, emit: EmitStrategy) -> Table:
    return grouped.count(STORE, emit=emit)


def listed(grouped: GroupedStream | WindowedStream, emit: EmitStrategy) -> Table:
    if isinstance(grouped, WindowedStream) and isinstance(grouped.windows, SessionWindows):
        return grouped.aggregate(list, add_to_list, STORE, merge=merge_lists, emit=emit)
    return grouped.aggregate(list, add_to_list, STORE, emit=emit)


def store_for(windows: AnyWindows | None, **settings: Any) -> StoreSpec:
    if windows is None:
        return KeyValueStore(STORE, serde.string, serde.json, **settings)
    settings.setdefault("retention_ms", windows.retention_safe_ms)
    if isinstance(windows, SessionWindows):
        return SessionStore(STORE, serde.string, serde.json, **settings)
    return WindowStore(STORE, serde.string, serde.json, window_size_ms=windows.size_ms, **settings)


def application(
    windows: AnyWindows | None,
    build: Build = counted,
    emit: EmitStrategy = ON_WINDOW_UPDATE,
    *,
    on_error: Any = "fail",
    cache_max_bytes: int = 10 << 20,
    **store: Any,
) -> App:
    app = App("agg-app", stores=[store_for(windows, **store)], cache_max_bytes=cache_max_bytes)
    grouped = app.stream("in", key=serde.string, value=serde.json, on_error=on_error).group_by_key()
    table = build(grouped if windows is None else grouped.window(windows), emit)
    table.process(Both, key=table.key, value=serde.json).to("out")
    return app


@contextmanager
def driven(windows: AnyWindows | None, build: Build = counted, **settings: Any) -> Iterator[Driver]:
    with Driver(application(windows, build, **settings)) as driver:
        yield driver


def results(driver: Driver) -> list[Result]:
    """Results since the last call."""
    found = []
    for key, (value, old), timestamp, _, _ in driver.read("out"):
        plain, start, end = key if isinstance(key, Windowed) else (key, None, None)
        found.append(Result(plain, start, end, value, old, timestamp))
    return found


def drops(driver: Driver) -> dict[str, int]:
    """Skipped records by reason."""
    return dict(driver.app.drops.counts)
