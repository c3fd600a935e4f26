"""Files of the compiled writer are like those of RocksDB's own: rows, filter, properties, and damage is found."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standfast.replication.columns import RecordColumns
from standfast.restore.replay.row_folds import NativeFold, StoreFold
from standfast.store import serde
from standfast.store.errors import Corruption, Unavailable
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.sst import SortedFile, write_sorted
from standfast.store.specs import KeyValueStore
from support.sst_files import entries_of, meta_of, varint

KV = KeyValueStore("kv", serde.bytes, serde.bytes, timestamped=False)
LONGEST = 240  # of the compiled writer's keys
# What only RocksDB writes (for people), and what differs from file to file.
OTHERS = {b"rocksdb.compression_options", b"rocksdb.creating.host.identity", b"rocksdb.creating.session.identity"}
Rows = Mapping[bytes, bytes | None]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RocksEngine]:
    opened = RocksEngine(tmp_path / "db", shared=RocksShared(32 << 20))
    opened.create_family("kv")
    yield opened
    opened.close()


def folded(rows: Rows) -> NativeFold:
    fold = NativeFold(KV, -1)
    fold.add(RecordColumns(list(range(len(rows))), [0] * len(rows), list(rows), list(rows.values())), 0)
    return fold


def compiled(path: Path, rows: Rows, *, drop_deletes: bool = False) -> SortedFile:
    fold = folded(rows)
    (family,) = fold.families(drop_deletes=drop_deletes)
    (file,) = fold.write(family, [path], lambda: None)
    return file


def random_rows(seed: int, count: int, *, key_bytes: int = 16, value_bytes: int = 100) -> dict[bytes, bytes | None]:
    rng = Random(seed)
    return {rng.randbytes(key_bytes): rng.randbytes(value_bytes) for _ in range(count)}


def same_rows(engine: RocksEngine, rows: Rows) -> None:
    wanted = {key: row for key, row in sorted(rows.items()) if row is not None}
    with engine.scan("kv") as scan:
        assert dict(scan) == wanted
    for key in rows:
        assert engine.get("kv", key) == rows[key], key


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.dictionaries(
        st.binary(max_size=20) | st.integers(0, 300).map(lambda number: b"same-prefix-%05d" % number),
        st.none() | st.binary(max_size=20) | st.integers(0, 40_000).map(lambda size: b"abcdefgh" * (size // 8)),
        min_size=1,
        max_size=80,
    ),
    drop_deletes=st.booleans(),
)
def test_rows_come_back_as_from_a_file_of_rocksdb(
    engine: RocksEngine, tmp_path: Path, rows: dict[bytes, bytes | None], drop_deletes: bool
) -> None:
    kept = {key: row for key, row in rows.items() if row is not None} if drop_deletes else rows
    if not kept:
        return
    engine.drop_family("kv")
    engine.create_family("kv")
    if not drop_deletes:
        engine.write({"kv": dict.fromkeys(rows, b"older")})
    theirs = write_sorted(tmp_path / "theirs", kept)
    ours = compiled(tmp_path / "ours", rows, drop_deletes=drop_deletes)
    assert ours[2:] == theirs[2:]  # entries, deletes, first and last key
    assert ours.size_bytes == ours.path.stat().st_size
    engine.ingest("kv", [ours.path])
    same_rows(engine, kept)
    engine.compact("kv")
    same_rows(engine, kept)


def test_keys_of_every_length_are_found_and_give_the_filter_of_rocksdb(engine: RocksEngine, tmp_path: Path) -> None:
    rng = Random(1)
    # So many that RocksDB takes six bits a key, too: in smaller filters it uses the room that is left.
    rows: dict[bytes, bytes | None] = {rng.randbytes(size): b"v" for size in range(LONGEST + 1) for _ in range(40)}
    theirs, ours = write_sorted(tmp_path / "theirs", rows), compiled(tmp_path / "ours", rows)
    name = b"fullfilter.rocksdb.BuiltinBloomFilter"
    assert meta_of(ours.path)[name] == meta_of(theirs.path)[name]
    engine.ingest("kv", [ours.path])
    same_rows(engine, rows)


@pytest.mark.parametrize("deletes", [False, True], ids=["rows only", "with deletes"])
def test_properties_and_the_size_of_each_block_are_those_of_rocksdb(tmp_path: Path, deletes: bool) -> None:
    rows = random_rows(2, 5_000)
    if deletes:
        rows |= dict.fromkeys(list(rows)[::7], None)
    theirs, ours = write_sorted(tmp_path / "theirs", rows), compiled(tmp_path / "ours", rows)
    found = [entries_of(meta_of(one.path)[b"rocksdb.properties"]) for one in (theirs, ours)]
    assert {name: value for name, value in found[0].items() if name not in OTHERS} == {
        name: value for name, value in found[1].items() if name not in OTHERS
    }
    assert set(found[0]) - set(found[1]) <= OTHERS


def test_no_two_files_have_the_same_identity(tmp_path: Path) -> None:
    found = set()
    for number in range(50):
        file = compiled(tmp_path / str(number), {b"k": b"v"})
        found.add(entries_of(meta_of(file.path)[b"rocksdb.properties"])[b"rocksdb.creating.session.identity"])
    assert len(found) == 50 and {len(one) for one in found} == {20}


def test_rows_that_compress_take_about_the_place_that_rocksdb_needs(engine: RocksEngine, tmp_path: Path) -> None:
    rows: dict[bytes, bytes | None] = {
        b"user-%07d" % at: b'{"name": "n%d", "sum": %d, "place": "somewhere"}' % (at * 7, at) for at in range(20_000)
    }
    theirs, ours = write_sorted(tmp_path / "theirs", rows), compiled(tmp_path / "ours", rows)
    assert ours.size_bytes < theirs.size_bytes * 1.1
    engine.ingest("kv", [ours.path])
    same_rows(engine, rows)


def test_blocks_of_every_kind_stand_beside_each_other(engine: RocksEngine, tmp_path: Path) -> None:
    rng = Random(3)
    rows: dict[bytes, bytes | None] = {}
    for at in range(3_000):  # stretches that compress, stretches that do not, rows above a block's size
        size = rng.choice((0, 1, 90, 100, 110, 500, 9_000 if at % 50 == 0 else 80))
        rows[b"%06d" % at] = rng.randbytes(size) if at // 300 % 2 else bytes(size)
    rows[b"large"] = rng.randbytes(3 << 20)
    rows[b"larger"] = b"repeated-" * (1 << 19)
    file = compiled(tmp_path / "file", rows)
    engine.ingest("kv", [file.path])
    same_rows(engine, rows)


def test_later_file_wins_and_its_deletes_hide_older_rows(engine: RocksEngine, tmp_path: Path) -> None:
    engine.ingest("kv", [compiled(tmp_path / "0", {b"a": b"1", b"b": b"1", b"c": b"1"}).path])
    engine.ingest("kv", [compiled(tmp_path / "1", {b"a": b"2", b"b": None}).path])
    same_rows(engine, {b"a": b"2", b"b": None, b"c": b"1"})


def test_damage_of_any_block_is_found_by_the_ingest_or_a_read(tmp_path: Path) -> None:
    file = compiled(tmp_path / "file", random_rows(4, 2_000))
    properties = entries_of(meta_of(file.path)[b"rocksdb.properties"])
    data_bytes = varint(properties[b"rocksdb.data.size"], 0)[0]
    whole, rng = file.path.read_bytes(), Random(5)
    for at in [0, 1, data_bytes - 1, *(rng.randrange(data_bytes) for _ in range(12))]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        path = tmp_path / f"damaged-{at}"
        path.write_bytes(damaged)
        # Its own cache each time: RocksDB finds cached blocks by the identity of a file, which these copies share.
        engine = RocksEngine(tmp_path / f"db-{at}", shared=RocksShared(32 << 20))
        engine.create_family("kv")
        with pytest.raises(Corruption):
            engine.ingest("kv", [path])
            with engine.scan("kv") as scan:
                dict(scan)
        engine.close()


def test_keys_beyond_the_compiled_writer_go_through_that_of_rocksdb(engine: RocksEngine, tmp_path: Path) -> None:
    rows: dict[bytes, bytes | None] = {b"k" * size: b"v" for size in (1, LONGEST, LONGEST + 1, 5_000)}
    file = compiled(tmp_path / "file", rows)
    assert file.entries == 4
    engine.ingest("kv", [file.path])
    same_rows(engine, rows)


def test_full_disk_and_an_absent_folder_say_so_and_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="its folder is absent"):
        compiled(tmp_path / "absent" / "file", {b"k": b"v"})
    if Path("/dev/full").exists():
        (tmp_path / "file.tmp").symlink_to("/dev/full")
        with pytest.raises(Unavailable, match=r"(?i)no space left"):
            compiled(tmp_path / "file", {b"k": b"v"})
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("kind", [NativeFold, StoreFold])
def test_file_ends_with_the_error_of_its_owners_look(tmp_path: Path, kind: type[NativeFold] | type[StoreFold]) -> None:
    rows = random_rows(6, 100, value_bytes=200_000)
    fold = kind(KV, -1)
    fold.add(RecordColumns(list(range(len(rows))), [0] * len(rows), list(rows), list(rows.values())), 0)
    (family,) = fold.families(drop_deletes=False)
    looks: list[int] = []

    def look() -> None:
        looks.append(len(looks))
        if kind is StoreFold or len(looks) == 3:
            raise KeyError("stop here")

    with pytest.raises(KeyError, match="stop here"):
        fold.write(family, [tmp_path / "file"], look)
    assert looks == [0] if kind is StoreFold else [0, 1, 2]
    assert not (tmp_path / "file").exists()
    if kind is NativeFold:  # the fold is whole and can be written again
        (file,) = fold.write(family, [tmp_path / "file"], lambda: None)
        assert file.entries == 100


@pytest.mark.parametrize("seed", range(int(os.environ.get("STANDFAST_FILE_SEEDS", "3"))))
def test_random_files_of_many_blocks_come_back(engine: RocksEngine, tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    words = [rng.randbytes(rng.randrange(1, 12)) for _ in range(rng.choice((2, 40, 3_000)))]
    rows: dict[bytes, bytes | None] = {}
    for _ in range(rng.randrange(1, 4_000)):
        key = b"".join(rng.choices(words, k=rng.randrange(4)))
        rows[key] = None if rng.random() < 0.1 else b"".join(rng.choices(words, k=rng.randrange(60)))
    rows[b"never empty"] = b""
    engine.ingest("kv", [compiled(tmp_path / "file", rows).path])
    same_rows(engine, rows)
