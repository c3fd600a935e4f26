"""`verify` in one process and the merge in a Spark task: both reach the same verdict about one store and one log.

Rules of this file: a real log that is compacted and cut, a real store with planted faults. Verdicts on keys also equal
those of the oracle of `test_spark_fold_faults`; versioned rows are only compared between the two.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.restore.test_spark_fold import SPECS, applied, logical, made, shape_of
from unit.restore.test_spark_fold_faults import expected, plant

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Outgoing, Record, TopicPolicy
from standfast.replication.offsets import Bounds, TaskId, TopicPartition
from standfast.restore.compare import UnequalRow
from standfast.restore.spark.merge import ComparisonSettings, merge_partition
from standfast.restore.spark.rows import partitions_of
from standfast.restore.verdict import LogFacts, deletes_expired
from standfast.restore.verify.at_rest import view
from standfast.restore.verify.store_rows import rows_in_order
from standfast.restore.verify.verify import StoreVerdict, concluded, verify_task
from standfast.store import session_key, window_key
from standfast.store.clock import ManualClock
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import Position, StoreTimes
from standfast.store.task.task_stores import AnyStore, TaskStores
from support.spark_folds import sorted_batches

KINDS = ("keyvalue", "plain", "window", "session", "versioned")
TASK = TaskId(0, 0)
POLICY = TopicPolicy(frozenset({"compact"}), delete_retention_ms=1_000)
NOW_MS = 1_000_000


class Case:
    """A log, a store at a position within it, and the changes to both since."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.spec: StoreSpec = SPECS[rng.choice(KINDS)]
        kind = next(name for name, spec in SPECS.items() if spec is self.spec)
        count = rng.randrange(1, 30)
        draws = [(rng.randrange(5), rng.randrange(100), rng.random() < 0.35) for _ in range(count)]
        self.records = [one._replace(offset=number) for number, one in enumerate(made(kind, draws))]
        self.position = rng.randrange(1, count + 1)
        self.clock = ManualClock(NOW_MS)
        self.log = EmbeddedLog(folder / "log.sqlite", clock=self.clock)
        self.source = TopicPartition(self.spec.changelog_of("app"), 0)
        self.log.admin.create_topic(self.source.topic, 1, POLICY)
        self._append(rng)
        if rng.random() < 0.25:
            self.log.truncate(self.source, rng.randrange(self.position + 1))
        self.stores: TaskStores = applied(folder / "live", self.spec, self.records[: self.position])
        self.truth = logical(self.stores, self.spec)
        below = {one.key: one.value for one in self.records[: self.position]}
        plants = [(rng.choice(("remove", "change", "add")), rng.randrange(100)) for _ in range(rng.randrange(5))]
        if self.spec.kind != "versioned":
            gone = [key for key, value in below.items() if key is not None and value is None]
            plant(self.stores, self.spec, plants, gone)
        elif plants:
            latest = [(key, row) for key, row in self.stores.engine.scan(self.spec.name) if key[:8] == b"\xff" * 8]
            for what, number in plants if latest else ():
                key, row = latest[number % len(latest)]
                key = key[:8] + b"never" if what == "add" else key
                self.stores.engine.write({self.spec.name: {key: None if what == "remove" else row + b"!"}})
        self.found = logical(self.stores, self.spec)

    def _append(self, rng: random.Random) -> None:
        """Append all records; the log may be compacted on the way and at the end, and tombstones may expire by then."""
        compacted_at = rng.choice((0, rng.randrange(len(self.records) + 1), len(self.records)))
        producer = self.log.producer()
        for at, one in enumerate(self.records):
            if at == compacted_at:
                self.log.compact(self.source.topic, self.clock.wall_ms())
            producer.append({self.source: [Outgoing(one.key or b"", one.value, one.timestamp)]})
        producer.close()
        self.clock.advance(rng.choice((0, 2_000)))
        if compacted_at == len(self.records):
            self.log.compact(self.source.topic, self.clock.wall_ms())

    def kept(self) -> tuple[Bounds, list[Record]]:
        """The log in its present state."""
        reader = self.log.reader()
        bounds = reader.bounds([self.source])[self.source]
        reader.assign({self.source: bounds.begin})
        found: list[Record] = []
        while batches := reader.fetch(1_000):
            found += [record for batch in batches for record in batch.records]
        reader.close()
        return bounds, found

    def store(self) -> AnyStore:
        """The store at rest."""
        return view(self.stores.engine, self.spec, StoreTimes(self.stores.store(self.spec.name).rows.observed_ms, 0))

    def facts(self, bounds: Bounds, kept: list[Record]) -> LogFacts:
        """The log's facts that a Spark task receives."""
        compacted = sum(one.offset < self.position for one in kept) < self.position - bounds.begin
        gaps = sum(one.offset >= self.position for one in kept) < bounds.end - self.position
        age_ms = self.clock.wall_ms() - NOW_MS
        return LogFacts(bounds.begin, compacted, deletes_expired(POLICY, age_ms, compacted=compacted, gaps=gaps))

    def by_process(self) -> StoreVerdict:
        """`standfast verify`."""
        info = self.log.admin.describe_topic(self.source.topic)
        assert info is not None
        positions = {self.spec.name: Position(self.position, -1, info.topic_id, NOW_MS)}
        (verdict,) = verify_task(
            TASK, {self.spec.name: self.store()}, positions, self.log, "app", now_ms=self.clock.wall_ms(), value_max=0,
            differences_max=1_000,
        )  # fmt: skip
        return verdict

    def by_spark(self) -> StoreVerdict:
        """A task of `standfast verify --spark`, and the driver's verdict from its result."""
        bounds, kept = self.kept()
        facts = self.facts(bounds, kept)
        how = ComparisonSettings(limit=self.position, last=True)
        batches = sorted_batches(shape_of(self.spec, self.position), 0, kept)
        found, own = next(partitions_of(batches))
        outcome = merge_partition(own, self.store(), found, facts, how)
        return concluded(
            self.spec,
            TASK,
            self.source,
            self.position,
            bounds,
            outcome,
            observed_ms=self.store().rows.observed_ms,
            records=found.records,
            skipped=found.skipped,
            serdes_known=True,
            differences_max=1_000,
        )

    def close(self) -> None:
        self.stores.close()
        self.log.close()


