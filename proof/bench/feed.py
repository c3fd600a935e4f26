"""What failovers and moves have in common: a feeder beside the application, and figures in milliseconds.

    with fed(step, sources): ...      a record to each source every 20 ms, from a thread with a log of its own

Rules of this file: nothing of the application.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from statistics import median, quantiles
from typing import Any, TypeAlias

from bench.step import Step
from standfast.ops.bench.step import address_of, key_of
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log

Json: TypeAlias = dict[str, Any]
FEED_MS = 20


@contextmanager
def fed(step: Step, sources: Sequence[TopicPartition], keys: int) -> Iterator[None]:
    """Feed the sources for the time of the block, with so many keys in turn."""
    stop = threading.Event()
    feeder = threading.Thread(target=_feed, args=(step, sources, keys, stop), daemon=True)
    feeder.start()
    try:
        yield
    finally:
        stop.set()
        feeder.join()


def measures_ms(found: Mapping[str, Sequence[float]], parts: Mapping[str, str], begin: str = "") -> list[Json]:
    """Figures as those of other benches, with the 90th percentile; `parts` says of what, `begin` begins their names."""
    return [
        {
            "name": begin + name,
            "what": parts[name],
            "unit": "" if name == "moves" else "ms",
            "records": len(figures),
            "median": median(figures),
            "min": min(figures),
            "max": max(figures),
            # `quantiles` needs two figures.
            "p90": quantiles(figures, n=10, method="inclusive")[-1] if len(figures) > 1 else figures[0],
            "runs": [{"elapsed_ms": figure} for figure in figures],
        }
        for name, figures in found.items()
    ]


def _feed(step: Step, sources: Sequence[TopicPartition], keys: int, stop: threading.Event) -> None:
    with closing(open_log(address_of(step))) as log:
        producer, number = log.producer(), 0
        while not stop.wait(FEED_MS / 1_000):
            record = Outgoing(key_of(number % keys, step.key_bytes), b"x" * step.value_bytes, 1 + number)
            producer.append({source: [record] for source in sources})
            number += 1
