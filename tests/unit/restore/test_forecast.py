"""Forecasts of restores: pure decisions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from standfast.replication.offsets import TopicPartition
from standfast.restore.forecast.forecast import (
    Local,
    Missing,
    StoreForecast,
    TaskForecast,
    of_changelogs,
    of_local,
    of_snapshot,
)
from standfast.restore.plan import LogState
from standfast.store.task.commit_record import Position
from support.snapshots import checkpoint

AT = TopicPartition("app-kv-changelog", 0)
LOG = LogState(AT, "t", 0, 100)
KV: dict[str, dict[str, Any]] = {"kv": {"engine": "rocksdb", "logging": True}}
MEMORY: dict[str, dict[str, Any]] = {"kv": {"engine": "memory", "logging": True}}
UNLOGGED: dict[str, dict[str, Any]] = {"kv": {"engine": "rocksdb", "logging": False}}


def one(found: TaskForecast) -> StoreForecast:
    (store,) = found.stores
    return store


def local(offset: int, topic_id: str = "t", **given: Any) -> Local:
    return Local({"kv": Position(offset, topic_id=topic_id, at_ms=0)}, frozenset({"kv"}), **given)


def test_local_state_reads_on_from_its_position() -> None:
    found = one(of_local("0_0", local(40), KV, {"kv": LOG}, now_ms=0))
    assert (found.source, found.reason, found.records) == ("local", "resume", 60)


def test_local_state_at_the_end_reads_nothing() -> None:
    assert one(of_local("0_0", local(100), KV, {"kv": LOG}, now_ms=0)).records == 0


def test_a_store_that_does_not_fit_its_log_is_read_again_from_its_beginning() -> None:
    found = one(of_local("0_0", local(40, "other"), KV, {"kv": LOG}, now_ms=0))
    assert (found.source, found.reason, found.records) == ("changelog", "topic-recreated", 100)


def test_a_store_with_an_unfinished_import_is_read_again() -> None:
    found = one(of_local("0_0", local(40, lost=frozenset({"kv"})), KV, {"kv": LOG}, now_ms=0))
    assert (found.source, found.reason, found.records) == ("changelog", "corrupt", 100)


def test_rows_whose_log_is_empty_are_refused_and_not_wiped() -> None:
    found = of_local("0_0", local(40, "other"), KV, {"kv": replace(LOG, end=0)}, now_ms=0)
    assert found.refused and "may be the last copy" in one(found).message


def test_rows_without_their_topic_are_refused() -> None:
    found = of_local("0_0", local(40), KV, {"kv": Missing(AT)}, now_ms=0)
    assert found.refused and "does not exist" in one(found).message


def test_a_task_without_a_changelog_topic_starts_empty() -> None:
    assert one(of_changelogs("0_0", KV, {"kv": Missing(AT)}, now_ms=0)).source == "empty"


def test_memory_is_read_from_the_log_whatever_position_is_stored() -> None:
    found = one(of_local("0_0", local(40), MEMORY, {"kv": LOG}, now_ms=0))
    assert (found.source, found.records) == ("changelog", 100)


def test_a_store_without_a_changelog_is_local_or_empty() -> None:
    assert one(of_local("0_0", local(40), UNLOGGED, {}, now_ms=0)).source == "local"
    assert one(of_local("0_0", Local(), UNLOGGED, {}, now_ms=0)).source == "empty"
    assert one(of_changelogs("0_0", UNLOGGED, {}, now_ms=0)).source == "empty"


def test_a_snapshot_leaves_the_rest_of_the_changelog(tmp_path: Path) -> None:
    snapshot, _ = checkpoint(tmp_path, ["a", "b", "c"])
    found = of_snapshot("0_0", snapshot, snapshot.stores, {"kv": LOG}, now_ms=0)
    assert (found.snapshot, one(found).source, one(found).records) == ("0_0/1-3", "snapshot", 97)


def test_a_damaged_directory_is_read_again_from_the_whole_log() -> None:
    found = one(of_changelogs("0_0", KV, {"kv": LOG}, now_ms=0, damaged=True))
    assert (found.source, found.reason, found.records) == ("changelog", "corrupt", 100)
