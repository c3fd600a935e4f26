"""What a simulation puts in place of the outside: functions of the process, logs, engines and storages by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.tail import open_log as logs
from standfast.restore.snapshot import address as storages
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.storage import Storage
from standfast.store import serde
from standfast.store.clock import ManualClock
from standfast.store.disk import STATE, DiskGuard
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.file_errors import SPACE
from standfast.store.outside import HOST_NAME, NEW_ID, Implementations, Replaceable, host_name, new_id, random_number
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.open_engine import OPEN_ENGINE
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import KeyValueStore
from standfast.store.task.task_stores import TaskStores


def test_a_replaced_function_answers_within_the_block_alone() -> None:
    asked = []
    own = host_name()

    def answer(kind: str, digits: int) -> str:
        asked.append((kind, digits))
        return "0" * digits

    with NEW_ID.replaced(answer), HOST_NAME.replaced(lambda: "simulated"):
        assert new_id("member", 3) == "000"
        assert host_name() == "simulated"
    assert asked == [("member", 3)]
    assert host_name() == own
    assert len({new_id("member", 16) for _ in range(100)}) == 100
    assert all(len(new_id("member", digits)) == digits for digits in (1, 8, 32))
    assert all(0 <= random_number("retry") < 1 for _ in range(100))


def test_a_replaced_function_comes_back_when_the_block_fails() -> None:
    place: Replaceable[Callable[[], int]] = Replaceable(lambda: 1)
    with pytest.raises(KeyError), place.replaced(lambda: 2):
        raise KeyError
    assert place.ask() == 1


def test_a_name_is_added_for_a_block_and_only_once() -> None:
    table = Implementations[int]("built in")
    with table.added("sim", 1):
        for taken in ("sim", "built in"):
            with pytest.raises(InvalidRequest, match="already"), table.added(taken, 2):
                raise AssertionError
        assert table == {"sim": 1}
    assert table == {}


def test_an_added_log_opens_by_its_scheme(tmp_path: Path) -> None:
    clock = ManualClock()

    def parse(address: str) -> Path:
        if "/" in (name := address.removeprefix("sim://")):
            raise BadConfig([f"{address} is no name"])
        return tmp_path / name

    def opened(path: Path, given: Any) -> EmbeddedLog:
        assert given is clock
        return EmbeddedLog(path, clock=given)

    with logs.OTHERS.added("sim", logs.Scheme(parse, opened)):
        assert logs.parse_address("sim://one") == logs.OtherAddress("sim", tmp_path / "one")
        assert logs.log_folder("sim://one") is None
        logs.open_log("sim://one", clock=clock).close()
        with pytest.raises(BadConfig, match="no name"):
            logs.parse_address("sim://one/two")
    assert (tmp_path / "one").exists()
    with pytest.raises(BadConfig, match="unknown scheme 'sim', known are sqlite, kafka"):
        logs.parse_address("sim://one")
    with pytest.raises(InvalidRequest), logs.OTHERS.added("kafka", logs.Scheme(parse, opened)):
        raise AssertionError


def test_an_added_storage_opens_by_its_scheme(tmp_path: Path) -> None:
    def opened(address: storages.Address, app: str, patience_s: int | None) -> Storage:
        return Storage(storages.parse_storage(str(tmp_path / address.text.removeprefix("sim://"))), app)

    with storages.OTHERS.added("sim", opened):
        open_storage("sim://one", "app").put_new("key", b"content")
    assert (tmp_path / "one" / "app" / "key").read_bytes() == b"content"
    with pytest.raises(BadConfig, match="no storage for snapshots"):
        storages.parse_storage("sim://one")


def test_a_task_opens_its_stores_with_the_engine_that_counts(tmp_path: Path) -> None:
    opened = []

    def engine(path: Path, **settings: Any) -> RocksEngine:
        opened.append((path, settings["whole_wal"]))
        return RocksEngine(path, **settings)

    specs = [KeyValueStore("counts", serde.string, serde.int64, logging=False)]
    with OPEN_ENGINE.replaced(engine):
        stores = TaskStores(tmp_path / "0_0", "app", "0_0", specs, RocksShared(32 << 20), now_ms=lambda: 0)
    stores.close()
    assert opened == [(tmp_path / "0_0", True)]


def test_a_disk_has_the_free_bytes_that_the_world_says(tmp_path: Path) -> None:
    guard = DiskGuard({STATE: tmp_path}, 1_000)
    with SPACE.replaced(lambda path: (10, 5_000)):
        guard.look()
    assert (guard.free_bytes, "10 bytes free" in guard.full) == (10, True)
    guard.look()
    assert guard.full == ""
