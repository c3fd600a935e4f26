"""The results of an uninterrupted run of support/crash/app_child.py, in plain loops over the input, and the differences
of a run from them.

    make_inputs     records by topic and partition, all of them following from a seed
    expect          outputs by topic and partition, and stores by name and partition
    compare         differences in the outputs and stores of a run, as sentences; empty if none

Why this is sound: a task of group 0 or 2 reads one partition, and a partition of the orders between 2 and 3 has one
writer, so each of these tasks sees one order of records, whichever process runs it and however often it restarts. In
group 1 the records of two upstream tasks mix in any order. Its results do not depend on that order: counts whose
windows never close, and Board rows, which are forwarded when the watermark, the smaller one of both tasks, has passed
the window, and so after all their records. Nothing here is shared with the library: no windows, clocks, timers or
serdes of its own.

    exactly once    as expected, record by record; updates that a cache held back are some of those expected, in order,
                    with the last one of each key
    at least once   nothing is missing; counts may be larger, records may come again, rows may be left over

Rules of this file: a Row is (key, value, timestamp, headers), keys of windows are (key, start, end).
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from standfast.replication.log import Headers, Outgoing
from support.crash.app_child import (
    BOARD_MS,
    BOUNDARY,
    DISORDER_MS,
    HOP,
    ORDER,
    ORDER_VISIT,
    REMIND_MS,
    RETENTION_MS,
    RETIRE_MS,
    SILENCE_MS,
    TICK_MS,
    TOTAL,
    TUMBLE,
    VISIT,
)

START_MS = 1_356_998_400_000
KEYS = tuple(f"c{number}" for number in range(12))
PLACES = tuple(f"p{number}" for number in range(5))
UPDATES = ("updates", "visits", "totals")  # held back by a cache; the others are exact, in order
WINDOW_MS = {"updates": HOP.size_ms, "finals": TUMBLE.size_ms, "totals": TOTAL.size_ms, "order-finals": ORDER.size_ms}
SESSIONS = ("visits", "order-sessions")
WATCHER, BOARD = (("by", b"watcher"),), (("by", b"board"),)


class Row(NamedTuple):
    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()


Outputs = dict[tuple[str, int], list[Row]]
Stores = dict[tuple[str, int], dict[Any, Any]]
Inputs = dict[tuple[str, int], list[Row]]


@dataclass
class Expected:
    outputs: Outputs = field(default_factory=lambda: defaultdict(list))
    stores: Stores = field(default_factory=lambda: defaultdict(dict))


def partition_of(key: str) -> int:
    return zlib.crc32(key.encode()) % 2


# -- input -------------------------------------------------------------------------------------------------------------


def make_inputs(seed: int, records: int) -> Inputs:
    """`records` of each partition: mostly forward in time, some behind, some far behind, now and then a gap."""
    inputs: Inputs = {}
    for topic, partition in (("clicks", 0), ("clicks", 1), ("orders", 0)):
        random, now_ms = Random(f"{seed}/{topic}/{partition}"), START_MS
        keys = [key for key in KEYS if topic == "orders" or partition_of(key) == partition]
        rows = inputs[topic, partition] = []
        for number in range(records):
            now_ms += random.choice((0, random.randrange(400), random.randrange(4_000)))
            if random.random() < 0.01:
                now_ms += random.randrange(150_000)
            back_ms = random.choice((0, 0, 0, random.randrange(8_000), random.randrange(22_000)))
            value = {"n": number * 3 + partition, "place": random.choice(PLACES)}
            if topic == "clicks" and random.random() < 0.02:
                value["bad"] = 1
            headers = (("trace", f"{topic}/{partition}/{number}".encode()), ("empty", None))
            rows.append(Row(random.choice(keys), value, now_ms - back_ms, headers))
    return inputs


def outgoing(rows: Iterable[Row]) -> list[Outgoing]:
    return [Outgoing(row.key.encode(), json.dumps(row.value).encode(), row.timestamp, row.headers) for row in rows]


# -- expected results --------------------------------------------------------------------------------------------------


def add(aggregate: list[int] | None, number: int) -> list[int]:
    count, total = (0, 0) if aggregate is None else aggregate[:2]
    return [count + 1, total + number, number]


class Windows:
    """Rows by key and window; the store keeps the rows that it has not forgotten by its own largest start."""

    def __init__(self, size_ms: int, advance_ms: int, grace_ms: int) -> None:
        self.size_ms, self.advance_ms, self.grace_ms = size_ms, advance_ms, grace_ms
        self.rows: dict[tuple[str, int, int], tuple[list[int], int]] = {}
        self.given: set[tuple[str, int, int]] = set()
        self.observed_ms = -1

    def closed(self, stamp: int, headers: Headers) -> list[Row]:
        """Move the clock; the windows that this closes."""
        self.observed_ms = max(self.observed_ms, stamp)
        due = [key for key in self.rows if key[2] <= self.observed_ms - self.grace_ms and key not in self.given]
        self.given.update(due)
        due.sort(key=lambda key: (key[2], key[0].encode()))
        return [Row(key, *self.rows[key], headers) for key in due]

    def update(self, row: Row) -> list[Row]:
        """Add a record to its open windows; returns the updates."""
        updates = []
        first = max(0, row.timestamp - self.size_ms + self.advance_ms) // self.advance_ms * self.advance_ms
        for start in range(first, row.timestamp + 1, self.advance_ms):
            key = (row.key, start, start + self.size_ms)
            if key[2] > self.observed_ms - self.grace_ms:
                old, stamp = self.rows.get(key, (None, -1))
                self.rows[key] = (add(old, row.value["n"]), max(stamp, row.timestamp))
                updates.append(Row(key, *self.rows[key], row.headers))
        return updates

    def kept(self, retention_ms: int = RETENTION_MS) -> dict[Any, Any]:
        largest = max((start for _, start, _ in self.rows), default=-1)
        return {key: value for key, (value, _) in self.rows.items() if key[1] > largest - retention_ms}


class Sessions:
    """As Windows, by sessions. `forgotten` holds the sessions that the store has dropped by its own largest end."""

    def __init__(self, gap_ms: int, grace_ms: int, *, on_close: bool = False) -> None:
        self.gap_ms, self.grace_ms, self.on_close = gap_ms, grace_ms, on_close
        self.rows: dict[tuple[str, int, int], list[int]] = {}
        self.given: set[tuple[str, int, int]] = set()
        self.observed_ms = self.largest_end = -1

    def closed(self, stamp: int, headers: Headers) -> list[Row]:
        self.observed_ms = max(self.observed_ms, stamp)
        due = [key for key in self.rows if key[2] < self.open_from() and key not in self.given]
        self.given.update(due)
        due.sort(key=lambda key: (key[2], key[1], key[0].encode()))
        return [Row(key, self.rows[key], key[2], headers) for key in due]

    def open_from(self) -> int:
        return self.observed_ms - self.grace_ms - self.gap_ms

    def update(self, row: Row) -> list[Row]:
        at = row.timestamp
        near = [
            key
            for key in self.rows
            if not (self.on_close and key in self.given)  # a result given on close is not joined any more
            and key[0] == row.key
            and key[2] >= at - self.gap_ms
            and key[1] <= at + self.gap_ms
        ]
        near.sort(key=lambda key: (key[2], key[1]))
        start, end = min([at, *(key[1] for key in near)]), max([at, *(key[2] for key in near)])
        if end < self.open_from():
            return []
        aggregate, updates = [0, 0, -1], []
        for key in near:
            count, total, last = self.rows[key]
            aggregate = [aggregate[0] + count, aggregate[1] + total, max(aggregate[2], last)]
            if (start, end) != (at, at):
                del self.rows[key]
                updates.append(Row(key, None, key[2], row.headers))
        merged = (row.key, start, end)
        self.rows[merged] = add(aggregate, row.value["n"])
        self.largest_end = max(self.largest_end, end)
        return [*updates, Row(merged, self.rows[merged], end, row.headers)]

    def kept(self) -> dict[Any, Any]:
        return {key: value for key, value in self.rows.items() if key[2] > self.largest_end - RETENTION_MS}


class Watch:
    """The Watcher of one task, with its timers."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}
        self.timers: set[tuple[int, bytes]] = set()
        self.boundary = -1
        self.out: list[Row] = []

    def process(self, row: Row) -> None:
        last, count, due = self.seen.get(row.key, (-1, 0, -1))
        self.timers.discard((due, row.key.encode()))
        last = max(last, row.timestamp)
        self.timers.add((last + SILENCE_MS, row.key.encode()))
        if row.value["n"] % 3 == 0:
            self.timers.add((row.timestamp + REMIND_MS, row.key.encode()))
        self.seen[row.key] = [last, count + 1, last + SILENCE_MS]

    def fire(self, clock_ms: int) -> None:
        while self.timers and min(self.timers)[0] <= clock_ms:
            at, raw_key = min(self.timers)
            self.timers.remove((at, raw_key))
            key = raw_key.decode()
            last, count, due = self.seen.get(key, (-1, 0, -1))
            if due == at:
                self.seen[key] = [last, count, -1]
            if at % 7 == 0:
                self.timers.add((at + 1_000, raw_key))
            self.out.append(Row(key, {"alarm": at, "count": count}, at, WATCHER))

    def tick(self, now_ms: int) -> None:
        boundary = now_ms // TICK_MS * TICK_MS
        if boundary <= self.boundary:
            return
        self.boundary = boundary
        for key in sorted(self.seen):
            last, count, due = self.seen[key]
            if last < boundary - RETIRE_MS:
                del self.seen[key]
                self.timers.discard((due, key.encode()))
                self.out.append(Row(key, {"retired": boundary, "count": count}, boundary, WATCHER))


