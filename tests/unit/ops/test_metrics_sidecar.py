"""Metrics of a sidecar: server and workers as one, its servers, and promtool's checks of a live scrape."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import standfast as sf
from standfast.ops.observe.metrics import SidecarMetrics, SidecarReading
from standfast.ops.observe.metrics_list import METRICS
from standfast.ops.observe.metrics_servers import HttpNumbers, LoopLag, VerifyNumbers, counted
from standfast.ops.observe.metrics_values import session_samples
from standfast.ops.observe.status import status_document
from standfast.ops.observe.status_merge import WorkerNumbers, added, statistics_of
from standfast.store.histogram import Histogram
from standfast.stream.snapshot_counts import SnapshotCounts, StoredSnapshot
from standfast.stream.task.statistics import SessionStatistics

if TYPE_CHECKING:
    from support.promtool import Promtool
    from support.sessions import Bench


@dataclass
class Door:
    """Numbers of a RESP server at one moment."""

    sessions: int = 3
    bound: int = 2
    committing: int = 1
    refused_connections: int = 4
    bytes_in: int = 100
    bytes_out: int = 200
    batches: Histogram = field(default_factory=lambda: Histogram((1, 2, 4)))
    cut_off: Mapping[str, int] = field(default_factory=lambda: {"slow reader": 1})
    calls: Mapping[str, int] = field(default_factory=lambda: {"GET": 10, "SF.COMMIT": 2})
    refusals: Mapping[tuple[str, str], int] = field(default_factory=lambda: {("GET", "RESTORING"): 3})
    call_seconds: Mapping[str, Histogram] = field(default_factory=lambda: {"GET": Histogram((0.001, 1.0))})


def document(session: sf.Session) -> dict[str, Any]:
    """A worker's document, as it is sent over its pipe."""
    found: dict[str, Any] = json.loads(json.dumps(status_document(session.statistics())))
    return found


def busy(bench: Bench, directory: str, partition: int) -> sf.Session:
    session = bench.active(directory, partitions=(partition,))
    session.task(partition).store("kv").put("key", "value")
    session.task(partition).commit({("in", partition): 1})
    return session


def samples(statistics: SessionStatistics) -> dict[tuple[str, tuple[str, ...]], Any]:
    return {(name, labels): value for name, labels, value in session_samples(statistics)}


def test_document_of_a_worker_reads_back_as_the_same_numbers(bench: Bench) -> None:
    session = busy(bench, "a", 0)
    statistics = session.statistics()
    again = statistics_of(json.loads(json.dumps(status_document(statistics))))
    assert samples(again) == samples(statistics)
    newer = {**document(session), "more": 1, "bulk": {"runs": 2, "more": 1}}
    assert statistics_of(newer).bulk.runs == 2


def test_server_and_workers_are_one(bench: Bench) -> None:
    server, first = busy(bench, "a", 0), busy(bench, "b", 1)
    numbers = WorkerNumbers()
    numbers.take("1", document(first))
    found = numbers.merged(server.statistics())
    assert [task.partition for task in found.tasks] == [0, 1]
    assert found.counters.commits["committed"] == 2
    assert samples(found)["changelog_records_total", ("kv", "1")] == 1


def test_task_that_changes_hands_is_told_once_and_is_the_servers(bench: Bench) -> None:
    server = busy(bench, "a", 0)
    twin = document(server)
    twin["tasks"][0]["state"] = "restoring"
    numbers = WorkerNumbers()
    numbers.take("1", twin)
    (task,) = numbers.merged(server.statistics()).tasks
    assert task.state == "running"


def test_counters_of_a_worker_that_ended_stay_in_the_sum(bench: Bench) -> None:
    server, worker = busy(bench, "a", 0), busy(bench, "b", 1)
    numbers = WorkerNumbers()
    own = server.statistics()
    numbers.take("1", document(worker))
    before = numbers.merged(own).counters
    numbers.gone("1")
    numbers.gone("1")
    after = numbers.merged(own)
    assert after.counters.commits == before.commits and after.counters.commit_seconds.counts == (
        before.commit_seconds.counts
    )
    assert [task.partition for task in after.tasks] == [0]
    numbers.take("2", document(worker))
    assert numbers.merged(own).counters.commits["committed"] == 3


