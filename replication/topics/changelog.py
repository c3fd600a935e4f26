"""Changelog topics: their names, their policy per store kind, and the check of existing ones.

    keyvalue          compact
    window, session   compact,delete   retention.ms = for ever, if this login may remove records, else as below
    duplicates        delete           as window
    versioned         compact          min.compaction.lag.ms = history retention + 24 h

    retention.ms      for ever (2**63 - 1): the owner of the store removes records, by its stream time (see
                      standfast.stream.session.changelog_heads)
                      retention of the store + 24 h: the log removes them, by its clock

    a source topic that serves as changelog is only checked: it must exist, have as many partitions as there are tasks,
    and never delete by age, because a restore would lack older rows

Rules of this file: pure but for functions that take the admin of a log. `standfast.replication.topics.rules` words the
findings, for the start of an application and for the doctor alike. Source of the table: Kafka Streams 4.3
(UnwindowedUnversioned-, Windowed- and VersionedChangelogTopicConfig).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from standfast.replication.log import LogAdmin, LogSurvey, TopicInfo, TopicPolicy
from standfast.replication.permissions import topic_needs
from standfast.replication.topics.claims import PLAIN, SORTED, Claims, claim_of
from standfast.replication.topics.fixes import Fixes
from standfast.replication.topics.rules import Changelog, policy_findings, replication, timestamps
from standfast.replication.topics.settings import CLEANUP, MIN_LAG, OWN_TIMESTAMPS, RETENTION, changed, listed
from standfast.store.errors import BadConfig
from standfast.store.log import as_event, logger
from standfast.store.serde import json_sorted
from standfast.store.specs import StoreSpec
from standfast.store.task.heads import KEPT_BEHIND_MS, is_headed

TIME_MAX_MS = 2**63 - 1
# Allowed differences from the number of tasks: "more", because another instance saw the source grow before us; "fewer",
# because the changelog is going to grow.
Other = Literal["none", "more", "fewer"]
REFUSED = frozenset({"replication", "timestamp-type"})  # rules beside those of the policy whose errors refuse a start
SLACK_MS = KEPT_BEHIND_MS
# Of new changelogs whose owner removes records. Not -1 as retention, which Kafka Streams takes for too short, and which
# means elsewhere that no record may be missing. Brokers free whole segments, of 1 GiB by default.
BY_STREAM_TIME = {RETENTION: str(TIME_MAX_MS), "segment.bytes": str(64 << 20)}


def changelog_policy(spec: StoreSpec) -> TopicPolicy:
    """The policy of a new changelog for this store, with the store's own overrides."""
    traits = spec.traits
    # Rows with a sequence number are never superseded, so compaction would free nothing.
    policy = TopicPolicy(frozenset({"delete"}) if spec.numbered else traits.cleanup, extra=OWN_TIMESTAMPS)
    # The store of an unlimited window keeps its rows for ever, by the largest time as retention: the sum is capped.
    kept_ms = min(spec.kept_ms + SLACK_MS, TIME_MAX_MS)
    if traits.kept_by == RETENTION:
        policy = replace(policy, retention_ms=kept_ms)
    elif traits.kept_by == MIN_LAG:
        policy = replace(policy, min_compaction_lag_ms=kept_ms)
    return _with_overrides(policy, spec)


def changelog_need(app: str, spec: StoreSpec, group: int | None = None) -> Changelog:
    """The requirements of a store on its changelog."""
    policy = TopicPolicy() if spec.from_source else changelog_policy(spec)
    return Changelog(spec.changelog_of(app), spec.name, spec.kind, policy, spec.from_source, group)


def policy_problems(
    app: str, spec: StoreSpec, info: TopicInfo, partitions: int, fixes: Fixes, allow: Other = "none"
) -> list[str]:
    """Problems of an existing changelog, each with its fix; empty if it has none."""
    need = changelog_need(app, spec)
    problems = []
    if info.partitions != partitions and allow != ("more" if info.partitions > partitions else "fewer"):
        problems.append(_count_problem(need, info, partitions, fixes))
    return problems + [str(one) for one in policy_findings(need, info, fixes)]


def ensure_changelogs(
    admin: LogAdmin,
    app: str,
    specs: Iterable[StoreSpec],
    partitions: int,
    fixes: Fixes,
    allow: Other = "none",
    claims: Claims | None = None,
) -> Mapping[str, TopicInfo]:
    """Create missing changelogs and check the others; BadConfig lists every problem, before any topic is created.

    With `claims` the application claims the existing ones, before another one is created. It never creates a source
    topic that serves as changelog. Returns the infos of the logged stores, by store.
    """
    logged = [spec for spec in specs if spec.logging]
    found, problems = _look(admin, app, logged, partitions, fixes, allow)
    # Before the first is created: a start that is refused must leave the log unchanged.
    if problems:
        raise BadConfig(problems)
    take_changelogs(claims, logged, found)
    return {spec.name: found[spec.name] or _create(admin, app, spec, partitions) for spec in logged}


