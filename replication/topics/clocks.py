"""Rules for changelogs whose records go by the log's clock, while the rows of their stores go by stream time.

    kind                setting of the topic     its time            loss once stream time is behind the clock
    window, session     retention.ms             append, timestamp   records of rows that live
    versioned           min.compaction.lag.ms    timestamp           versions within the history

    log's clock   ------------------------------|--- slack, 24 h ---|- now
    stream time   ----------|                                            more than half of the slack: a finding

Neither happens where the setting is for ever (2**63 - 1): there the owner of a window or session store removes records,
and compaction keeps every version.

Rules of this file: pure. Stream times come from the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from standfast.replication.log import TopicInfo, TopicPolicy
from standfast.replication.topics.fixes import Fixes
from standfast.replication.topics.rules import TIME_MAX_MS, Changelog, Finding
from standfast.replication.topics.settings import MIN_LAG, RETENTION, time_text
from standfast.store.specs import TRAITS, StoreSpec
from standfast.store.task.heads import KEPT_BEHIND_MS
from standfast.store.timestamps import duration_text

BEHIND_MS = KEPT_BEHIND_MS // 2
_OWNER = "the owner removes expired records itself, which takes DELETE on the topic"


def watched(spec: StoreSpec) -> bool:
    """Whether the records of a store's changelog may go by the log's clock."""
    return spec.logging and not spec.from_source and bool(spec.traits.kept_by)


def by_clock(kind: str, policy: TopicPolicy) -> bool:
    """Whether the log removes records of a changelog of this kind of store by its own clock."""
    if TRAITS[kind].kept_by == RETENTION:
        return 0 <= policy.retention_ms < TIME_MAX_MS
    return TRAITS[kind].kept_by == MIN_LAG and policy.min_compaction_lag_ms < TIME_MAX_MS


def behind_ms(kind: str, policy: TopicPolicy, observed_ms: int, now_ms: int) -> int | None:
    """The milliseconds by which stream time lies behind the clock, if that may lose rows; None if it does not."""
    lag_ms = now_ms - observed_ms
    return lag_ms if observed_ms >= 0 and lag_ms > BEHIND_MS and by_clock(kind, policy) else None


def clock_findings(
    changelogs: Iterable[Changelog],
    infos: Mapping[str, TopicInfo],
    observed: Mapping[str, int],
    now_ms: int,
    fixes: Fixes,
) -> Iterator[Finding]:
    """Findings about these changelogs; `observed` has the stream times of stores, as far as they are known."""
    for need in changelogs:
        info = infos.get(need.topic)
        if info is None or need.from_source or not by_clock(need.kind, info.policy):
            continue
        late_ms = behind_ms(need.kind, info.policy, observed.get(need.store, -1), now_ms)
        if TRAITS[need.kind].kept_by == RETENTION:
            yield _retention(need, info, late_ms, fixes)
        elif late_ms is not None:
            yield Finding(
                "compaction-clock",
                "warning",
                need.where,
                f"may compact versions by the log's clock, and stream time lies {duration_text(late_ms)} behind that",
                "versions within the store's history are missing after a restore",
                f"set {MIN_LAG}={TIME_MAX_MS} on the topic, which then keeps every version",
                fixes.change(info.name, {MIN_LAG: str(TIME_MAX_MS)}),
            )


def _retention(need: Changelog, info: TopicInfo, late_ms: int | None, fixes: Fixes) -> Finding:
    what = f"deletes records after {time_text(info.policy.retention_ms)} of the log's clock"
    why = "the store keeps rows by stream time: of old event times, or while that stands still, records of its rows go"
    if late_ms is not None:
        what += f", and stream time lies {duration_text(late_ms)} behind that"
        why = "records of rows that the store still shows are deleted, or will be: a restore lacks them"
    return Finding(
        "retention-clock",
        "warning" if late_ms is None else "error",
        need.where,
        what,
        why,
        f"set {RETENTION}={TIME_MAX_MS} on the topic: {_OWNER}",
        fixes.change(info.name, {RETENTION: str(TIME_MAX_MS)}),
    )
