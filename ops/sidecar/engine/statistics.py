"""Counters of the RESP server: plain slots that are added to per command, and an immutable copy for metrics and page.

Rules of this file: nothing per key, store or client; no metrics library. Durations in seconds, sampled: the first
command of one batch in SAMPLE_EVERY.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from standfast.ops.sidecar.engine.task import Commit
from standfast.store.histogram import Histogram
from standfast.stream.task.statistics import COMMIT_BUCKETS_S

SAMPLE_EVERY = 64
CALL_BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1, 1.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class RespStatistics:
    """The RESP server at one moment. `calls` by method; `refusals` by method and name of the error code.

    `batches` counts commands per read of a socket (its buckets are numbers of commands, not seconds).
    """

    sessions: int
    bound: int
    committing: int
    refused_connections: int
    cut_off: Mapping[str, int]
    bytes_in: int
    bytes_out: int
    calls: Mapping[str, int]
    refusals: Mapping[tuple[str, str], int]
    call_seconds: Mapping[str, Histogram]
    batches: Histogram
    commits: int
    commits_failed: int
    commit_seconds: Histogram


@dataclass(slots=True)
class MethodCounters:
    """Calls of one method and their sampled durations."""

    calls: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(CALL_BUCKETS_S))


@dataclass(slots=True)
class ServerCounters:
    """Counters that only grow, added to in the engine's thread."""

    # Plain slots: a count costs 36 ns, with the Prometheus client's counters 255 ns and more.
    methods: dict[str, MethodCounters] = field(default_factory=dict)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    batches: Histogram = field(default_factory=lambda: Histogram(BATCH_BUCKETS))
    commits: int = 0
    commits_failed: int = 0
    commit_seconds: Histogram = field(default_factory=lambda: Histogram(COMMIT_BUCKETS_S))
    refused_connections: int = 0
    cut_off: Counter[str] = field(default_factory=Counter)  # by cause: slow reader, half a command, too large, ...
    bytes_in: int = 0
    bytes_out: int = 0

    def method(self, name: str) -> MethodCounters:
        """The counters of a method, made once."""
        return self.methods.setdefault(name, MethodCounters())

    def observe_commit(self, commit: Commit) -> None:
        """Count a commit that ended."""
        if commit.error is None:
            self.commits += 1
        else:
            self.commits_failed += 1
        self.commit_seconds.observe(commit.seconds)

    def snapshot(self, *, sessions: int, bound: int, committing: int) -> RespStatistics:
        """An immutable copy of the counters."""
        return RespStatistics(
            sessions=sessions,
            bound=bound,
            committing=committing,
            refused_connections=self.refused_connections,
            cut_off=dict(self.cut_off),
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            calls={name: method.calls for name, method in self.methods.items()},
            refusals=dict(self.refusals),
            call_seconds={name: method.seconds.copy() for name, method in self.methods.items()},
            batches=self.batches.copy(),
            commits=self.commits,
            commits_failed=self.commits_failed,
            commit_seconds=self.commit_seconds.copy(),
        )
