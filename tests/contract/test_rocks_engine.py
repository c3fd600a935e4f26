"""The contract of RocksDB alone: reopening, kill -9, damaged files, locks, read-only, space and memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import standfast.store.rocks.engine
from standfast.store.engine import DEFAULT_FAMILY, Row
from standfast.store.errors import Corruption, Held, InvalidRequest
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared

FAMILY = "aircraft"
MEMORY_BYTES = 32 << 20


@pytest.fixture(scope="module")
def shared() -> RocksShared:
    return RocksShared(MEMORY_BYTES)


@pytest.fixture
def open_rocks(tmp_path: Path, shared: RocksShared) -> Iterator[Callable[..., RocksEngine]]:
    opened: list[RocksEngine] = []

    def open_one(path: Path | None = None, *, read_only: bool = False, restoring: bool = False) -> RocksEngine:
        opened.append(RocksEngine(path or tmp_path / "db", shared=shared, read_only=read_only, restoring=restoring))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def rows_of(engine: RocksEngine, family: str = FAMILY, *, reverse: bool = False) -> list[Row]:
    with engine.scan(family, reverse=reverse) as scan:
        return list(scan)


def put(engine: RocksEngine, rows: dict[bytes, bytes | None], family: str = FAMILY) -> None:
    engine.write({family: rows})


def test_rows_and_families_survive_a_reopen(open_rocks: Callable[..., RocksEngine]) -> None:
    engine = open_rocks()
    assert engine.durable
    engine.create_family(FAMILY)
    engine.create_family("segment@0")
    put(engine, {b"flushed": b"1"})
    engine.flush()
    put(engine, {b"logged": b"2"})
    scan = engine.scan(FAMILY)
    next(scan)
    engine.close()
    again = open_rocks()
    assert again.families() == {DEFAULT_FAMILY, FAMILY, "segment@0"}
    assert rows_of(again) == [(b"flushed", b"1"), (b"logged", b"2")]


def test_the_directory_is_free_at_once_though_errors_are_kept(open_rocks: Callable[..., RocksEngine]) -> None:
    engine = open_rocks()
    engine.create_family(FAMILY)
    put(engine, {b"a": b"1"})
    kept = []
    scan = engine.scan(FAMILY)
    wrong: list[Callable[[], object]] = [
        lambda: put(engine, {b"a": "text"}),  # type: ignore[dict-item]
        lambda: engine.get("absent", b"k"),
        lambda: engine.scan(FAMILY, "a"),  # type: ignore[arg-type]
        lambda: engine.scan(FAMILY, end="a"),  # type: ignore[arg-type]
        lambda: engine.get(FAMILY, 1),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(InvalidRequest) as caught:
            call()
        kept.append(caught.value)
    engine.close()
    assert rows_of(open_rocks()) == [(b"a", b"1")]
    assert len(kept) == len(wrong)
    scan.close()


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("again", ["closed again", "opened by another"])
def test_a_close_that_a_signal_handler_breaks_off_can_be_ended(
    open_rocks: Callable[..., RocksEngine], monkeypatch: pytest.MonkeyPatch, step: int, again: str
) -> None:
    """The caller may keep the engine: its handles are closed by either path."""
    engine = open_rocks()
    for family in "abc":
        engine.create_family(family)
    left, real = [step], standfast.store.rocks.engine._tolerate_shutdown

    def broken(action: Callable[[], None]) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        real(action)

    monkeypatch.setattr("standfast.store.rocks.engine._tolerate_shutdown", broken)
    with pytest.raises(KeyboardInterrupt):
        engine.close()
    if again == "closed again":
        engine.close()
    assert open_rocks().families() == {DEFAULT_FAMILY, *"abc"}


def test_every_family_has_the_shared_cache_and_a_filter_after_a_reopen(tmp_path: Path) -> None:
    shared = RocksShared(MEMORY_BYTES)
    for _ in range(2):
        engine = RocksEngine(tmp_path / "db", shared=shared)
        engine.create_family("made")
        engine.write({"made": {b"k": b"v"}})
        engine.flush()
        newest = max((tmp_path / "db").glob("OPTIONS-*"), key=lambda path: path.name).read_text()
        for family in ("made", DEFAULT_FAMILY):
            section = newest.split(f'[TableOptions/BlockBasedTable "{family}"]')[1].split("[CFOptions")[0]
            assert "filter_policy=bloomfilter" in section
            assert "cache_index_and_filter_blocks=true" in section
        engine.close()
    engine = RocksEngine(tmp_path / "db", shared=shared)
    before = shared.usage_bytes()
    assert rows_of(engine, "made") == [(b"k", b"v")]
    assert shared.usage_bytes() > before
    assert engine.statistics().properties["block-cache-capacity"] == MEMORY_BYTES
    engine.close()


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="memory"):
        RocksShared(1_000)


def sst_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.sst"))


def test_a_dropped_family_frees_its_space_at_once(open_rocks: Callable[..., RocksEngine], tmp_path: Path) -> None:
    engine = open_rocks()
    engine.create_family(FAMILY)
    put(engine, {index.to_bytes(4, "big"): os.urandom(1_000) for index in range(5_000)})
    engine.flush()
    full = sst_bytes(tmp_path / "db")
    assert full > 4_500_000
    assert len(rows_of(engine)) == 5_000
    engine.drop_family(FAMILY)
    assert sst_bytes(tmp_path / "db") < full / 100


def test_a_dropped_family_frees_its_space_when_its_last_scan_ends(
    open_rocks: Callable[..., RocksEngine], tmp_path: Path
) -> None:
    engine = open_rocks()
    engine.create_family(FAMILY)
    put(engine, {index.to_bytes(4, "big"): os.urandom(1_000) for index in range(5_000)})
    engine.flush()
    scan = engine.scan(FAMILY)
    engine.drop_family(FAMILY)
    assert sst_bytes(tmp_path / "db") > 4_500_000
    scan.close()
    assert sst_bytes(tmp_path / "db") < 50_000


CRASHER = """
import os, signal, sys
from pathlib import Path
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
engine = RocksEngine(Path(sys.argv[1]), shared=RocksShared(32 << 20))
engine.create_family("a")
engine.create_family("b")
for number in range(int(sys.argv[2])):
    key = number.to_bytes(4, "big")
    engine.write({"a": {key: b"x" * 100}, "b": {key: b"y"}, "default": {b"position": key}})
    if number == 150:
        engine.flush()