def expect(inputs: Inputs) -> Expected:
    """Outputs and stores after all of the input."""
    expected = Expected()
    places: list[Row] = []
    clocks = [expect_clicks(partition, inputs["clicks", partition], places, expected) for partition in (0, 1)]
    expect_places(places, min(clocks), expected)
    for partition in (0, 1):
        of_place = (row._replace(key=row.value["place"]) for row in inputs["orders", 0])
        expect_orders(partition, [row for row in of_place if partition_of(row.key) == partition], expected)
    return expected


def expect_clicks(partition: int, rows: list[Row], places: list[Row], expected: Expected) -> int:
    """Group 0, one task; adds the records for group 1 to `places`. Returns its last watermark."""
    out = {
        name: expected.outputs[name, partition] for name in ("updates", "finals", "visits", "alarms", "late", "dead")
    }
    hops = Windows(HOP.size_ms, HOP.advance_ms, HOP.grace_ms)
    tumbles = Windows(TUMBLE.size_ms, TUMBLE.size_ms, TUMBLE.grace_ms)
    visits, watch = Sessions(VISIT.gap_ms, VISIT.grace_ms), Watch()
    watch.out = out["alarms"]
    largest_ms = clock_ms = -1
    for row in rows:
        brings_ms = row.timestamp - DISORDER_MS - 1
        if row.timestamp <= clock_ms:
            out["late"].append(row)
        elif row.value.get("bad"):
            out["dead"].append(row)  # it leaves no trace but in the stream time and in the watermark
        else:
            hops.closed(row.timestamp, ())
            out["updates"] += hops.update(row)
            out["finals"] += tumbles.closed(row.timestamp, row.headers)
            tumbles.update(row)
            visits.closed(row.timestamp, ())
            out["visits"] += visits.update(row)
            places.append(row._replace(key=row.value["place"]))
            watch.process(row)
        largest_ms = max(largest_ms, row.timestamp)
        clock_ms = max(clock_ms, brings_ms)
        hops.closed(clock_ms, ())
        out["finals"] += tumbles.closed(clock_ms, ())
        visits.closed(clock_ms, ())
        watch.fire(clock_ms)
        watch.tick(largest_ms)
    expected.stores["hops", partition] = hops.kept()
    expected.stores["tumbles", partition] = tumbles.kept()
    expected.stores["sessions", partition] = visits.kept()
    expected.stores["seen", partition] = {**watch.seen, BOUNDARY: [watch.boundary]}
    expected.stores["watcher-timers", partition] = {timer_row(*timer): b"" for timer in watch.timers}
    return clock_ms


