"""Diverged histories: the log's file was restored from a backup and written on, and a state has applied the other one.

Rules of this file: files are copied while no process writes, as an operator restores a backup; a store's rows are then
compared with the log's, read from its beginning.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.log import Committed, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.task.commit_record import CommitRecord, Position
from support.sessions import Bench

KV = TopicPartition("app-kv-changelog", 0)
IN = TopicPartition("in", 0)
STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


def write(session: sf.Session, pairs: Mapping[str, str | None], offsets: Mapping[tuple[str, int], int] = {}) -> None:
    task = session.task(0)
    for key, value in pairs.items():
        task.store("kv").put(key, value)
    task.commit(offsets)


def numbered(first: int, last: int, value: str) -> dict[str, str | None]:
    return {f"{number:03}": value for number in range(first, last)}


def rows(session: sf.Session) -> dict[str, str]:
    return dict(session.task(0).store("kv").all())


def folded(bench: Bench) -> dict[str, str]:
    """The rows of the log, read by an instance with an empty directory."""
    cold = bench.active("cold", stores=STORES, take_over=False)
    found = rows(cold)
    cold.close()
    shutil.rmtree(bench.root / "cold")
    return found


def back_up(bench: Bench) -> None:
    """A copy of the log in its present state, taken as operators take it, while processes have it open."""
    with (
        closing(sqlite3.connect(bench.root / "log")) as log,
        closing(sqlite3.connect(bench.root / "backup")) as copy,
    ):
        log.backup(copy)


def put_back(bench: Bench) -> None:
    for session in bench.opened:
        session.close()
    if bench._log is not None:
        bench._log.close()
        bench._log = None
    shutil.copy(bench.root / "backup", bench.root / "log")


@pytest.mark.parametrize("seen", [1, 7, 8, 20], ids=["less", "one less", "as many", "more than the other wrote"])
def test_store_that_saw_another_history_is_rebuilt_with_that_reason(bench: Bench, seen: int) -> None:
    first = bench.active("a", stores=STORES)
    write(first, numbered(0, 10, "both"))
    back_up(bench)
    write(first, numbered(5, 5 + seen, "lost"))
    put_back(bench)
    other = bench.active("b", stores=STORES)
    write(other, numbered(7, 15, "kept"))
    other.close()
    again = bench.active("a", stores=STORES)
    assert rows(again) == numbered(0, 7, "both") | numbered(7, 15, "kept")
    # Beyond the end of the log the position alone shows it.
    assert again.counters.wipes == ({"position-ahead": 1} if seen > 8 else {"diverged": 1})
    again.close()
    assert folded(bench) == numbered(0, 7, "both") | numbered(7, 15, "kept")


def test_position_beyond_the_end_of_an_epoch_that_the_log_knows_has_diverged(bench: Bench) -> None:
    first = bench.active("a", stores=STORES)
    write(first, {"x": "1"})
    back_up(bench)
    write(first, {"y": "lost"})  # in the same epoch
    put_back(bench)
    other = bench.active("b", stores=STORES)
    write(other, {"z": "kept", "u": "kept"})
    other.close()
    again = bench.active("a", stores=STORES)
    assert rows(again) == {"x": "1", "z": "kept", "u": "kept"}
    assert again.counters.wipes == {"diverged": 1}


def test_standby_that_saw_another_history_is_rebuilt(bench: Bench) -> None:
    first = bench.active("a", stores=STORES)
    standby = bench.session("s", stores=STORES, take_over=False)
    standby.assign(standby=[0])
    write(first, numbered(0, 3, "both"))
    back_up(bench)
    write(first, {"lost": "1"})
    bench.settle(standby)
    put_back(bench)
    other = bench.active("b", stores=STORES)
    write(other, {"kept": "1", "more": "1"})
    again = bench.session("s", stores=STORES, take_over=False)
    again.assign(standby=[0])
    bench.settle(again)
    found = dict(again.read("kv", 0, allow_stale=True).store.all())
    assert found == numbered(0, 3, "both") | {"kept": "1", "more": "1"}
    assert again.counters.wipes == {"diverged": 1}


def test_records_of_producers_belong_to_epochs_too(bench: Bench) -> None:
    bench.active("a", stores=STORES).close()
    bench.log.producer().append({KV: [Outgoing(b"both", b"1", 5)]})
    back_up(bench)
    bench.log.producer().append({KV: [Outgoing(b"lost", b"1", 5)]})
    first = bench.active("a", stores=STORES)
    assert len(rows(first)) == 2
    put_back(bench)
    bench.log.producer().append({KV: [Outgoing(b"kept", b"1", 5)] * 3})
    again = bench.active("a", stores=STORES)
    assert rows(again) == {"both": "1", "kept": "1"}
    assert again.counters.wipes == {"diverged": 1}


def test_source_offsets_of_another_history_do_not_count(bench: Bench) -> None:
    settings: dict[str, Any] = {"stores": STORES, "guarantee": "at_least_once"}
    bench.log.admin.create_topic("in", 2, TopicPolicy())
    bench.log.producer().append({IN: [Outgoing(b"k", b"1", 5)] * 4})
    first = bench.active("a", **settings)
    write(first, {"a": "1"}, {IN: 4})
    back_up(bench)
    bench.log.producer().append({IN: [Outgoing(b"k", b"lost", 5)] * 3})
    write(first, {}, {IN: 7})
    put_back(bench)
    bench.log.producer().append({IN: [Outgoing(b"k", b"kept", 5)] * 9})
    again = bench.active("a", **settings)
    assert again.task(0).source_offsets() == {IN: 4}
    assert again.counters.wipes == {}  # every logged change is in the log


def test_source_topic_as_changelog_that_diverged_is_read_again(bench: Bench) -> None:
    table = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string, source_topic="in")
    bench.log.admin.create_topic("in", 2, TopicPolicy(frozenset({"compact"})))
    bench.log.producer().append({IN: [Outgoing(b"both", b"1", 5)]})
    back_up(bench)
    bench.log.producer().append({IN: [Outgoing(b"lost", b"1", 5)]})
    first = bench.active("a", stores=[table])
    bench.log.group("app").commit({IN: Committed(2)})
    first.close()
    first = bench.active("a", stores=[table])
    assert rows(first) == {"both": "1", "lost": "1"}
    put_back(bench)
    bench.log.producer().append({IN: [Outgoing(b"kept", b"1", 5)] * 3})
    bench.log.group("app").commit({IN: Committed(3)})
    again = bench.active("a", stores=[table])
    assert rows(again) == {"both": "1", "kept": "1"}
    assert again.counters.wipes == {"diverged": 1}


def test_owners_by_turns_compaction_and_retention_are_no_divergence(bench: Bench) -> None:
    expected: dict[str, str | None] = {}
    for turn in range(6):
        session = bench.active("ab"[turn % 2], stores=STORES)
        assert session.counters.wipes == {}
        write(session, numbered(turn, turn + 4, f"{turn}"))
        expected |= numbered(turn, turn + 4, f"{turn}")
        session.close()
        bench.log.producer().append({KV: [Outgoing(f"p{turn}".encode(), b"1", 5)]})
        expected[f"p{turn}"] = "1"
        if turn == 2:
            bench.embedded.compact(KV.topic, bench.clock.wall_ms())
    (bounds,) = bench.log.reader().bounds([KV]).values()
    bench.embedded.truncate(KV, bounds.end - 1)  # the offset of "b"
    session = bench.active("b", stores=STORES)
    assert session.counters.wipes == {}
    assert rows(session) == expected


def test_position_without_a_tag_is_not_judged_and_gets_one_when_it_moves(bench: Bench) -> None:
    first = bench.active("a", stores=STORES)
    write(first, {"x": "1"})
    task = first.task(0)
    old = {name: replace_tag(position) for name, position in task.stores.cut.positions.items()}
    task.stores.commit(replace(task.stores.cut, positions=old))
    first.close()
    again = bench.active("a", stores=STORES)
    assert again.counters.wipes == {}
    assert again.task(0).stores.cut.positions["kv"].tag == ""
    write(again, {"y": "1"})
    assert len(again.task(0).stores.cut.positions["kv"].tag) == 16


def replace_tag(position: Position) -> Position:
    return position._replace(tag="")


def test_cut_without_tags_is_written_as_before_and_read(bench: Bench) -> None:
    cut = CommitRecord({"kv": Position(3, -1, "id", 5, True)}, {"in/0": 7})
    assert b'"positions":{"kv":[3,-1,"id",5,true]}' in cut.encode()
    assert b"source_tags" not in cut.encode()
    assert CommitRecord.decode(cut.encode(), "here") == cut
    tagged = replace(cut, positions={"kv": Position(3, -1, "id", 5, False, "tag")}, source_tags={"in/0": "tag"})
    assert CommitRecord.decode(tagged.encode(), "here") == tagged


def test_doctor_says_what_will_be_rebuilt(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    first = bench.active("a", stores=STORES)
    write(first, {"x": "1"})
    back_up(bench)
    write(first, {"y": "lost"})
    put_back(bench)
    other = bench.active("b", stores=STORES)
    write(other, {"z": "kept", "u": "kept"})
    other.close()
    capsys.readouterr()
    assert main(["doctor", "--app", "app", "--log", bench.address, "--state-dir", str(bench.root / "a")]) == 0
    assert "[diverged]" in capsys.readouterr().out


def test_tags_and_ends_of_epochs(bench: Bench) -> None:
    bench.log.admin.create_topic("in", 1, TopicPolicy())
    for _ in range(3):
        producer = bench.log.writer("w", group="app", owner="me")
        producer.append({IN: [Outgoing(b"k", b"v", 5)] * 2})
        producer.append({IN: [Outgoing(b"k", b"v", 5)]})
        producer.close()
    reader = bench.log.reader()
    tags = [reader.epoch_tags({IN: position}).get(IN, "") for position in range(10)]
    assert tags[0] == ""
    assert [len(set(tags[at : at + 3])) for at in (1, 4, 7)] == [1, 1, 1]
    assert len(set(tags)) == 4
    assert [reader.epoch_ends({IN: tag})[IN] for tag in tags[1::3]] == [3, 6, 9]
    assert reader.epoch_ends({IN: "another", TopicPartition("absent", 0): "x"}) == {IN: 0}
    assert reader.epoch_tags({TopicPartition("absent", 0): 5}) == {}
    bench.embedded.truncate(IN, 6)
    assert reader.epoch_ends({IN: tags[3]}) == {IN: 0}
    assert reader.epoch_ends({IN: tags[6]}) == {IN: 6}
    bench.log.admin.delete_topic("in")
    assert reader.epoch_ends({IN: tags[6]}) == {}
