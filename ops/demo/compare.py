"""Compares the stores and the final results that the demo left behind with the plain computation, row by row.

    state directory ──> rows by (partition, key ...) ────────────┐
    hour-results    ──> records by (partition, airport, start) ──┤
    flights ──> plain_board ─────────────────────────────────────┴─> missing, extra, different, examples

    again       rows that count flights again, which is no difference where the guarantee is at least once
    repeated    results beyond the first of an hour

Rules of this file: it reads stores as any reader would and changes nothing; no process of the demo runs meanwhile. The
expected rows come from `standfast.ops.demo.plain` alone. It returns parts of the demo's document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from standfast.ops.demo.board import RESULTS
from standfast.ops.demo.plain import PlainBoard
from standfast.ops.demo.result import Json
from standfast.ops.demo.view import At
from standfast.ops.observe.offline import OfflineStores
from standfast.restore.digest import Digest, digest_rows
from standfast.store.results import Windowed

EXAMPLES_MAX = 5

Rows = Mapping[Any, Mapping[str, Any]]


def compare_state(tasks: Sequence[OfflineStores], plain: PlainBoard, *, exact: bool = True) -> dict[str, Json]:
    """Compare every row of the tasks' stores with the plain board; `exact` unless the guarantee is at least once."""
    expected: dict[str, Rows] = {
        "aircraft": plain.aircraft,
        "delays": plain.delays,
        "three-hours": plain.three_hours,
        "final-delays": plain.delays,  # results are given once, but the rows stay as long as any others
    }
    digests = state_digests(tasks)
    return {
        name: compare_rows(name, rows_of(tasks, name), rows, exact=exact) | {"digest": digests[name]}
        for name, rows in expected.items()
    }


def rows_of(tasks: Sequence[OfflineStores], name: str) -> dict[Any, Json]:
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


def compare_rows(name: str, actual: Rows, expected: Rows, *, exact: bool = True) -> Json:
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
            examples.append(f"{name} {at}: {kind}, is {row}, must be {must}")
        counts[kind] += 1
    return {"rows": len(actual), "expected": len(expected), **counts, "examples": examples}


def compare_finals(finals: Iterable[tuple[At, Json]], expected: Rows, *, exact: bool = True) -> Json:
    """Compare the final results with the hours that closed: each once, unless it is not `exact`."""
    first: dict[At, Json] = {}
    repeated = []
    for at, row in finals:
        if at in first:
            repeated.append(f"{RESULTS} {at}: given again, as {row}")
        first.setdefault(at, row)
    found = compare_rows(RESULTS, first, expected, exact=exact)
    examples = found["examples"] + repeated[:EXAMPLES_MAX] * exact
    return found | {"records": len(first) + len(repeated), "repeated": len(repeated), "examples": examples}


def state_digests(tasks: Sequence[OfflineStores]) -> dict[str, str]:
    """Digest by store, over all partitions: key, timestamp and raw value of every visible row."""
    digests: dict[str, Digest] = {}
    for task in tasks:
        for name in task.definitions:
            digests[name] = digests.get(name, Digest()) + digest_rows(task.store(name).logical_rows())
    return {name: digest.hex() for name, digest in digests.items()}
