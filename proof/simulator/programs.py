"""The applications of the simulator, and what the plain computation says of their results.

    count     counts by key in a store; each result names its record, and the row before it is checked at each record
    windows   counts by key and window, emitted once when the window has closed
    rekeyed   counts by another key, behind a repartition topic: two sub-topologies
    table     count, beside a second store whose changelog is the source topic: the last value of each key

A record of topic IN: key `k3`, value `partition/number`, timestamp.

Rules of this file: programs use public names alone. `Truth` is computed from the records that were written, and knows
nothing of the product.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import standfast as sf

IN, OUT = "in", "out"
COUNTS, LATEST = "counts", "latest"
WINDOW_MS, GRACE_MS = 10_000, 2_000
GROUPS = 5

Seen = Callable[[int, int, int], None]  # partition and number of a record, the row before it
Hook = Callable[[], None]


class Fed(NamedTuple):
    """A record that the feeder wrote."""

    partition: int
    number: int
    key: str
    timestamp: int


def group_of(value: str) -> str:
    """The other key of a record."""
    return f"g{int(value.partition('/')[2]) % GROUPS}"


def declare(app: sf.App, program: str, seen: Seen, hook: Hook) -> None:
    """Declare a program's steps. `hook` may raise an exception, as an application's code does."""
    {"count": _count, "windows": _windows, "rekeyed": _rekeyed, "table": partial(_count, table=True)}[program](
        app, seen, hook
    )


def stores_of(program: str) -> list[Any]:
    """Definitions of a program's stores."""
    if program == "windows":
        kept_ms = WINDOW_MS + GRACE_MS
        return [sf.WindowStore(COUNTS, sf.serde.string, sf.serde.int64, window_size_ms=WINDOW_MS, retention_ms=kept_ms)]
    # Each result is forwarded, whatever commits come between: caching would leave some out.
    counts = sf.KeyValueStore(COUNTS, sf.serde.string, sf.serde.int64, caching=program != "rekeyed")
    if program == "table":
        return [counts, sf.KeyValueStore(LATEST, sf.serde.string, sf.serde.string, source_topic=IN)]
    return [counts]


def _count(app: sf.App, seen: Seen, hook: Hook, *, table: bool = False) -> None:
    class Count(sf.Processor):
        stores = (COUNTS, LATEST) if table else (COUNTS,)

        def init(self, context: Any) -> None:
            self.context, self.counts = context, context.store(COUNTS)
            self.latest = context.store(LATEST) if table else None

        def process(self, record: Any) -> None:
            hook()
            partition, number = map(int, record.value.split("/"))
            before = self.counts.get(record.key) or 0
            seen(partition, number, before)
            self.counts.put(record.key, before + 1)
            if self.latest is not None:
                self.latest.put(record.key, record.value)
            self.context.forward(sf.Record(record.key, f"{record.value}/{before + 1}", record.timestamp))

    text = sf.serde.string
    app.sink(OUT, key=text, value=text)(app.source(IN, key=text, value=text)(Count))


def _windows(app: sf.App, seen: Seen, hook: Hook) -> None:
    def checked(key: str, value: str) -> bool:
        hook()
        return True

    (
        app.stream(IN, key=sf.serde.string, value=sf.serde.string)
        .filter(checked)
        .group_by_key()
        .window(sf.TumblingWindows(WINDOW_MS, grace_ms=GRACE_MS))
        .count(COUNTS, emit=sf.ON_WINDOW_CLOSE)
        .to_stream()
        .map(lambda window, count: (f"{window.key}@{window.start}", str(count)))
        .to(OUT, key=sf.serde.string, value=sf.serde.string)
    )


def _rekeyed(app: sf.App, seen: Seen, hook: Hook) -> None:
    def other(key: str, value: str) -> tuple[str, str]:
        hook()
        return group_of(value), value

    (
        app.stream(IN, key=sf.serde.string, value=sf.serde.string)
        .map(other)
        .group_by_key(key=sf.serde.string, value=sf.serde.string)
        .count(COUNTS)
        .to_stream()
        .map_values(str)
        .to(OUT, key=sf.serde.string, value=sf.serde.string)
    )


class Truth:
    """Records by partition, and the plain computation over them."""

    def __init__(self) -> None:
        self.records: dict[int, list[Fed]] = defaultdict(list)
        self._before: dict[tuple[int, int], int] = {}
        self._counts: Counter[tuple[int, str]] = Counter()

    def add(self, record: Fed) -> None:
        """Note a record that is in the log."""
        self.records[record.partition].append(record)
        self._before[record.partition, record.number] = self._counts[record.partition, record.key]
        self._counts[record.partition, record.key] += 1

    @property
    def total(self) -> int:
        """The number of records."""
        return len(self._before)

    def before(self, partition: int, number: int) -> int:
        """How many records of the same key lie before a record."""
        return self._before[partition, number]

    def results(self, program: str) -> Counter[tuple[str, str]]:
        """Keys and values of OUT, each with how often it is there."""
        found: Counter[tuple[str, str]] = Counter()
        if program in ("count", "table"):
            for records in self.records.values():
                for one in records:
                    count = self.before(one.partition, one.number) + 1
                    found[one.key, f"{one.partition}/{one.number}/{count}"] += 1
        elif program == "rekeyed":
            groups = Counter(f"g{one.number % GROUPS}" for records in self.records.values() for one in records)
            found.update((group, str(number)) for group, count in groups.items() for number in range(1, count + 1))
        else:
            for records in self.records.values():
                found.update(_closed(records))
        return found


def _closed(records: list[Fed]) -> list[tuple[str, str]]:
    """The windows of one partition that its records have closed, once each."""
    counts: Counter[tuple[str, int]] = Counter()
    newest = -1
    for one in records:
        newest = max(newest, one.timestamp)
        start = one.timestamp - one.timestamp % WINDOW_MS
        if start + WINDOW_MS + GRACE_MS > newest:
            counts[one.key, start] += 1
    return [
        (f"{key}@{start}", str(count))
        for (key, start), count in counts.items()
        if start + WINDOW_MS + GRACE_MS <= newest
    ]
