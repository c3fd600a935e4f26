"""The compiled fold and the store's own make the same rows, byte for byte, of any records."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.replication.columns import LazyColumns, RecordColumns, Span, payload_bytes
from standfast.replication.kafka.native_library import native
from standfast.replication.log import Record
from standfast.restore.replay.row_folds import NativeFold, RowFold, StoreFold, fold_for
from standfast.restore.replay.run_builder import RunBuilder
from standfast.store.errors import Corruption
from standfast.store.native_module import SWITCH
from support.folds import SPECS, keys, row_key, times

values = st.none() | st.binary(max_size=4) | st.just(b"long" * 30)


def lazy(records: Sequence[Record], cut: int) -> LazyColumns:
    """Records as the compiled reader leaves them, in two parts with further records around them."""
    extra = Record(0, 0, b"not this one", b"x")
    spans = []
    for some in (records[:cut], records[cut:]):
        padded = [extra, *some, extra]
        columns = [[record[at] for record in padded] for at in range(4)]
        if some:
            spans.append(Span(native().module.part_of("t", 0, *columns), 1, 1 + len(some)))
    return LazyColumns(spans)


def found(fold: RowFold, *, drop_deletes: bool) -> tuple[Any, ...]:
    """Rows by family with their counts, and all other figures of a fold, which begins again."""
    families = []
    for name, entries, deletes, dropped, batches in fold.families(drop_deletes=drop_deletes):
        pieces = list(batches)
        keys = [key for some, _ in pieces for key in some]
        rows = [row for _, some in pieces for row in some]
        families.append((name, entries, deletes, dropped, keys, rows))
    whole = (families, fold.observed_ms, fold.sequence, fold.records, fold.expired, fold.skipped)
    fold.clear()
    return whole


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.tuples(st.none() | keys, times, st.integers(0, 5), st.integers(0, 9), values), max_size=60),
    size=st.integers(1, 30),
    observed_ms=st.sampled_from([-1, 0, 200_000]),
    drop_deletes=st.booleans(),
)
def test_both_folds_make_the_same_rows(
    name: str,
    rows: list[tuple[bytes | None, int, int, int, bytes | None]],
    size: int,
    observed_ms: int,
    drop_deletes: bool,
) -> None:
    spec = SPECS[name]
    records = [
        Record(at * 2, stamp, None if key is None else row_key(spec, key, time, sequence), value)
        for at, (key, time, sequence, stamp, value) in enumerate(rows)
    ]
    folds: list[RowFold] = [StoreFold(spec, observed_ms), NativeFold(spec, observed_ms)]
    for first in range(0, len(records), size):
        batch = records[first : first + size]
        folds[0].add(batch, payload_bytes(batch))
        folds[1].add(lazy(batch, 0), payload_bytes(batch))
        if first // size % 3 == 1:  # a run is written in between
            assert found(folds[0], drop_deletes=drop_deletes) == found(folds[1], drop_deletes=drop_deletes)
    assert found(folds[0], drop_deletes=drop_deletes) == found(folds[1], drop_deletes=drop_deletes)


def test_files_of_both_folds_have_the_same_entries(tmp_path: Path) -> None:
    records = [Record(at, at, b"k%d" % (at % 30), None if at % 7 == 0 else b"v%d" % at) for at in range(200)]
    made = []
    for prefix, given_records in (("store", records), ("native", lazy(records, 50))):
        builder = RunBuilder(SPECS["kv"], tmp_path, prefix, 0, 0, 1 << 20)
        builder.add(given_records, payload_bytes(given_records))
        run = builder.run(200)
        (file,) = run.files
        made.append((run.records, run.superseded, run.tombstones, file.entries, file.first_key, file.last_key))
    assert made[0] == made[1]


def test_records_by_column_are_folded_by_the_compiled_fold_and_all_others_by_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [Record(0, 1, b"k", b"v")]
    read = lazy(records, 0)
    assert read.keys == [b"k"], "its columns are lists now"
    for columns in (lazy(records, 0), read, RecordColumns([0], [1], [b"k"], [b"v"])):
        assert isinstance(fold_for(SPECS["kv"], columns, -1), NativeFold)
    assert isinstance(fold_for(SPECS["kv"], records, -1), StoreFold)
    monkeypatch.setenv(SWITCH, "0")
    assert isinstance(fold_for(SPECS["kv"], read, -1), StoreFold)


def test_compiled_fold_takes_records_of_any_shape_once_it_has_begun() -> None:
    fold = NativeFold(SPECS["plain"], -1)
    fold.add(lazy([Record(0, 1, b"k", b"1")], 1), 2)
    fold.add([Record(1, 1, b"l", b"2")], 2)
    fold.add(RecordColumns([2], [1], [b"k"], [None]), 1)
    (family,) = fold.families(drop_deletes=False)
    assert list(family.batches) == [([b"k", b"l"], [None, b"2"])]
    assert (family.name, family.entries, family.deletes, fold.records) == ("plain", 2, 1, 3)


@pytest.mark.parametrize("name", ["win", "dup", "ses"])
@pytest.mark.parametrize("key", [b"", b"short", b"\xff" * 16, b"k" + b"\0" * 8 + b"\xff" * 8])
def test_both_folds_refuse_a_key_that_no_store_can_have_written_in_the_same_words(name: str, key: bytes) -> None:
    said = []
    for records in ([Record(7, 1, key, b"v")], lazy([Record(7, 1, key, b"v")], 0)):
        fold = fold_for(SPECS[name], records, -1)
        try:
            fold.add(records, 1)
        except Corruption as error:
            said.append(str(error))
        else:
            said.append("")
    assert said[0] == said[1]


MANY = 50_000


def numbered_keys(count: int) -> list[bytes]:
    rng = random.Random(count)
    return [b"%012d" % rng.randrange(10**12) for _ in range(count)]


@pytest.mark.parametrize(
    "keys_of",
    [
        numbered_keys,
        lambda count: [b"same-prefix-of-all-keys-%08d" % at for at in range(count)],
        lambda count: [b"12345678" + bytes(at % 4) + b"%06d" % at for at in range(count)] + [b"1234567", b"1234567\0"],
        lambda count: [b"\xff" * 8 + b"%d" % at for at in range(count)] + [b"", b"\0", *numbered_keys(count)],
        lambda count: [b"8bytes--" + b"a" * 40 + b"%d" % at for at in range(count)] + [b"8bytes--", b"7bytes-"],
    ],
)
@pytest.mark.parametrize(
    "count", [pytest.param(MANY - 1, marks=pytest.mark.long), pytest.param(MANY, marks=pytest.mark.long), MANY + 1]
)
def test_many_rows_are_in_key_order(keys_of: Callable[[int], list[bytes]], count: int) -> None:
    made = list(dict.fromkeys(keys_of(count)))
    random.Random(1).shuffle(made)
    fold = native().module.Fold(False, 0, False, 0, 1, -1)
    part = native().module.part_of("", 0, range(len(made)), [0] * len(made), made, made)
    fold.add(part, 0, len(made))
    assert fold.sort() == [(0, 0, len(made), 0)]
    assert native().module.merged_rows((), fold, 0, None, len(made) + 1) == (sorted(made), sorted(made), None)


def test_held_bytes_of_the_compiled_fold_follow_its_rows() -> None:
    fold = NativeFold(SPECS["kv"], -1)
    fold.add(lazy([Record(at, at, b"k%05d" % at, b"v" * 100) for at in range(1_000)], 500), 0)
    assert 1_000 * 114 < fold.used_bytes < 1_000 * 300
    held = fold.used_bytes
    fold.add(lazy([Record(at, at, b"k%05d" % at, b"w" * 90) for at in range(1_000)], 500), 0)
    assert fold.used_bytes == held, "rows that fit take the place of older ones"
    fold.clear()
    assert fold.used_bytes == 0


def test_room_that_rows_leave_unused_is_counted() -> None:
    fold = NativeFold(SPECS["plain"], -1)
    fold.add(lazy([Record(at, at, b"k%04d" % at, bytes(1 << 18)) for at in range(16)], 8), 0)
    assert fold.used_bytes > 5 << 20, "three rows fill a piece of 1 MiB, in which a fourth finds no room"


def test_collection_of_garbage_in_the_middle_of_a_call_changes_no_rows() -> None:
    """A collection may begin wherever an object is made, up to Python 3.11, and runs code that may know the fold."""
    fold = native().module.Fold(False, 12, False, 1 << 40, 1)
    keys = [at.to_bytes(8, "big") + bytes(4) for at in range(1_000)]
    fold.add(native().module.part_of("", 0, list(range(1_000)), [0] * 1_000, keys, keys), 0, 1_000)

    def meddle(*_: Any) -> None:
        with suppress(RuntimeError):
            fold.clear()

    before, sort = gc.get_threshold(), fold.sort
    gc.callbacks.append(meddle)
    try:
        gc.set_threshold(1)
        groups = sort()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(meddle)
    assert groups == [(at, at, at + 1, 0) for at in range(1_000)]


@pytest.mark.parametrize("common", [b"", b"a common beginning of all keys-"])
def test_rows_are_sorted_by_whole_keys(common: bytes) -> None:
    suffixes = [b"", b"\0", b"\0\0", b"a", b"a\0", b"\xff", b"12345678", b"12345678\0", b"123456789", b"12345679"]
    fold = NativeFold(SPECS["plain"], -1)
    fold.add(lazy([Record(at, 1, common + suffix, b"") for at, suffix in enumerate(reversed(suffixes))], 3), 0)
    (family,) = fold.families(drop_deletes=False)
    ((found, _),) = family.batches
    assert found == sorted(common + suffix for suffix in suffixes)


STARVED = """
import resource
from pathlib import Path
from standfast.store.native_module import compiled

native = compiled().module
part = native.part_of("t", 0, [0], [0], [b"k"], [b"v"])
fold = native.Fold(True)
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
parts = []
try:
    while True:
        keys = [b"%d-%d" % (len(parts), at) for at in range(1_000)]
        parts.append(native.part_of("t", 0, list(range(1_000)), [0] * 1_000, keys, [bytes(1_000)] * 1_000))
        fold.add(parts[-1], 0, 1_000)
except MemoryError:
    parts.clear()
try:
    fold.add(part, 0, 1)
    fold.sort()
except (RuntimeError, MemoryError):
    pass
print("alive")
"""


@pytest.mark.slow
def test_fold_that_gets_no_more_memory_raises_and_ends_no_process() -> None:
    child = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, timeout=60, check=False)
    assert (child.returncode, child.stdout.strip()) == (0, "alive"), child.stderr[-2_000:]
