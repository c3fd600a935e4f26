"""Coordinated checkpoints of killed processes in a bucket of a real server, restored under another name."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
from system.crash.test_crash_checkpoints import restore_and_go_on

from support.buckets import CREDENTIALS, buckets
from support.crash.checkpoint_cluster import CheckpointCluster
from support.fetched import Tool

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_a_killed_application_restored_from_a_checkpoint_in_a_bucket_counts_each_record_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    s3_server: Tool,
    monkeypatch: pytest.MonkeyPatch,
    guarantee: Literal["exactly_once", "at_least_once"],
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with (
        buckets(s3_server, tmp_path / "served") as server,
        closing(
            CheckpointCluster(tmp_path, address, "shop", server.address("state"), every_ms=1_000, guarantee=guarantee)
        ) as cluster,
    ):
        restore_and_go_on(cluster, capsys)
        for one in cluster.complete():
            found = cluster.sums(one)
            assert found.offsets == found.seen == found.totals
        assert not (tmp_path / "snaps").exists()
