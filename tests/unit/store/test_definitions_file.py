"""The file of definitions beside a task's database: always the database's own, or absent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.restore.verify import at_rest
from standfast.store.task.definitions_file import STORES_FILE, dump, parse
from standfast.store.task.task_stores import TaskStores
from support.places import TESTS
from support.stores import keyvalue, window

Open = Callable[..., TaskStores]


def beside(path: Path) -> dict[str, Any] | None:
    """The definitions in the file, after a check that the database has the same."""
    with at_rest.open_task(path) as engine:
        kept = at_rest.definitions_of(engine, str(path))
    file = path / STORES_FILE
    said = parse(file.read_bytes() if file.exists() else None).stores
    assert said in (None, kept)
    return said


def test_file_is_the_database_s_own_whatever_is_added_and_dropped(open_task: Open) -> None:
    for specs in ([keyvalue()], [keyvalue(), window()], [window(), keyvalue("other", engine="memory")]):
        task = open_task(*specs)
        task.close()
        assert beside(task.directory).keys() == {spec.name for spec in specs}  # type: ignore[union-attr]


def test_checkpoint_has_the_file(open_task: Open, tmp_path: Path) -> None:
    task = open_task(keyvalue(), window())
    task.checkpoint(tmp_path / "copy")
    assert beside(tmp_path / "copy").keys() == {"kv", "win"}  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"schema":"standfast.stores/2","crc":0,"stores":{}}'])
def test_directory_without_a_file_that_counts_gets_one_with_the_next_opening(
    open_task: Open, content: bytes | None
) -> None:
    task = open_task(keyvalue())
    task.close()
    file = task.directory / STORES_FILE
    whole = file.read_bytes()
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert beside(task.directory) is None
    open_task(keyvalue()).close()
    assert file.read_bytes() == whole


def test_file_of_other_definitions_is_replaced_by_the_next_opening(open_task: Open) -> None:
    """An earlier version, which does not know the file, has changed the record."""
    task = open_task(keyvalue())
    task.close()
    (task.directory / STORES_FILE).write_text(dump({"gone": {"kind": "keyvalue"}}))
    open_task(keyvalue()).close()
    assert beside(task.directory).keys() == {"kv"}  # type: ignore[union-attr]


def test_kill_between_record_and_file_leaves_none(open_task: Open) -> None:
    task = open_task(keyvalue())
    task.close()
    child = (
        "import sys; from pathlib import Path; from support.stores import keyvalue, window; "
        "from standfast.store.rocks.opening import RocksShared; "
        "from standfast.store.task.task_stores import TaskStores; "
        "TaskStores(Path(sys.argv[1]), 'app', '0_0', [keyvalue(), window()], RocksShared(16 << 20), now_ms=lambda: 1)"
    )
    environment = {
        **os.environ,
        "STANDFAST_FAILPOINT": "engine.written=kill:1",
        "PYTHONPATH": str(TESTS),
    }
    killed = subprocess.run([sys.executable, "-c", child, str(task.directory)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (task.directory / STORES_FILE).exists()
    open_task(keyvalue(), window()).close()
    assert beside(task.directory).keys() == {"kv", "win"}  # type: ignore[union-attr]


def test_every_flipped_bit_is_found() -> None:
    raw = dump({"kv": {"kind": "keyvalue", "retention_ms": 3_600_000, "logging": True}}).encode()
    stores = parse(raw).stores
    assert stores is not None
    for at in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[at // 8] ^= 1 << at % 8
        found = parse(bytes(damaged))
        assert found.stores in (None, stores)
        assert found.stores is not None or STORES_FILE in found.fault


def test_file_never_says_a_position(open_task: Open) -> None:
    task = open_task(keyvalue())
    text = (task.directory / STORES_FILE).read_text()
    assert "position" not in text
    assert set(json.loads(text)) == {"schema", "crc", "stores"}
