"""Forecasts of restores: pure decisions, and the rates that a machine has measured."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from standfast.replication.offsets import Bounds, TopicPartition
from standfast.restore.forecast.forecast import (
    Local,
    Missing,
    StoreForecast,
    TaskForecast,
    of_changelogs,
    of_local,
    of_snapshot,
    ranges_of,
    seconds,
    with_bytes,
)
from standfast.restore.forecast.rates import DEFAULTS, DOWNLOAD, RATES_FILE, REPLAY, Rate, note_rate, read_rates
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
    assert (found.source, found.reason, found.position, found.end, found.records) == ("local", "resume", 40, 100, 60)


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
    assert (found.snapshot, found.download_bytes, found.download_files) == (
        "0_0/1-3",
        snapshot.bytes,
        len(snapshot.files),
    )
    assert (one(found).source, one(found).position, one(found).records) == ("snapshot", 3, 97)


def test_a_damaged_directory_is_read_again_from_the_whole_log() -> None:
    found = one(of_changelogs("0_0", KV, {"kv": LOG}, now_ms=0, damaged=True))
    assert (found.source, found.reason, found.records) == ("changelog", "corrupt", 100)


def test_bytes_and_seconds_follow_from_samples_and_rates() -> None:
    found = with_bytes(of_local("0_2", local(40), KV, {"kv": LOG}, now_ms=0), {"kv": 2.5})
    assert (found.records, found.bytes) == (60, 150)
    assert ranges_of([found], "kv") == {2: Bounds(40, 100)}
    assert seconds(60, 300, replay_per_s=30.0, download_per_s=100.0) == 5.0


def test_rates_are_kept_apart_and_read_back(tmp_path: Path) -> None:
    assert read_rates(tmp_path) == {what: Rate(default) for what, default in DEFAULTS.items()}
    note_rate(tmp_path, REPLAY, 50_000, 500, 7)
    note_rate(tmp_path, DOWNLOAD, 8 << 20, 1_000, 9)
    assert read_rates(tmp_path) == {REPLAY: Rate(100_000.0, 7), DOWNLOAD: Rate(float(8 << 20), 9)}
    assert read_rates(None)[REPLAY].measured_ms is None


def test_a_short_restore_shows_no_rate(tmp_path: Path) -> None:
    note_rate(tmp_path, REPLAY, 9_999, 500, 7)
    note_rate(tmp_path, REPLAY, 50_000, 0, 7)
    assert not (tmp_path / RATES_FILE).exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        json.dumps({"format": "standfast.rates/2", "replay": {"per_s": 1.0, "measured_ms": 1}}),
        json.dumps({"format": "standfast.rates/1", "replay": {"per_s": 0, "measured_ms": 1}}),
        json.dumps({"format": "standfast.rates/1", "replay": {"per_s": True, "measured_ms": 1}}),
        json.dumps({"format": "standfast.rates/1", "replay": {"per_s": 5.0, "measured_ms": None}}),
        json.dumps({"format": "standfast.rates/1", "replay": 5}),
    ],
)
def test_a_file_of_rates_that_is_of_no_use_gives_the_defaults(tmp_path: Path, text: str) -> None:
    (tmp_path / RATES_FILE).write_text(text)
    assert read_rates(tmp_path) == {what: Rate(default) for what, default in DEFAULTS.items()}


def test_a_rate_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "standfast"):
        note_rate(tmp_path / "absent", REPLAY, 50_000, 500, 7)
    assert "the rate of this restore is not kept" in caplog.text
