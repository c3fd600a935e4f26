"""Rules for the topics of an application: described topics in, findings out.

    error     records or rows are lost or refused, now or later      the application refuses to start, or should
    warning   it works, but is slow, fragile or hard to recover

Rules of this file: pure; one function a rule, each with its border in the tests. A rule judges a topic only by the
log's description: a log without brokers has no replicas to count, and an absent setting breaks no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from standfast.replication.log import DELETE_RETENTION_DEFAULT_MS, LogSurvey, TopicInfo, TopicPolicy, TopicSurvey
from standfast.replication.record_limits import MESSAGE_BYTES
from standfast.replication.topics.fixes import REPLICAS_WANTED, Fixes
from standfast.replication.topics.settings import (
    CLEANUP,
    DELETE_RETENTION,
    MIN_LAG,
    RETENTION,
    TIMESTAMP_AHEAD,
    TIMESTAMP_AHEAD_ANY_MS,
    TIMESTAMP_TYPE,
    ahead_max_ms,
    listed,
    time_text,
)
from standfast.store.specs import TRAITS

Severity = Literal["error", "warning"]

RECORD_OVERHEAD_BYTES = 1_024  # key and framing beside a value
TRANSACTION_MS = 10_000  # our writers' transaction time-out: a killed writer holds readers back for so long
OFFSETS_RETENTION_MINUTES = 7 * 24 * 60
TIME_MAX_MS = 2**63 - 1
TRANSACTIONS, OFFSETS = "__transaction_state", "__consumer_offsets"
LOGS_OWN = (TRANSACTIONS, OFFSETS)

_MIN_ISR = "min.insync.replicas"
_TIMESTAMP_BEFORE = "message.timestamp.before.max.ms"
_UNCLEAN = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `fix` describes the correction, `command` is the line that makes it ("" if none can)."""

    rule: str
    severity: Severity
    where: str
    what: str
    why: str
    fix: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.where} {self.what}: {self.fix}" + (f": {self.command}" if self.command else "")


@dataclass(frozen=True, slots=True)
class Changelog:
    """Requirements of a store on its changelog topic. `group` None: its tasks are not known."""

    topic: str
    store: str
    kind: str
    policy: TopicPolicy
    from_source: bool = False
    group: int | None = None

    @property
    def where(self) -> str:
        """Its name in findings."""
        if self.from_source:
            return f"source topic {self.topic}, the changelog of store {self.store!r},"
        return f"changelog {self.topic} of store {self.store!r}"


