"""Tasks with many stores: their commits, openings without local state, and the program that cannot fit.

Rules of this file: a real log and real databases; the metadata of a commit is over 4,096 bytes unless a test says so.
"""

from __future__ import annotations

import random
import shutil
from typing import Any

import pytest

import standfast as sf
from standfast.ops.doctor import doctor, reset
from standfast.ops.doctor.clocks import stream_times
from standfast.ops.doctor.own_offsets import look_for_own
from standfast.ops.doctor.reset import carry_out
from standfast.replication.log import Committed
from standfast.replication.metadata_parts import TEXT_MAX_BYTES, is_part, source_offsets
from standfast.replication.offsets import TopicPartition
from support.apps import Running, create, write
from support.sessions import Bench

TEXT = sf.serde.string
LARGEST = 2**63 - 1
SRC: tuple[str, int] = ("src", 0)
GUARANTEES = pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
HOUR_MS = 3_600_000


def stores(*names: str) -> list[sf.KeyValueStore[str, str]]:
    return [sf.KeyValueStore(name, TEXT, TEXT) for name in names]


SIX = ("a", "b", "c", "d", "e", "f")


def numbers(count: int, seed: int = 0) -> dict[str, int]:
    rng = random.Random(seed)
    return {f"number:{name}": rng.randrange(LARGEST) for name in range(count)}


def committed(bench: Bench, partition: int = 0) -> dict[TopicPartition, Committed]:
    return {at: one for at, one in bench.log.group("app").committed().items() if at.partition == partition}


def commit(session: sf.Session, progress: dict[str, int], offset: int, partition: int = 0) -> None:
    task = session.task(partition)
    task.progress.update(progress)
    for name in task.stores.specs:
        task.store(name).put("k", str(offset))
    task.commit({("src", partition): offset})


@GUARANTEES
@pytest.mark.parametrize("count", [400, 2_000])
def test_a_cold_start_has_every_number_of_a_large_commit(bench: Bench, guarantee: str, count: int) -> None:
    names = [f"s{number}" for number in range(40)]
    session = bench.active(stores=stores(*names), guarantee=guarantee)
    commit(session, numbers(count), 5)
    session.close()
    kept = committed(bench)
    assert all(len(one.metadata.encode()) <= TEXT_MAX_BYTES for one in kept.values())
    assert set(source_offsets(kept)) == {TopicPartition(*SRC)}
    assert sum(is_part(one.metadata) for one in kept.values()) >= 1
    for directory in ("a", "cold"):
        with bench.active(directory, stores=stores(*names), guarantee=guarantee) as again:
            assert again.task(0).progress == numbers(count)
            assert again.task(0).source_offsets() == {SRC: 5}


@GUARANTEES
def test_stores_are_added_removed_and_swapped_between_commits(bench: Bench, guarantee: str) -> None:
    wanted = numbers(500)
    directory = 0
    for declared in (SIX, ("x", *SIX), (*reversed(SIX),), SIX[:2], ("y", "z"), SIX):
        with bench.active(f"cold-{directory}", stores=stores(*declared), guarantee=guarantee) as session:
            assert session.task(0).progress == ({} if not directory else wanted)
            wanted |= {f"number:{directory}": LARGEST - 9 + directory}
            directory += 1
            commit(session, wanted, directory)


@GUARANTEES
def test_the_text_is_the_old_one_as_soon_as_it_fits(bench: Bench, guarantee: str) -> None:
    session = bench.active(stores=stores(*SIX), guarantee=guarantee)
    commit(session, numbers(20), 1)
    assert committed(bench)[TopicPartition(*SRC)].metadata.startswith('{"standfast":1,')
    assert set(committed(bench)) == {TopicPartition(*SRC)}
    commit(session, numbers(500), 2)
    assert committed(bench)[TopicPartition(*SRC)].metadata.startswith('{"standfast":2,')
    session.task(0).progress.clear()
    commit(session, {"few": 3}, 3)
    session.close()
    with bench.active("cold", stores=stores(*SIX), guarantee=guarantee) as again:
        assert again.task(0).progress == {"few": 3}
        assert again.task(0).source_offsets() == {SRC: 3}, "the pieces that are left are no source offsets"


@GUARANTEES
def test_of_two_sources_the_later_commit_counts(bench: Bench, guarantee: str) -> None:
    session = bench.active(stores=stores(*SIX), guarantee=guarantee)
    task = session.task(0)
    for number, topic in enumerate(("one", "two", "one")):
        task.progress.update(numbers(500, number))
        task.progress["large"] = number
        task.commit({(topic, 0): number + 1})
    latest = dict(task.progress)
    session.close()
    with bench.active("cold", stores=stores(*SIX), guarantee=guarantee) as again:
        assert again.task(0).progress == latest


