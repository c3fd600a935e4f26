"""Settings of a topic by their names, as a policy and back.

    cleanup.policy           compact, delete, or compact,delete        TopicPolicy.cleanup
    retention.ms             -1: for ever                              .retention_ms
    delete.retention.ms      how long a tombstone stays                .delete_retention_ms
    min.compaction.lag.ms    how long every version stays              .min_compaction_lag_ms
    any other                the log's own meaning                     .extra

Rules of this file: pure. Names and meaning are Kafka's; the embedded log has the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from standfast.replication.checks import CLEANUPS
from standfast.replication.log import TopicPolicy
from standfast.store.errors import BadConfig

CLEANUP = "cleanup.policy"
RETENTION = "retention.ms"
DELETE_RETENTION = "delete.retention.ms"
MIN_LAG = "min.compaction.lag.ms"
TIMESTAMP_TYPE = "message.timestamp.type"
TIMESTAMP_AHEAD = "message.timestamp.after.max.ms"  # brokers before Kafka 3.6 do not know it and refuse nothing
TIMESTAMP_AHEAD_ANY_MS = 2**63 - 1
# Records keep our timestamps, regardless of the brokers' defaults: event time may lie ahead of their clocks, and a
# broker that refuses one record, by default from an hour on, refuses the whole commit.
OWN_TIMESTAMPS = {TIMESTAMP_TYPE: "CreateTime", TIMESTAMP_AHEAD: str(TIMESTAMP_AHEAD_ANY_MS)}


def changed(policy: TopicPolicy, settings: Mapping[str, str]) -> TopicPolicy:
    """The policy with these settings. Raises BadConfig with every invalid value."""
    extra = dict(settings)
    problems: list[str] = []

    def number(name: str, default: int) -> int:
        text = extra.pop(name, None)
        try:
            return default if text is None else int(text)
        except ValueError:
            problems.append(f"{name}={text!r} is not a whole number")
            return default

    text = extra.pop(CLEANUP, None)
    cleanup = policy.cleanup if text is None else frozenset(part.strip() for part in text.split(","))
    made = replace(
        policy,
        cleanup=cleanup,
        retention_ms=number(RETENTION, policy.retention_ms),
        delete_retention_ms=number(DELETE_RETENTION, policy.delete_retention_ms),
        min_compaction_lag_ms=number(MIN_LAG, policy.min_compaction_lag_ms),
    )
    if not cleanup or not cleanup <= CLEANUPS:
        problems.append(f"{CLEANUP}={text!r} is not compact, delete or both")
    if problems:
        raise BadConfig(problems)
    return replace(made, extra={**policy.extra, **extra})


def time_text(ms: int) -> str:
    """`2 d`, `36 h`, `90 s`, `1500 ms`: the largest unit that says a duration exactly."""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms and ms % unit_ms == 0:
            return f"{ms // unit_ms} {unit}"
    return f"{ms} ms"


def listed(cleanup: frozenset[str]) -> str:
    """`compact,delete`, as the setting is written."""
    return ",".join(sorted(cleanup))


def ahead_max_ms(settings: Mapping[str, str]) -> int | None:
    """The most that a record's timestamp may lie ahead of the log's clock, in ms; None: no bound."""
    # With LogAppendTime the broker replaces the timestamp and refuses none.
    limit = int(settings.get(TIMESTAMP_AHEAD, TIMESTAMP_AHEAD_ANY_MS))
    return limit if limit < TIMESTAMP_AHEAD_ANY_MS and settings.get(TIMESTAMP_TYPE) != "LogAppendTime" else None
