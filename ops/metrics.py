"""The Prometheus face of a session: one collector over its statistics, in a registry of its own.

    scrape ──> SessionMetrics.exposition ──(at most once a second)──> session.statistics() ──> families of METRICS

Rules of this file: the only one that imports prometheus_client. Hot paths add to plain numbers; everything here
happens at scrape time. A session that cannot be read gives `standfast_ready 0` and a counted error, not a failed
scrape.
"""

from __future__ import annotations

import platform
import shutil
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from standfast._version import __version__
from standfast.ops.metrics_list import METRICS, Metric
from standfast.ops.metrics_values import Buckets, Labels, Sample, Value, session_samples
from standfast.store.errors import StandfastError
from standfast.store.log import logger
from standfast.stream.session import Session

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
CACHE_MS = 1_000


class SessionMetrics:
    """Text of all metrics of a session. Scrapes within a second of each other get the same text."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._text = b""
        self._at_ms: int | None = None
        self._errors = 0
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_SessionCollector(self._samples))

    def exposition(self) -> bytes:
        """The metrics in Prometheus' text format."""
        with self._lock:
            now_ms = self._session.clock.monotonic_ms()
            if self._at_ms is None or now_ms - self._at_ms >= CACHE_MS:
                self._text = generate_latest(self.registry)
                self._at_ms = now_ms
            return self._text

    def _samples(self) -> Iterator[Sample]:
        clock = self._session.clock
        started_ms = clock.monotonic_ms()
        yield "build_info", (__version__, platform.python_version(), version("rocksdict")), 1
        try:
            statistics = self._session.statistics()
        except StandfastError as error:
            self._errors += 1
            logger.warning("metrics: the session cannot be read: %s", error)
            yield "ready", (), 0
        else:
            yield from session_samples(statistics)
        try:
            disk = shutil.disk_usage(self._session.state_path)
        except OSError as error:
            self._errors += 1
            logger.warning("metrics: the state directory cannot be measured: %s", error)
        else:
            yield "state_dir_free_bytes", (), disk.free
            yield "state_dir_size_bytes", (), disk.total
        yield "collect_errors_total", (), self._errors
        yield "collect_duration_seconds", (), (clock.monotonic_ms() - started_ms) / 1_000


class _SessionCollector(Collector):
    """Groups samples into the families of METRICS; every family is there, with or without series."""

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
        bounds = [("+Inf" if bound == float("inf") else repr(bound), float(count)) for bound, count in value.cumulative]
        family.add_metric(labels, bounds, value.sum_seconds)
        return
    assert isinstance(family, (CounterMetricFamily, GaugeMetricFamily)), family.type
    assert not isinstance(value, Buckets), f"{family.name} is no histogram"
    family.add_metric(labels, value)
