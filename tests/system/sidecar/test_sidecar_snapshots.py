"""A sidecar with a storage of snapshots: made on a schedule, begun with after a loss, and never after a wipe."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.restore.snapshot.catalogue import listed, names
from standfast.restore.snapshot.names import file_key
from standfast.restore.snapshot.opening import open_storage
from support.serve import Sidecar, Sidecars, wait_for

pytestmark = pytest.mark.slow
STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
ROWS = 5_000  # more than the server restores itself


@pytest.fixture
def to(tmp_path: Path) -> str:
    return str(tmp_path / "snaps")


@pytest.fixture
def clients() -> Iterator[list[Any]]:
    """Clients that stay connected until the test's end: a session that is closed gives its tasks back."""
    opened: list[Any] = []
    yield opened
    for one in opened:
        one.close()


def started(sidecars: Sidecars, name: str, to: str, **settings: Any) -> Sidecar:
    return sidecars.start(name, snapshots__to=to, **settings)


def connected(sidecar: Sidecar, clients: list[Any]) -> Any:
    client = sf.connect(sidecar.run_dir, stores=STORES, partitions=1)
    clients.append(client)
    client.assign(active=[0])
    client.wait_ready(60)
    return client


def put(client: Any, first: int, count: int) -> None:
    task = client.task(0)
    task.store("kv").put_all([(f"k{number:06d}", f"v{number}") for number in range(first, first + count)], timestamp=1)
    task.commit({("in", 0): first + count})


def rows(client: Any) -> int:
    return sum(1 for _ in client.task(0).store("kv").all())


def snapshots(sidecar: Sidecar) -> dict[str, Any]:
    found: dict[str, Any] = sidecar.call("GET", "/v1/status")["counters"]["snapshots"]
    return found


def replayed(sidecar: Sidecar) -> dict[str, int]:
    restored = sidecar.call("GET", "/v1/status")["counters"]["restored"]
    return {one["reason"]: one["records"] for one in restored}


def made(sidecar: Sidecar, to: str, position: int) -> None:
    wait_for(lambda: any(name.position == position for name in names(open_storage(to, "app"))), 30, told=sidecar.told)


def kill_with_snapshot(sidecars: Sidecars, to: str, clients: list[Any]) -> None:
    """A sidecar "a" that ends by SIGKILL once the storage has a snapshot of all its rows."""
    sidecar = started(sidecars, "a", to, snapshots__every="1s")
    put(connected(sidecar, clients), 0, ROWS)
    made(sidecar, to, 2 * ROWS)
    sidecar.kill()


def test_a_killed_sidecar_whose_disk_is_lost_begins_with_its_last_snapshot_elsewhere(
    sidecars: Sidecars, to: str, clients: list[Any]
) -> None:
    first = started(sidecars, "a", to, snapshots__every="1s")
    client = connected(first, clients)
    put(client, 0, ROWS)
    made(first, to, 2 * ROWS)  # records of the changelog, and the source offset
    wait_for(lambda: snapshots(first)["stored"], told=first.told)
    shown = snapshots(first)
    assert (shown["storage"], shown["errors"]) == (f"{to}/app", [])
    assert shown["stored"][0]["position"] == 2 * ROWS
    first.kill()
    shutil.rmtree(first.state_dir)
    second = started(sidecars, "b", to)
    again = connected(second, clients)
    assert rows(again) == ROWS
    assert again.task(0).source_offsets() == {("in", 0): ROWS}
    assert snapshots(second)["restores"] == {"restored": 1, "none": 0, "failed": 0, "store": 0}
    assert snapshots(second)["downloaded_bytes"] > 0
    assert sum(replayed(second).values()) < 100, "the rows came from the log"


def test_a_wiped_task_is_restored_from_its_changelog_and_not_from_a_snapshot(
    sidecars: Sidecars, to: str, clients: list[Any]
) -> None:
    sidecar = started(sidecars, "a", to, snapshots__every="1s")
    client = connected(sidecar, clients)
    put(client, 0, ROWS)
    made(sidecar, to, 2 * ROWS)
    (task,) = sidecar.call("GET", "/v1/status")["tasks"]
    sidecar.call("POST", "/v1/wipe", {"partition": 0, "epoch": task["epoch"]})
    sidecar.wait_ready(60_000)
    # The wipe closed the task to this client, as it does to any.
    assert rows(connected(sidecar, clients)) == ROWS
    assert snapshots(sidecar)["restores"]["restored"] == 0
    assert replayed(sidecar)["no-local-state"] >= ROWS


def test_a_damaged_snapshot_is_passed_over_and_the_task_comes_from_the_log(
    sidecars: Sidecars, to: str, clients: list[Any]
) -> None:
    kill_with_snapshot(sidecars, to, clients)
    for kept in listed(open_storage(to, "app")).whole:
        for sha in kept.snapshot.contents:
            file = Path(to) / "app" / file_key(sha)
            file.write_bytes(b"x" * file.stat().st_size)
    second = started(sidecars, "b", to)
    assert rows(connected(second, clients)) == ROWS
    assert snapshots(second)["restores"]["none"] == 1
    assert "is passed over" in second.told()


def test_a_worker_that_is_killed_in_the_download_is_followed_by_one_that_finishes_it(
    sidecars: Sidecars, to: str, clients: list[Any]
) -> None:
    kill_with_snapshot(sidecars, to, clients)
    second = started(sidecars, "b", to)
    client = sf.connect(second.run_dir, stores=STORES, partitions=1)
    clients.append(client)
    client.assign(active=[0])
    (worker,) = second.worker_pids()
    wait_for(lambda: any((second.state_dir / "app/.copying").glob("0_0.*")), told=second.told)
    os.kill(worker, signal.SIGKILL)
    client.wait_ready(60)
    assert rows(client) == ROWS
    assert second.worker_pids() != [worker]
    assert sum(replayed(second).values()) < 100, "the rows came from the log"


def test_the_page_of_a_sidecar_lists_snapshots_and_no_credentials(
    sidecars: Sidecars, to: str, clients: list[Any]
) -> None:
    sidecar = sidecars.make("a", snapshots__to=to, snapshots__every="1s")
    sidecar.start(environment={"AWS_SECRET_ACCESS_KEY": "hidden-secret"})
    put(connected(sidecar, clients), 0, 10)
    made(sidecar, to, 20)
    wait_for(lambda: snapshots(sidecar)["stored"], told=sidecar.told)
    assert sidecar.http is not None
    page = sidecar.call("GET", "/page.json")
    shown = page["tables"]["snapshots"]["rows"][snapshots(sidecar)["stored"][0]["snapshot"]]
    assert f"{to}/app" in shown
    assert "hidden-secret" not in json.dumps(page) + sidecar.told()