@dataclass(frozen=True, slots=True)
class Application:
    """Known facts of an application: stores, source topics, topics between its tasks, and the readers of each.

    `outputs` are topics that it writes for others: results, dead letters, late records.

    `groups` are the source and repartition topics of each group of tasks, if known. `unknown` are topics with the name
    of one of its changelogs, but of a store without a definition here.
    """

    name: str
    changelogs: tuple[Changelog, ...] = ()
    sources: tuple[str, ...] = ()
    repartitions: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    groups: Mapping[int, frozenset[str]] | None = None
    has_run: bool = False
    value_max_bytes: int = 1_000_000
    outputs: tuple[str, ...] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic to describe, once."""
        named = (one.topic for one in self.changelogs)
        all_of_them = (
            *self.sources,
            *named,
            *self.unknown,
            *self.repartitions,
            *self.outputs,
            *self.members,
            *LOGS_OWN,
        )
        return tuple(dict.fromkeys(all_of_them))


def findings(app: Application, survey: LogSurvey, fixes: Fixes) -> list[Finding]:
    """All findings, errors first."""
    found: list[Finding] = []
    own = {one.topic for one in app.changelogs}
    for need in app.changelogs:
        topic = survey.topics.get(need.topic)
        if topic is None:
            found += absent_changelog(app, need)
            continue
        found += policy_findings(need, topic.info, fixes)
        found += delete_retention(need, topic.info, fixes)
        found += changelog_settings(need.where, topic, fixes, app.value_max_bytes, is_source=need.from_source)
        found += replication(need.where, topic, survey.brokers, fixes)
    for name in (*app.unknown, *app.repartitions):
        topic = survey.topics.get(name)
        if topic is None:
            continue
        where = f"topic {name}"
        if name in app.unknown:
            found += unknown_changelog(app, name)
        else:
            found += repartition_policy(topic.info, fixes)
        found += changelog_settings(where, topic, fixes, app.value_max_bytes, is_source=False)
        found += replication(where, topic, survey.brokers, fixes)
    for name in app.sources:
        topic = survey.topics.get(name)
        if topic is None:
            found += absent_topic(app, f"source topic {name}", name, fixes)
        elif name not in own:  # a source topic that serves as changelog is judged above
            found += replication(f"source topic {name}", topic, survey.brokers, fixes)
    for name in app.outputs:
        topic, where = survey.topics.get(name), f"output topic {name}"
        if topic is None:
            found += absent_topic(app, where, name, fixes)
            continue
        found += output_size(where, topic, fixes, app.value_max_bytes)
        if name not in app.sources:
            found += replication(where, topic, survey.brokers, fixes)
    for name in app.members:
        topic = survey.topics.get(name)
        if topic is not None:
            found += replication(f"members topic {name}", topic, survey.brokers, fixes)
    found += partition_counts(app, survey, fixes)
    found += logs_own(survey, fixes)
    return sorted(found, key=lambda one: (one.severity != "error", one.where, one.rule))


# -- the changelog of a store -----------------------------------------------------------------------------------------


def policy_findings(need: Changelog, info: TopicInfo, fixes: Fixes) -> Iterator[Finding]:
    """Cleanup policy, retention and compaction lag against the requirements of the store's kind."""
    wanted, found = need.policy, info.policy
    if need.from_source:
        if found.cleanup != {"compact"} and found.retention_ms >= 0:
            yield Finding(
                "cleanup-policy",
                "error",
                need.where,
                f"has {CLEANUP}={listed(found.cleanup)} and {RETENTION}={found.retention_ms}",
                "a restore would lack every row that is older",
                f"a restore would lack every row older than that; set {CLEANUP}=compact on the topic, or give the "
                "store its own changelog (no source_topic)",
                fixes.change(info.name, {CLEANUP: "compact"}),
            )
        return
    if found.cleanup != wanted.cleanup:
        settings = {CLEANUP: listed(wanted.cleanup)}
        # In the same command, or the topic would delete rows by the old retention as soon as it deletes at all.
        if "delete" in wanted.cleanup and _shorter(found.retention_ms, wanted.retention_ms):
            settings[RETENTION] = str(wanted.retention_ms)
        yield Finding(
            "cleanup-policy",
            "error",
            need.where,
            f"has {CLEANUP}={listed(found.cleanup)} but a {need.kind} store needs {listed(wanted.cleanup)}",
            "rows whose records are deleted by age are missing after a restore"
            if "delete" in found.cleanup - wanted.cleanup
            else "the topic grows without end, or loses records that the store still needs",
            f"set {CLEANUP}={listed(wanted.cleanup)} on the topic",
            fixes.change(info.name, settings),
        )
    elif "delete" in wanted.cleanup and _shorter(found.retention_ms, wanted.retention_ms):
        yield Finding(
            "retention",
            "error",
            need.where,
            f"keeps records for {time_text(found.retention_ms)} but the store keeps rows longer",
            "rows that the store still shows are missing after a restore; a day of slack covers late records",
            f"set {RETENTION}={wanted.retention_ms} on the topic",
            fixes.change(info.name, {RETENTION: str(wanted.retention_ms)}),
        )
    elif TRAITS[need.kind].kept_by == MIN_LAG and found.min_compaction_lag_ms < wanted.min_compaction_lag_ms:
        yield Finding(
            "compaction-lag",
            "error",
            need.where,
            f"may compact after {time_text(found.min_compaction_lag_ms)} and lose history",
            "older versions within the store's history are missing after a restore",
            f"set {MIN_LAG}={wanted.min_compaction_lag_ms} on the topic",
            fixes.change(info.name, {MIN_LAG: str(wanted.min_compaction_lag_ms)}),
        )


def delete_retention(need: Changelog, info: TopicInfo, fixes: Fixes) -> Iterator[Finding]:
    """Retention of tombstones: a position older than nine tenths of it may have missed deletes: a rebuild follows."""
    found_ms = info.policy.delete_retention_ms
    wanted_ms = min(need.policy.delete_retention_ms, DELETE_RETENTION_DEFAULT_MS)
    # Without compaction no tombstone is ever removed by this setting.
    if "compact" not in info.policy.cleanup or need.from_source or not 0 <= found_ms < wanted_ms:
        return
    yield Finding(
        "delete-retention",
        "warning",
        need.where,
        f"drops tombstones after {time_text(found_ms)}",
        f"an instance that was away for {time_text(found_ms * 9 // 10)} rebuilds this store from the beginning",
        f"set {DELETE_RETENTION}={wanted_ms} on the topic",
        fixes.change(info.name, {DELETE_RETENTION: str(wanted_ms)}),
    )


