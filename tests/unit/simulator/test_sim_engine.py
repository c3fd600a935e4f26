"""The disk of a simulated machine, and the engine on it. Its contract: tests/contract/test_engine_contract.py."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from simulator.calls import DirectCalls, ProcessEnded
from simulator.disk import ROWS_FILE, SimDisk
from simulator.draws import Draws
from simulator.engine import SimEngine, damage_somewhere
from simulator.row_log import BrokenLog, batches, encoded
from standfast.store.clock import ManualClock
from standfast.store.engine import DEFAULT_FAMILY, KeyRange
from standfast.store.errors import Corruption, Held, InvalidRequest
from standfast.store.file_errors import NoRoom

T = TypeVar("T")
FAMILY = "aircraft"


class AllLost(Draws):
    """Draws the worst loss of power."""

    def number(self, *question: str | int) -> float:
        return 0


@pytest.fixture
def disk(tmp_path: Path) -> SimDisk:
    return SimDisk(tmp_path, DirectCalls(ManualClock(0)))


def opened(disk: SimDisk, name: str = "0_0", *, careful: bool = False, read_only: bool = False) -> SimEngine:
    return SimEngine(disk.root / name, disk, careful=careful, read_only=read_only)


def filled(disk: SimDisk, name: str = "0_0") -> SimEngine:
    """An engine with rows 0 to 4 flushed, and 5 to 9 not: a write each."""
    engine = opened(disk, name)
    engine.create_family(FAMILY)
    for number in range(10):
        engine.write({FAMILY: {b"%d" % number: b"row"}, DEFAULT_FAMILY: {b"position": b"%d" % number}})
        if number == 4:
            engine.flush()
    return engine


def numbers(engine: SimEngine) -> list[int]:
    return [int(key) for key, _ in engine.scan(FAMILY)]


def position(engine: SimEngine) -> int:
    return int(engine.get(DEFAULT_FAMILY, b"position") or -1)


def test_the_end_of_a_process_keeps_what_it_wrote_and_frees_the_folder(disk: SimDisk):
    filled(disk)
    with pytest.raises(Held):
        opened(disk)
    disk.end_process()
    assert numbers(opened(disk)) == list(range(10))


def test_a_loss_of_power_drops_the_end_of_what_was_not_flushed_and_nothing_before(disk: SimDisk):
    left = set[int]()
    for seed in range(16):
        filled(disk, str(seed))
        disk.end_process()
        disk.lose_power(Draws(seed), "power")
        engine = opened(disk, str(seed))
        rows = numbers(engine)
        assert rows == list(range(len(rows)))
        assert position(engine) == len(rows) - 1 >= 4  # whole writes
        left.add(len(rows))
        disk.end_process()
        disk.lose_power(Draws(seed), "power again")  # an opening syncs the rows that it finds
        assert numbers(opened(disk, str(seed))) == rows
        disk.end_process()
    assert left >= {5, 10} and len(left) > 3


def test_a_loss_of_power_keeps_families_and_may_lose_the_rows_written_before_them(disk: SimDisk):
    """RocksDB syncs its list of families at once, and its log of rows does not."""
    for seed in range(4):
        engine = filled(disk, str(seed))
        engine.create_family("made")
        engine.write({"made": {b"k": b"v"}})
        engine.drop_family(FAMILY)
        disk.end_process()
        disk.lose_power(Draws(seed), "power")
        again = opened(disk, str(seed))
        assert again.families() == {DEFAULT_FAMILY, "made"}
        assert position(again) >= 4
        disk.end_process()


def test_a_flush_of_one_family_syncs_all_rows_if_it_has_new_ones(disk: SimDisk):
    """As of RocksDB, which syncs its log before it flushes a family, and does nothing without rows to flush."""
    for flushed, left in ((DEFAULT_FAMILY, 1), ("empty", 0)):
        engine = opened(disk, flushed)
        for family in (FAMILY, "empty"):
            engine.create_family(family)
        engine.write({FAMILY: {b"0": b"row"}, DEFAULT_FAMILY: {b"position": b"0"}})
        engine.flush(flushed)
        disk.end_process()
        disk.lose_power(AllLost(0), "power")
        assert len(numbers(opened(disk, flushed))) == left
        disk.end_process()


def test_a_write_that_was_cut_short_counts_for_nothing(disk: SimDisk):
    engine = filled(disk)
    rows = disk.root / "0_0" / ROWS_FILE
    before = rows.stat().st_size
    engine.write({FAMILY: {b"a": b"1"}, DEFAULT_FAMILY: {b"position": b"10"}})
    whole = rows.read_bytes()
    disk.end_process()
    for size in range(before, len(whole), 7):
        rows.write_bytes(whole[:size])
        engine = opened(disk)
        assert (numbers(engine), position(engine)) == (list(range(10)), 9)
        engine.write({FAMILY: {b"a": b"1"}})
        disk.end_process()
        assert [key for key, _ in opened(disk).scan(FAMILY)][-1] == b"a"  # rows behind the cut are read
        disk.end_process()


def test_a_flipped_bit_is_found_wherever_it_is():
    ids = {DEFAULT_FAMILY: 0, FAMILY: 1}
    raw = encoded(ids, {FAMILY: {b"k": b"v", b"gone": None}}, [KeyRange(FAMILY, b"a", b"b")])
    raw += encoded(ids, {DEFAULT_FAMILY: {b"position": b"7"}})
    kinds = set[str]()
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1
        try:
            found = [frame for batch in batches(bytes(damaged)) for frame in batch]
        except BrokenLog as error:
            assert error.at <= at
            kinds.add("header")
        else:
            assert len(found) == 3
            assert [frame.data for frame in found].count(None) == 1
            kinds.add("rows")
    assert kinds == {"header", "rows"}


def test_damaged_rows_are_corruption_of_their_family_and_the_others_can_be_read(disk: SimDisk):
    engine = filled(disk)
    engine.create_family("whole")
    engine.write({"whole": {b"k": b"v"}})
    engine.close()
    rows = disk.root / "0_0" / ROWS_FILE
    disk.damage(rows, rows.read_bytes().index(b"row"))
    for read_only in (False, True):
        with pytest.raises(Corruption, match=FAMILY) as met:
            opened(disk, read_only=read_only)
        assert (met.value.families, met.value.noted) == ({FAMILY}, True)
    engine = opened(disk, careful=True)
    assert engine.get("whole", b"k") == b"v"
    with pytest.raises(Corruption, match=FAMILY):
        engine.scan(FAMILY)
    with pytest.raises(Corruption, match=FAMILY):
        engine.checkpoint(disk.root / "copy")
    engine.drop_family(FAMILY)
    engine.close()
    assert opened(disk).families() == {DEFAULT_FAMILY, "whole"}


def test_damage_of_an_open_database_is_met_by_the_next_read(disk: SimDisk):
    engine = filled(disk)
    rows = disk.root / "0_0" / ROWS_FILE
    disk.damage(rows, rows.read_bytes().index(b"row"))
    with pytest.raises(Corruption, match=FAMILY):
        engine.get(FAMILY, b"0")
    assert position(engine) == 9


def test_drawn_damage_is_found_by_the_next_opening(disk: SimDisk):
    assert damage_somewhere(disk, Draws(0), "damage") is None
    met = set[frozenset[str]]()
    for seed in range(8):
        filled(disk, "0_0").close()
        path = damage_somewhere(disk, Draws(seed), "damage")
        assert path == disk.root / "0_0" / ROWS_FILE
        with pytest.raises(Corruption) as found:
            opened(disk)
        met.add(found.value.families)
        shutil.rmtree(disk.root / "0_0")
    assert {frozenset({FAMILY}), frozenset({DEFAULT_FAMILY})} <= met


@pytest.mark.parametrize("name", [ROWS_FILE, "MANIFEST-000005", "CURRENT", "000001.log"])
def test_an_absent_file_is_corruption(disk: SimDisk, name: str):
    filled(disk).close()
    (disk.root / "0_0" / name).unlink()
    with pytest.raises(Corruption):
        opened(disk)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_no_writes_is_read(disk: SimDisk, number: int):
    engine = filled(disk)
    disk.refuses = number
    changes: list[Callable[[], object]] = [
        lambda: engine.write({FAMILY: {b"10": b"row"}}),
        lambda: engine.create_family("made"),
        lambda: engine.drop_family(FAMILY),
        engine.flush,
        lambda: engine.checkpoint(disk.root / "copy"),
        lambda: opened(disk, "0_1"),
    ]
    for change in changes:
        with pytest.raises(NoRoom) as met:
            change()
        assert met.value.number == number
    assert numbers(engine) == list(range(10))
    engine.close()
    disk.refuses = 0
    assert numbers(opened(disk)) == list(range(10))
    assert [path.name for path in disk.root.iterdir()] == ["0_0"]


def test_a_reader_beside_the_owner_sees_the_rows_of_its_opening(disk: SimDisk):
    engine = filled(disk)
    reader = opened(disk, read_only=True)
    engine.write({FAMILY: {b"a": b"1"}})
    assert numbers(reader) == list(range(10))
    with pytest.raises(InvalidRequest, match="read-only"):
        reader.write({FAMILY: {b"b": b"1"}})


def test_a_copy_of_the_folder_and_a_checkpoint_open_elsewhere(disk: SimDisk):
    engine = filled(disk)
    engine.write({FAMILY: {b"9": None}}, [KeyRange(FAMILY, b"2", b"5")])
    engine.checkpoint(disk.root / "copy")
    engine.close()
    (disk.root / "0_0").rename(disk.root / "moved")
    for name in ("copy", "moved"):
        assert numbers(opened(disk, name)) == [0, 1, 5, 6, 7, 8]


class EndedCalls:
    """The process ends at the call of this name, before or after its effect."""

    def __init__(self, name: str, *, after: bool) -> None:
        self.name, self.after = name, after
        self.ended = False

    def run(self, name: str, effect: Callable[[], T]) -> T:
        if name == self.name and not self.after:
            self.ended = True
        if self.ended:
            raise ProcessEnded
        result = effect()
        if name == self.name:
            self.ended = True
            raise ProcessEnded
        return result

    def wait(self, wait_ms: float, ready: Callable[[], bool] | None = None) -> None:
        raise AssertionError("this disk is not slow")


@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_ends_at_a_write_changes_nothing_more(tmp_path: Path, after: bool):
    disk = SimDisk(tmp_path, EndedCalls("engine.write", after=after))
    engine = opened(disk)
    engine.create_family(FAMILY)
    for _ in range(3):
        with pytest.raises(ProcessEnded):
            engine.write({FAMILY: {b"0": b"row"}})
    for call in (engine.flush, engine.close, lambda: engine.drop_family(FAMILY)):
        with pytest.raises(ProcessEnded):
            call()
    disk.end_process()
    engine.close()
    assert numbers(opened(SimDisk(tmp_path, DirectCalls(ManualClock(0))))) == ([0] if after else [])


def test_calls_of_a_slow_disk_take_simulated_time(tmp_path: Path):
    clock = ManualClock(0)
    disk = SimDisk(tmp_path, DirectCalls(clock))
    engine, before = opened(disk), clock.monotonic_ms()
    disk.slow_ms = 30
    engine.write({DEFAULT_FAMILY: {b"k": b"v"}})
    engine.get(DEFAULT_FAMILY, b"k")
    assert clock.monotonic_ms() - before == 60


def test_the_same_writes_make_the_same_bytes(disk: SimDisk):
    first, second = filled(disk, "one"), filled(disk, "two")
    for engine in (first, second):
        engine.create_family("other")
        engine.close()
        opened(disk, engine.path.name).close()
    for path in (disk.root / "one").iterdir():
        assert path.read_bytes() == (disk.root / "two" / path.name).read_bytes()
