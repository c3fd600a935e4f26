"""Compares the stores and the final results that the demo left behind with the plain computation, row by row.

    state directory ──> rows by (partition, key ...) ────────────┐
    hour-results    ──> records by (partition, airport, start) ──┤
    flights ──> plain_board ─────────────────────────────────────┴─> missing, extra, different, examples

Rules of this file: it reads stores and the topic as any reader would and changes nothing; no process of the demo runs
meanwhile. The expected rows come from `standfast.ops.demo.plain` alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from standfast.ops.demo.board import HOUR_MS, PARTITIONS, RESULTS
from standfast.ops.demo.plain import PlainBoard
from standfast.ops.observe.offline import OfflineStores
from standfast.replication.log import Log
from standfast.replication.offsets import TopicPartition
from standfast.restore.compare import merged
from standfast.restore.digest import Digest, digest_rows
from standfast.store import serde
from standfast.store.results import Windowed
from standfast.stream.dsl.windowed_serde import windowed

EXAMPLES_MAX = 5
FETCH_RECORDS = 5_000
WAIT_MS = 100
HOUR = windowed(serde.string, HOUR_MS)

At = tuple[int, str, int]
Rows = Mapping[Any, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class StoreComparison:
    """One store, all partitions. `examples` are the first differences in words, `digest` is that of all rows.

    `again` are rows that count flights again, which is no difference where the guarantee is at least once.
    """

    store: str
    rows: int
    expected: int
    missing: int
    extra: int
    different: int
    examples: tuple[str, ...]
    digest: str = ""
    again: int = 0

    @property
    def differences(self) -> int:
        """Rows that differ in any way."""
        return self.missing + self.extra + self.different


@dataclass(frozen=True, slots=True)
class BoardComparison:
    """All stores, and the flights that were counted against those of the file.

    `flights_counted` is by the tasks themselves, in the numbers kept with their commits; `windowed_flights_counted` by
    the rows of the hours within retention. `aircraft_retired` counts retirements, several of some aircraft. Where it is
    not `exact`, as at least once, flights may be counted again; none may be missing.
    """

    stores: tuple[StoreComparison, ...]
    flights_counted: int
    flights_expected: int
    windowed_flights_counted: int
    windowed_flights_expected: int
    aircraft_retired: int = 0
    exact: bool = True

    @property
    def differences(self) -> int:
        """Rows that differ in any way, plus one for each sum that is not right."""
        windowed = self.windowed_flights_counted - self.windowed_flights_expected
        more = (self.flights_counted - self.flights_expected, windowed)
        sums = sum(one < 0 or (self.exact and one > 0) for one in more)
        return sum(one.differences for one in self.stores) + sums

    @property
    def again(self) -> int:
        """Flights that were counted more than once, by the rows of the hours within retention."""
        return max(self.windowed_flights_counted - self.windowed_flights_expected, 0)


class Final(NamedTuple):
    """One record of the topic: (partition, airport, start) and the row."""

    at: At
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FinalsComparison:
    """Records of the topic against the hours that closed.

    `repeated` are records beyond the first of an hour, `disordered` those that end before one given earlier in their
    partition; `examples` are the first differences in words. Where it is not `exact`, as at least once, results may be
    given again and count flights again.
    """

    records: int
    expected: int
    missing: int
    extra: int
    different: int
    repeated: int
    disordered: int
    examples: tuple[str, ...]
    exact: bool = True

    @property
    def differences(self) -> int:
        """Number of wrong results."""
        again = self.repeated if self.exact else 0
        return self.missing + self.extra + self.different + again + self.disordered


def compare_state(tasks: Sequence[OfflineStores], plain: PlainBoard, *, exact: bool = True) -> BoardComparison:
    """Compare every row of the tasks' stores with the plain board; `exact` unless the guarantee is at least once."""
    expected: dict[str, Rows] = {
        "aircraft": plain.aircraft,
        "delays": plain.delays,
        "three-hours": plain.three_hours,
        "final-delays": plain.delays,  # results are given once, but the rows stay as long as any others
    }
    actual = {name: _rows(tasks, name) for name in expected}
    digests = state_digests(tasks)
    counted, retired = (sum(one.cut.progress.get(name, 0) for one in tasks) for name in ("flights", "retired"))
    return BoardComparison(
        stores=tuple(
            compare_store(name, actual[name], rows, digests[name], exact=exact) for name, rows in expected.items()
        ),
        flights_counted=counted,
        flights_expected=sum(plain.records.values()),
        windowed_flights_counted=sum(row["flights"] for row in actual["delays"].values()),
        windowed_flights_expected=sum(plain.records.values()) - plain.expired,
        aircraft_retired=retired,
        exact=exact,
    )