def changelog_settings(
    where: str, topic: TopicSurvey, fixes: Fixes, value_max_bytes: int, *, is_source: bool
) -> Iterator[Finding]:
    """The largest record that the topic takes, and its timestamps."""
    name, settings = topic.info.name, topic.settings
    least_bytes = value_max_bytes + RECORD_OVERHEAD_BYTES
    if _number(settings, MESSAGE_BYTES, least_bytes) < least_bytes:
        yield Finding(
            "message-size",
            "error",
            where,
            f"takes records of at most {settings[MESSAGE_BYTES]} bytes",
            f"a store accepts values of {value_max_bytes} bytes, and the commit of a larger one than this fails",
            f"set {MESSAGE_BYTES}={least_bytes} on the topic, or lower value_max_bytes",
            fixes.change(name, {MESSAGE_BYTES: str(least_bytes)}),
        )
    if not is_source:
        yield from timestamps(where, topic, fixes)


def timestamps(where: str, topic: TopicSurvey, fixes: Fixes) -> Iterator[Finding]:
    """Settings of timestamps, which are part of the rows in a changelog, and event time between tasks."""
    name, settings = topic.info.name, topic.settings
    if settings.get(TIMESTAMP_TYPE, "CreateTime") != "CreateTime":
        yield Finding(
            "timestamp-type",
            "error",
            where,
            f"has {TIMESTAMP_TYPE}={settings[TIMESTAMP_TYPE]}",
            "the broker replaces the rows' timestamps by its own clock: a restored store has other timestamps",
            f"set {TIMESTAMP_TYPE}=CreateTime on the topic; records written before keep the broker's time",
            fixes.change(name, {TIMESTAMP_TYPE: "CreateTime"}),
        )
    before_ms = _number(settings, _TIMESTAMP_BEFORE, TIME_MAX_MS)
    if before_ms < TIME_MAX_MS:
        yield Finding(
            "timestamp-age",
            "warning",
            where,
            f"refuses records with a timestamp older than {time_text(before_ms)}",
            "event time may be of any age: reading old data again fails at its first commit",
            f"set {_TIMESTAMP_BEFORE}={TIME_MAX_MS} on the topic",
            fixes.change(name, {_TIMESTAMP_BEFORE: str(TIME_MAX_MS)}),
        )
    ahead_ms = ahead_max_ms(settings)
    if ahead_ms is not None:
        yield Finding(
            "timestamp-ahead",
            "warning",
            where,
            f"refuses records with a timestamp more than {time_text(ahead_ms)} ahead of the broker's clock",
            "one such record fails the whole commit that it is in, again and again",
            f"set {TIMESTAMP_AHEAD}={TIMESTAMP_AHEAD_ANY_MS} on the topic",
            fixes.change(name, {TIMESTAMP_AHEAD: str(TIMESTAMP_AHEAD_ANY_MS)}),
        )


def output_size(where: str, topic: TopicSurvey, fixes: Fixes, value_max_bytes: int) -> Iterator[Finding]:
    """The largest record that a topic for results, dead letters or late records takes."""
    least_bytes = value_max_bytes + RECORD_OVERHEAD_BYTES
    if _number(topic.settings, MESSAGE_BYTES, least_bytes) < least_bytes:
        yield Finding(
            "message-size",
            "warning",
            where,
            f"takes records of at most {topic.settings[MESSAGE_BYTES]} bytes",
            f"results may have {value_max_bytes} bytes: a larger one than this falls under on_error of its record, a "
            "dead letter is cut; and small ones go in batches of at most this size, one after the other",
            f"set {MESSAGE_BYTES}={least_bytes} on the topic and start the application again, or lower value_max_bytes",
            fixes.change(topic.info.name, {MESSAGE_BYTES: str(least_bytes)}),
        )


def absent_changelog(app: Application, need: Changelog) -> Iterator[Finding]:
    """An absent changelog: never created, or lost."""
    if need.from_source:
        return  # reported as a source topic
    if app.has_run:
        yield Finding(
            "topic-absent",
            "error",
            need.where,
            "does not exist",
            "local state may be the last copy of these rows; an instance without local state would begin empty",
            "bring the topic back from a copy; or accept the loss: reset the application, or start it with "
            "accept_empty_log=True where local state is",
        )
    else:
        yield Finding(
            "topic-absent",
            "warning",
            need.where,
            "does not exist",
            "the application makes it when it starts, with the right policy, if it may create topics",
            "start the application",
        )


