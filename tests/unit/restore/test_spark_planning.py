"""The plan of Spark's driver before a job, for many partitions: without Spark, in time that grows with their number.

Rules of this file: manifests and logs of a thousand partitions, written directly; processor time, since the machine may
be busy.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.replication.log import Log, Outgoing, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.restore.digest import Digest
from standfast.restore.files.manifest import FILE_NAME, Made, Manifest, ManifestFile, ManifestPartition, dump_manifest
from standfast.restore.spark.places import TaskPlace, manifest_places
from standfast.restore.spark.session import BATCH_BYTES, BATCH_ROWS, batch_rows
from standfast.restore.spark.verify import plan_verify, stored_stores
from standfast.restore.verify.preflight import preflight
from support.stores import keyvalue

PARTITIONS, FILES = 1_000, 16
PLAN_S = 5
SPEC = keyvalue()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = open_log(f"sqlite:///{tmp_path}/log")
    yield opened
    opened.close()


def snapshot(folder: Path, topic_id: str) -> None:
    """A folder with only a manifest of many files."""
    sha256 = hashlib.sha256().hexdigest()

    def part(number: int) -> ManifestPartition:
        files = tuple(
            ManifestFile(f"{number}-{at}.sst", SPEC.name, 1, 1, f"{at:04x}", f"{at:04x}", sha256, 0)
            for at in range(FILES)
        )
        return ManifestPartition(number, 0, 0, 0, files, -1, 0, FILES, 0, 0, 0, FILES, Digest().hex())

    manifest = Manifest(
        app="app",
        store=SPEC.name,
        definition=SPEC.definition(),
        topic=SPEC.changelog_of("app"),
        topic_id=topic_id,
        partition_count=PARTITIONS,
        partitions=tuple(part(number) for number in range(PARTITIONS)),
        made=Made("rebuild", 1, "0", "0", "lz4"),
    )
    folder.mkdir()
    (folder / FILE_NAME).write_text(dump_manifest(manifest))


def test_snapshot_of_a_thousand_partitions_is_planned_in_seconds(log: Log, tmp_path: Path) -> None:
    info = log.admin.create_topic(SPEC.changelog_of("app"), PARTITIONS, TopicPolicy(frozenset({"compact"})))
    snapshot(tmp_path / "snapshot", info.topic_id)
    began = time.process_time()
    stored = stored_stores(manifest_places(str(tmp_path / "snapshot")))
    plan = plan_verify(log, "app", SPEC.name, stored[SPEC.name])
    took = time.process_time() - began
    assert plan.what is not None and len(plan.what.ranges) == PARTITIONS
    assert took < PLAN_S, f"{took:.1f} s of processor time"


def test_partitions_that_the_log_cannot_speak_for_are_left_out_and_the_others_are_planned(
    log: Log, tmp_path: Path
) -> None:
    info = log.admin.create_topic(SPEC.changelog_of("app"), 2, TopicPolicy(frozenset({"compact"})))
    snapshot(tmp_path / "snapshot", info.topic_id)
    stored = stored_stores(manifest_places(str(tmp_path / "snapshot"))[:3])
    plan = plan_verify(log, "app", SPEC.name, stored[SPEC.name])
    assert plan.what is not None and sorted(plan.what.ranges) == [0, 1]
    assert [(one.task.partition, one.reason) for one in plan.unread] == [(2, "topic-missing")]


def test_batches_are_planned_by_the_largest_records_that_were_looked_at(log: Log, tmp_path: Path) -> None:
    info = log.admin.create_topic(SPEC.changelog_of("app"), 1, TopicPolicy(frozenset({"compact"})))
    source = TopicPartition(info.name, 0)
    small = [Outgoing(b"k%d" % number, b"v", 1) for number in range(600)]
    log.producer().append({source: small})
    snapshot(tmp_path / "snapshot", info.topic_id)

    def planned() -> int:
        stored = stored_stores(manifest_places(str(tmp_path / "snapshot"))[:1])
        plan = plan_verify(log, "app", SPEC.name, stored[SPEC.name])
        assert plan.what is not None
        assert plan.what.average_bytes == preflight(log, "app", SPEC).average_bytes
        return batch_rows(plan.what.average_bytes)

    assert planned() == BATCH_ROWS
    # Records that grew, long after the first one: a batch of 10,000 of them would take a gigabyte.
    log.producer().append({source: [Outgoing(b"k%d" % number, bytes(100_000), 1) for number in range(200)]})
    assert planned() * 100_000 <= BATCH_BYTES


def test_place_keeps_the_folder_that_a_relative_path_means_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = TaskPlace("app", TaskId(0, 1), "state/app/0_1")
    elsewhere = tmp_path / "executor"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert place.address == str(tmp_path / "state/app/0_1")
    assert TaskPlace("app", TaskId(0, 1), "s3://bucket/state").address == "s3://bucket/state"
