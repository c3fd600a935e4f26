"""Stream times of an application, by its commits, for findings about changelogs that go by the log's clock.

Rules of this file: it asks and changes nothing; `standfast.replication.topics.clocks` judges.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from standfast.replication.log import Committed, Log, TopicSurvey
from standfast.replication.metadata_parts import read_texts, source_offsets
from standfast.replication.offsets import TopicPartition
from standfast.replication.topics.clocks import clock_findings
from standfast.replication.topics.fixes import Fixes
from standfast.replication.topics.rules import Application, Finding
from standfast.store.errors import Corruption


def stream_clock_findings(
    log: Log, application: Application, topics: Mapping[str, TopicSurvey | None], now_ms: int
) -> list[Finding]:
    """Changelogs whose records go by the log's clock, and how far stream time is behind it. Raises Unavailable."""
    infos = {name: topic.info for name, topic in topics.items() if topic is not None}
    observed = stream_times(log, application.name)
    return list(clock_findings(application.changelogs, infos, observed, now_ms, Fixes(log.address)))


def stream_times(log: Log, app: str) -> dict[str, int]:
    """The stream time of each store in the task that is furthest behind, as far as commits have it."""
    latest: dict[tuple[str, int], int] = {}
    everything = log.group(app).committed()
    for at, committed in source_offsets(everything).items():
        try:
            found = read_texts([committed.metadata], partial(_piece, everything, at.partition))
        except Corruption:  # an opening of the task reports it
            continue
        for store, time_ms in found[0].observed.items() if found else ():
            latest[store, at.partition] = max(time_ms, latest.get((store, at.partition), -1))
    least: dict[str, int] = {}
    for (store, _), time_ms in latest.items():
        least[store] = min(time_ms, least.get(store, time_ms))
    return least


def _piece(committed: Mapping[TopicPartition, Committed], partition: int, topic: str) -> str:
    return committed.get(TopicPartition(topic, partition), Committed(0)).metadata
