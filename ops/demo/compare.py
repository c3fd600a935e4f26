"""Compares the stores and the final results that the demo left behind with the plain computation, row by row.

    state directory ──> rows by (partition, key ...) ────────────┐
    hour-results    ──> records by (partition, airport, start) ──┤
    flights ──> plain_board ─────────────────────────────────────┴─> missing, extra, different, examples

    again       rows that count flights again, which is no difference where the guarantee is at least once
    repeated    results beyond the first of an hour; disordered: before a later one of their partition

Rules of this file: it reads stores and the topic as any reader would and changes nothing; no process of the demo runs
meanwhile. The expected rows come from `standfast.ops.demo.plain` alone. It returns parts of the demo's document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeAlias

from standfast.ops.demo.board import HOUR_MS, PARTITIONS, RESULTS
from standfast.ops.demo.plain import PlainBoard
from standfast.ops.observe.offline import OfflineStores
from standfast.replication.log import Log
from standfast.replication.offsets import TopicPartition
from standfast.restore.digest import Digest, digest_rows
from standfast.store import serde
from standfast.store.results import Windowed
from standfast.stream.dsl.windowed_serde import windowed

EXAMPLES_MAX = 5
FETCH_RECORDS = 5_000
WAIT_MS = 100
HOUR = windowed(serde.string, HOUR_MS)

Json: TypeAlias = dict[str, Any]
At = tuple[int, str, int]
Rows = Mapping[Any, Mapping[str, Any]]


class Final(NamedTuple):
    """One record of the topic: (partition, airport, start) and the row."""

    at: At
    row: Json


def compare_state(tasks: Sequence[OfflineStores], plain: PlainBoard, *, exact: bool = True) -> Json:
    """Compare every row of the tasks' stores with the plain board; `exact` unless the guarantee is at least once.

    `flights_counted` is by the tasks themselves, in the numbers kept with their commits; `windowed_flights_counted` by
    the rows of the hours within retention. `aircraft_retired` counts retirements, several of some aircraft.
    """
    expected: dict[str, Rows] = {
        "aircraft": plain.aircraft,
        "delays": plain.delays,
        "three-hours": plain.three_hours,
        "final-delays": plain.delays,  # results are given once, but the rows stay as long as any others
    }
    actual = {name: _rows(tasks, name) for name in expected}
    digests, fed = state_digests(tasks), sum(plain.records.values())
    found: Json = {
        "stores": {
            name: compare_store(name, actual[name], rows, digests[name], exact=exact) for name, rows in expected.items()
        },
        "flights_counted": sum(one.cut.progress.get("flights", 0) for one in tasks),
        "flights_expected": fed,
        "windowed_flights_counted": sum(row["flights"] for row in actual["delays"].values()),
        "windowed_flights_expected": fed - plain.expired,
        "aircraft_retired": sum(one.cut.progress.get("retired", 0) for one in tasks),
        "exact": exact,
    }
    return found | {"differences": differences(found)}


def differences(found: Json) -> int:
    """Rows that differ in any way, plus one for each sum of flights that is not right; at least once it may be more."""
    more: list[int] = [found[f"{name}_counted"] - found[f"{name}_expected"] for name in ("flights", "windowed_flights")]
    rows: int = sum(one[kind] for one in found["stores"].values() for kind in ("missing", "extra", "different"))
    return rows + sum(one < 0 or (found["exact"] and one > 0) for one in more)


def _rows(tasks: Sequence[OfflineStores], name: str) -> dict[Any, Json]:
    """(partition, key) or (partition, key, window start) -> value, over all tasks that have the store."""
    rows: dict[Any, Json] = {}
    for task in tasks:
        if name in task.definitions:
            store: Any = task.store(name)
            with store.all() as found:
                for key, value in found:
                    plain = (key.key, key.start) if isinstance(key, Windowed) else (key,)
                    rows[(task.task.task.partition, *plain)] = value
    return rows


def compare_store(store: str, actual: Rows, expected: Rows, digest: str = "", *, exact: bool = True) -> Json:
    """Compare two sets of rows. Where it is not `exact`, a row may count flights again, and is then correct."""
    counts = dict.fromkeys(("missing", "extra", "different", "again"), 0)
    examples: list[str] = []
    for at in sorted(actual.keys() | expected.keys()):
        row, must = actual.get(at), expected.get(at)
        if row == must:
            continue
        if row is None or must is None:
            kind = "missing" if row is None else "extra"
        else:
            # Sums grow with each repeat, and the worst delay of an hour does not.
            more = row.get("flights", 0) > must.get("flights", 0) and row["worst"] == must["worst"]
            kind = "again" if more and not exact else "different"
        if kind != "again" and len(examples) < EXAMPLES_MAX:
            examples.append(f"{store} {at}: {kind}, is {row}, must be {must}")
        counts[kind] += 1
    sizes = {"rows": len(actual), "expected": len(expected)}
    return {"store": store, **sizes, **counts, "examples": examples, "digest": digest}


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


def compare_finals(finals: Iterable[Final], expected: Mapping[At, Mapping[str, Any]], *, exact: bool = True) -> Json:
    """Compare the records of the topic, each partition in its order, with the hours that closed."""
    seen: dict[At, Json] = {}
    latest: dict[int, int] = {}
    records = repeated = disordered = 0
    examples: list[str] = []
    for at, row in finals:
        records += 1
        again = at in seen
        if again:
            repeated += 1
            examples += [f"{RESULTS} {at}: given again, as {row}"] if exact else []
        seen.setdefault(at, row)
        # A result that is given again comes after later hours by its nature.
        if at[2] < latest.get(at[0], 0) and (exact or not again):
            disordered += 1
            examples.append(f"{RESULTS} {at}: given after a later hour")
        latest[at[0]] = max(latest.get(at[0], 0), at[2])
    rows = compare_store(RESULTS, seen, expected, exact=exact)
    wrong = {name: rows[name] for name in ("missing", "extra", "different")}
    return {
        "records": records,
        "expected": len(expected),
        **wrong,
        "repeated": repeated,
        "disordered": disordered,
        "examples": (examples + rows["examples"])[:EXAMPLES_MAX],
        "exact": exact,
        "differences": sum(wrong.values()) + disordered + repeated * exact,
    }
