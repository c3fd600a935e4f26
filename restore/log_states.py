"""Changelogs as the restore plan sees them, made of the answers of the log.

    topic, bounds, limit, written end ──> log_state ──> LogState ── diverged, by the tag of a stored position ──> plan

Rules of this file: the only place that makes a `LogState` of the answers of a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from standfast.replication.log import LogReader, TopicInfo
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.restore.plan import LogState


def log_state(
    changelog: TopicPartition,
    info: TopicInfo,
    bounds: Bounds,
    limit: int | None = None,
    written: int = -1,
    diverged_at: int | None = None,
) -> LogState:
    """The plan's view of a changelog; `limit`, `written` and `diverged_at` as in LogState."""
    return LogState(
        topic_partition=changelog,
        topic_id=info.topic_id,
        begin=bounds.begin,
        end=bounds.end,
        cleanup=info.policy.cleanup,
        retention_ms=info.policy.retention_ms,
        delete_retention_ms=info.policy.delete_retention_ms,
        diverged_at=diverged_at,
        limit=limit,
        written=written,
    )


def diverged(states: Mapping[str, LogState], tags: Mapping[str, str], reader: LogReader) -> dict[str, LogState]:
    """The changelogs by store, as seen from stored positions with these tags; "" is no tag. One request for all.

    Records of a leader epoch that ended below a position were lost by the log: the rows do not fit it.
    """
    asked = {states[name].topic_partition: tag for name, tag in tags.items() if tag and name in states}
    ends = reader.epoch_ends(asked)
    return {name: replace(one, diverged_at=ends.get(one.topic_partition)) for name, one in states.items()}


def removed_heads(changelogs: Mapping[TopicPartition, TopicInfo], reader: LogReader) -> dict[TopicPartition, int]:
    """The first offset left of each changelog that is only compacted and lost records at its head."""
    bounds = reader.bounds(changelogs)
    return {at: bounds[at].begin for at, info in changelogs.items() if log_state(at, info, bounds[at]).head_removed}
