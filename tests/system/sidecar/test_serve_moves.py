"""Tasks move between server and worker: a warm standby takes over at once, a far restore runs in the worker."""

from __future__ import annotations

import time

import pytest

import standfast as sf
from support.serve import Sidecar, Sidecars, wait_for

pytestmark = pytest.mark.slow
STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
ROWS = 120_000  # takes long enough to be seen on its way


def filled(sidecar: Sidecar, rows: int) -> None:
    """Partition 0 of an application with so many rows, committed."""
    with sf.connect(sidecar.run_dir, stores=STORES, partitions=1) as client:
        client.assign(active=[0])
        client.wait_ready(30)
        task = client.task(0)
        for first in range(0, rows, 2_000):
            some = range(first, min(first + 2_000, rows))
            task.store("kv").put_all([(f"k{number:06d}", "v" * 50) for number in some], timestamp=1_000)
            task.commit({("in", 0): some.stop})


def role_of(sidecar: Sidecar, partition: int) -> set[tuple[str, str]]:
    return {(one["role"], one["member"]) for one in sidecar.call("GET", f"/v1/locate?partition={partition}")["tasks"]}


@pytest.mark.long
def test_cold_restore_of_many_records_happens_in_the_worker(sidecars: Sidecars) -> None:
    first = sidecars.start("a")
    filled(first, ROWS)
    first.stop()
    second = sidecars.start("b")
    with sf.connect(second.run_dir, stores=STORES, partitions=1) as client:
        client.assign(active=[0])
        seen = set()
        while not client.ready:
            seen |= {member for role, member in role_of(second, 0) if role == "active"}
        client.wait_ready(60)
        assert f"{second.info['instance']}-tail0" in seen, "the worker had it as active on the way"
        task = client.task(0)
        assert task.source_offsets() == {("in", 0): ROWS}
        assert sum(1 for _ in task.store("kv").all()) == ROWS
        assert role_of(second, 0) == {("active", second.info["instance"])}


def test_warm_standby_of_another_instance_takes_over_after_a_kill(sidecars: Sidecars) -> None:
    """Killed owner, standby without lag, promotion over two processes, first read: the failover figure."""
    first, second = sidecars.start("a"), sidecars.start("b")
    filled(first, 5_000)
    with sf.connect(second.run_dir, stores=STORES, partitions=1) as client:
        client.assign(standby=[0])
        wait_for(lambda: lag_of(second) == 0, told=second.told)
        first.kill()
        began = time.perf_counter()
        client.assign(active=[0])
        client.wait_ready(30)
        assert client.task(0).store("kv").get("k004999") == "v" * 50
        took_ms = (time.perf_counter() - began) * 1_000
        assert client.task(0).source_offsets() == {("in", 0): 5_000}
        print(f"promoted and read after {took_ms:.0f} ms")
        assert took_ms < 5_000


def lag_of(sidecar: Sidecar) -> int | None:
    """Lag of the standby of partition 0; None while it is unknown."""
    rows = [one for one in sidecar.call("GET", "/v1/lags")["lags"] if one["role"] == "standby"]
    return sum(one["lag"] for one in rows) if rows else None


@pytest.mark.long
def test_restore_goes_on_after_the_worker_was_killed_in_it(sidecars: Sidecars) -> None:
    import os
    import signal

    first = sidecars.start("a")
    filled(first, ROWS)
    first.stop()
    second = sidecars.start("b")
    with sf.connect(second.run_dir, stores=STORES, partitions=1) as client:
        wait_for(second.worker_pids)
        client.assign(active=[0])
        (worker,) = second.worker_pids()
        wait_for(lambda: any(member.endswith("tail0") for role, member in role_of(second, 0) if role == "active"))
        os.kill(worker, signal.SIGKILL)
        client.wait_ready(60)
        assert sum(1 for _ in client.task(0).store("kv").all()) == ROWS


def test_standbys_are_shared_out_among_workers_by_their_number(sidecars: Sidecars) -> None:
    sidecar = sidecars.start(serve__workers=2)
    sidecar.declare(partitions=4)
    sidecar.assign(1, active=(0,), standby=(1, 2, 3))
    sidecar.wait_ready()
    instance = sidecar.info["instance"]

    def looked() -> bool:
        return {partition: role_of(sidecar, partition) for partition in range(4)} == {
            0: {("active", instance)},
            1: {("standby", f"{instance}-tail1")},
            2: {("standby", f"{instance}-tail0")},
            3: {("standby", f"{instance}-tail1")},
        }

    wait_for(looked, told=sidecar.told)
    sidecar.assign(2, active=(0, 1, 2, 3))
    sidecar.wait_ready()