print("written", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_python(script: str, repo_root: Path, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, away from the checkout: there `import standfast` finds only a part."""
    environment = {**os.environ, "PYTHONPATH": str(repo_root / ".typing")}
    command = [sys.executable, "-c", script, str(directory / "db"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=directory, env=environment, check=False)


def test_kill_9_keeps_every_acknowledged_write(
    open_rocks: Callable[..., RocksEngine], tmp_path: Path, repo_root: Path
) -> None:
    done = run_python(CRASHER, repo_root, tmp_path, "300")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "written\n"), done.stderr
    engine = open_rocks()
    keys = [number.to_bytes(4, "big") for number in range(300)]
    assert [key for key, _ in rows_of(engine, "a")] == keys
    assert [key for key, _ in rows_of(engine, "b")] == keys
    assert engine.get(DEFAULT_FAMILY, b"position") == keys[-1]


def test_a_flipped_byte_is_corruption_and_never_a_short_answer(
    open_rocks: Callable[..., RocksEngine], tmp_path: Path, shared: RocksShared
) -> None:
    engine = open_rocks()
    engine.create_family(FAMILY)
    put(engine, {index.to_bytes(4, "big"): os.urandom(200) for index in range(5_000)})
    engine.flush()
    engine.close()
    [table] = [path for path in (tmp_path / "db").glob("*.sst") if path.stat().st_size > 500_000]
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0x01
    table.write_bytes(content)
    damaged = open_rocks()
    for reverse in (False, True):
        scan = damaged.scan(FAMILY, reverse=reverse)
        served = 0
        with pytest.raises(Corruption, match=FAMILY):
            for _ in scan:
                served += 1
        assert 0 < served < 5_000
        with pytest.raises(Corruption):
            next(scan)
    with pytest.raises(Corruption):
        damaged.get_many(FAMILY, [index.to_bytes(4, "big") for index in range(5_000)])
    damaged.close()
    with pytest.raises(Corruption, match=table.name) as noted:
        open_rocks()
    assert noted.value.families == {FAMILY}
    with closing(open_rocks(read_only=True)) as reader:
        assert reader.get(FAMILY, b"\x00\x00\x00\x00") is not None
    with closing(RocksEngine(tmp_path / "db", shared=shared, careful=True)) as mender:
        assert mender.get(FAMILY, b"\x00\x00\x00\x00") is not None


def test_a_missing_file_is_corruption(open_rocks: Callable[..., RocksEngine], tmp_path: Path) -> None:
    engine = open_rocks()
    put(engine, {b"a": b"1"}, DEFAULT_FAMILY)
    engine.flush()
    engine.close()
    for path in (tmp_path / "db").glob("*.sst"):
        path.unlink()
    with pytest.raises(Corruption):
        open_rocks()
    with pytest.raises(Corruption, match=str(tmp_path)):
        open_rocks(read_only=True)


def test_a_second_engine_on_one_directory_is_held(open_rocks: Callable[..., RocksEngine]) -> None:
    open_rocks()
    with pytest.raises(Held, match=str(os.getpid())):
        open_rocks()


@pytest.mark.slow
def test_a_directory_opens_again_while_a_thread_has_not_yet_left_a_write_to_a_family(
    open_rocks: Callable[..., RocksEngine],
) -> None:
    """As after a signal handler's exception in a close: on a busy machine the thread may get no processor for long."""
    engine = open_rocks()
    put(engine, {b"a": b"1"}, DEFAULT_FAMILY)
    # The reference of a thread inside a write to the family: it keeps the directory's lock.
    kept = [engine._families[DEFAULT_FAMILY].column]
    engine.close()
    left = threading.Timer(0.8, kept.clear)
    left.start()
    again = open_rocks()
    left.join()
    assert again.get(DEFAULT_FAMILY, b"a") == b"1"


OPENER = """
import sys
from pathlib import Path
from standfast.store.errors import Held
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
try:
    RocksEngine(Path(sys.argv[1]), shared=RocksShared(32 << 20))
except Held as error:
    print(error)
"""


def test_a_second_process_on_one_directory_is_held(
    open_rocks: Callable[..., RocksEngine], tmp_path: Path, repo_root: Path
) -> None:
    open_rocks()
    done = run_python(OPENER, repo_root, tmp_path)
    assert f"process {os.getpid()} holds it" in done.stdout, done.stderr


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()}


def test_reading_beside_a_live_owner_leaves_its_directory_as_it_was(
    open_rocks: Callable[..., RocksEngine], tmp_path: Path
) -> None:
    owner = open_rocks()
    owner.create_family(FAMILY)
    put(owner, {b"flushed": b"1"})
    owner.flush()
    put(owner, {b"logged": b"2"})
    before = snapshot(tmp_path / "db")
    reader = open_rocks(read_only=True)
    assert rows_of(reader) == [(b"flushed", b"1"), (b"logged", b"2")]
    scratch = reader._scratch
    assert scratch is not None
    for call in (reader.flush, lambda: put(reader, {b"a": b"1"}), lambda: reader.create_family("x")):
        with pytest.raises(InvalidRequest, match="read-only"):
            call()
    assert snapshot(tmp_path / "db") == before
    put(owner, {b"later": b"3"})
    owner.flush()
    owner.compact(FAMILY)
    owner.drop_family(FAMILY)
    assert rows_of(reader) == [(b"flushed", b"1"), (b"logged", b"2")]
    reader.close()
    assert not scratch.exists()
    assert owner.families() == {DEFAULT_FAMILY}


def test_read_only_wants_a_database(open_rocks: Callable[..., RocksEngine], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no database"):
        open_rocks(tmp_path / "absent", read_only=True)
    assert not (tmp_path / "absent").exists()


def test_a_directory_of_pickled_rows_is_refused_untouched(
    open_rocks: Callable[..., RocksEngine], tmp_path: Path
) -> None:
    directory = tmp_path / "foreign"
    directory.mkdir()
    (directory / "rocksdict-config.json").write_text('{"raw_mode": false, "prefix_extractors": {}}')
    before = snapshot(directory)
    with pytest.raises(InvalidRequest, match="not written by standfast"):
        open_rocks(directory)
    assert snapshot(directory) == before


def test_a_checkpoint_opens_by_itself(open_rocks: Callable[..., RocksEngine], tmp_path: Path) -> None:
    engine = open_rocks()
    engine.create_family(FAMILY)
    put(engine, {b"a": b"1"})
    engine.checkpoint(tmp_path / "deep" / "checkpoint")
    put(engine, {b"a": b"2"})
    copy = open_rocks(tmp_path / "deep" / "checkpoint")
    assert rows_of(copy) == [(b"a", b"1")]
    put(copy, {b"a": b"3"})
    assert rows_of(engine) == [(b"a", b"2")]
    with pytest.raises(InvalidRequest, match="exists"):
        engine.checkpoint(tmp_path / "deep" / "checkpoint")


@pytest.mark.slow
def test_the_write_ahead_log_stays_bounded(tmp_path: Path) -> None:
    # With so much memory, write buffers alone would never be flushed here.
    engine = RocksEngine(tmp_path / "db", shared=RocksShared(512 << 20))
    engine.create_family(FAMILY)
    engine.create_family("quiet")
    put(engine, {b"k": b"v"}, "quiet")  # without a bound, its one row would hold every log back
    for batch in range(60):
        put(engine, {bytes([batch]) + index.to_bytes(2, "big"): os.urandom(1_000) for index in range(1_000)})
    logged = sum(path.stat().st_size for path in (tmp_path / "db").glob("*.log"))
    engine.close()
    assert logged < 48 << 20


def flush_files(engine: RocksEngine, count: int) -> None:
    """Flush one row at a time, always the same, so that files of level 0 can only be merged by rewriting them."""
    for number in range(count):
        put(engine, {b"key": b"%d" % number, b"of %d" % number: b""})
        engine.flush(FAMILY)


def level0(engine: RocksEngine) -> int:
    return engine.statistics(FAMILY).properties["num-files-at-level0"]


def at_level0(open_rocks: Callable[..., RocksEngine], count: int) -> None:
    """Leave a closed database with so many files of level 0, as a close in the middle of a compaction does."""
    engine = open_rocks(restoring=True)
    engine.create_family(FAMILY)
    flush_files(engine, count)
    assert level0(engine) == count
    engine.close()


def test_files_of_an_opening_for_a_restore_are_compacted_after_it(open_rocks: Callable[..., RocksEngine]) -> None:
    at_level0(open_rocks, 9)
    engine = open_rocks(restoring=True)
    put(engine, {b"key": b"of the tail"})
    assert engine.settle(30)
    assert (level0(engine), engine.statistics(FAMILY).pending_compaction_bytes) == (10, 0)
    engine.restoring(False)
    assert engine.settle(30)
    assert level0(engine) == 0
    assert dict(rows_of(engine)) == {b"key": b"of the tail", **{b"of %d" % number: b"" for number in range(9)}}


def test_families_made_after_an_opening_for_a_restore_are_compacted_as_usual(
    open_rocks: Callable[..., RocksEngine],
) -> None:
    engine = open_rocks(restoring=True)
    engine.restoring(False)
    engine.create_family(FAMILY)
    flush_files(engine, 8)
    assert engine.settle(30)
    assert level0(engine) == 0


def test_a_settled_database_has_no_row_in_its_log_and_no_compaction_due(open_rocks: Callable[..., RocksEngine]) -> None:
    at_level0(open_rocks, 9)
    engine = open_rocks()
    put(engine, {b"logged": b"1"})
    assert engine.settle(30)
    assert level0(engine) <= 1  # nine became one of a deeper level; the one that the settling flushed may be in it
    engine.close()
    assert [path.stat().st_size for path in engine._path.glob("*.log")] == [0]
    assert dict(rows_of(open_rocks()))[b"logged"] == b"1"
