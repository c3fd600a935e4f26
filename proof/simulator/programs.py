"""The applications of the simulator, and what the plain computation says of their results.

    count     counts by key in a store; each result names its record, and the row before it is checked at each record
    windows   counts by key and window, emitted once when the window has closed
    rekeyed   counts by another key, behind a repartition topic: two sub-topologies
    table     count, beside a second store whose changelog is the source topic: the last value of each key
    deletes   count, which deletes the row of a key at each fourth record and begins with it again

A changed program has one store more, or one step more where it is written with the DSL.

A record of topic IN: key `k3`, value `partition/number`, timestamp.

Rules of this file: programs use public names alone. `Truth` is computed from the records that were written, and knows
nothing of the product.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import standfast as sf

IN, OUT = "in", "out"
COUNTS, LATEST, MORE = "counts", "latest", "more"
WINDOW_MS, GRACE_MS = 10_000, 2_000
GROUPS = 5
DELETED_AT = 4
BY_RECORD = ("count", "table", "deletes")  # programs with a result for each record

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


def declare(app: sf.App, program: str, seen: Seen, hook: Hook, *, changed: bool = False) -> None:
    """Declare a program's steps. `hook` may raise an exception, as an application's code does."""
    if program in BY_RECORD:
        _count(app, seen, hook, [one.name for one in stores_of(program, changed=changed)], program)
    else:
        (_windows if program == "windows" else _rekeyed)(app, hook, changed=changed)


def stores_of(program: str, *, changed: bool = False) -> list[Any]:
    """Definitions of a program's stores."""
    if program == "windows":
        kept_ms = WINDOW_MS + GRACE_MS
        return [sf.WindowStore(COUNTS, sf.serde.string, sf.serde.int64, window_size_ms=WINDOW_MS, retention_ms=kept_ms)]
    # Each result is forwarded, whatever commits come between: caching would leave some out.
    counts = sf.KeyValueStore(COUNTS, sf.serde.string, sf.serde.int64, caching=program != "rekeyed")
    latest = [sf.KeyValueStore(LATEST, sf.serde.string, sf.serde.string, source_topic=IN)] if program == "table" else []
    more = [sf.KeyValueStore(MORE, sf.serde.string, sf.serde.int64)] if changed and program in BY_RECORD else []
    return [counts, *latest, *more]


def _count(app: sf.App, seen: Seen, hook: Hook, names: Sequence[str], program: str) -> None:
    class Count(sf.Processor):
        stores = tuple(names)

        def init(self, context: Any) -> None:
            self.context, self.counts = context, context.store(COUNTS)
            self.latest = context.store(LATEST) if LATEST in names else None
            self.more = context.store(MORE) if MORE in names else None

        def process(self, record: Any) -> None:
            hook()
            partition, number = map(int, record.value.split("/"))
            before = self.counts.get(record.key) or 0
            seen(partition, number, before)
            if program == "deletes" and before + 1 == DELETED_AT:
                self.counts.delete(record.key)
            else:
                self.counts.put(record.key, before + 1)
            if self.latest is not None:
                self.latest.put(record.key, record.value)
            if self.more is not None:
                self.more.put(record.key, before + 1)
            self.context.forward(sf.Record(record.key, f"{record.value}/{before + 1}", record.timestamp))

    text = sf.serde.string
    app.sink(OUT, key=text, value=text)(app.source(IN, key=text, value=text)(Count))


def _windows(app: sf.App, hook: Hook, *, changed: bool) -> None:
    def checked(key: str, value: str) -> bool:
        hook()
        return True

    stream = app.stream(IN, key=sf.serde.string, value=sf.serde.string)
    (
        (stream.filter(_any) if changed else stream)
        .filter(checked)
        .group_by_key()
        .window(sf.TumblingWindows(WINDOW_MS, grace_ms=GRACE_MS))
        .count(COUNTS, emit=sf.ON_WINDOW_CLOSE)
        .to_stream()
        .map(lambda window, count: (f"{window.key}@{window.start}", str(count)))
        .to(OUT, key=sf.serde.string, value=sf.serde.string)
    )


def _rekeyed(app: sf.App, hook: Hook, *, changed: bool) -> None:
    def other(key: str, value: str) -> tuple[str, str]:
        hook()
        return group_of(value), value

    stream = app.stream(IN, key=sf.serde.string, value=sf.serde.string)
    (
        (stream.filter(_any) if changed else stream)
        .map(other)
        .group_by_key(key=sf.serde.string, value=sf.serde.string)
        .count(COUNTS)
        .to_stream()
        .map_values(str)
        .to(OUT, key=sf.serde.string, value=sf.serde.string)
    )


def _any(key: str, value: str) -> bool:
    return True


class Truth:
    """Records by partition, and the plain computation over them. `deletes`: that of the program of this name."""

    def __init__(self, *, deletes: bool = False) -> None:
        self.records: dict[int, list[Fed]] = defaultdict(list)
        self.deletes = deletes
        self._offsets: dict[int, list[int]] = defaultdict(list)
        self._before: dict[tuple[int, int], int] = {}
        self._counts: Counter[tuple[int, str]] = Counter()

    def add(self, record: Fed, offset: int) -> None:
        """Note a record that is in the log, or will be once its transaction ends."""
        self._offsets[record.partition].append(offset)
        self.records[record.partition].append(record)
        self._before[record.partition, record.number] = self._counts[record.partition, record.key]
        self._counts[record.partition, record.key] += 1

    @property
    def total(self) -> int:
        """The number of records."""
        return len(self._before)

    def before(self, partition: int, number: int) -> int:
        """How many records of the same key lie before a record."""
        count = self._before[partition, number]
        return count % DELETED_AT if self.deletes else count

    def below(self, partition: int, offset: int) -> int:
        """The number of records of a partition below an offset."""
        return bisect_left(self._offsets[partition], offset)

    def results(self, program: str) -> Counter[tuple[str, str]]:
        """Keys and values of OUT, each with how often it is there."""
        found: Counter[tuple[str, str]] = Counter()
        if program in BY_RECORD:
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