def shown(verdict: StoreVerdict) -> tuple[StoreVerdict, list[UnequalRow]]:
    """A verdict with its differences in a fixed order."""
    rows = sorted(verdict.differences, key=lambda one: (one.key, str(one)))
    return replace(verdict, differences=()), rows


def agreed(seed: int) -> StoreVerdict:
    """Both verdicts of one case, which must be equal, and those of the oracle."""
    with tempfile.TemporaryDirectory() as name:
        case = Case(Path(name), random.Random(seed))
        try:
            process, spark = case.by_process(), case.by_spark()
            bounds, kept = case.kept()
            facts, wanted = case.facts(bounds, kept), Counter[str]()
        finally:
            case.close()
    assert shown(process) == shown(spark)
    if case.spec.kind != "versioned":
        for key in {one.key or b"" for one in case.records} | case.truth.keys() | case.found.keys():
            told = case.position, bounds.begin, facts.deletes_expired
            verdict = expected(key, case.truth.get(key), case.found.get(key), case.records, kept, told)
            wanted.update([verdict] if verdict is not None else [])
        counts = {kind: getattr(process, kind) for kind in ("missing", "extra", "different", "stale", "indeterminate")}
        unsure = wanted.pop("lost", 0) + wanted.pop("indeterminate", 0)
        assert {kind: count for kind, count in counts.items() if count} == wanted | (
            {"indeterminate": unsure} if unsure else {}
        )
    return process


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_process_and_spark_come_to_one_verdict_which_is_that_of_the_oracle(seed: int) -> None:
    agreed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("past_ms", [-1, 0, 1])
def test_rows_in_order_are_the_logical_rows_up_to_the_edge_of_retention(
    tmp_path: Path, kind: str, past_ms: int
) -> None:
    retention_ms, last_ms = 120_000, 500_000
    times = [last_ms, last_ms - retention_ms + past_ms, *range(last_ms - 300_000, last_ms, 20_000)]
    records = []
    for number, at_ms in enumerate(sorted(times)):
        for key in (b"k2", b"k1"):
            raw = {"window": window_key.pack(key, at_ms), "session": session_key.pack(key, at_ms, at_ms)}.get(kind, key)
            records.append(Record(2 * number + (key == b"k1"), at_ms, raw, b"v%d" % number))
    stores = applied(tmp_path / "live", SPECS[kind], records)
    store = view(stores.engine, SPECS[kind], StoreTimes(stores.store(SPECS[kind].name).rows.observed_ms, 0))
    rows = sorted(store.logical_rows())
    assert list(rows_in_order(store)) == rows and len(rows) >= 2
    stores.close()


@pytest.mark.slow
def test_cases_have_every_verdict_and_reason() -> None:
    seen = Counter[str]()
    for seed in range(40):
        found = agreed(seed)
        seen.update([found.verdict, found.reason, *(kind for kind in ("missing", "extra", "different", "stale") if
                     getattr(found, kind))])  # fmt: skip
    assert seen.keys() >= {"equal", "inconclusive", "log-truncated", "compacted-in-part", "missing", "extra", "stale"}