def test_what_is_no_status_leaves_the_one_before(bench: Bench) -> None:
    server, worker = busy(bench, "a", 0), busy(bench, "b", 1)
    numbers = WorkerNumbers()
    numbers.take("1", document(worker))
    for bad in ({}, {"app": 1}, {**document(worker), "tasks": [1]}, {**document(worker), "counters": None}):
        with pytest.raises(ValueError, match="not a status"):
            numbers.take("1", bad)
    assert len(numbers.merged(server.statistics()).tasks) == 2


def test_sums_leave_their_parts_alone(bench: Bench) -> None:
    counters = busy(bench, "a", 0).statistics().counters
    total = added([counters, counters])
    assert total.commits["committed"] == 2 and counters.commits["committed"] == 1
    assert sum(total.commit_seconds.counts) == 2 * sum(counters.commit_seconds.counts)
    assert total.gate_last_wait_ms == counters.gate_last_wait_ms


def test_snapshots_of_a_worker_are_read_back_and_added(bench: Bench) -> None:
    server, worker = busy(bench, "a", 0), busy(bench, "b", 1)
    worker.counters.snapshots.made.update({"made": 2, "failed": 0})
    worker.counters.snapshots.restores["restored"] = 1
    worker.counters.snapshots.uploaded_bytes = 5
    worker.counters.snapshots.at_ms["0_1"] = 7
    worker.counters.snapshots.paused(300)
    server.counters.snapshots.made["made"] = 1
    server.counters.snapshots.at_ms["0_1"] = 6
    server.counters.snapshots.paused(100)
    numbers = WorkerNumbers()
    numbers.take("1", document(worker))
    found = numbers.merged(server.statistics()).counters.snapshots
    assert (found.pauses.total, sum(found.pauses.counts), sorted(found.pauses_ms)) == (0.4, 2, [100, 300])
    expected = SnapshotCounts(Counter(made=3, failed=0), Counter(restored=1), 5, {"0_1": 7})
    assert replace(found, pauses=expected.pauses, pauses_ms=[]) == expected


def test_listings_and_downloads_of_a_worker_are_read_back(bench: Bench) -> None:
    server, worker = busy(bench, "a", 0), busy(bench, "b", 1)
    kept = worker.counters.snapshots
    kept.storage, kept.listed_ms, kept.downloaded_bytes = "/backup/app", 9, 11
    kept.stored = (StoredSnapshot("0_1/1-2", "0_1", 1, 2, 300, 4, 8),)
    kept.errors["0_1"] = ("the storage does not answer", 7)
    worker._downloads.add("0_1", "0_1/1-2", 300, 100, worker.clock.monotonic_ms())
    numbers = WorkerNumbers()
    numbers.take("1", document(worker))
    merged = numbers.merged(server.statistics())
    found = merged.counters.snapshots
    assert (found.storage, found.stored, found.errors) == (kept.storage, kept.stored, kept.errors)
    assert (found.listed_ms, found.downloaded_bytes) == (9, 11)
    assert [(one.task, one.done_bytes, one.bytes) for one in merged.downloads] == [("0_1", 100, 300)]


def reading(bench: Bench, server: sf.Session, *, ready: bool = True) -> SidecarReading:
    http, lag = HttpNumbers(), LoopLag()
    http.answered("GET /v1/status", 200, 0.01)
    lag.seconds.observe(0.002)
    verify = VerifyNumbers()
    verify.count([verdict("kv", "equal"), verdict("win", "different", missing=2, extra=1)], 5_000)
    return SidecarReading(server.statistics(), ready, Door(), http, lag, verify)


def verdict(store: str, word: str, **found: int) -> dict[str, Any]:
    """A verdict of a verification, as the control API returns it."""
    none = dict.fromkeys(("missing", "extra", "different", "stale"), 0)
    return {"store": store, "verdict": word, "records": 10, **none, **found}