def _rows(tasks: Sequence[OfflineStores], name: str) -> dict[Any, dict[str, Any]]:
    """(partition, key) or (partition, key, window start) -> value, over all tasks that have the store."""
    rows: dict[Any, dict[str, Any]] = {}
    for task in tasks:
        if name in task.definitions:
            store: Any = task.store(name)
            with store.all() as found:
                for key, value in found:
                    plain = (key.key, key.start) if isinstance(key, Windowed) else (key,)
                    rows[(task.task.task.partition, *plain)] = value
    return rows


def compare_store(store: str, actual: Rows, expected: Rows, digest: str = "", *, exact: bool = True) -> StoreComparison:
    """Compare two sets of rows. Where it is not `exact`, a row may count flights again, and is then correct."""
    counts: Counter[str] = Counter()
    told: list[str] = []
    for at, must, row in merged(_named(expected), _named(actual)):
        kind = "missing" if row is None else "extra" if must is None else "equal" if row == must else "different"
        if row is not None and must is not None and not exact and _counted_again(row, must):
            kind = "again"
        counts[kind] += 1
        if kind not in ("equal", "again") and len(told) < EXAMPLES_MAX:
            told.append(f"{store} {at.decode()}: {kind}, is {row}, must be {must}")
    return StoreComparison(
        store=store,
        rows=len(actual),
        expected=len(expected),
        missing=counts["missing"],
        extra=counts["extra"],
        different=counts["different"],
        examples=tuple(told),
        digest=digest,
        again=counts["again"],
    )


def _counted_again(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    if "flights" not in expected:
        return False
    # Sums grow with each repeat, and the worst delay of an hour does not.
    return bool(actual["flights"] > expected["flights"] and actual["worst"] == expected["worst"])


def _named(rows: Rows) -> list[tuple[bytes, Mapping[str, Any]]]:
    # `merged` refuses names that are not in strictly ascending order.
    return sorted(((str(at).encode(), row) for at, row in rows.items()), key=itemgetter(0))


def state_digests(tasks: Sequence[OfflineStores]) -> dict[str, str]:
    """Digest by store, over all partitions: key, timestamp and raw value of every visible row."""
    digests: dict[str, Digest] = {}
    for task in tasks:
        for name in task.definitions:
            digests[name] = digests.get(name, Digest()) + digest_rows(task.store(name).logical_rows())
    return {name: digest.hex() for name, digest in digests.items()}


def read_finals(log: Log, topic: str = RESULTS) -> list[Final]:
    """Every record of the topic, in order by partition."""
    found: list[Final] = []
    with closing(log.reader()) as reader:
        for part in range(PARTITIONS):
            at = TopicPartition(topic, part)
            position, end = reader.bounds([at])[at]
            reader.assign({at: position})
            # By position and not by records: on Kafka the end of a transaction takes an offset, too.
            while position < end:
                for batch in reader.fetch(FETCH_RECORDS, WAIT_MS):
                    position = batch.next_offset
                    for record in batch.records:
                        hour = HOUR.deserialize(record.key or b"")
                        found.append(Final((part, hour.key, hour.start), json.loads(record.value or b"null")))
    return found


def compare_finals(
    finals: Iterable[Final], expected: Mapping[At, Mapping[str, Any]], *, exact: bool = True
) -> FinalsComparison:
    """Compare the records of the topic, each partition in its order, with the hours that closed."""
    seen: dict[At, dict[str, Any]] = {}
    latest: dict[int, int] = {}
    records = repeated = disordered = 0
    told: list[str] = []
    for at, row in finals:
        records += 1
        again = at in seen
        if again:
            repeated += 1
            told += [f"{at}: given again, as {row}"] if exact else []
        seen.setdefault(at, row)
        # A result that is given again comes after later hours by its nature.
        if at[2] < latest.get(at[0], 0) and (exact or not again):
            disordered += 1
            told.append(f"{at}: given after a later hour")
        latest[at[0]] = max(latest.get(at[0], 0), at[2])
    rows = compare_store(RESULTS, seen, expected, exact=exact)
    examples = (*(f"{RESULTS} {text}" for text in told), *rows.examples)[:EXAMPLES_MAX]
    return FinalsComparison(
        records, len(expected), rows.missing, rows.extra, rows.different, repeated, disordered, examples, exact
    )