def expect_places(rows: list[Row], clock_ms: int, expected: Expected) -> None:
    """Group 1, both tasks, whose upstream records may mix in any order."""
    totals: dict[Any, int] = defaultdict(int)
    boards: dict[tuple[int, str], list[int]] = {}
    for row in rows:
        start = row.timestamp // TOTAL.size_ms * TOTAL.size_ms
        key = (row.key, start, start + TOTAL.size_ms)
        totals[key] += 1
        expected.outputs["totals", partition_of(row.key)].append(Row(key, totals[key], -1))
        end = (row.timestamp // BOARD_MS + 1) * BOARD_MS
        count, total = boards.get((end, row.key), (0, 0))
        boards[end, row.key] = [count + 1, total + row.value["n"]]
    for partition in (0, 1):
        expected.stores["board", partition] = {}
        expected.stores["watch-board-timers", partition] = {}
    for key, count in totals.items():
        expected.stores["totals", partition_of(key[0])][key] = count
    for (end, place), row in sorted(boards.items()):
        if end - 1 <= clock_ms:
            expected.outputs["boards", partition_of(place)].append(Row(place, row, end - 1, BOARD))
        else:
            expected.stores["board", partition_of(place)][f"{place}|{end}"] = row
            expected.stores["watch-board-timers", partition_of(place)][timer_row(end - 1, place.encode())] = b""


def expect_orders(partition: int, rows: list[Row], expected: Expected) -> None:
    """Group 3, one task."""
    windows = Windows(ORDER.size_ms, ORDER.size_ms, ORDER.grace_ms)
    visits = Sessions(ORDER_VISIT.gap_ms, ORDER_VISIT.grace_ms, on_close=True)
    for row in rows:
        expected.outputs["order-finals", partition] += windows.closed(row.timestamp, row.headers)
        windows.update(row)
        expected.outputs["order-sessions", partition] += visits.closed(row.timestamp, row.headers)
        visits.update(row)
    expected.stores["order-windows", partition] = windows.kept()
    expected.stores["order-visits", partition] = visits.kept()


def timer_row(time_ms: int, raw_key: bytes) -> bytes:
    return b"\0" + time_ms.to_bytes(8, "big") + raw_key


# -- comparing ---------------------------------------------------------------------------------------------------------


def read_row(topic: str, key: bytes, value: bytes | None, timestamp: int, headers: Headers) -> Row:
    """An output record in the oracle's terms."""
    plain: Any = key.decode() if topic not in (*WINDOW_MS, *SESSIONS) else None
    if topic in WINDOW_MS:
        start = int.from_bytes(key[-8:], "big")
        plain = (key[:-8].decode(), start, start + WINDOW_MS[topic])
    elif topic in SESSIONS:
        plain = (key[:-16].decode(), int.from_bytes(key[-8:], "big"), int.from_bytes(key[-16:-8], "big"))
    if topic == "dead":  # the headers with the reason are added to the record's own
        headers = tuple(header for header in headers if not header[0].startswith("__streams.errors."))
    return Row(plain, None if value is None else json.loads(value), timestamp, headers)


def compare(
    expected: Expected, outputs: Mapping[tuple[str, int], list[Row]], stores: Stores, guarantee: str, *, cached: bool
) -> list[str]:
    problems = []
    for (topic, partition), wanted in expected.outputs.items():
        found = outputs.get((topic, partition), [])
        if guarantee == "at_least_once":
            problems += lost_rows(topic, wanted, found, f"{topic}-{partition}")
        elif topic in UPDATES:
            problems += wrong_updates(topic, wanted, found, f"{topic}-{partition}", cached=cached)
        else:
            problems += wrong_rows(wanted, found, f"{topic}-{partition}")
    for at, wanted_rows in expected.stores.items():
        where = "store {}-{}".format(*at)
        found_rows = stores.get(at, {})
        if guarantee == "at_least_once":
            missing = [
                key
                for key, value in wanted_rows.items()
                if not any(as_fresh(one, value) for one in covering(key, found_rows))
            ]
            problems += [f"{where}: {key} is {found_rows.get(key)}, not {wanted_rows[key]}" for key in missing[:3]]
        elif found_rows != wanted_rows:
            keys = [key for key in wanted_rows | found_rows if wanted_rows.get(key) != found_rows.get(key)]
            shown = ", ".join(f"{key}: {found_rows.get(key)} for {wanted_rows.get(key)}" for key in keys[:3])
            problems.append(f"{where}: {len(keys)} rows differ: {shown}")
    return problems


def wrong_rows(wanted: list[Row], found: list[Row], where: str) -> list[str]:
    """Differences from exactly these records, in this order."""
    if wanted == found:
        return []
    at = next((n for n, (one, other) in enumerate(zip(wanted, found, strict=False)) if one != other), None)
    at = min(len(wanted), len(found)) if at is None else at
    return [
        f"{where}: {len(found)} records for {len(wanted)}, the first difference is #{at}: "
        f"{found[at : at + 1]} for {wanted[at : at + 1]}"
    ]


def wrong_updates(topic: str, wanted: list[Row], found: list[Row], where: str, *, cached: bool) -> list[str]:
    """Per key: some of the expected updates in their order, and the last one; without a cache all of them."""
    if topic != "totals" and not cached:
        return wrong_rows(wanted, found, where)
    problems = []
    every, some = by_key(topic, wanted), by_key(topic, found)
    for key in every | some:
        all_of, part = every.get(key, []), some.get(key, [])
        rest = iter(all_of)
        in_order = all(one in rest for one in part)
        last_of, last = (all_of or [None])[-1], (part or [None])[-1]
        gone = last is None and last_of is not None and last_of[0] is None  # made and removed between two flushes
        if not in_order or not (last == last_of or gone) or not (cached or part == all_of):
            problems.append(f"{where}: updates of {key}: {part[-3:]} for {all_of[-3:]}")
    return problems[:3]


def by_key(topic: str, rows: list[Row]) -> dict[Any, list[Any]]:
    """Updates of each key. Time and headers of totals are those of the record that came last."""
    found = defaultdict(list)
    for row in rows:
        found[row.key].append((row.value,) if topic == "totals" else row[1:])
    return found


def lost_rows(topic: str, wanted: list[Row], found: list[Row], where: str) -> list[str]:
    """Expected results without one at least as fresh; of updates only the last ones count."""
    best: dict[Any, list[Any]] = defaultdict(list)
    for row in found:
        best[identity(topic, row)].append(row.value)
    last = {identity(topic, row): row.value for row in wanted}
    missing = [
        key
        for key, value in last.items()
        if value is not None and not any(as_fresh(one, value) for values in covering(key, best) for one in values)
    ]
    if not missing:
        return []
    near = {key: values for key, values in best.items() if key[0] == missing[0][0]}
    return [f"{where}: {len(missing)} results are missing, such as {missing[0]}: {last[missing[0]]}; found: {near}"]


def covering(key: Any, found: Mapping[Any, Any]) -> list[Any]:
    """Rows found under a key, and for a session also those found for a session that contains it.

    A record that is processed again meets sessions that are ahead of it. A record that was too late the first time may
    then join two of them, because the session that it makes ends later than the first time.
    """
    values = [found[key]] if key in found else []
    if isinstance(key, tuple) and len(key) == 3 and type(key[1]) is int:
        plain, start, end = key
        values += [
            value
            for other, value in found.items()
            if isinstance(other, tuple) and other[0] == plain and other[1] <= start and end <= other[2] and other != key
        ]
    return values


def identity(topic: str, row: Row) -> Any:
    if topic == "alarms":
        return row.key, tuple((name, value) for name, value in row.value.items() if name != "count")
    return (row.key, row.timestamp, row.headers) if topic in ("late", "dead", "boards") else row.key


def as_fresh(found: Any, wanted: Any) -> bool:
    """At least once, a record processed again counts again; a row of `seen` leads with its largest time."""
    if found is None:
        return False
    if isinstance(wanted, list):
        return bool(found[0] >= wanted[0])
    return bool(found >= wanted) if isinstance(wanted, int) else True
