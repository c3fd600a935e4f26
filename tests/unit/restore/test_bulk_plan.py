"""The choice of changelogs for a bulk load, and the records that it skips."""

from __future__ import annotations

import pytest

from standfast.restore.replay.bulk_plan import BulkSettings, Tail, choose, needs_compaction, skip_before_ms

SETTINGS = BulkSettings(workers=2, memory_bytes=1 << 20, cold_records=100, warm_records=500)


@pytest.mark.parametrize(
    ("kind", "cold", "records", "bulk"),
    [
        ("keyvalue", True, 99, False),
        ("keyvalue", True, 100, True),
        ("keyvalue", False, 499, False),
        ("keyvalue", False, 500, True),
        ("window", True, 100, True),
        ("session", True, 100, True),
        ("versioned", True, 10**9, False),
    ],
)
def test_large_restores_are_bulk_and_small_ones_batches(kind: str, cold: bool, records: int, bulk: bool) -> None:
    found = choose(kind, in_memory=False, from_source=False, cold=cold, records=records, settings=SETTINGS)
    assert found.bulk is bulk and found.why


def test_stores_in_memory_and_source_topics_are_never_bulk_and_say_why() -> None:
    large = {"cold": True, "records": 10**9, "settings": SETTINGS}
    assert "in memory" in choose("keyvalue", in_memory=True, from_source=False, **large).why  # type: ignore[arg-type]
    assert "serdes" in choose("keyvalue", in_memory=False, from_source=True, **large).why  # type: ignore[arg-type]
    without = BulkSettings(workers=0, memory_bytes=1)
    assert not choose("keyvalue", in_memory=False, from_source=False, cold=True, records=10**9, settings=without).bulk


HOUR_MS = 3_600_000


def test_only_what_is_surely_expired_is_skipped() -> None:
    # Retention 2 h: segments of 1 h. At 10:30 the segment of 8:00 is the first live one; one hour of lead: 7:00.
    tail = Tail(observed_ms=10 * HOUR_MS + HOUR_MS // 2, lead_ms=HOUR_MS)
    assert skip_before_ms(tail, retention_ms=2 * HOUR_MS, lead_ms=HOUR_MS) == 7 * HOUR_MS
    assert skip_before_ms(tail, retention_ms=2 * HOUR_MS, lead_ms=HOUR_MS - 1) is None, "the tail has a larger lead"
    assert skip_before_ms(Tail(HOUR_MS, 0), retention_ms=2 * HOUR_MS, lead_ms=0) is None, "nothing has expired"
    assert skip_before_ms(Tail(-1, 0), retention_ms=2 * HOUR_MS, lead_ms=0) is None, "nothing was observed"
    assert skip_before_ms(None, retention_ms=2 * HOUR_MS, lead_ms=0) is None


def test_files_are_compacted_from_four_in_level_0_on() -> None:
    assert [needs_compaction(files) for files in (0, 3, 4, 20)] == [False, False, True, True]
