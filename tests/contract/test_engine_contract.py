"""One suite over all engines: the contract of `Engine`. For RocksDB alone: test_rocks_engine.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.calls import DirectCalls
from simulator.disk import SimDisk
from simulator.engine import SimEngine
from standfast.store.clock import ManualClock
from standfast.store.engine import DEFAULT_FAMILY, Engine, KeyRange, Row
from standfast.store.errors import Closed, InvalidRequest, StandfastError, UnknownStore
from standfast.store.memory import MemoryEngine
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.sst import write_sorted

FAMILY = "aircraft"
KEYS = [b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"a\xff", b"b", b"\x7f", b"\x80", b"\xff", b"\xff\x00", b"\xff\xff"]
MEMORY_BYTES = 32 << 20


@pytest.fixture(scope="module")
def shared() -> RocksShared:
    return RocksShared(MEMORY_BYTES)


@pytest.fixture(params=["rocksdb", "memory", "simulated"])
def engine(request: Any, tmp_path: Path, shared: RocksShared) -> Iterator[Engine]:
    opened: Engine = {
        "rocksdb": lambda: RocksEngine(tmp_path / "db", shared=shared),
        "memory": MemoryEngine,
        "simulated": lambda: SimEngine(tmp_path / "db", SimDisk(tmp_path, DirectCalls(ManualClock(0)))),
    }[request.param]()
    opened.create_family(FAMILY)
    yield opened
    opened.close()


def rows_of(engine: Engine, family: str = FAMILY, *bounds: bytes | None, reverse: bool = False) -> list[Row]:
    with engine.scan(family, *bounds, reverse=reverse) as scan:
        return list(scan)


def put(engine: Engine, rows: dict[bytes, bytes | None], family: str = FAMILY) -> None:
    engine.write({family: rows})


def tidy(engine: Engine) -> None:
    engine.flush()
    engine.compact(FAMILY)


def test_rows_come_in_order_of_unsigned_bytes(engine: Engine) -> None:
    put(engine, {key: b"v" + key for key in reversed(KEYS)})
    expected = [(key, b"v" + key) for key in sorted(KEYS)]
    assert rows_of(engine) == expected
    assert rows_of(engine, reverse=True) == expected[::-1]


def test_engine_answers_about_stalls_and_unknown_files(engine: Engine) -> None:
    assert engine.stalled_ms() == 0
    assert engine.families_of("999999") == frozenset()


@pytest.mark.parametrize("start", [None, *KEYS])
@pytest.mark.parametrize("reverse", [False, True])
def test_ranges_include_their_start_and_exclude_their_end(engine: Engine, start: bytes | None, reverse: bool) -> None:
    put(engine, dict.fromkeys(KEYS, b"v"))
    for end in [None, *KEYS, b"\xff\xff\xff"]:
        expected = [key for key in sorted(KEYS) if (start is None or key >= start) and (end is None or key < end)]
        found = [key for key, _ in rows_of(engine, FAMILY, start, end, reverse=reverse)]
        assert found == (expected[::-1] if reverse else expected), (start, end)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_writes_and_scans_agree_with_a_dictionary(engine: Engine, data: st.DataObject) -> None:
    keys = st.binary(max_size=3)
    model: dict[bytes, bytes] = {}
    engine.drop_family(FAMILY)
    engine.create_family(FAMILY)
    for _ in range(data.draw(st.integers(1, 4))):
        ranges = data.draw(st.lists(st.builds(KeyRange, st.just(FAMILY), keys, keys), max_size=2))
        rows = data.draw(st.dictionaries(keys, st.none() | st.binary(max_size=4), max_size=8))
        engine.write({FAMILY: rows}, ranges)
        for item in ranges:
            model = {key: value for key, value in model.items() if not item.start <= key < item.end}
        model.update({key: value for key, value in rows.items() if value is not None})
        for key in [key for key, value in rows.items() if value is None]:
            model.pop(key, None)
    start, end = data.draw(st.none() | keys), data.draw(st.none() | keys)
    reverse = data.draw(st.booleans())
    inside = sorted(
        (row for row in model.items() if (start is None or row[0] >= start) and (end is None or row[0] < end)),
        reverse=reverse,
    )
    assert rows_of(engine, FAMILY, start, end, reverse=reverse) == inside
    asked = [*model, b"absent"]
    assert engine.get_many(FAMILY, asked) == [model.get(key) for key in asked]
    assert [engine.get(FAMILY, key) for key in asked] == [model.get(key) for key in asked]


def test_empty_values_are_kept_and_none_deletes(engine: Engine) -> None:
    put(engine, {b"a": b"", b"b": b"1"})
    put(engine, {b"b": None, b"absent": None})
    assert rows_of(engine) == [(b"a", b"")]
    assert engine.get(FAMILY, b"a") == b""
    assert engine.get(FAMILY, b"b") is None


def test_range_deletion_comes_before_the_rows_of_its_write(engine: Engine) -> None:
    put(engine, {b"a": b"1", b"b": b"1", b"c": b"1"})
    engine.write({FAMILY: {b"b": b"2"}}, [KeyRange(FAMILY, b"a", b"c")])
    assert rows_of(engine) == [(b"b", b"2"), (b"c", b"1")]


def test_range_deletion_that_ends_before_it_starts_deletes_nothing(engine: Engine) -> None:
    put(engine, {b"a": b"1", b"b": b"1"})
    engine.write({}, [KeyRange(FAMILY, b"b", b"a"), KeyRange(FAMILY, b"a", b"a")])
    put(engine, {b"c": b"1"})
    assert [key for key, _ in rows_of(engine)] == [b"a", b"b", b"c"]


def test_write_covers_several_families(engine: Engine) -> None:
    engine.create_family("other")
    engine.write({FAMILY: {b"k": b"1"}, "other": {b"k": b"2"}, DEFAULT_FAMILY: {b"k": b"3"}})
    assert [engine.get(family, b"k") for family in (FAMILY, "other", DEFAULT_FAMILY)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("ranges", [[], [KeyRange("absent", b"a", b"b")]])
def test_write_to_an_absent_family_changes_nothing(engine: Engine, ranges: list[KeyRange]) -> None:
    put(engine, {b"a": b"1"})
    rows: dict[str, dict[bytes, bytes | None]] = {FAMILY: {b"a": None, b"b": b"1"}}
    if not ranges:
        rows["absent"] = {b"k": b"1"}
    with pytest.raises(UnknownStore, match="absent"):
        engine.write(rows, ranges)
    assert rows_of(engine) == [(b"a", b"1")]


@pytest.mark.parametrize("bad", [{"k": b"1"}, {b"k": "1"}, {b"k": bytearray(b"1")}, {memoryview(b"k"): b"1"}])
def test_write_of_anything_but_bytes_changes_nothing(engine: Engine, bad: dict[Any, Any]) -> None:
    with pytest.raises(InvalidRequest, match="bytes"):
        engine.write({FAMILY: {b"a": b"1", **bad}})
    assert rows_of(engine) == []


def test_a_key_that_is_not_bytes_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="bytes"):
        engine.get(FAMILY, "k")  # type: ignore[arg-type]


def test_a_scan_sees_the_family_as_it_was_when_it_began(engine: Engine) -> None:
    before = {index.to_bytes(4, "big"): b"old" for index in range(1_000)}
    put(engine, dict(before))
    forwards, backwards = engine.scan(FAMILY), engine.scan(FAMILY, reverse=True)
    first = next(forwards)
    put(engine, {key: (None if index % 2 else b"new") for index, key in enumerate(before)})
    put(engine, {b"\x00" + key: b"added" for key in before})
    engine.write({}, [KeyRange(FAMILY, b"\x00", b"\x00\x00\x01")])
    engine.flush()
    assert [first, *forwards] == sorted(before.items())
    assert list(backwards) == sorted(before.items(), reverse=True)


def test_a_scan_survives_the_drop_of_its_family(engine: Engine) -> None:
    put(engine, {index.to_bytes(4, "big"): b"v" for index in range(1_000)})
    scan = engine.scan(FAMILY)
    engine.drop_family(FAMILY)
    assert len(list(scan)) == 1_000


def test_two_scans_of_one_family_do_not_disturb_each_other(engine: Engine) -> None:
    put(engine, {index.to_bytes(4, "big"): b"v" for index in range(600)})
    one, other = engine.scan(FAMILY), engine.scan(FAMILY)
    assert all(left == right for left, right in zip(one, other, strict=True))


def test_many_scans_at_once_keep_their_own_bounds(engine: Engine) -> None:
    keys = [index.to_bytes(4, "big") for index in range(200)]
    put(engine, dict.fromkeys(keys, b"v"))
    scans = [engine.scan(FAMILY, None, index.to_bytes(4, "big")) for index in range(200)]  # bounds that no variable has
    for number, scan in enumerate(scans):
        assert [key for key, _ in scan] == keys[:number]


def test_next_and_for_share_one_position(engine: Engine) -> None:
    put(engine, {bytes([index]): b"v" for index in range(100)})
    scan = engine.scan(FAMILY)
    found = [next(scan)[0], next(scan)[0]]
    for key, _ in scan:
        found.append(key)
        if len(found) == 40:
            break
    found += [key for key, _ in scan]
    assert found == [bytes([index]) for index in range(100)]


def test_a_closed_scan_gives_no_more_rows(engine: Engine) -> None:
    put(engine, {bytes([index]): b"v" for index in range(100)})
    scan = engine.scan(FAMILY)
    next(scan)
    scan.close()
    scan.close()
    with pytest.raises(Closed):
        next(scan)
    with pytest.raises(Closed):
        list(scan)


def test_a_scan_closed_within_its_external_consumer_raises_closed(engine: Engine) -> None:
    put(engine, {bytes([index]): b"v" for index in range(100)})
    scan = engine.scan(FAMILY)
    with pytest.raises(Closed):
        for _ in scan:
            scan.close()


def test_closing_the_engine_ends_its_scans(engine: Engine) -> None:
    put(engine, {bytes([index]): b"v" for index in range(100)})
    begun, untouched = engine.scan(FAMILY), engine.scan(FAMILY, reverse=True)
    next(begun)
    engine.close()
    for scan in (begun, untouched):
        with pytest.raises(Closed):
            next(scan)


def test_a_family_made_again_is_empty(engine: Engine) -> None:
    put(engine, {b"a": b"1"})
    engine.create_family(FAMILY)
    assert rows_of(engine) == [(b"a", b"1")]
    engine.drop_family(FAMILY)
    engine.drop_family(FAMILY)
    assert engine.families() == {DEFAULT_FAMILY}
    engine.create_family(FAMILY)
    assert engine.families() == {DEFAULT_FAMILY, FAMILY}
    assert rows_of(engine) == []


def test_the_default_family_cannot_be_dropped(engine: Engine) -> None:
    with pytest.raises(InvalidRequest):
        engine.drop_family(DEFAULT_FAMILY)


def test_an_absent_family_is_an_error_that_names_it(engine: Engine) -> None:
    calls: list[Callable[[], object]] = [
        lambda: engine.get("absent", b"k"),
        lambda: engine.get_many("absent", [b"k"]),
        lambda: engine.scan("absent"),
        lambda: engine.approximate_rows("absent"),
        lambda: engine.compact("absent"),
        lambda: engine.statistics("absent"),
    ]
    for call in calls:
        with pytest.raises(UnknownStore, match="absent"):
            call()


def test_get_many_answers_in_the_order_asked(engine: Engine) -> None:
    put(engine, {b"a": b"1", b"b": b"2"})
    assert engine.get_many(FAMILY, [b"b", b"x", b"a", b"b"]) == [b"2", None, b"1", b"2"]
    assert engine.get_many(FAMILY, (b"a",)) == [b"1"]
    assert engine.get_many(FAMILY, []) == []


def test_statistics_count_rows_and_bytes(engine: Engine) -> None:
    put(engine, {index.to_bytes(4, "big"): bytes(100) for index in range(1_000)})
    assert engine.approximate_rows(FAMILY) > 0
    one, everything = engine.statistics(FAMILY), engine.statistics()
    assert one.memtable_bytes + one.sst_bytes > 50_000
    assert (one.families, everything.families) == (1, 2)
    assert everything.keys_estimate >= one.keys_estimate > 0
    engine.flush()
    engine.compact(FAMILY)
    assert len(rows_of(engine)) == 1_000


def test_every_call_after_close_raises_closed(engine: Engine, tmp_path: Path) -> None:
    engine.close()
    engine.close()
    calls: list[Callable[[], object]] = [
        engine.families,
        lambda: engine.create_family("x"),
        lambda: engine.drop_family(FAMILY),
        lambda: engine.get(FAMILY, b"k"),
        lambda: engine.get_many(FAMILY, [b"k"]),
        lambda: engine.scan(FAMILY),
        lambda: engine.write({FAMILY: {b"k": b"1"}}),
        lambda: engine.approximate_rows(FAMILY),
        engine.flush,
        lambda: engine.compact(FAMILY),
        lambda: engine.checkpoint(tmp_path / "checkpoint"),
        engine.statistics,
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()


@pytest.mark.slow
def test_readers_are_safe_beside_a_writer_that_makes_and_drops_families(engine: Engine) -> None:
    put(engine, {index.to_bytes(4, "big"): b"v" for index in range(500)})
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                assert engine.get(FAMILY, (7).to_bytes(4, "big")) == b"v"
                assert len(rows_of(engine)) == 500
                assert DEFAULT_FAMILY in engine.families()
                engine.statistics(FAMILY)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(15):
        engine.create_family(f"segment@{number}")
        engine.write({f"segment@{number}": {b"k": b"v"}, FAMILY: {b"\x00\x00\x00\x07": b"v"}})
        engine.flush()
        engine.drop_family(f"segment@{number}")
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []


def test_close_waits_for_readers_of_other_threads(engine: Engine) -> None:
    put(engine, {index.to_bytes(4, "big"): bytes(200) for index in range(2_000)})
    ends: list[BaseException] = []
    started = threading.Barrier(4)

    def use(call: Callable[[], object]) -> None:
        try:
            call()
            started.wait()
            while True:
                call()
        except BaseException as error:
            ends.append(error)

    calls: list[Callable[[], object]] = [
        lambda: engine.get_many(FAMILY, [index.to_bytes(4, "big") for index in range(200)]),
        lambda: rows_of(engine),
        lambda: tidy(engine),
    ]
    users = [threading.Thread(target=use, args=(call,)) for call in calls]
    for user in users:
        user.start()
    started.wait()
    engine.close()
    for user in users:
        user.join()
    assert [type(error) for error in ends] == [Closed] * 3


# Differences between the engines.


def test_memory_engine_refuses_a_checkpoint(tmp_path: Path) -> None:
    engine = MemoryEngine()
    assert not engine.durable
    with pytest.raises(InvalidRequest, match="in memory"):
        engine.checkpoint(tmp_path / "checkpoint")


def test_memory_engine_copies_a_family_only_for_open_scans() -> None:
    engine = MemoryEngine()
    put(engine, {b"a": b"1"}, DEFAULT_FAMILY)
    table = engine._tables[DEFAULT_FAMILY]
    with engine.scan(DEFAULT_FAMILY) as scan:
        assert list(scan) == [(b"a", b"1")]  # at its end: it no longer shares
        put(engine, {b"b": b"1"}, DEFAULT_FAMILY)
    assert engine._tables[DEFAULT_FAMILY] is table


def test_flush_of_one_family_names_a_missing_one(engine: Engine) -> None:
    put(engine, {b"a": b"1"})
    engine.flush(FAMILY)
    with pytest.raises(UnknownStore, match="absent"):
        engine.flush("absent")


def test_files_are_taken_in_over_what_is_there_or_refused_with_the_reason(engine: Engine, tmp_path: Path) -> None:
    put(engine, {b"a": b"0", b"b": b"0", b"d": b"0"})
    first = write_sorted(tmp_path / "0.sst", {b"a": b"1", b"c": b"1", b"b": None})
    second = write_sorted(tmp_path / "1.sst", {b"c": b"2", b"\xff": b"2"})
    if not engine.durable:
        with pytest.raises(InvalidRequest, match="in memory and cannot import files: write the rows"):
            engine.ingest(FAMILY, [first.path, second.path])
        assert rows_of(engine) == [(b"a", b"0"), (b"b", b"0"), (b"d", b"0")]
        engine.write({FAMILY: {b"a": b"1", b"c": b"1", b"b": None}})
        engine.write({FAMILY: {b"c": b"2", b"\xff": b"2"}})
    else:
        engine.ingest(FAMILY, [first.path, second.path])
    with pytest.raises(UnknownStore):
        engine.ingest("absent", [])
    assert rows_of(engine) == [(b"a", b"1"), (b"c", b"2"), (b"d", b"0"), (b"\xff", b"2")]
    put(engine, {b"c": b"3"})
    assert engine.get(FAMILY, b"c") == b"3"


# Rows prepared ahead


def test_prepared_rows_are_nowhere_until_they_are_written_with_the_others(engine: Engine) -> None:
    put(engine, {b"gone": b"1", b"kept": b"1"})
    prepared = engine.prepare({FAMILY: {b"gone": None, b"k": b"2"}})
    assert (prepared is not None) is engine.durable  # memory has no such part
    if prepared is None:
        return
    assert prepared.counts == {FAMILY: 2}
    assert rows_of(engine) == [(b"gone", b"1"), (b"kept", b"1")]
    prepared.write({DEFAULT_FAMILY: {b"position": b"7"}})
    assert rows_of(engine) == [(b"k", b"2"), (b"kept", b"1")]
    assert engine.get(DEFAULT_FAMILY, b"position") == b"7"


def test_prepared_rows_are_written_once_and_never_after_the_end(engine: Engine) -> None:
    prepared, late = (engine.prepare({FAMILY: {b"k": b"1"}}) for _ in range(2))
    assert (prepared is not None) is engine.durable
    if prepared is None or late is None:
        return
    prepared.write({})
    with pytest.raises(StandfastError):
        prepared.write({FAMILY: {b"other": b"1"}})
    assert rows_of(engine) == [(b"k", b"1")]
    engine.close()
    with pytest.raises(Closed):
        late.write({DEFAULT_FAMILY: {b"position": b"7"}})
    with pytest.raises(Closed):
        engine.prepare({FAMILY: {b"k": b"2"}})


def test_rows_of_a_family_that_is_gone_are_refused_prepared_or_not(engine: Engine) -> None:
    with pytest.raises(UnknownStore) if engine.durable else nullcontext():
        assert engine.prepare({"absent": {b"k": b"1"}}) is None
    engine.create_family("short")
    prepared = engine.prepare({"short": {b"k": b"1"}})
    engine.drop_family("short")
    if prepared is not None:
        with pytest.raises(StandfastError):
            prepared.write({DEFAULT_FAMILY: {b"position": b"7"}})
    assert engine.get(DEFAULT_FAMILY, b"position") is None
