"""Changelog topics: their names, their policy per store kind, and the check of what is there.

    keyvalue          compact
    window, session   compact,delete   retention.ms = store retention + 24 h
    duplicates        delete           retention.ms = store retention + 24 h
    versioned         compact          min.compaction.lag.ms = history retention + 24 h

    a source topic that serves as changelog is checked only: it is there, has as many partitions as there are tasks,
    and never deletes by age, because a restore would lack the rows that are older

Rules of this file: pure but for `ensure_changelogs`, which asks the admin of a log. Source of the table: Kafka
Streams 4.3 (UnwindowedUnversioned-, Windowed- and VersionedChangelogTopicConfig).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from standfast.replication.log import LogAdmin, TopicInfo, TopicPolicy
from standfast.store.errors import BadConfig
from standfast.store.specs import SessionStore, StoreSpec, VersionedStore, WindowStore

TIME_MAX_MS = 2**63 - 1
SLACK_MS = 24 * 3_600_000  # windowstore.changelog.additional.retention.ms of Kafka Streams

_CLEANUP = "cleanup.policy"
_RETENTION = "retention.ms"
_DELETE_RETENTION = "delete.retention.ms"
_MIN_LAG = "min.compaction.lag.ms"


def changelog_policy(spec: StoreSpec) -> TopicPolicy:
    """The policy a store's changelog is created with, its own overrides applied."""
    if isinstance(spec, WindowStore):
        cleanup = {"delete"} if spec.retain_duplicates else {"compact", "delete"}
        policy = TopicPolicy(frozenset(cleanup), retention_ms=_with_slack(spec.retention_ms))
    elif isinstance(spec, SessionStore):
        policy = TopicPolicy(frozenset({"compact", "delete"}), retention_ms=_with_slack(spec.retention_ms))
    elif isinstance(spec, VersionedStore):
        policy = TopicPolicy(frozenset({"compact"}), min_compaction_lag_ms=spec.history_retention_ms + SLACK_MS)
    else:
        policy = TopicPolicy(frozenset({"compact"}))
    return _with_overrides(policy, spec)


def _with_slack(retention_ms: int) -> int:
    # The store of an unlimited window keeps its rows for ever: its retention is the largest time there is.
    return min(retention_ms + SLACK_MS, TIME_MAX_MS)


def policy_problems(spec: StoreSpec, info: TopicInfo, partitions: int) -> list[str]:
    """What is wrong with an existing changelog, each with its fix; empty if nothing is."""
    if spec.from_source:
        return _source_problems(spec, info, partitions)
    wanted, found = changelog_policy(spec), info.policy
    where = f"changelog {info.name} of store {spec.name!r}"
    problems = []
    if info.partitions != partitions:
        problems.append(
            f"{where} has {info.partitions} partitions but the application has {partitions}: run it with "
            f"{info.partitions}, or give the application a new name and rebuild its state"
        )
    if found.cleanup != wanted.cleanup:
        problems.append(
            f"{where} has {_CLEANUP}={_list(found.cleanup)} but a {spec.kind} store needs "
            f"{_list(wanted.cleanup)}: set {_CLEANUP}={_list(wanted.cleanup)} on the topic"
        )
    elif "delete" in wanted.cleanup and _shorter(found.retention_ms, wanted.retention_ms):
        problems.append(
            f"{where} keeps records for {found.retention_ms} ms but the store keeps rows longer: "
            f"set {_RETENTION}={wanted.retention_ms} on the topic"
        )
    elif isinstance(spec, VersionedStore) and found.min_compaction_lag_ms < wanted.min_compaction_lag_ms:
        problems.append(
            f"{where} may compact after {found.min_compaction_lag_ms} ms and lose history: "
            f"set {_MIN_LAG}={wanted.min_compaction_lag_ms} on the topic"
        )
    return problems


def ensure_changelogs(
    admin: LogAdmin, app: str, specs: Iterable[StoreSpec], partitions: int
) -> Mapping[str, TopicInfo]:
    """Create missing changelogs and check the others; BadConfig lists every problem at once, before any is made.

    A source topic that serves as changelog is never made here. The infos are those of the logged stores, by store.
    """
    logged = [spec for spec in specs if spec.logging]
    found, problems = _look(admin, app, logged, partitions)
    if problems:
        raise BadConfig(problems)
    return {
        spec.name: found[spec.name] or admin.create_topic(spec.changelog_of(app), partitions, changelog_policy(spec))
        for spec in logged
    }


def changelog_problems(admin: LogAdmin, app: str, specs: Iterable[StoreSpec], partitions: int) -> list[str]:
    """Why `ensure_changelogs` would refuse; empty if it would not."""
    return _look(admin, app, [spec for spec in specs if spec.logging], partitions)[1]


def _look(
    admin: LogAdmin, app: str, logged: Iterable[StoreSpec], partitions: int
) -> tuple[dict[str, TopicInfo | None], list[str]]:
    found: dict[str, TopicInfo | None] = {}
    problems: list[str] = []
    for spec in logged:
        info = found[spec.name] = admin.describe_topic(spec.changelog_of(app))
        if info is not None:
            problems += policy_problems(spec, info, partitions)
        elif spec.from_source:
            problems.append(
                f"source topic {spec.changelog_of(app)} of store {spec.name!r} does not exist: create it with "
                f"{partitions} partitions"
            )
    return found, problems


def _source_problems(spec: StoreSpec, info: TopicInfo, partitions: int) -> list[str]:
    where = f"source topic {info.name}, the changelog of store {spec.name!r},"
    problems = []
    if info.partitions != partitions:
        problems.append(
            f"{where} has {info.partitions} partitions but its tasks are {partitions}: read it with as many tasks as "
            "it has partitions, or give the store its own changelog (no source_topic)"
        )
    if info.policy.cleanup != {"compact"} and info.policy.retention_ms >= 0:
        problems.append(
            f"{where} has {_CLEANUP}={_list(info.policy.cleanup)} and {_RETENTION}={info.policy.retention_ms}: a "
            f"restore would lack every row older than that; set {_CLEANUP}=compact on the topic, or give the "
            "store its own changelog (no source_topic)"
        )
    return problems


def _with_overrides(policy: TopicPolicy, spec: StoreSpec) -> TopicPolicy:
    extra = dict(spec.changelog)
    problems: list[str] = []

    def number(name: str, default: int) -> int:
        text = extra.pop(name, None)
        try:
            return default if text is None else int(text)
        except ValueError:
            problems.append(f"store {spec.name!r}: changelog setting {name}={text!r} is not a whole number")
            return default

    cleanup = extra.pop(_CLEANUP, None)
    changed = replace(
        policy,
        cleanup=policy.cleanup if cleanup is None else frozenset(part.strip() for part in cleanup.split(",")),
        retention_ms=number(_RETENTION, policy.retention_ms),
        delete_retention_ms=number(_DELETE_RETENTION, policy.delete_retention_ms),
        min_compaction_lag_ms=number(_MIN_LAG, policy.min_compaction_lag_ms),
    )
    if not changed.cleanup <= {"compact", "delete"}:
        problems.append(f"store {spec.name!r}: changelog setting {_CLEANUP}={cleanup!r} is not compact, delete or both")
    if problems:
        raise BadConfig(problems)
    return replace(changed, extra=extra)


def _list(cleanup: frozenset[str]) -> str:
    return ",".join(sorted(cleanup))


def _shorter(found_ms: int, wanted_ms: int) -> bool:
    return found_ms >= 0 and (wanted_ms < 0 or found_ms < wanted_ms)
