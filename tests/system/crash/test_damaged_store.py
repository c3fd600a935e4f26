"""One store of a task is lost: it alone restarts, its neighbours stay; no row goes that no log can give back."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.restore.digest import digest_rows
from standfast.stream.task.states import TaskState
from support.sessions import KINDS, Bench, operate

TEXT = sf.serde.string
KV = TopicPartition("app-kv-changelog", 0)
STORES = [
    sf.KeyValueStore("kv", TEXT, TEXT),
    sf.KeyValueStore("other", TEXT, TEXT),
    sf.KeyValueStore("plain", TEXT, TEXT, logging=False),
]
ROWS = 2_000
NEW = "000001a"  # among the others, so that a compaction has to read them


def fill(session: sf.Session, first: int = 0, last: int = ROWS) -> None:
    """The same rows in all three stores, in files of several blocks."""
    task = session.task(0)
    for number in range(first, last):
        for store in STORES:
            task.store(store.name).put(f"{number:06}", f"{store.name}{number:06}" * 8)
    task.commit({("src", 0): last})
    task.stores.flush()
    for store in STORES:
        task.stores.engine.compact(store.name)


def rows(session: sf.Session, name: str) -> list[str]:
    return [key for key, _ in session.task(0).store(name).all()]


def wanted(last: int = ROWS) -> list[str]:
    return [f"{number:06}" for number in range(last)]


def whole(session: sf.Session, last: int = ROWS) -> None:
    for store in STORES:
        assert list(session.task(0).store(store.name).all()) == [
            (key, f"{store.name}{key}" * 8) for key in wanted(last)
        ], store.name


def files_of(session: sf.Session, family: str) -> list[Path]:
    """Table files of a family, by RocksDB's property of it."""
    stores = session.tasks()[0].stores
    text = stores.engine._held(family, "measuring").property_value("rocksdb.sstables")  # type: ignore[attr-defined]
    return [stores.directory / f"{int(number):06}.sst" for number in re.findall(r"^ (\d+):", text, re.MULTILINE)]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def cut(path: Path, at: int) -> None:
    path.write_bytes(path.read_bytes()[:at])


