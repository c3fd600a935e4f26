"""A task of many stores opens in time, and its writes grow as their number, not as its square."""

from __future__ import annotations

from pathlib import Path

import pytest

import standfast as sf
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import InvalidRequest
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from support.stores import TEXT, Open, at, keyvalue, rows_on_disk, versioned

FEW, MANY = 20, 80
GROWTH_MAX = 6  # four times as many stores; one file of settings for each new store made it thirteen


def bytes_written() -> int:
    """Bytes that this process has given to the operating system to write."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def test_first_opening_of_a_task_writes_as_much_as_it_has_stores(open_task: Open, tmp_path: Path) -> None:
    written = []
    for count in (FEW, MANY):
        before = bytes_written()
        open_task(*(keyvalue(f"s{number}") for number in range(count)), directory=tmp_path / str(count))
        written.append(bytes_written() - before)
    assert written[1] < GROWTH_MAX * written[0]


def test_first_opening_of_a_session_writes_as_much_as_it_has_stores(tmp_path: Path) -> None:
    written = []
    for count in (FEW, MANY):
        stores = [sf.KeyValueStore(f"s{number}", TEXT, TEXT) for number in range(count)]
        place = tmp_path / str(count)
        before = bytes_written()
        with sf.Session("app", log=f"sqlite:///{place}/log", state_dir=place / "state", stores=stores) as session:
            session.assign(active=[0])
            session.wait_ready(60)
        written.append(bytes_written() - before)
    assert written[1] < GROWTH_MAX * written[0]


def test_restore_of_many_stores_does_not_set_options_of_each(tmp_path: Path, rocks_shared: RocksShared) -> None:
    engine = RocksEngine(tmp_path / "db", shared=rocks_shared, families=[f"s{number}" for number in range(MANY)])
    before = bytes_written()
    engine.restoring(True)
    engine.restoring(False)
    engine.close()
    assert bytes_written() - before < 100_000


def test_a_restored_snapshot_of_many_stores_is_opened_as_usual(tmp_path: Path, rocks_shared: RocksShared) -> None:
    families = [f"s{number}" for number in range(MANY)]
    RocksEngine(tmp_path / "db", shared=rocks_shared, families=families).close()
    engine = RocksEngine(tmp_path / "db", shared=rocks_shared, restoring=True)
    before = bytes_written()
    engine.restoring(False)
    engine.close()
    assert bytes_written() - before < 100_000


def test_stores_added_to_a_task_all_at_once_leave_the_others_their_rows(
    open_task: Open, tmp_path: Path, rocks_shared: RocksShared
) -> None:
    task = open_task(keyvalue("kept"), keyvalue("fast", engine="memory"))
    task.store("kept").put("a", "1")
    task.commit(at(3, "kept"))
    task.close()
    added = [*(keyvalue(f"s{number}") for number in range(FEW)), versioned()]
    task = open_task(keyvalue("kept"), keyvalue("fast", engine="memory"), *added)
    assert task.store("kept").get("a") == "1"
    assert task.cut.positions["kept"].offset == 3
    task.store("s7").put("a", "2")
    task.store("ver").put("a", "3", 50)
    task.store("fast").put("a", "4")
    task.commit(at(4, "s7"))
    task.close()
    found = rows_on_disk(tmp_path / "0_0", rocks_shared)
    assert set(found) == {DEFAULT_FAMILY, "kept", "ver", *(f"s{number}" for number in range(FEW))}
    assert [len(found[name]) for name in ("kept", "s7", "ver", "s8")] == [1, 1, 1, 0]


def test_refused_definition_beside_many_new_stores_changes_nothing(
    open_task: Open, tmp_path: Path, rocks_shared: RocksShared
) -> None:
    open_task(versioned()).close()
    with pytest.raises(InvalidRequest, match="another definition"):
        open_task(keyvalue("ver"), *(keyvalue(f"s{number}") for number in range(FEW)))
    assert set(rows_on_disk(tmp_path / "0_0", rocks_shared)) == {DEFAULT_FAMILY, "ver"}
