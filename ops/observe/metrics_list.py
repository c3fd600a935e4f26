"""The list of metrics: name, kind, labels, meaning. The README's table is checked against it.

    ops/observe/data/metrics.md, a table ──> METRICS, in its order

Rules of this file: data only; it knows no metrics library and no session. Names follow Prometheus: base units
(seconds, bytes), counters end in `_total`, points in time are timestamps, not ages, but for the clocks of a task, of
which operators ask how far they are behind. No label holds a key, host, offset or error text. Counters of a store carry
its partition, because a sum over partitions would fall when a task is revoked.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

PREFIX = "standfast_"
TABLE = (files("standfast.ops.observe") / "data/metrics.md").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `name` as scraped, for a histogram without `_bucket`, `_sum`, `_count`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    @property
    def short(self) -> str:
        """The name without the prefix."""
        return self.name.removeprefix(PREFIX)


def _metric(row: str) -> Metric:
    name, kind, labels, meaning = row.removeprefix("| ").removesuffix(" |").split(" | ")
    return Metric(name.strip("`"), kind, () if labels == "-" else tuple(labels.split(", ")), meaning)


METRICS = tuple(_metric(row) for row in TABLE.splitlines() if row.startswith("| `"))