@GUARANTEES
def test_a_task_is_taken_over_with_all_its_numbers(bench: Bench, guarantee: str) -> None:
    first = bench.active(stores=stores(*SIX), guarantee=guarantee)
    second = bench.session("b", stores=stores(*SIX), guarantee=guarantee)
    second.assign(standby=[0])
    commit(first, numbers(500), 4)
    bench.settle(first, second)
    second.assign(active=[0])
    bench.settle(second)
    assert second.task(0).progress == numbers(500)
    commit(second, numbers(500), 5)
    first.close()


def test_a_program_sees_offsets_of_changelogs_as_none_of_its_sources(bench: Bench) -> None:
    create(bench, 2, "src")
    session = bench.active(stores=stores(*SIX))
    commit(session, numbers(500), 0)
    session.close()
    known = doctor.Known()
    looked = doctor.look(bench.log, "app", stores=[], sources=[], known=known, value_max_bytes=1 << 20)
    assert looked.application.sources == ("src",)
    plan = reset.look(bench.log, "app", known=[], sources=[], targets=[], local=None)
    assert {step.at.topic for step in plan.offsets} == {"src"}
    carry_out(bench.log, plan, lambda: None)
    shutil.rmtree(bench.root / "a")
    with bench.active(stores=stores(*SIX)) as again:
        assert again.task(0).progress == {}
        assert again.task(0).source_offsets() == {SRC: 0}


def test_stream_times_of_many_stores_are_seen_in_pieces(bench: Bench) -> None:
    win = sf.WindowStore("win", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=2 * HOUR_MS)
    session = bench.active(stores=[*stores(*SIX), win])
    session.task(0).store("win").put("k", "v", 3 * HOUR_MS)
    session.task(0).progress.update(numbers(500))
    session.task(0).commit({SRC: 1})
    assert any(is_part(one.metadata) for one in committed(bench).values())
    assert stream_times(bench.log, "app") == {"win": 3 * HOUR_MS}


def test_own_offsets_are_committed_again_with_all_numbers(bench: Bench) -> None:
    create(bench, 2, "src")
    write(bench, "src", *[("k", "v", 5)] * 9)
    session = bench.active(stores=stores(*SIX))
    commit(session, numbers(500), 5)
    session.close()
    bench.log.group("app").commit({TopicPartition(*SRC): Committed(9, "")})
    found = look_for_own(bench.log, "app", bench.root / "a")
    assert [(step.at, step.after) for step in found.plan.offsets] == [(TopicPartition(*SRC), 5)]
    carry_out(bench.log, found.plan, lambda: None)
    with bench.active("cold", stores=stores(*SIX)) as again:
        assert again.task(0).progress == numbers(500)
        assert again.task(0).source_offsets() == {SRC: 5}


def windowed(bench: Bench, count: int, directory: str = "a", guarantee: Any = "exactly_once", **store: Any) -> Running:
    """An application of so many windowed aggregations of one topic."""
    windows = sf.TumblingWindows(HOUR_MS)
    made = [
        sf.WindowStore(
            f"total-{number}",
            TEXT,
            sf.serde.json,
            window_size_ms=HOUR_MS,
            retention_ms=windows.retention_safe_ms,
            **store,
        )
        for number in range(count)
    ]

    def make(app: sf.App) -> None:
        grouped = app.stream("in", key=TEXT, value=TEXT).group_by_key().window(windows)
        for spec in made:
            grouped.count(spec.name, emit=sf.ON_WINDOW_CLOSE)

    return Running(bench, make, directory, guarantee=guarantee, stores=made)


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_eighty_windowed_aggregations_commit_and_go_on_without_local_state(bench: Bench, guarantee: str) -> None:
    create(bench, 1, "in")
    write(bench, "in", ("a", "x", 5), ("b", "y", 3 * HOUR_MS))
    running = windowed(bench, 80, guarantee=guarantee)
    running.run()
    running.commit()
    (task,) = running.session.tasks().values()
    kept = dict(task.progress)
    assert len(kept) >= 160
    running.close()
    again = windowed(bench, 81, "cold", guarantee)
    (task,) = again.session.tasks().values()
    assert task.progress == kept
    write(bench, "in", ("a", "x", 7 * HOUR_MS))
    again.run()
    again.commit()
    again.close()


def test_a_program_whose_commits_cannot_fit_is_refused_at_its_start(bench: Bench) -> None:
    create(bench, 1, "in")
    with pytest.raises(sf.BadConfig, match=r"tasks of sub-topology 0 could not commit.*give stores a changelog"):
        windowed(bench, 120, logging=False)
    assert [name for name in bench.log.admin.topic_names() if name != "in"] == []
    windowed(bench, 120).close()
