"""Verify's merge on logs that are compacted, truncated and full of gaps, with faults planted in the store.

Rules of this file: an oracle in ten lines gives the expected verdict for each key; hypothesis makes logs, compactions
as Kafka does them (up to an offset, tombstones after a while), truncated heads, records beyond the position, and
faults.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.restore.test_spark_fold import SPECS, applied, logical, made, shape_of

from standfast.replication.log import Record
from standfast.restore.compare import ComparisonOutcome
from standfast.restore.spark.merge import ComparisonSettings, merge_partition
from standfast.restore.spark.rows import partitions_of
from standfast.restore.verdict import LogFacts
from standfast.restore.verify.at_rest import view
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import StoreTimes
from standfast.store.task.task_stores import TaskStores
from support.spark_folds import sorted_batches

KINDS = ("keyvalue", "plain", "window", "session")


class Case(NamedTuple):
    """One log and its faults. Offsets are every second number: between are markers and aborted records."""

    kind: str
    records: list[Record]
    limit: int
    begin: int
    cleaned_to: int
    tombstones_too: bool
    plants: list[tuple[str, int]]


def drawn(rng: random.Random) -> Case:
    """A case in which every verdict is about as likely as the next."""
    kind, count = rng.choice(KINDS), rng.randrange(1, 30)
    draws = [(rng.randrange(5), rng.randrange(100), rng.random() < 0.35) for _ in range(count)]
    records = made(kind, draws)
    limit = 2 * rng.randrange(1, count + 1)
    begin = 2 * rng.randrange(count) if rng.random() < 0.25 else 0
    plants = [(rng.choice(("remove", "change", "add")), rng.randrange(100)) for _ in range(rng.randrange(5))]
    cleaned_to = rng.choice((0, 2 * rng.randrange(count + 1), 2 * count))
    return Case(kind, records, limit, min(begin, limit), cleaned_to, rng.random() < 0.5, plants)


def cleaned(records: list[Record], upto: int, begin: int, *, tombstones_too: bool) -> list[Record]:
    """The records that a log keeps: below `upto` the last one of each key only, and none below `begin`."""
    last = {one.key: one.offset for one in records if one.offset < upto}
    kept = []
    for one in records:
        dirty = one.offset >= upto
        expired = tombstones_too and one.value is None
        if one.offset >= begin and (dirty or (last[one.key] == one.offset and not expired)):
            kept.append(one)
    return kept


def expected(key: bytes, truth: Any, found: Any, records: list[Record], kept: list[Record], facts: tuple[int, int, bool]
             ) -> str | None:  # fmt: skip
    """The verdict on a key: of `records` the log keeps `kept`; None without a verdict to report."""
    limit, begin, expired = facts
    last = next((one for one in reversed(records) if one.key == key and one.offset < limit), None)
    known = last is not None and last in kept
    later = any(one.key == key and one.offset >= limit for one in kept)
    if not known:
        if found is None:
            return None
        return "lost" if begin > 0 else "indeterminate" if later or expired else "extra"
    if found == truth:
        return None
    return "missing" if found is None else "stale" if truth is None else "different"


def plant(stores: TaskStores, spec: StoreSpec, plants: list[tuple[str, int]], gone: list[bytes]) -> None:
    """Faults in the files, as a machine makes them; `gone` are keys whose last record deletes them."""
    rows = [
        (family, key, row) for family in stores.store(spec.name).families() for key, row in stores.engine.scan(family)
    ]
    for what, number in plants if rows else ():
        family, key, row = rows[number % len(rows)]
        if what == "add":
            key = [b"never", *gone][number % (1 + len(gone))] if spec.kind == "keyvalue" else key
        stores.engine.write({family: {key: None if what == "remove" else row + b"!"}})


def merged(stores: TaskStores, spec: StoreSpec, kept: list[Record], limit: int, facts: LogFacts) -> ComparisonOutcome:
    found, own = next(partitions_of(sorted_batches(shape_of(spec, limit), 0, kept)))
    rows = view(stores.engine, spec, StoreTimes(stores.store(spec.name).rows.observed_ms, 0))
    return merge_partition(own, rows, found, facts, ComparisonSettings(limit=limit, last=True))


def told_and_wanted(case: Case) -> tuple[ComparisonOutcome, dict[str, list[bytes]]]:
    """The merge's report of a case, and keys by the expected verdict."""
    spec, records, limit = SPECS[case.kind], case.records, case.limit
    kept = cleaned(records, case.cleaned_to, case.begin, tombstones_too=case.tombstones_too)
    expired = any(one.value is None and one.offset >= limit and one not in kept for one in records)
    with tempfile.TemporaryDirectory() as name:
        stores = applied(Path(name) / "live", spec, [one for one in records if one.offset < limit])
        truth = logical(stores, spec)
        below = {one.key: one.value for one in records if one.offset < limit}
        plant(stores, spec, case.plants, [key for key, value in below.items() if key is not None and value is None])
        found = logical(stores, spec)
        outcome = merged(stores, spec, kept, limit, LogFacts(case.begin, compacted=True, deletes_expired=expired))
        stores.close()
    wanted: dict[str, list[bytes]] = {}
    for key in {one.key for one in records} | truth.keys() | found.keys():
        assert key is not None
        verdict = expected(key, truth.get(key), found.get(key), records, kept, (limit, case.begin, expired))
        if verdict is not None:
            wanted.setdefault(verdict, []).append(key)
    return outcome, wanted


@settings(max_examples=100)
@given(st.randoms(use_true_random=True))
def test_every_fault_that_the_log_can_speak_of_is_found_and_nothing_else(rng: random.Random) -> None:
    outcome, wanted = told_and_wanted(drawn(rng))
    assert outcome.counts == {verdict: len(keys) for verdict, keys in wanted.items()}
    told = {(one.kind, one.key) for one in outcome.found}
    assert told == {(verdict, key) for verdict in wanted.keys() - {"lost", "indeterminate"} for key in wanted[verdict]}


def test_cases_are_of_every_verdict() -> None:
    rng, seen = random.Random(1), Counter[str]()
    for _ in range(100):
        seen.update(told_and_wanted(drawn(rng))[1].keys())
    assert min(seen[name] for name in ("missing", "different", "stale", "extra", "lost", "indeterminate")) >= 3, seen


@settings(max_examples=30)
@given(st.sampled_from(KINDS), st.integers(1, 40), st.integers(0, 40))
def test_rows_beyond_a_position_that_is_too_low_are_extra_where_the_log_has_no_gaps(
    kind: str, count: int, low: int
) -> None:
    spec, records = SPECS[kind], made(kind, [(number, number, False) for number in range(count)])
    position = min(low, count)
    with tempfile.TemporaryDirectory() as name:
        stores = applied(Path(name) / "live", spec, records)
        outcome = merged(stores, spec, records, 2 * position, LogFacts(0, compacted=False))
        stores.close()
    beyond = {one.key for one in records[position:]}
    assert {one.key for one in outcome.found if one.kind == "extra"} == beyond
    assert outcome.counts == ({"extra": len(beyond)} if beyond else {})
    assert (outcome.matched, outcome.beyond) == (position, len(beyond))
