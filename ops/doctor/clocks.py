"""Stream times of an application, by its commits, for findings about changelogs that go by the log's clock.

Rules of this file: it asks and changes nothing; `standfast.replication.topics.clocks` judges.
"""

from __future__ import annotations

from collections.abc import Mapping

from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.log import Log, TopicSurvey
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
    for at, committed in log.group(app).committed().items():
        try:
            metadata = CommitMetadata.from_text(committed.metadata)
        except Corruption:  # an opening of the task reports it
            continue
        for store, time_ms in {} if metadata is None else metadata.observed.items():
            latest[store, at.partition] = max(time_ms, latest.get((store, at.partition), -1))
    least: dict[str, int] = {}
    for (store, _), time_ms in latest.items():
        least[store] = min(time_ms, least.get(store, time_ms))
    return least