def _create(admin: LogAdmin, app: str, spec: StoreSpec, partitions: int) -> TopicInfo:
    made = admin.create_topic(spec.changelog_of(app), partitions, changelog_policy(spec))
    if not is_headed(spec) or RETENTION in spec.changelog:
        return made
    # After the creation, as the log names no permissions on a topic that does not exist. A crash in between leaves the
    # settings of earlier versions.
    lacking = admin.lacking(topic_needs([made.name], "DELETE", "ALTER_CONFIGS"))
    if not lacking:
        return admin.change_topic(made.name, {**BY_STREAM_TIME, **spec.changelog})
    logger.warning(
        "changelog %s of store %r is kept by the log's clock (retention.ms=%d), not by the store's stream time, since "
        "this login may not remove its records: %s",
        made.name,
        spec.name,
        made.policy.retention_ms,
        "; ".join(lacking),
        extra=as_event("changelog_by_clock", topic=made.name, store=spec.name),
    )
    return made


def take_changelogs(claims: Claims | None, specs: Iterable[StoreSpec], infos: Mapping[str, TopicInfo | None]) -> None:
    """Claim these changelogs, by store, as far as they exist. A source topic that serves as changelog is no claim."""
    own = ((spec, infos.get(spec.name)) for spec in specs if not spec.from_source)
    if claims is not None:
        claims.take({info.name: claim_of(info.name, info.topic_id, keys_of(spec)) for spec, info in own if info})


def keys_of(spec: StoreSpec) -> str:
    """The form of the keys in a store's changelog, as its claim says it."""
    times = PLAIN if spec.traits.times is None else spec.traits.times.unit
    return f"{times} {SORTED}" if spec.key is json_sorted else times


def changelog_problems(
    admin: LogAdmin, app: str, specs: Iterable[StoreSpec], partitions: int, fixes: Fixes, allow: Other = "none"
) -> list[str]:
    """Why the application must not start with these changelogs; empty if it may.

    Beside the problems of `ensure_changelogs`: too few replicas to take a write, also of changelogs that do not exist
    yet, and timestamps that are not ours.
    """
    logged = [spec for spec in specs if spec.logging]
    found, problems = _look(admin, app, logged, partitions, fixes, allow)
    survey = admin.survey(spec.changelog_of(app) for spec in logged)
    for spec in logged:
        need, topic = changelog_need(app, spec), survey.topics.get(spec.changelog_of(app))
        if topic is not None:
            rules = [*replication(need.where, topic, survey.brokers, fixes), *timestamps(need.where, topic, fixes)]
            problems += [str(one) for one in rules if one.rule in REFUSED and not need.from_source]
        elif found[spec.name] is None and not spec.from_source:
            problems += default_problems(need, survey, partitions, fixes)
    return problems


def grow_changelogs(admin: LogAdmin, app: str, specs: Iterable[StoreSpec], partitions: int) -> list[str]:
    """Grow existing changelogs to as many partitions as there are tasks now; returns the names of those that grew.

    Changelogs with more partitions than tasks stay unchanged, and so does a source topic that serves as changelog.
    """
    grown = []
    for spec in specs:
        if not spec.logging or spec.from_source:
            continue
        info = admin.describe_topic(spec.changelog_of(app))
        if info is not None and info.partitions < partitions:
            admin.add_partitions(info.name, partitions)
            grown.append(info.name)
    return grown


def _look(
    admin: LogAdmin, app: str, logged: Iterable[StoreSpec], partitions: int, fixes: Fixes, allow: Other
) -> tuple[dict[str, TopicInfo | None], list[str]]:
    found: dict[str, TopicInfo | None] = {}
    problems: list[str] = []
    for spec in logged:
        info = found[spec.name] = admin.describe_topic(spec.changelog_of(app))
        if info is not None:
            problems += policy_problems(app, spec, info, partitions, fixes, allow)
        elif spec.from_source:
            problems.append(
                f"source topic {spec.changelog_of(app)} of store {spec.name!r} does not exist: create it with "
                f"{partitions} partitions: {fixes.create(spec.changelog_of(app), partitions)}"
            )
    return found, problems


def _count_problem(need: Changelog, info: TopicInfo, partitions: int, fixes: Fixes) -> str:
    if need.from_source:
        return (
            f"{need.where} has {info.partitions} partitions but its tasks are {partitions}: read it with as many "
            "tasks as it has partitions, or give the store its own changelog (no source_topic)"
        )
    what = f"{need.where} has {info.partitions} partitions but the application has {partitions}: run it with "
    if info.partitions < partitions:
        return what + (
            f"{info.partitions}; or, if a key stays in the partition in which it is, let the topic grow: "
            f"{fixes.grow(info.name, partitions)}"
        )
    return what + f"{info.partitions}, or give the application a new name and rebuild its state"


def default_problems(need: Changelog, survey: LogSurvey, partitions: int, fixes: Fixes) -> list[str]:
    """Why a changelog that the brokers would create with their defaults could never take a write."""
    copies = int(survey.settings.get("default.replication.factor", 1))
    needed = int(survey.settings.get("min.insync.replicas", 1))
    if not survey.brokers or copies >= needed:
        return []
    cleanup = {CLEANUP: listed(need.policy.cleanup)}
    return [
        f"{need.where} would be created with {copies} replicas (default.replication.factor) but min.insync.replicas="
        f"{needed}, and could never take a write: set default.replication.factor to {needed} or more on the brokers, "
        f"or create it yourself: {fixes.create_replicated(need.topic, partitions, cleanup, needed)}"
    ]


def _with_overrides(policy: TopicPolicy, spec: StoreSpec) -> TopicPolicy:
    try:
        return changed(policy, spec.changelog)
    except BadConfig as error:
        raise BadConfig([f"store {spec.name!r}: changelog setting {one}" for one in error.problems]) from None
