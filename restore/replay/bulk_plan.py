"""The plan of a bulk restore: decides which changelogs are loaded, and from which offset.

    store                                       records left      way
    in memory, versioned, or of a source topic  any               batches, for ever (see BATCHES)
    cold (no position)                          COLD or more      bulk
    warm                                        WARM or more      bulk
                                                fewer             batches

    changelog  start ─────── skipped: expired ──────── first ─── run ─── run ─── ... end    one worker, in this order

A run holds the rows that a worker had in memory when its budget was reached: sorted files, one for each family, with
deletes as deletes. If two runs have the same key the later one wins, so runs are ingested in offset order and not
merged.

**Expired records.** Rows of window and session stores live and die with their segment, by their own time (window
start, session end). The tail of the log gives a stream time that the store will have observed in the end, whatever
precedes it; rows that are dead at that time need not be written. For a window store, whole stretches need not even be
read: a window does not start later than the timestamp of its record, which is an input that falls into it or the
newest of several, and the log can look up the first record that is late enough. A lead of one window's size is
allowed for; if the tail itself has a row that is further ahead, the timestamps of that log prove less, and the whole
log is read. A session log is read whole: a session's last update may be a late record, long before the session's end.

Rules of this file: pure; counts of records are differences of offsets, so upper bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from standfast.restore.files.manifest import ManifestFile
from standfast.store.specs import TRAITS
from standfast.store.types.segments import segment_id, segment_interval_ms, segment_start_ms

# Measured on two busy cores, one changelog of 112 bytes a record on Kafka, ms of processor time in bulk and by batches:
# 25,000 records 88 and 133, 100,000 216 and 432. Without the compiled fold they are even from 200,000 on, and 50,000
# take 310 and 224. A warm store: 50,000 records 179 and 261, 150,000 181 and 509.
COLD_RECORDS = 50_000
# A bulk restore of a warm store that is killed in the middle of an ingest begins again from nothing.
WARM_RECORDS = 150_000
FETCH_RECORDS = 4_000  # measured: as fast as fewer, a twentieth faster than 10,000
TAIL_RECORDS = 2_000
# A run of 16 times the memory that a worker may hold: with 256 MiB, 16,000,000 rows of 124 bytes. With more spills a
# restore that is cut short would lose more, since its position moves only with runs.
SPILLS_MAX = 15
LOOKUPS = 4  # files may belong to segments that have expired since
LEVEL0_FILES_MAX = 3  # RocksDB compacts from eight on by itself; up to here a get looks into few files

# Why a store is never loaded in bulk.
BATCHES = {
    "memory": "a store in memory cannot import files",
    "versions": "a version is put among earlier ones, at the stream time of its moment, so that records cannot be "
    "folded apart from the records before them",
    "source-topic": "records of a source topic go through the application's own serdes",
}


@dataclass(frozen=True, slots=True)
class BulkSettings:
    """workers: threads that build files, 0 for batches only. memory_bytes: bound of the rows that all of them hold.

    cold_records, warm_records: a cold or warm store with so many records or more is loaded in bulk. fetch_records:
    folded at once, between two checks of the memory in use.
    disk_floor_bytes: files are written only while they leave so much disk free.
    spills_max: how often a worker's rows may go to the disk, each time it holds its share of the memory, before all of
    them are merged to a run.
    """

    workers: int
    memory_bytes: int
    cold_records: int = COLD_RECORDS
    warm_records: int = WARM_RECORDS
    fetch_records: int = FETCH_RECORDS
    disk_floor_bytes: int = 0
    spills_max: int = SPILLS_MAX


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether a changelog is loaded in bulk, and why (not)."""

    bulk: bool
    why: str


@dataclass(frozen=True, slots=True)
class Tail:
    """Times of a changelog's last records: largest time of a row, and how far a row was ahead of its record."""

    observed_ms: int
    lead_ms: int


def choose(
    kind: str, *, in_memory: bool, from_source: bool, cold: bool, records: int, settings: BulkSettings
) -> Choice:
    """The rule of the header. `records` is end - position."""
    never = "memory" if in_memory else "source-topic" if from_source else "versions" if TRAITS[kind].versions else None
    if never is not None:
        return Choice(False, BATCHES[never])
    if settings.workers < 1:
        return Choice(False, "no workers")
    least = settings.cold_records if cold else settings.warm_records
    state = "cold" if cold else "warm"
    if records < least:
        return Choice(False, f"{state}, and {records} records are fewer than {least}")
    return Choice(True, f"{state}, {records} records")


def skip_before_ms(tail: Tail | None, *, retention_ms: int, lead_ms: int) -> int | None:
    """Records of a window store with timestamps below this are all expired; None if no record can be skipped."""
    if tail is None or tail.observed_ms < 0 or tail.lead_ms > lead_ms:
        return None
    interval_ms = segment_interval_ms(retention_ms)
    # Whole segments: the store drops those, so that a row past its retention may still live in its segment.
    first_live = segment_start_ms(segment_id(tail.observed_ms - retention_ms, interval_ms), interval_ms)
    before_ms = first_live - lead_ms
    return before_ms if before_ms > 0 else None


def needs_compaction(level0_files: int) -> bool:
    """Whether a family is compacted before the gate opens, so that no stall follows."""
    return level0_files > LEVEL0_FILES_MAX


def lookups_in(files: Sequence[ManifestFile], live_keys: Mapping[str, bytes | None]) -> list[tuple[str, bytes]]:
    """Up to LOOKUPS rows (family, key) of files that are ingested in this order: live ones, each the newest of its key.

    Those of the last files come first. A row that a later file may replace or delete is none of them.
    """
    found: list[tuple[str, bytes]] = []
    later: list[ManifestFile] = []
    for file in reversed(files):
        key = live_keys.get(file.name)
        if key is not None and not any(
            one.family == file.family and one.first_key <= key.hex() <= one.last_key for one in later
        ):
            found.append((file.family, key))
            if len(found) == LOOKUPS:
                break
        later.append(file)
    return found
