"""Verify: a store against its changelog, folded to the store's position.

Rules of this file: real sessions on the embedded log and RocksDB; faults are planted into the RocksDB of a closed task,
as a fault of the machine would be.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.ops.observe.offline import open_tasks
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.digest import row_hash
from standfast.restore.verify.at_rest import find_tasks
from standfast.restore.verify.verify import StoreVerdict, committed_views, verify_task
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.types.kinds import open_store
from standfast.store.value_timestamp import TIMESTAMP
from support.sessions import DAY_MS, HOUR_MS, KINDS, START_MS, Bench, operate

TASK = TaskId(0, 0)


def verify(bench: Bench, directory: str = "a", **options: Any) -> dict[str, StoreVerdict]:
    """Verify the files of partition 0."""
    tasks = [task for task in find_tasks(bench.root / directory, "app") if task.task == TASK]
    with open_tasks(tasks) as (opened,):
        parts = {name: opened.part(name) for name in opened.definitions}
        stores = {name: open_store(part.spec, part.rows) for name, part in parts.items()}
        found = verify_task(
            TASK, stores, opened.cut.positions, bench.log, "app", now_ms=bench.clock.wall_ms(), **options
        )
    return {one.store: one for one in found}


def fill(bench: Bench, count: int = 5) -> sf.Session:
    """A session with `count` rows in each store, committed."""
    session = bench.active()
    task = session.task(0)
    for number in range(count):
        key, at_ms = f"k{number}", START_MS + number
        task.store("kv").put(key, "v", at_ms)
        task.store("win").put(key, "v", START_MS, at_ms)
        task.store("ses").put(key, START_MS, at_ms, "v", at_ms)
        task.store("ver").put(key, "v", at_ms)
    task.commit()
    return session


def damage(bench: Bench, change: Callable[[RocksEngine], None]) -> None:
    """Change rows of the closed task 0_0 behind the back of its owner."""
    engine = RocksEngine(bench.root / "a/app/0_0", shared=RocksShared(8 << 20))
    change(engine)
    engine.close()


def family_of(engine: RocksEngine, store: str) -> str:
    return next(name for name in engine.families() if name == store or name.startswith(f"{store}@"))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
@pytest.mark.parametrize("caching", [True, False])
def test_stores_are_equal_after_random_operations(bench: Bench, seed: int, caching: bool) -> None:
    session = bench.active(cache_max_bytes=10 << 20 if caching else 0)
    operate(session.task(0), random.Random(seed), 300)
    session.close()
    for name, found in verify(bench).items():
        assert (name, found.verdict, found.differences) == (name, "equal", ())
        assert found.log_digest == found.store_digest
        assert found.matched == found.log_digest.count > 0
        assert found.position == found.end == found.records


def test_stores_with_plain_values_are_equal(bench: Bench) -> None:
    text = sf.serde.string
    stores = [
        sf.KeyValueStore("kv", text, text, timestamped=False),
        sf.WindowStore(
            "win", text, text, window_size_ms=HOUR_MS, retention_ms=DAY_MS, timestamped=False, retain_duplicates=True
        ),
    ]
    session = bench.active(stores=stores)
    task = session.task(0)
    for number in range(20):
        task.store("kv").put(f"k{number % 7}", f"v{number}", START_MS + number)
        task.store("win").put(f"k{number % 3}", f"v{number}", START_MS, START_MS + number)
    task.commit()
    session.close()
    found = verify(bench)
    assert [(one.verdict, one.matched) for one in found.values()] == [("equal", 7), ("equal", 20)]


def test_empty_stores_are_equal(bench: Bench) -> None:
    bench.active().close()
    assert {one.verdict for one in verify(bench).values()} == {"equal"}


def test_live_task_is_verified_at_its_cut_and_not_at_its_buffer(bench: Bench) -> None:
    session = fill(bench)
    task = session.task(0)
    task.store("kv").put("k0", "uncommitted")
    task.store("win").put("k0", "uncommitted", START_MS + 10 * DAY_MS)
    views = committed_views(task.stores)
    found = verify_task(TASK, views, task.stores.cut.positions, bench.log, "app", now_ms=0)
    assert [one.verdict for one in found] == ["equal"] * 4


def test_files_of_a_live_owner_are_verified_beside_it(bench: Bench) -> None:
    session = fill(bench)
    assert {one.verdict for one in verify(bench).values()} == {"equal"}
    session.task(0).store("kv").put("later", "v")
    session.task(0).commit()
    assert verify(bench)["kv"].matched == 6


def test_position_in_the_middle_folds_only_what_lies_below_it(bench: Bench) -> None:
    fill(bench).close()
    other = bench.active("b")
    for number in range(3, 8):
        other.task(0).store("kv").put(f"k{number}", "newer")
    other.task(0).commit()
    found = verify(bench)["kv"]
    assert (found.verdict, found.position, found.end, found.records, found.matched) == ("equal", 5, 10, 5, 5)


@pytest.mark.parametrize("store", KINDS)
def test_missing_row_is_named(bench: Bench, store: str) -> None:
    fill(bench).close()

    def remove(engine: RocksEngine) -> None:
        family = family_of(engine, store)
        with engine.scan(family) as scan:
            key = next(key for key, _ in scan if b"k3" in key)
        engine.write({family: {key: None}})

    damage(bench, remove)
    found = verify(bench)
    assert {name: one.verdict for name, one in found.items()} == {
        name: "different" if name == store else "equal" for name in KINDS
    }
    (row,) = found[store].differences
    assert (row.kind, row.store, row.key[:2]) == ("missing", None, b"k3")
    assert row.log is not None and row.log[1] == b"v"
    assert found[store].log_digest != found[store].store_digest


@pytest.mark.parametrize("store", KINDS)
def test_different_row_is_named(bench: Bench, store: str) -> None:
    fill(bench).close()

    def change(engine: RocksEngine) -> None:
        family = family_of(engine, store)
        with engine.scan(family) as scan:
            key, row = next((key, row) for key, row in scan if b"k3" in key)
        engine.write({family: {key: row[:-1] + b"X"}})

    damage(bench, change)
    found = verify(bench)[store]
    (row,) = found.differences
    assert (found.verdict, found.different, row.kind, row.key[:2]) == ("different", 1, "different", b"k3")
    assert row.log is not None and row.store is not None
    assert (row.log[1], row.store[1]) == (b"v", b"X")


def test_wrong_timestamp_alone_is_a_different_row(bench: Bench) -> None:
    fill(bench).close()
    damage(bench, lambda engine: engine.write({"kv": {b"k3": TIMESTAMP.pack(7) + b"v"}}))
    (row,) = verify(bench)["kv"].differences
    assert row.log is not None and row.store is not None
    assert (row.kind, row.log[:3], row.store[:3]) == ("different", (START_MS + 3, b"v", 1), (7, b"v", 1))
    assert row.log.hash == row_hash(b"k3", START_MS + 3, b"v") != row.store.hash


@pytest.mark.parametrize("store", KINDS)
def test_extra_row_is_named(bench: Bench, store: str) -> None:
    fill(bench).close()

    def add(engine: RocksEngine) -> None:
        family = family_of(engine, store)
        with engine.scan(family) as scan:
            key, row = next((key, row) for key, row in scan if b"k3" in key)
        engine.write({family: {key.replace(b"k3", b"k_"): row}})

    damage(bench, add)
    found = verify(bench)[store]
    (row,) = found.differences
    assert (found.verdict, found.extra, row.kind, row.key[:2], row.log) == ("different", 1, "extra", b"k_", None)


def test_row_whose_delete_was_not_applied_is_stale(bench: Bench) -> None:
    session = fill(bench)
    session.task(0).store("kv").delete("k3")
    session.task(0).commit()
    session.close()
    damage(bench, lambda engine: engine.write({"kv": {b"k3": TIMESTAMP.pack(START_MS) + b"v"}}))
    found = verify(bench)["kv"]
    assert (found.verdict, found.stale, found.extra) == ("different", 1, 0)
    assert (found.differences[0].kind, found.differences[0].key) == ("stale", b"k3")


def test_wrong_row_stays_wrong_when_the_key_has_a_later_record(bench: Bench) -> None:
    fill(bench).close()
    other = bench.active("b")
    other.task(0).store("kv").put("k3", "newer")
    other.task(0).commit()
    damage(bench, lambda engine: engine.write({"kv": {b"k3": TIMESTAMP.pack(START_MS) + b"X", b"k4": None}}))
    found = verify(bench)["kv"]
    assert [(row.kind, row.key) for row in found.differences] == [("different", b"k3"), ("missing", b"k4")]


def test_superseded_records_that_compaction_removed_leave_their_rows_indeterminate(bench: Bench) -> None:
    fill(bench).close()
    other = bench.active("b")
    for number in (1, 2):
        other.task(0).store("kv").put(f"k{number}", "newer")
    other.task(0).commit()
    assert bench.embedded.compact("app-kv-changelog", bench.clock.wall_ms()) == 2
    found = verify(bench)["kv"]
    assert (found.verdict, found.matched, found.indeterminate, found.differences) == ("equal", 3, 2, ())
    assert found.log_digest == found.store_digest and found.store_digest.count == 3
    damage(bench, lambda engine: engine.write({"kv": {b"k4": None, b"never": TIMESTAMP.pack(1) + b"v"}}))
    found = verify(bench)["kv"]
    assert (found.verdict, found.indeterminate) == ("different", 2)
    assert {(row.kind, row.key) for row in found.differences} == {("missing", b"k4"), ("extra", b"never")}


def test_position_that_is_too_low_is_different_and_the_rows_beyond_it_are_named(bench: Bench) -> None:
    fill(bench).close()
    with open_tasks([task for task in find_tasks(bench.root / "a", "app") if task.task == TASK]) as (opened,):
        parts = {name: opened.part(name) for name in opened.definitions}
        stores = {name: open_store(part.spec, part.rows) for name, part in parts.items()}
        low = {name: position._replace(offset=3) for name, position in opened.cut.positions.items()}
        found = verify_task(TASK, stores, low, bench.log, "app", now_ms=bench.clock.wall_ms())
    for one in found:
        assert (one.verdict, one.reason, one.matched, one.extra, one.indeterminate) == (
            "different",
            "beyond-position",
            3,
            2,
            0,
        )
        assert [row.key[:2] for row in one.differences] == [b"k3", b"k4"]
        assert "2 extra rows" in one.explanation and "position 3" in one.explanation


def test_command_does_not_say_equal_without_the_rows_that_could_not_be_told(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(bench).close()
    other = bench.active("b")
    for number in (1, 2):
        other.task(0).store("kv").put(f"k{number}", "newer")
    other.task(0).commit()
    assert bench.embedded.compact("app-kv-changelog", bench.clock.wall_ms()) == 2
    assert main(command(bench)) == 0
    printed = capsys.readouterr().out
    assert "app: equal, but 2 rows are undecided" in printed
    assert "2 of 5 rows are undecided" in printed
    assert main(command(bench, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["indeterminate"] == 2
    assert [one["reason"] for one in document["stores"] if one["store"] == "kv" and one["partition"] == 0] == [
        "compacted-in-part"
    ]


def test_store_of_which_every_row_was_superseded_and_compacted_is_inconclusive(bench: Bench) -> None:
    fill(bench, 3).close()
    other = bench.active("b")
    for number in range(3):
        other.task(0).store("kv").put(f"k{number}", "newer")
    other.task(0).commit()
    bench.embedded.compact("app-kv-changelog", bench.clock.wall_ms())
    found = verify(bench)["kv"]
    assert (found.verdict, found.reason, found.indeterminate) == ("inconclusive", "compacted", 3)


def test_versions_that_compaction_removed_are_indeterminate(bench: Bench) -> None:
    session = fill(bench)
    for number in range(5):
        session.task(0).store("ver").put(f"k{number}", "second", START_MS + 100)
    session.task(0).commit()
    session.close()
    assert bench.embedded.compact("app-ver-changelog", bench.clock.wall_ms() + 10 * DAY_MS) == 5
    found = verify(bench)["ver"]
    assert (found.verdict, found.matched, found.indeterminate) == ("equal", 5, 5)


def test_rows_deleted_after_the_position_are_indeterminate_once_their_tombstones_expired(bench: Bench) -> None:
    fill(bench).close()
    other = bench.active("b")
    for number in (1, 2):
        other.task(0).store("kv").delete(f"k{number}")
    other.task(0).commit()
    bench.clock.advance(8 * DAY_MS)
    assert bench.embedded.compact("app-kv-changelog", bench.clock.wall_ms()) == 4
    found = verify(bench)["kv"]
    assert (found.verdict, found.matched, found.indeterminate) == ("equal", 3, 2)
    assert (verify(bench, "b")["kv"].verdict, verify(bench, "b")["kv"].matched) == ("equal", 3)


def test_truncated_log_is_inconclusive_only_where_rows_need_what_is_gone(bench: Bench) -> None:
    fill(bench).close()
    bench.embedded.truncate(TopicPartition("app-kv-changelog", 0), 2)
    found = verify(bench)
    assert {name: one.verdict for name, one in found.items()} == {
        "kv": "inconclusive",
        "win": "equal",
        "ses": "equal",
        "ver": "equal",
    }
    assert (found["kv"].reason, found["kv"].indeterminate, found["kv"].matched) == ("log-truncated", 2, 3)
    assert "begins at 2" in found["kv"].explanation
    damage(bench, lambda engine: engine.write({"kv": {b"k4": None}}))
    assert verify(bench)["kv"].verdict == "different"


def test_log_truncated_beyond_the_position_is_inconclusive(bench: Bench) -> None:
    fill(bench).close()
    other = bench.active("b")
    other.task(0).store("kv").put("k9", "newer")
    other.task(0).commit()
    bench.embedded.truncate(TopicPartition("app-kv-changelog", 0), 6)
    found = verify(bench)["kv"]
    assert (found.verdict, found.reason) == ("inconclusive", "position-behind")


def test_log_of_another_life_is_inconclusive(bench: Bench) -> None:
    fill(bench).close()
    topic = "app-kv-changelog"
    policy = bench.log.admin.describe_topic(topic)
    assert policy is not None
    bench.log.admin.delete_topic(topic)
    assert verify(bench)["kv"].reason == "topic-missing"
    bench.log.admin.create_topic(topic, 2, policy.policy)
    assert verify(bench)["kv"].reason == "topic-recreated"


def test_position_ahead_of_the_log_is_inconclusive(bench: Bench, tmp_path: Path) -> None:
    session = fill(bench)
    cut = session.task(0).stores.cut
    ahead = {name: position._replace(offset=position.offset + 1) for name, position in cut.positions.items()}
    found = verify_task(TASK, committed_views(session.task(0).stores), ahead, bench.log, "app", now_ms=0)
    assert {(one.verdict, one.reason) for one in found} == {("inconclusive", "position-ahead")}
    assert "6" in found[0].explanation and "5" in found[0].explanation
    found = verify_task(TASK, committed_views(session.task(0).stores), {}, bench.log, "app", now_ms=0)
    assert {(one.verdict, one.reason) for one in found} == {("inconclusive", "no-position")}


def test_rows_past_retention_are_left_out_on_both_sides(bench: Bench) -> None:
    session = fill(bench)
    task = session.task(0)
    task.store("win").put("new", "v", START_MS + DAY_MS)
    task.store("ses").put("new", START_MS + DAY_MS, START_MS + DAY_MS + 4, "v")
    task.commit()
    session.close()
    found = verify(bench)
    assert [(found[name].verdict, found[name].matched) for name in ("win", "ses")] == [("equal", 1), ("equal", 1)]


def test_only_the_first_differences_are_kept(bench: Bench) -> None:
    fill(bench, 10).close()
    damage(bench, lambda engine: engine.write({"kv": {f"k{number}".encode(): None for number in range(10)}}))
    found = verify(bench, differences_max=3)["kv"]
    assert (len(found.differences), found.truncated, found.missing) == (3, True, 10)


def command(bench: Bench, *options: str) -> list[str]:
    return ["verify", "--state-dir", str(bench.root / "a"), "--log", bench.address, *options]


def test_command_tells_equal_with_exit_code_0(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    fill(bench).close()
    assert main(command(bench)) == 0
    printed = capsys.readouterr().out
    assert "app: equal" in printed and "kv" in printed
    assert main(command(bench, "--json", "--store", "kv", "--partition", "0")) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["verdict"], document["owner_pid"]) == ("standfast.verify/1", "equal", None)
    (store,) = document["stores"]
    assert (store["store"], store["partition"], store["matched"], store["differences"]) == ("kv", 0, 5, [])
    assert store["log_digest"] == store["store_digest"]


def test_command_tells_differences_with_exit_code_1(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    fill(bench).close()
    damage(bench, lambda engine: engine.write({"kv": {b"k3": None, b"\xff": TIMESTAMP.pack(1) + b"v"}}))
    assert main(command(bench, "--json")) == 1
    document = json.loads(capsys.readouterr().out)
    (store,) = (one for one in document["stores"] if one["verdict"] == "different")
    extra, missing = store["differences"]
    assert (extra["row"], extra["key_hex"], extra["log"]) == ("extra", "0xff", None)
    hashed = f"{row_hash(bytes([0xFF]), 1, b'v'):016x}"
    assert extra["store"] == {"timestamp": 1, "value_bytes": 1, "hash": hashed}
    assert (missing["row"], missing["key"], missing["store"]) == ("missing", "k3", None)
    assert main(command(bench, "--limit", "1")) == 1
    shown = capsys.readouterr()
    assert "0xff" in shown.out and "(absent)" in shown.out and "raise --limit" in shown.err


def test_command_shows_values_only_where_they_are_asked_for_and_cut(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(bench).close()
    secret = b"secret" * 2_000
    damage(bench, lambda engine: engine.write({"kv": {b"k3": TIMESTAMP.pack(1) + secret}}))
    for options in ((), ("--json",)):
        assert main(command(bench, "--store", "kv", *options)) == 1
        printed = capsys.readouterr().out
        assert "secret" not in printed and secret[:6].hex() not in printed
    assert main(command(bench, "--store", "kv", "--include-values")) == 1
    printed = capsys.readouterr().out
    assert "secretsecret" in printed.replace("\n", "") and len(printed) < 4_000
    assert main(command(bench, "--store", "kv", "--include-values", "--json")) == 1
    (row,) = next(one for one in json.loads(capsys.readouterr().out)["stores"] if one["differences"])["differences"]
    assert (row["store"]["value_hex"], row["store"]["value_bytes"]) == ("0x" + secret[:4096].hex(), 12_000)


def test_command_tells_inconclusive_with_exit_code_3(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    fill(bench).close()
    bench.embedded.truncate(TopicPartition("app-kv-changelog", 0), 2)
    assert main(command(bench)) == 3
    assert "the log begins at 2" in capsys.readouterr().out


def test_command_says_that_an_owner_is_running(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    fill(bench)
    assert main(command(bench, "--json")) == 0
    shown = capsys.readouterr()
    assert isinstance(json.loads(shown.out)["owner_pid"], int)
    assert "owns these files and is running" in shown.err


def test_command_leaves_out_what_is_not_logged(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    text = sf.serde.string
    stores = [sf.KeyValueStore("kv", text, text), sf.KeyValueStore("local", text, text, logging=False)]
    bench.active(stores=stores).close()
    assert main(command(bench)) == 0
    assert "'local' is not logged" in capsys.readouterr().err
    assert main(command(bench, "--store", "local")) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--store", "nope"), "has no store 'nope'"),
        (("--partition", "7"), "no task of partition 7"),
        (("--limit", "-1"), "--limit is -1"),
        (("--app", "other"), "other"),
    ],
)
def test_command_refuses_what_it_cannot_mean(
    bench: Bench, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    fill(bench).close()
    assert main(command(bench, *options)) == 2
    assert says in capsys.readouterr().err


def test_command_does_not_make_a_log(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    fill(bench).close()
    arguments = ["verify", "--state-dir", str(bench.root / "a"), "--log", f"sqlite:///{bench.root}/elsewhere"]
    assert main(arguments) == 69
    assert not (bench.root / "elsewhere").exists()
    assert "does not exist" in capsys.readouterr().err
