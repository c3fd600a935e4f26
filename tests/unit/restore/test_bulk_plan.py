"""The choice of changelogs for a bulk load, their split, skipped records; and the messages of owner and workers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.restore.files.manifest import Made, Manifest, ManifestFile, ManifestPartition
from standfast.restore.replay.bulk_plan import (
    BulkSettings,
    Tail,
    choose,
    needs_compaction,
    parts_of,
    skip_before_ms,
    split,
)
from standfast.restore.replay.worker_protocol import (
    Done,
    Event,
    Failed,
    Job,
    Progress,
    Ready,
    Run,
    Surveyed,
    event_line,
    failed,
    job_line,
    parse_event,
    parse_job,
)
from standfast.store.errors import Corruption, InternalError, StandfastError, StateLost, Unavailable

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


@pytest.mark.parametrize(("partitions", "workers", "parts"), [(1, 1, 1), (1, 4, 4), (3, 4, 2), (4, 4, 1), (9, 4, 1)])
def test_no_worker_is_left_without_work(partitions: int, workers: int, parts: int) -> None:
    assert parts_of(partitions, workers) == parts


def test_ranges_hold_equal_shares_of_the_records() -> None:
    assert split([(0, 1.0)], 100, 4, 1) == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert split([(0, 1.0)], 100, 4, 40) == [(0, 50), (50, 100)]
    # The first half was compacted to a tenth: the middle of the records lies at (10 + 100) / 2 = 55 of 110.
    assert split([(0, 0.1), (100, 1.0)], 200, 2, 1) == [(0, 145), (145, 200)]
    assert split([(7, 1.0)], 7, 4, 1) == [(7, 7)]
    assert split([(0, 0.0), (50, 0.0)], 100, 4, 1) == [(0, 100)]
    with pytest.raises(InternalError):
        split([(5, 1.0)], 4, 1, 1)


@given(
    st.lists(st.tuples(st.integers(0, 1_000), st.floats(0, 1)), min_size=1, max_size=8),
    st.integers(0, 1_000),
    st.integers(1, 8),
    st.integers(1, 50),
)
def test_ranges_cover_all_offsets_once(samples: list[tuple[int, float]], more: int, parts: int, least: int) -> None:
    samples = sorted(samples)
    end = samples[-1][0] + more
    ranges = split(samples, end, parts, least)
    assert 1 <= len(ranges) <= parts
    assert ranges[0][0] == samples[0][0] and ranges[-1][1] == end
    assert all(start <= stop for start, stop in ranges)
    assert all(one[1] == other[0] for one, other in pairwise(ranges))


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


FILE = ManifestFile("0-0-0.sst", "kv", 10, 2, "61", "62", "0" * 64, 1)
MANIFEST = Manifest(
    "app", "kv", {"kind": "keyvalue"}, "app-kv-changelog", "id", 2,
    (ManifestPartition(1, 0, 9, 9, (FILE,), -1, 0, 5, 1, 2, 0, 2, None),),
    Made("run", 1, "0.1.0", "0.3.29", "lz4"),
)  # fmt: skip


@pytest.mark.parametrize(
    "event",
    [
        Ready(12),
        Surveyed(3, ((0, 5), (5, 9)), 77),
        Progress(3, 5, 4, 100),
        Run(3, MANIFEST),
        Done(3, 1 << 20),
        Failed(3, "StateLost", "gone", "truncated", (("t", 1),)),
    ],
)
def test_events_arrive_as_they_were_said(event: Event) -> None:
    line = event_line(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert parse_event(line) == event


def test_job_arrives_as_it_was_given() -> None:
    job = Job(1, "sqlite:///l", "a", "s", {"kind": "keyvalue"}, "t", "id", 0, 1, 0, 9, "/f", "1", 1 << 20, 100)
    assert parse_job(job_line(job)) == job
    with pytest.raises(InternalError):
        parse_job(b'{"number": 1}\n')


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"event": "Boom"}', b'{"event": "Done"}', b"Traceback"])
def test_whatever_else_a_worker_says_is_no_event(line: bytes) -> None:
    with pytest.raises(InternalError, match="is not an event"):
        parse_event(line)


@pytest.mark.parametrize(
    "error", [StateLost("gone", reason="truncated"), Corruption("bad"), Unavailable("away"), InternalError("bug")]
)
def test_errors_of_a_worker_are_raised_as_what_they_were(error: StandfastError) -> None:
    error.sources = (("t", 1),)
    told = parse_event(event_line(failed(1, error)))
    assert isinstance(told, Failed)
    again = told.error()
    assert (type(again), str(again), again.sources) == (type(error), str(error), error.sources)
    assert getattr(again, "reason", None) == getattr(error, "reason", None)


def test_any_other_exception_is_our_bug() -> None:
    assert str(failed(1, ValueError("x")).error()) == "ValueError: x"
    assert isinstance(failed(1, ValueError("x")).error(), InternalError)