def middle(path: Path) -> None:
    flip(path, path.stat().st_size // 3)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "first block": lambda path: flip(path, 0),
    "middle": middle,
    "footer": lambda path: flip(path, -5),
    "index": lambda path: flip(path, -120),
    "truncated": lambda path: cut(path, path.stat().st_size // 2),
    "emptied": lambda path: cut(path, 0),
    "removed": lambda path: path.unlink(),
}


def opened_on_damage(bench: Bench, damage: Callable[[Path], None], guarantee: str) -> sf.Session:
    """A session that is filled, and reopened after its only table file of `kv` was damaged."""
    first = bench.active(stores=STORES, guarantee=guarantee)
    fill(first)
    (file,) = files_of(first, "kv")
    first.close()
    damage(file)
    return bench.active(stores=STORES, guarantee=guarantee)


def filled_pair(bench: Bench) -> tuple[sf.Session, sf.Session]:
    """An active, and its standby that has every row in table files."""
    first = bench.active(stores=STORES, take_over=False)
    second = bench.session("b", stores=STORES, take_over=False)
    second.assign(standby=[0])
    fill(first)
    bench.settle(second)
    second.tasks()[0].stores.flush()
    return first, second


def read_through(bench: Bench, session: sf.Session) -> None:
    """Read every store to its end, letting found damage be mended, until all can be read."""
    for _ in range(4):
        try:
            for store in STORES:
                rows(session, store.name)
            return
        except sf.Corruption:
            session.poll_once()
            session.wait_ready(30)
    raise AssertionError("still damaged")


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_file_of_a_store_costs_that_store_a_restore_and_its_neighbours_nothing(
    bench: Bench, how: str, guarantee: str
) -> None:
    again = opened_on_damage(bench, DAMAGE[how], guarantee)
    read_through(bench, again)
    whole(again)
    assert again.task(0).source_offsets() == {("src", 0): ROWS}
    assert again.counters.wipes == {"corrupt": 1}
    assert again.counters.store_wipes == {("kv", "corrupt"): 1}
    assert dict(again.counters.restored_records) == {("kv", 0, "corrupt"): ROWS}
    assert list((again.state_path / ".aside").iterdir()) == []
    fill(again, ROWS, ROWS + 100)
    again.close()
    whole(bench.active(stores=STORES, guarantee=guarantee), ROWS + 100)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_offsets_of_changes_that_went_with_the_damage_are_not_committed(bench: Bench, guarantee: str) -> None:
    session = opened_on_damage(bench, middle, guarantee)
    session.task(0).store("other").put("uncommitted", "row")
    with pytest.raises(sf.Corruption):
        rows(session, "kv")
    session.poll_once()
    session.wait_ready(30)
    for commit in (session.commit, session.task(0).commit, session.commit):
        with pytest.raises(sf.StateLost, match=r"task 0_0 was opened again \(corrupt\).*source_offsets"):
            commit({("src", 0): ROWS + 1})
    assert session.task(0).source_offsets() == {("src", 0): ROWS}
    session.task(0).store("other").put("uncommitted", "row")
    session.commit({("src", 0): ROWS + 1})
    assert session.task(0).store("other").get("uncommitted") == "row"


def test_damaged_first_block_of_a_standby_is_mended_and_its_copy_goes_once_it_has_caught_up(bench: Bench) -> None:
    _, second = filled_pair(bench)
    file = files_of(second, "kv")[0]
    second.close()
    flip(file, 0)
    second = bench.session("b", stores=STORES, take_over=False)
    second.assign(standby=[0])
    assert [path.name.split(".")[1] for path in (second.state_path / ".aside").iterdir()] == ["corrupt"]
    bench.settle(second)
    assert second.counters.store_wipes == {("kv", "corrupt"): 1}
    assert len(list(second.read("kv", 0, allow_stale=True).store.all())) == ROWS
    assert list((second.state_path / ".aside").iterdir()) == []


def test_standby_with_a_damaged_first_block_is_promoted_after_that_store_was_restored(bench: Bench) -> None:
    first, second = filled_pair(bench)
    flip(files_of(second, "kv")[0], 0)
    first.close()
    second.assign(active=[0])
    second.wait_ready(30)
    assert rows(second, "kv") == rows(second, "other") == wanted()
    assert second.counters.store_wipes == {("kv", "corrupt"): 1}
    assert list((second.state_path / ".aside").iterdir()) == []


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_neighbours_are_written_while_the_damaged_store_compacts(bench: Bench, guarantee: str) -> None:
    """One compaction over the damaged file makes the whole database refuse every write from then on."""
    again = opened_on_damage(bench, middle, guarantee)
    (file,) = files_of(again, "kv")
    task = again.task(0)
    task.store("kv").put(NEW, "new")
    task.commit()
    task.stores.engine.flush("kv")
    with pytest.raises(sf.Corruption):
        task.stores.engine.compact("kv")
    for name in ("other", "plain"):
        task.store(name).put(NEW, "new")
    with pytest.raises(sf.Corruption, match=file.name):
        task.commit({("src", 0): ROWS + 1})
    again.poll_once()
    again.wait_ready(30)
    task = again.task(0)
    if guarantee == "at_least_once":  # the offsets were not committed: the record is processed again
        assert task.source_offsets() == {("src", 0): ROWS}
        for name in ("other", "plain"):
            task.store(name).put(NEW, "new")
        task.commit({("src", 0): ROWS + 1})
    assert task.source_offsets() == {("src", 0): ROWS + 1}
    for store in STORES:
        assert rows(again, store.name) == sorted([*wanted(), NEW]), store.name
        assert task.store(store.name).get(NEW) == "new"
    assert again.counters.store_wipes == {("kv", "corrupt"): 1}
    again.close()
    reopened = bench.active(stores=STORES, guarantee=guarantee)
    assert [rows(reopened, store.name) for store in STORES] == [sorted([*wanted(), NEW])] * 3


def test_restore_of_a_store_that_a_kill_interrupts_goes_on_beside_its_neighbours(
    bench: Bench, small_batches: None
) -> None:
    first = bench.active(stores=STORES)
    fill(first)
    (file,) = files_of(first, "kv")
    first.close()
    DAMAGE["removed"](file)
    half = bench.session(stores=STORES)
    half.assign(active=[0])
    half.poll_once()
    killed = bench.root / "killed"
    shutil.copytree(bench.root / "a", killed)  # as a kill leaves it
    half.close()
    on = bench.active("killed", stores=STORES)
    whole(on)
    assert on.task(0).source_offsets() == {("src", 0): ROWS}
    assert on.counters.wipes == {}
    restored = dict(on.counters.restored_records)
    assert restored.keys() == {("kv", 0, "resume")}
    assert 0 < restored["kv", 0, "resume"] < ROWS


def test_recreated_changelog_of_one_store_leaves_the_others_where_they_are(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    fill(first)
    first.close()
    bench.log.admin.delete_topic(KV.topic)
    bench.log.admin.create_topic(KV.topic, 2, TopicPolicy(frozenset({"compact"})))
    with closing(bench.log.writer("another", group="another", owner="another")) as writer:
        writer.append({KV: [Outgoing(b"only", b"one", 5)]})
    again = bench.active(stores=STORES)
    assert rows(again, "kv") == ["only"]
    assert rows(again, "other") == rows(again, "plain") == wanted()
    assert again.counters.store_wipes == {("kv", "topic-recreated"): 1}
    assert dict(again.counters.restored_records) == {("kv", 0, "topic-recreated"): 1}


def test_truncated_changelog_of_one_store_leaves_the_others_where_they_are(bench: Bench) -> None:
    policy = {"cleanup.policy": "compact,delete"}
    stores = [sf.KeyValueStore("kv", TEXT, TEXT, changelog=policy), *STORES[1:]]
    first = bench.active(stores=stores)
    fill(first)
    first.close()
    shutil.copytree(bench.root / "a", bench.root / "b")
    first = bench.active(stores=stores)
    fill(first, ROWS, ROWS + 100)
    first.close()
    bench.embedded.truncate(KV, ROWS + 50)
    again = bench.active("b", stores=stores)
    assert rows(again, "kv") == wanted(ROWS + 100)[ROWS + 50 :]
    assert rows(again, "other") == wanted(ROWS + 100)
    assert rows(again, "plain") == wanted()  # a copy from before: no log has the rest
    assert again.counters.store_wipes == {("kv", "truncated"): 1}


def test_damaged_block_of_a_store_without_a_log_closes_the_task_until_the_loss_is_accepted(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    fill(first)
    (file,) = files_of(first, "plain")
    directory = first.tasks()[0].stores.directory
    first.close()
    middle(file)
    again = bench.active(stores=STORES)
    with pytest.raises(sf.Corruption):
        rows(again, "plain")
    again.poll_once()
    task = again.tasks()[0]
    assert task.state is TaskState.CLOSED
    with pytest.raises(sf.Closed, match=r"'plain'.*logging=False.*accept_unreadable_rows"):
        again.task(0)
    assert any("plain" in line and "accept_unreadable_rows" in line for line in again.missing())
    again.close()
    assert file.exists()
    assert not list((again.state_path / ".aside").iterdir())
    accepted = bench.active(stores=STORES, accept_unreadable_rows=True)
    read_through(bench, accepted)
    kept = rows(accepted, "plain")
    assert rows(accepted, "kv") == rows(accepted, "other") == wanted()
    assert kept == sorted(set(kept) & set(wanted()))
    assert ROWS - 100 < len(kept) < ROWS  # but for one block
    assert accepted.counters.store_wipes == {("plain", "corrupt"): 1}
    assert accepted.counters.restored_records == {}
    assert directory.is_dir()
    accepted.close()
    assert rows(bench.active(stores=STORES), "plain") == kept


@pytest.mark.parametrize("by", ["reopen", "assign"])
def test_rows_without_a_log_of_a_commit_that_only_the_log_has_are_there_when_the_task_comes_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    session = bench.active(stores=STORES)
    fill(session, 0, 10)
    for name in ("kv", "plain"):
        session.task(0).store(name).put(NEW, "new")

    def reach(name: str) -> None:
        if name == "commit.logged":
            raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("standfast.stream.task.commit_write.reach", reach)
        with pytest.raises(KeyboardInterrupt):
            session.commit({("src", 0): 11})
    if by == "reopen":
        session.reopen(0)
    else:
        session.assign(active=[0])
    session.wait_ready(30)
    assert session.task(0).source_offsets() == {("src", 0): 11}
    assert [session.task(0).store(name).get(NEW) for name in ("kv", "plain")] == ["new", "new"]


def test_damaged_store_whose_changelog_is_empty_is_refused(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    fill(first)
    (file,) = files_of(first, "kv")
    first.close()
    bench.embedded.truncate(KV, ROWS)
    middle(file)
    again = bench.active(stores=STORES)
    with pytest.raises(sf.Corruption):
        rows(again, "kv")
    again.poll_once()
    with pytest.raises(sf.Closed, match="accept_empty_log"):
        again.task(0)
    assert file.exists()
    again.close()
    accepted = bench.active(stores=STORES, accept_empty_log=True)  # the damage is noted, so its opening meets it
    assert rows(accepted, "kv") == []
    assert rows(accepted, "other") == rows(accepted, "plain") == wanted()


@pytest.mark.parametrize("name", KINDS)
def test_damage_that_a_digest_meets_is_mended_in_every_kind_of_store(bench: Bench, name: str) -> None:
    """Digests and verification also read rows in their changelog's form."""
    first = bench.active()
    operate(first.task(0), random.Random(3), 150)
    stores = first.task(0).stores
    wanted = digest_rows(stores.stores[name].logical_rows())
    stores.flush()
    file = files_of(first, stores.stores[name].families()[-1])[-1]
    first.close()
    flip(file, 0)
    again = bench.active()
    with suppress(sf.Corruption):  # of stores without segments, opening reads the first block
        digest_rows(again.task(0).stores.stores[name].logical_rows())
    again.poll_once()
    again.wait_ready(30)
    assert again.counters.store_wipes == {(name, "corrupt"): 1}
    assert digest_rows(again.task(0).stores.stores[name].logical_rows()) == wanted
