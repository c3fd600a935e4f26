"""Mistakes that people make say what to do: steps that are not there, stores of one name, a directory that is gone."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.http.rows import Rows
from standfast.ops.shared.control_stores import declare
from standfast.ops.sidecar.control.schema import Stores, parse_body
from standfast.replication.shapes import plain
from standfast.store.task.state_dir import StateDir
from support.own_sources import Numbers
from support.sessions import Bench

TEXT = sf.serde.string


def test_step_that_people_try_says_the_way() -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("kv", TEXT, TEXT)])
    stream: Any = app.stream("in")
    table: Any = app.table("rows", "kv")
    ways = {
        "count": r"\.group_by_key\(\)\.count\(...\)",
        "aggregate": r"\.group_by_key\(\)\.aggregate",
        "foreach": r"\.peek\(action\)",
        "print": r"\.peek\(print\)",
        "branch": r"\.filter_not",
        "mapValues": "did you mean map_values",
        "fliter": "did you mean filter",
        "windowedBy": r"\.window\(",
        "through": r"\.repartition",
    }
    for name, way in ways.items():
        with pytest.raises(sf.BadConfig, match=f"Stream has no {name}: .*{way}"):
            getattr(stream, name)
        assert not hasattr(stream, name)
    with pytest.raises(sf.BadConfig, match=r"Table has no count: .*to_stream\(\)"):
        table.count("kv")
    with pytest.raises(sf.BadConfig, match=r"GroupedStream has no windowed_by: \.window"):
        stream.group_by_key().windowed_by()
    with pytest.raises(sf.BadConfig, match=r"WindowedStream has no suppress: emit="):
        stream.group_by_key().window(sf.TumblingWindows(5)).suppress()
    with pytest.raises(sf.BadConfig, match=r"App has no topic: app\.stream"):
        app.topic("in")  # type: ignore[attr-defined]
    with pytest.raises(sf.BadConfig, match=r"this is a Stream\. Of two streams write one to a topic"):
        stream.join(app.stream("other"), lambda one, other: one)
    with pytest.raises(AttributeError, match="__deepcopy"):
        _ = stream.__deepcopy__


def test_application_with_two_stores_of_one_name_is_refused() -> None:
    with pytest.raises(sf.BadConfig, match="store 'kv' is declared 2 times"):
        sf.App("app", stores=[sf.KeyValueStore("kv", TEXT, TEXT), sf.KeyValueStore("kv", TEXT, sf.serde.json)])


def test_windows_take_a_timedelta_of_whole_milliseconds() -> None:
    minute, second = timedelta(minutes=1), timedelta(seconds=1)
    assert sf.TumblingWindows(minute, second) == sf.TumblingWindows(60_000, 1_000)
    assert sf.HoppingWindows(minute, second, second) == sf.HoppingWindows(60_000, 1_000, 1_000)
    assert sf.SlidingWindows(minute, grace_ms=second) == sf.SlidingWindows(60_000, 1_000)
    assert sf.SessionWindows(minute) == sf.SessionWindows(60_000)
    for wrong in (timedelta(microseconds=1), -second, timedelta(0)):
        with pytest.raises(sf.BadConfig, match="size_ms must be a whole number of milliseconds above 0"):
            sf.TumblingWindows(wrong)


def test_driver_commits_once_for_each_record_of_a_source_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    app = sf.App("app")
    app.stream(Numbers(3), name="numbers").to("out")
    commits = []
    commit = sf.testing.Driver.commit
    monkeypatch.setattr(sf.testing.Driver, "commit", lambda driver: (commits.append(1), commit(driver)))
    with sf.testing.Driver(app, commit_each_record=True) as driver:
        records = driver.run_source("numbers", records_max=3)
        assert len(commits) == records == 3
        driver.pipe("numbers", "k", 1)
        assert len(commits) == 4


@pytest.mark.parametrize(
    "body", [r'{"a\u001b.ms": "1"}', r'{"a\u0000": "1"}', r'{"retention.ms": "1\u0000"}', '{"ä": "1"}']
)
def test_setting_of_a_changelog_with_an_escape_is_refused(body: str) -> None:
    asked = f'{{"stores": [{{"name": "kv", "kind": "keyvalue", "changelog": {body}}}]}}'
    stores = parse_body(asked.encode(), Stores).stores
    with pytest.raises(sf.InvalidRequest, match=r"store 'kv': changelog: (setting|the value of)") as refused:
        declare([], plain(stores))
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("again", [False, True], ids=["removed", "replaced"])
def test_state_directory_that_is_gone_before_workers_join_it_says_so(tmp_path: Path, again: bool) -> None:
    state = StateDir(tmp_path / "state", "app")
    shutil.rmtree(state.path)
    if again:
        state.path.mkdir()
        (state.path / "LOCK").touch()
    with pytest.raises(sf.InvalidRequest, match=r"was removed or replaced while its instance runs.*start it again"):
        state.lend("worker")
    state.close()


def test_scan_of_a_partition_that_is_opened_again_meanwhile_says_so(bench: Bench) -> None:
    session = bench.session("a", partitions=1)
    session.assign(active=[0])
    session.wait_ready(5)
    rows = Rows(session)
    held = session.all_tasks()
    next(iter(held.values())).stores.close()
    with pytest.raises(sf.NotReady, match="was opened again, while its rows were read"):
        rows.document("/v1/stores/kv/scan", "stale=1")
