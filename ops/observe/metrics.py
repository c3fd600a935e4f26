"""Prometheus metrics of a session or a sidecar: one collector over its statistics, in a registry of its own.

    scrape ──> Metrics.exposition ──(at most once a second)──> statistics ──> samples ──> families of METRICS

Rules of this file: the only one that imports prometheus_client. Hot paths add to plain numbers; this file works at
scrape time. A session that cannot be read gives `standfast_ready 0` and a counted error, not a failed scrape.
"""

from __future__ import annotations

import platform
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from standfast.ops.observe.metrics_list import METRICS, Metric
from standfast.ops.observe.metrics_servers import (
    HttpNumbers,
    LoopLag,
    RespNumbers,
    VerifyNumbers,
    http_server_samples,
    resp_server_samples,
)
from standfast.ops.observe.metrics_values import Buckets, Labels, Sample, Value, buckets, session_samples
from standfast.store.base.version import __version__
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError
from standfast.store.log import as_event, logger
from standfast.stream.session.session import Session
from standfast.stream.task.statistics import SessionStatistics

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
CACHE_MS = 1_000  # a reading takes the session's lock, however many scrapers there are
PROTOCOL = "1"  # version of /v1 and of the SF commands


class Metrics:
    """Text of all metrics. Scrapes within a second of each other get the same text.

    `read` yields the samples; a StandfastError of it is counted, and `ready` is 0 then.
    """

    def __init__(self, read: Callable[[], Iterator[Sample]], clock: Clock, state_path: Path) -> None:
        self._read = read
        self._clock = clock
        self._state_path = state_path
        self._lock = threading.Lock()
        self._text = b""
        self._at_ms: int | None = None
        self._errors = 0
        # The global registry would mix the sessions of one process, and the program's own metrics.
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Samples(self._samples))

    def exposition(self) -> bytes:
        """The metrics in Prometheus' text format."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if self._at_ms is None or now_ms - self._at_ms >= CACHE_MS:
                self._text = generate_latest(self.registry)
                self._at_ms = now_ms
            return self._text

    def _samples(self) -> Iterator[Sample]:
        started_ms = self._clock.monotonic_ms()
        yield "build_info", _versions(), 1  # before the reading, which may fail: the version is known all the same
        try:
            found = list(self._read())  # whole or not at all: half of the series would look like a revocation
        except StandfastError as error:
            self._errors += 1
            logger.warning("metrics: the session cannot be read: %s", error, extra=as_event("metrics_unreadable"))
            yield "ready", (), 0
        else:
            yield from found
        try:
            disk = shutil.disk_usage(self._state_path)
        except OSError as error:
            self._errors += 1
            logger.warning(
                "metrics: the state directory cannot be measured: %s", error, extra=as_event("disk_unmeasured")
            )
        else:
            yield "state_dir_free_bytes", (), disk.free
            yield "state_dir_size_bytes", (), disk.total
        # Prometheus expects these two of a collector that works at scrape time.
        yield "collect_errors_total", (), self._errors
        yield "collect_duration_seconds", (), (self._clock.monotonic_ms() - started_ms) / 1_000


class SessionMetrics(Metrics):
    """The metrics of one session."""

    def __init__(self, session: Session) -> None:
        super().__init__(lambda: session_samples(session.statistics()), session.clock, session.state_path)


@dataclass(frozen=True, slots=True)
class SidecarReading:
    """The input of a sidecar's scrape: `statistics` of server and workers together (`WorkerNumbers.merged`)."""

    statistics: SessionStatistics
    ready: bool
    resp_server: RespNumbers | None = None
    http_server: HttpNumbers | None = None
    loop_lag: LoopLag | None = None
    verify: VerifyNumbers | None = None


class SidecarMetrics(Metrics):
    """The metrics of a sidecar: its server exports for all of its processes. Made once, since it counts errors."""

    def __init__(self, read: Callable[[], SidecarReading], clock: Clock, state_path: Path) -> None:
        super().__init__(lambda: sidecar_samples(read()), clock, state_path)


# Workers send their numbers, because prometheus_client's mode for several processes forbids custom collectors.
def sidecar_samples(reading: SidecarReading) -> Iterator[Sample]:
    """(short name, label values, value) of all of a sidecar's metrics."""
    yield from session_samples(replace(reading.statistics, ready=reading.ready))
    if reading.resp_server is not None:
        yield from resp_server_samples(reading.resp_server)
    if reading.http_server is not None:
        yield from http_server_samples(reading.http_server)
    if reading.loop_lag is not None:
        yield "loop_lag_seconds", (), buckets(reading.loop_lag.seconds)
    if reading.verify is not None:
        yield from reading.verify.samples({one.store for task in reading.statistics.tasks for one in task.stores})


def _versions() -> Labels:
    return (__version__, PROTOCOL, platform.python_version(), version("rocksdict"), version("confluent-kafka"))


class _Samples(Collector):
    """Groups samples into the families of METRICS; every family is exported, with or without series."""

    def __init__(self, samples: Callable[[], Iterator[Sample]]) -> None:
        self._samples = samples

    def describe(self) -> list[Family]:
        # Registering must not read the session.
        return []

    def collect(self) -> Iterator[Family]:
        families = {metric.short: _family(metric) for metric in METRICS}
        for short, labels, value in self._samples():
            _add(families[short], labels, value)
        yield from families.values()


def _family(metric: Metric) -> Family:
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    if metric.kind == "histogram":
        return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add(family: Family, labels: Labels, value: Value) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Buckets), f"{family.name} is a histogram"
        ends = ("+Inf" if bound == float("inf") else repr(float(bound)) for bound, _ in value.cumulative)
        bounds = [(end, float(count)) for end, (_, count) in zip(ends, value.cumulative, strict=True)]
        family.add_metric(labels, bounds, value.sum_seconds)
        return
    assert isinstance(family, (CounterMetricFamily, GaugeMetricFamily)), family.type
    assert not isinstance(value, Buckets), f"{family.name} is no histogram"
    family.add_metric(labels, value)