def absent_topic(app: Application, where: str, name: str, fixes: Fixes) -> Iterator[Finding]:
    """An absent source or output topic."""
    yield Finding(
        "topic-absent",
        "error",
        where,
        "does not exist",
        f"application {app.name} refuses to start, or stops, without it",
        "create it with the partitions that its writers need",
        fixes.create(name, None),
    )


def unknown_changelog(app: Application, name: str) -> Iterator[Finding]:
    """A topic with the name of a changelog of the application, of a store that is not known here."""
    store = name.removeprefix(f"{app.name}-").removesuffix("-changelog")
    yield Finding(
        "store-unknown",
        "warning",
        f"topic {name}",
        f"is a changelog of a store {store!r} that is not known here",
        "its cleanup policy cannot be checked without the kind of the store; the topic may be unused",
        f"name it with --store {store}:KIND, or its directory with --state-dir; delete the topic if the store is gone",
    )


def repartition_policy(info: TopicInfo, fixes: Fixes) -> Iterator[Finding]:
    """The policy of topics between tasks: every record must stay until it is processed."""
    policy, where = info.policy, f"topic {info.name}"
    settings = {CLEANUP: "delete", RETENTION: "-1"}
    if "compact" in policy.cleanup:
        yield Finding(
            "cleanup-policy",
            "error",
            where,
            f"has {CLEANUP}={listed(policy.cleanup)} but lies between two tasks",
            "compaction removes records that were not processed yet",
            f"set {CLEANUP}=delete and {RETENTION}=-1 on the topic: standfast removes processed records",
            fixes.change(info.name, settings),
        )
    elif policy.retention_ms >= 0:
        yield Finding(
            "retention",
            "warning",
            where,
            f"keeps records for {time_text(policy.retention_ms)}",
            "a task that is behind for so long loses records that it did not process",
            f"set {RETENTION}=-1 on the topic: standfast removes processed records",
            fixes.change(info.name, {RETENTION: "-1"}),
        )


# -- any topic --------------------------------------------------------------------------------------------------------


def replication(where: str, topic: TopicSurvey, brokers: tuple[int, ...], fixes: Fixes) -> Iterator[Finding]:
    """Replicas of each partition against the number that must confirm a write."""
    name, settings = topic.info.name, topic.settings
    if not topic.replicas:  # the embedded log
        return
    copies, needed = min(map(len, topic.replicas)), _number(settings, _MIN_ISR, 1)
    wanted = min(REPLICAS_WANTED, len(brokers))  # one broker cannot hold two copies of a partition
    in_sync = min(topic.in_sync, default=copies)
    if copies < needed:
        enough = len(brokers) >= needed
        yield Finding(
            "replication",
            "error",
            where,
            f"has {copies} replicas of a partition but {_MIN_ISR}={needed}",
            "no write with acks=all can ever be confirmed, so nothing can be committed",
            f"give it {wanted} replicas" if enough else f"set {_MIN_ISR}={copies} on the topic",
            fixes.replicate(name, topic.replicas, brokers, wanted)
            if enough
            else fixes.change(name, {_MIN_ISR: str(copies)}),
        )
    elif in_sync < needed:
        yield Finding(
            "in-sync",
            "error",
            where,
            f"has {in_sync} replicas in sync of a partition but {_MIN_ISR}={needed}",
            "writes are refused until more replicas are up to date",
            "bring the missing brokers back",
        )
    elif copies == 1 and len(brokers) > 1:
        yield Finding(
            "replication-one",
            "warning",
            where,
            f"has one replica, on a cluster of {len(brokers)} brokers",
            "its records are gone with that broker's disk, and it stands still while that broker is down",
            f"give it {wanted} replicas",
            fixes.replicate(name, topic.replicas, brokers, wanted),
        )
    elif needed == 1 and len(brokers) > 1:
        yield Finding(
            "min-isr-one",
            "warning",
            where,
            f"has {_MIN_ISR}=1",
            "a write counts as done once one broker has it: committed records may be lost with that broker",
            f"set {_MIN_ISR}=2 on the topic",
            fixes.change(name, {_MIN_ISR: "2"}),
        )
    if settings.get(_UNCLEAN, "false") == "true" and len(brokers) > 1:
        yield Finding(
            "unclean-election",
            "warning",
            where,
            f"has {_UNCLEAN}=true",
            "a replica that lacks committed records may become the leader: local state is then ahead and is rebuilt",
            f"set {_UNCLEAN}=false on the topic",
            fixes.change(name, {_UNCLEAN: "false"}),
        )


