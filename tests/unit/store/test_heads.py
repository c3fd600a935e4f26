"""First offsets of segments: what each write adds and forgets, and what a record without them means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import standfast as sf
from standfast.store.errors import Corruption
from standfast.store.task.commit_record import CommitRecord, Heads, Position, StoreTimes
from standfast.store.task.heads import SegmentHeads
from standfast.store.types.segments import family_name, segment_interval_ms

HOUR_MS, DAY_MS = 3_600_000, 24 * 3_600_000
TEXT = sf.serde.string
WINDOW = sf.WindowStore("win", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=DAY_MS)


class Writes:
    """A store's writes of one row each, as its task's cuts have them."""

    def __init__(self, spec: Any = WINDOW) -> None:
        self.spec = spec
        self.heads = SegmentHeads([spec])
        self.cut = CommitRecord()

    def write(self, time_ms: int, end: int, topic_id: str = "t1") -> None:
        """A row of this time, with which the changelog ends at `end`."""
        before, interval_ms = self.cut, segment_interval_ms(self.spec.kept_ms)
        observed_ms = max(before.stores.get("win", StoreTimes()).observed_ms, time_ms)
        times = {"win": StoreTimes(observed_ms)}
        cut = replace(before, positions={"win": Position(end, -1, topic_id)}, stores=times)
        families = [family_name("win", time_ms // interval_ms * interval_ms), "other"]
        self.cut = replace(cut, heads=self.heads.after(before, cut, families, times))

    @property
    def first(self) -> int:
        return self.cut.heads["win"].first


def test_span_begins_at_the_position_before_its_first_row() -> None:
    writes = Writes()
    for number in range(10):
        writes.write(number * HOUR_MS, number + 1)
    assert writes.cut.heads == {"win": Heads("t1", {0: 0})}
    writes.write(12 * HOUR_MS, 20)
    writes.write(HOUR_MS, 21)
    writes.write(13 * HOUR_MS, 22)
    assert writes.cut.heads == {"win": Heads("t1", {0: 0, 12 * HOUR_MS: 10})}


def test_span_is_kept_until_every_time_in_it_is_a_day_behind_the_retention() -> None:
    writes = Writes()
    writes.write(0, 1)
    last_ms = 12 * HOUR_MS + 12 * HOUR_MS  # of a segment that begins right before the span's end
    writes.write(last_ms + 2 * DAY_MS, 2)
    assert writes.first == 0
    writes.write(last_ms + 2 * DAY_MS + 1, 3)
    assert writes.first == 1


@pytest.mark.parametrize("retention_ms", [1, 60_000, HOUR_MS, DAY_MS, 40 * DAY_MS, 2**63 - 1])
def test_store_has_a_dozen_numbers_whatever_its_retention_is(retention_ms: int) -> None:
    writes = Writes(sf.SessionStore("win", TEXT, TEXT, retention_ms=retention_ms))
    interval_ms = segment_interval_ms(retention_ms)
    step_ms = max(interval_ms // 3, HOUR_MS)
    for number in range(200):
        writes.write(number * step_ms, number + 1)
        assert len(writes.cut.heads["win"].firsts) <= 14


def test_rows_of_an_earlier_version_and_of_another_topic_begin_at_offset_0() -> None:
    writes = Writes()
    for number in range(100):
        writes.write(number * HOUR_MS, number + 1)
    assert writes.first > 0
    old = replace(writes.cut, heads={})
    for cut, topic_id in ((old, "t1"), (writes.cut, "t2")):
        writes.cut = cut
        writes.write(100 * HOUR_MS, 101, topic_id)
        assert writes.cut.heads == {"win": Heads(topic_id, {96 * HOUR_MS: 0})}


def test_store_without_a_position_counts_from_the_begin_again() -> None:
    writes = Writes()
    for number in range(100):
        writes.write(number * HOUR_MS, number + 1)
    writes.cut = replace(writes.cut, positions={})
    writes.write(100 * HOUR_MS, 101)
    assert writes.cut.heads == {"win": Heads("t1", {96 * HOUR_MS: 0})}


def test_stores_without_a_retention_or_a_log_of_their_own_have_none() -> None:
    specs = [
        sf.KeyValueStore("win", TEXT, TEXT),
        sf.VersionedStore("win", TEXT, TEXT, history_retention_ms=DAY_MS),
        sf.WindowStore("win", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=DAY_MS, logging=False),
    ]
    for spec in specs:
        writes = Writes(spec)
        writes.write(HOUR_MS, 1)
        assert writes.cut.heads == {}


def test_record_has_the_heads_as_a_field_that_earlier_versions_pass_over() -> None:
    record = CommitRecord(epoch=3, heads={"win": Heads("t1", {12 * HOUR_MS: 10, 0: 4})})
    assert b'"heads":{"win":["t1",[[0,4],[43200000,10]]]}' in record.encode()
    assert CommitRecord.decode(record.encode(), "x") == record
    assert b"heads" not in CommitRecord(epoch=3).encode()  # byte for byte as before
    with pytest.raises(Corruption, match="lacks a part"):
        CommitRecord.decode(record.encode().replace(b"[0,4]", b"[0]"), "x")
