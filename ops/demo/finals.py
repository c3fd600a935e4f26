"""Compares the final results that the demo wrote to `hour-results` with the plain computation.

    hour-results   airport | start 8  ──> flights, delay, worst          one record per closed hour, never a second

Rules of this file: it reads the topic from its beginning, as any reader would, and changes nothing. The expected
results come from `standfast.ops.demo.plain` alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from standfast.ops.demo.board import PARTITIONS, RESULTS
from standfast.ops.demo.compare import EXAMPLES_MAX, compare_store
from standfast.replication.log import Log
from standfast.replication.offsets import TopicPartition

FETCH_RECORDS = 5_000
WAIT_MS = 100
START_BYTES = 8

At = tuple[int, str, int]


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
                    found += [_decoded(part, record.key or b"", record.value or b"null") for record in batch.records]
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


def _decoded(partition: int, key: bytes, value: bytes) -> Final:
    start = int.from_bytes(key[-START_BYTES:], "big")
    return Final((partition, key[:-START_BYTES].decode(), start), json.loads(value))
