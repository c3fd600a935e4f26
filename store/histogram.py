"""Histograms as plain numbers, which hot paths add to and the metrics collector reads.

Rules of this file: no metrics library, no clock. Adding costs a search among a few bounds and two additions; two
threads that add at once may lose one count, which is worth no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

SECONDS_PER_NS = 1e-9
READ_BUCKETS_S = (0.000_005, 0.000_02, 0.000_1, 0.000_5, 0.002, 0.01, 0.1, 1.0)


class Histogram:
    """Counts per bucket; `bounds` are upper bounds in seconds, and a last bucket takes the rest."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def add(self, other: Histogram) -> None:
        """Add the counts of another histogram with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def copy(self) -> Histogram:
        """A copy of the present counts."""
        copied = Histogram(self.bounds)
        copied.counts = list(self.counts)
        copied.total = self.total
        return copied


class Histograms(dict[tuple[str, ...], Histogram]):
    """Histograms with the same bounds by their labels; reading an absent one makes it."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__()
        self.bounds = bounds

    def __missing__(self, labels: tuple[str, ...]) -> Histogram:
        return self.setdefault(labels, Histogram(self.bounds))

    def add(self, others: Mapping[tuple[str, ...], Histogram]) -> None:
        """Add the counts of other histograms with the same bounds."""
        # A copy, since the thread that `others` belongs to may add labels meanwhile.
        for labels, other in dict(others).items():
            self[labels].add(other)

    def copy(self) -> Histograms:
        """A copy of the present counts; another thread may add labels meanwhile."""
        copied = Histograms(self.bounds)
        copied.add(self)
        return copied