def partition_counts(app: Application, survey: LogSurvey, fixes: Fixes) -> Iterator[Finding]:
    """Partition counts: topics of one group of tasks need equal ones; partition p of each belongs to task p."""
    counts = {name: one.info.partitions for name, one in survey.topics.items() if one is not None}
    inputs = {name: counts[name] for name in (*app.sources, *app.repartitions) if name in counts}
    for group, topics in sorted((app.groups or {}).items()):
        known = {name: counts[name] for name in sorted(topics) if name in counts}
        most = max(known.values(), default=0)
        for name, count in known.items():
            if count < most:
                larger = next(other for other, found in known.items() if found == most)
                yield _count_finding(f"topic {name}", name, count, most, f"{larger}, which group {group} reads too,",
                                     fixes)  # fmt: skip
    for need in app.changelogs:
        if need.from_source or need.topic not in counts:
            continue
        own = (app.groups or {}).get(need.group) if need.group is not None else None
        read = inputs if own is None else {name: counts[name] for name in own if name in counts}
        # One equal input is enough: whether the inputs of a group agree is judged above.
        if not read or counts[need.topic] in read.values():
            continue
        name, most = max(read.items(), key=lambda item: item[1])
        yield _count_finding(need.where, need.topic, counts[need.topic], most, name, fixes)


def _count_finding(where: str, topic: str, count: int, most: int, other: str, fixes: Fixes) -> Finding:
    fewer = count < most
    return Finding(
        "partition-count",
        "error",
        where,
        f"has {count} partitions but {other} has {most}",
        "partition p of a changelog belongs to the task that reads partition p of the source",
        f"give it {most} partitions"
        if fewer
        else f"give {other} {count} partitions, or reset the application so that the topic is recreated",
        fixes.grow(topic, most) if fewer else fixes.grow(other, count),
    )


# -- the log itself ---------------------------------------------------------------------------------------------------


def logs_own(survey: LogSurvey, fixes: Fixes) -> Iterator[Finding]:
    """Kafka's own topics and settings for transactions and committed offsets."""
    for name in LOGS_OWN:
        topic = survey.topics.get(name)
        if topic is not None:
            yield from replication(f"Kafka's topic {name}", topic, survey.brokers, fixes)
    yield from transaction_settings(survey)
    minutes = _number(survey.settings, "offsets.retention.minutes", OFFSETS_RETENTION_MINUTES)
    if minutes < OFFSETS_RETENTION_MINUTES:
        yield Finding(
            "offsets-retention",
            "warning",
            "brokers",
            f"have offsets.retention.minutes={minutes}",
            "an application that is stopped for longer loses its source offsets and reads from the beginning",
            f"set offsets.retention.minutes={OFFSETS_RETENTION_MINUTES} in server.properties and restart the brokers",
        )


def transaction_settings(survey: LogSurvey) -> Iterator[Finding]:
    """The transaction log, which exactly once needs: the brokers must be able to create and write it."""
    settings, brokers = survey.settings, len(survey.brokers)
    copies = _number(settings, "transaction.state.log.replication.factor", 1)
    needed = _number(settings, "transaction.state.log.min.isr", 1)
    # Only before the topic exists: afterwards `replication` judges the topic itself, by its real replicas.
    if survey.topics.get(TRANSACTIONS) is None and (copies > brokers > 0 or needed > copies):
        yield Finding(
            "transaction-log",
            "error",
            "brokers",
            f"want {copies} replicas of the transaction log, {needed} in sync, and are {brokers}",
            "the first transaction waits for ever: exactly once cannot start",
            "set transaction.state.log.replication.factor and transaction.state.log.min.isr to at most the number of "
            "brokers in server.properties and restart the brokers",
        )
    longest_ms = _number(settings, "transaction.max.timeout.ms", TRANSACTION_MS)
    if longest_ms < TRANSACTION_MS:
        yield Finding(
            "transaction-timeout",
            "error",
            "brokers",
            f"have transaction.max.timeout.ms={longest_ms}",
            f"writers of standfast ask for {TRANSACTION_MS} ms and are refused",
            f"set transaction.max.timeout.ms={TRANSACTION_MS} or more in server.properties and restart the brokers, "
            f"or add ?transaction.timeout.ms={longest_ms} to the log address",
        )


def errors(found: Iterable[Finding]) -> list[Finding]:
    """The findings of severity "error"."""
    return [one for one in found if one.severity == "error"]


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name)
    return default if text is None else int(text)


def _shorter(found_ms: int, wanted_ms: int) -> bool:
    # Below 0 is for ever, which is never the shorter one.
    return found_ms >= 0 and (wanted_ms < 0 or found_ms < wanted_ms)