def test_verifications_are_counted_by_store(bench: Bench) -> None:
    families = scrape(whole_sidecar(bench))

    def by_store(name: str) -> dict[str, float]:
        return {one.labels["store"]: one.value for one in families[f"standfast_verify_{name}"]}

    assert by_store("records_total") == {"kv": 10, "ses": 0, "ver": 0, "win": 10}
    assert by_store("mismatches_total") == {"kv": 0, "ses": 0, "ver": 0, "win": 3}
    assert by_store("last_success_timestamp_seconds") == {"kv": 5}


def scrape(metrics: SidecarMetrics) -> dict[str, list[Any]]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {f"{one.name}_total" if one.type == "counter" else one.name: list(one.samples) for one in families}


def whole_sidecar(bench: Bench) -> SidecarMetrics:
    """A sidecar whose tasks are active and standby, with every kind of store, and some work done."""
    first = bench.active("a", partitions=(0,))
    first.assign(active=[0], standby=[1])
    other = busy(bench, "b", 1)
    bench.settle(first, other)
    found = reading(bench, first)
    return SidecarMetrics(lambda: found, bench.clock, first.state_path)


def test_scrape_holds_every_listed_metric_and_no_other(bench: Bench) -> None:
    assert set(scrape(whole_sidecar(bench))) == {metric.name for metric in METRICS}


def test_servers_are_counted_by_method_and_code(bench: Bench) -> None:
    found = {
        (sample.labels["door"], sample.labels["method"], sample.labels["code"]): sample.value
        for sample in scrape(whole_sidecar(bench))["standfast_rpc_requests_total"]
    }
    assert found == {
        ("resp", "GET", "OK"): 7,
        ("resp", "GET", "RESTORING"): 3,
        ("resp", "SF.COMMIT", "OK"): 2,
        ("http", "GET /v1/status", "200"): 1,
    }


def test_readiness_is_what_health_says(bench: Bench) -> None:
    server = busy(bench, "a", 0)
    found = reading(bench, server, ready=False)
    (sample,) = scrape(SidecarMetrics(lambda: found, bench.clock, server.state_path))["standfast_ready"]
    assert sample.value == 0


def test_requests_are_counted_by_methods_of_a_fixed_list() -> None:
    numbers = HttpNumbers()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        kind = b"text/event-stream" if scope["path"] == "/v1/events" else b"text/plain"
        await send({"type": "http.response.start", "status": 204, "headers": [(b"content-type", kind)]})
        assert numbers.inflight == 1 and numbers.streams == (kind == b"text/event-stream")
        await send({"type": "http.response.body", "body": b"abc"})
        if scope["path"] == "/v1/wipe":
            raise ValueError("a bug")

    async def send(message: Any) -> None:
        """Drops the reply."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def ask() -> None:
        layer = counted(app, numbers)
        for verb, path in (
            *(("GET", "/v1/stores/a/get"), ("GET", "/v1/stores/b/get"), ("GET", "/v1/events"), ("GET", "/")),
            *((f"ODD{number}", f"/x{number}") for number in range(50)),
        ):
            await layer({"type": "http", "method": verb, "path": path}, receive, send)
        with pytest.raises(ValueError, match="a bug"):
            await layer({"type": "http", "method": "POST", "path": "/v1/wipe"}, receive, send)

    asyncio.run(ask())
    assert numbers.requests == Counter(
        {
            ("GET /v1/stores", "204"): 2,
            ("GET /v1/events", "204"): 1,
            ("GET /", "204"): 1,
            ("other", "204"): 50,
            ("POST /v1/wipe", "204"): 1,
        }
    )
    assert (numbers.inflight, numbers.streams, numbers.bytes_out) == (0, 0, 3 * 55)


@pytest.mark.slow
def test_lag_of_the_loop_is_measured() -> None:
    lag = LoopLag()

    async def watch() -> None:
        task = asyncio.create_task(lag.watch())
        await asyncio.sleep(0.6)
        task.cancel()

    asyncio.run(watch())
    assert sum(lag.seconds.counts) == 2


@pytest.mark.slow
def test_promtool_finds_no_fault_in_a_live_scrape(bench: Bench, promtool: Promtool) -> None:
    promtool("check", "metrics", text=whole_sidecar(bench).exposition())
