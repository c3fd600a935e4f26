"""Rules about topics: each just within its border, and just beyond it; and the command that fixes it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

import standfast as sf
from standfast.replication.log import DELETE_RETENTION_DEFAULT_MS, LogSurvey, TopicInfo, TopicPolicy, TopicSurvey
from standfast.replication.topics.changelog import SLACK_MS, Other, changelog_need, default_problems, policy_problems
from standfast.replication.topics.fixes import Fixes
from standfast.replication.topics.rules import Application, Changelog, Finding, errors, findings

DAY_MS = 24 * 3_600_000
TEXT = sf.serde.string
KAFKA = Fixes("kafka://h1:9092,h2:9092")
EMBEDDED = Fixes("sqlite:///log")
COMPACT = TopicPolicy(frozenset({"compact"}))
ADMIN = "standfast.open_log('sqlite:///log').admin"
BOTH = TopicPolicy(frozenset({"compact", "delete"}), retention_ms=2 * DAY_MS)

KV = changelog_need("app", sf.KeyValueStore("kv", TEXT, TEXT))
WIN = changelog_need("app", sf.WindowStore("win", TEXT, TEXT, window_size_ms=DAY_MS, retention_ms=DAY_MS))
SES = changelog_need("app", sf.SessionStore("ses", TEXT, TEXT, retention_ms=DAY_MS))
DUP = changelog_need(
    "app", sf.WindowStore("dup", TEXT, TEXT, window_size_ms=DAY_MS, retention_ms=DAY_MS, retain_duplicates=True)
)
VER = changelog_need("app", sf.VersionedStore("ver", TEXT, TEXT, history_retention_ms=DAY_MS))
TABLE = changelog_need("app", sf.KeyValueStore("table", TEXT, TEXT, source_topic="src"))


def grown(topic: str, partitions: int) -> str:
    """The command that adds partitions to a topic of the embedded log."""
    return f"python -c {shlex.quote(f'import standfast; {ADMIN}.add_partitions({topic!r}, {partitions})')}"


def topic(
    name: str,
    policy: TopicPolicy = COMPACT,
    partitions: int = 1,
    settings: Mapping[str, str] | None = None,
    copies: int = 0,
    in_sync: int | None = None,
) -> TopicSurvey:
    info = TopicInfo(name, "id", partitions, policy, max(copies, 1))
    replicas = tuple(tuple(range(copies)) for _ in range(partitions)) if copies else ()
    return TopicSurvey(info, replicas, (copies if in_sync is None else in_sync,) * partitions, settings or {})


def judged(
    need: Changelog,
    policy: TopicPolicy = COMPACT,
    settings: Mapping[str, str] | None = None,
    *,
    copies: int = 0,
    in_sync: int | None = None,
    brokers: int = 0,
    fixes: Fixes = KAFKA,
    **given: Any,
) -> list[Finding]:
    """Findings about the topic of one store."""
    found = topic(need.topic, policy, settings=settings, copies=copies, in_sync=in_sync)
    survey = LogSurvey(tuple(range(brokers)), {}, {need.topic: found})
    return findings(Application("app", (need,), **given), survey, fixes)


class Case(NamedTuple):
    """Within the border there is no finding; beyond it one finding of this rule, with this command."""

    rule: str
    severity: str
    need: Changelog
    within: dict[str, Any]
    beyond: dict[str, Any]
    what: str
    command: str


KV_CHANGE = (
    "kafka-configs.sh --bootstrap-server h1:9092,h2:9092 --alter --entity-type topics --entity-name {} --add-config {}"
)
KV_SET = KV_CHANGE.format("app-kv-changelog", "{}")

CASES = [
    Case(
        "cleanup-policy", "error", KV, {"policy": COMPACT}, {"policy": TopicPolicy()},
        "has cleanup.policy=delete but a keyvalue store needs compact", KV_SET.format("cleanup.policy=compact"),
    ),
    Case(
        "cleanup-policy", "error", WIN, {"policy": BOTH}, {"policy": COMPACT},
        "has cleanup.policy=compact but a window store needs compact,delete",
        KV_CHANGE.format("app-win-changelog", "'cleanup.policy=[compact,delete]'"),
    ),
    Case(
        "cleanup-policy", "error", DUP, {"policy": TopicPolicy(retention_ms=2 * DAY_MS)},
        {"policy": replace(COMPACT, retention_ms=1)}, "but a window store needs delete",
        KV_CHANGE.format("app-dup-changelog", f"cleanup.policy=delete,retention.ms={2 * DAY_MS}"),
    ),
    Case(
        "retention", "error", WIN, {"policy": BOTH}, {"policy": replace(BOTH, retention_ms=2 * DAY_MS - 1)},
        f"keeps records for {2 * DAY_MS - 1} ms but the store keeps rows longer",
        KV_CHANGE.format("app-win-changelog", f"retention.ms={2 * DAY_MS}"),
    ),
    Case(
        "retention", "error", SES, {"policy": replace(BOTH, retention_ms=-1)},
        {"policy": replace(BOTH, retention_ms=DAY_MS)}, "but the store keeps rows longer",
        KV_CHANGE.format("app-ses-changelog", f"retention.ms={DAY_MS + SLACK_MS}"),
    ),
    Case(
        "compaction-lag", "error", VER, {"policy": replace(COMPACT, min_compaction_lag_ms=2 * DAY_MS)},
        {"policy": replace(COMPACT, min_compaction_lag_ms=2 * DAY_MS - 1)}, "may compact after",
        KV_CHANGE.format("app-ver-changelog", f"min.compaction.lag.ms={2 * DAY_MS}"),
    ),
    Case(
        "cleanup-policy", "error", TABLE, {"policy": TopicPolicy(retention_ms=-1)},
        {"policy": TopicPolicy(retention_ms=0)}, "source topic src, the changelog of store 'table', has",
        KV_CHANGE.format("src", "cleanup.policy=compact"),
    ),
    Case(
        "delete-retention", "warning", KV,
        {"policy": replace(COMPACT, delete_retention_ms=DELETE_RETENTION_DEFAULT_MS)},
        {"policy": replace(COMPACT, delete_retention_ms=DELETE_RETENTION_DEFAULT_MS - 1)}, "drops tombstones after",
        KV_SET.format(f"delete.retention.ms={7 * DAY_MS}"),
    ),
    Case(
        "delete-retention", "warning", KV, {"policy": replace(COMPACT, delete_retention_ms=-1)},
        {"policy": replace(COMPACT, delete_retention_ms=0)}, "drops tombstones after 0 ms",
        KV_SET.format(f"delete.retention.ms={7 * DAY_MS}"),
    ),
    Case(
        "message-size", "error", KV, {"settings": {"max.message.bytes": "1001024"}},
        {"settings": {"max.message.bytes": "1001023"}}, "takes records of at most 1001023 bytes",
        KV_SET.format("max.message.bytes=1001024"),
    ),
    Case(
        "message-size", "error", TABLE, {"settings": {"max.message.bytes": "1001024"}},
        {"settings": {"max.message.bytes": "900"}}, "takes records of at most 900 bytes",
        KV_CHANGE.format("src", "max.message.bytes=1001024"),
    ),
    Case(
        "timestamp-type", "error", KV, {"settings": {"message.timestamp.type": "CreateTime"}},
        {"settings": {"message.timestamp.type": "LogAppendTime"}}, "has message.timestamp.type=LogAppendTime",
        KV_SET.format("message.timestamp.type=CreateTime"),
    ),
    Case(
        "timestamp-age", "warning", KV, {"settings": {"message.timestamp.before.max.ms": str(2**63 - 1)}},
        {"settings": {"message.timestamp.before.max.ms": str(2**63 - 2)}}, "refuses records with a timestamp older",
        KV_SET.format(f"message.timestamp.before.max.ms={2**63 - 1}"),
    ),
    Case(
        "timestamp-ahead", "warning", KV, {"settings": {"message.timestamp.after.max.ms": str(2**63 - 1)}},
        {"settings": {"message.timestamp.after.max.ms": "3600000"}}, "more than 1 h ahead of the broker's clock",
        KV_SET.format(f"message.timestamp.after.max.ms={2**63 - 1}"),
    ),
    Case(
        "replication", "error", KV,
        {"copies": 2, "brokers": 2, "settings": {"min.insync.replicas": "2"}},
        {"copies": 1, "brokers": 2, "settings": {"min.insync.replicas": "2"}},
        "has 1 replicas of a partition but min.insync.replicas=2",
        """echo '{"version":1,"partitions":[{"topic":"app-kv-changelog","partition":0,"replicas":[0,1]}]}' """
        "> app-kv-changelog.json && kafka-reassign-partitions.sh --bootstrap-server h1:9092,h2:9092 "
        "--reassignment-json-file app-kv-changelog.json --execute",
    ),
    Case(
        "replication", "error", KV,
        {"copies": 1, "brokers": 1, "settings": {"min.insync.replicas": "1"}},
        {"copies": 1, "brokers": 1, "settings": {"min.insync.replicas": "2"}},
        "has 1 replicas of a partition but min.insync.replicas=2", KV_SET.format("min.insync.replicas=1"),
    ),
    Case(
        "in-sync", "error", KV,
        {"copies": 3, "in_sync": 2, "brokers": 3, "settings": {"min.insync.replicas": "2"}},
        {"copies": 3, "in_sync": 1, "brokers": 1, "settings": {"min.insync.replicas": "2"}},
        "has 1 replicas in sync of a partition but min.insync.replicas=2", "",
    ),
    Case(
        "replication-one", "warning", KV,
        {"copies": 1, "brokers": 1}, {"copies": 1, "brokers": 4}, "has one replica, on a cluster of 4 brokers",
        """echo '{"version":1,"partitions":[{"topic":"app-kv-changelog","partition":0,"replicas":[0,1,2]}]}' """
        "> app-kv-changelog.json && kafka-reassign-partitions.sh --bootstrap-server h1:9092,h2:9092 "
        "--reassignment-json-file app-kv-changelog.json --execute",
    ),
    Case(
        "min-isr-one", "warning", KV,
        {"copies": 3, "brokers": 3, "settings": {"min.insync.replicas": "2"}},
        {"copies": 3, "brokers": 3, "settings": {"min.insync.replicas": "1"}},
        "has min.insync.replicas=1", KV_SET.format("min.insync.replicas=2"),
    ),
    Case(
        "unclean-election", "warning", KV,
        {"copies": 3, "brokers": 3,
         "settings": {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}},
        {"copies": 3, "brokers": 3,
         "settings": {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}},
        "has unclean.leader.election.enable=true", KV_SET.format("unclean.leader.election.enable=false"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}-{case.need.kind}")
def test_rule_finds_what_is_beyond_its_border_and_nothing_within(case: Case) -> None:
    assert judged(case.need, **case.within) == []
    (found,) = judged(case.need, **case.beyond)
    assert (found.rule, found.severity, found.command) == (case.rule, case.severity, case.command)
    assert case.what in f"{found.where} {found.what}"
    assert found.why
    assert found.fix


def test_what_is_made_by_the_application_itself_is_found_right() -> None:
    for need in (KV, WIN, SES, DUP, VER):
        assert judged(need, need.policy, copies=3, brokers=3, settings={"min.insync.replicas": "2"}) == []


def test_larger_values_need_a_larger_limit() -> None:
    settings = {"max.message.bytes": "1048588"}
    assert judged(KV, settings=settings, value_max_bytes=1_048_588 - 1_024) == []
    (found,) = judged(KV, settings=settings, value_max_bytes=1_048_588 - 1_023)
    assert found.rule == "message-size"


def test_embedded_log_is_put_right_by_a_line_of_python() -> None:
    (found,) = judged(WIN, TopicPolicy(retention_ms=1), fixes=EMBEDDED)
    program, flag, call = shlex.split(found.command)
    assert (program, flag) == ("python", "-c")
    policy = {"cleanup.policy": "compact,delete", "retention.ms": str(2 * DAY_MS)}
    assert call == f"import standfast; {ADMIN}.change_topic('app-win-changelog', {policy})"
    assert EMBEDDED.grow("t", 3) == grown("t", 3)
    assert EMBEDDED.create("t", None) == "standfast topic create t --partitions N --log sqlite:///log"


def test_command_for_a_cluster_with_a_login_leaves_it_in_a_file() -> None:
    fixes = Fixes("kafka://h:9093?security.protocol=SASL_SSL&sasl.password.file=/run/secret")
    assert fixes.create_replicated("t", 2, {}, 3) == (
        "kafka-topics.sh --bootstrap-server h:9093 --command-config client.properties --create --topic t "
        "--partitions 2 --replication-factor 3"
    )
    other = Fixes("kafka://h:9093?socket.keepalive.enable=true")
    assert "client.properties" not in other.create_replicated("t", 2, {}, 3)


def test_command_of_ours_opens_the_log_as_it_was_opened() -> None:
    address = "kafka://h:9093?security.protocol=SASL_SSL&sasl.password.file=/run/secret"
    assert Fixes(address).create("t", 3) == f"standfast topic create t --partitions 3 --log '{address}'"


# -- absent, unknown, between tasks -----------------------------------------------------------------------------------


def test_absent_changelog_is_an_error_once_the_application_has_run() -> None:
    survey = LogSurvey((), {}, {KV.topic: None})
    (before,) = findings(Application("app", (KV,)), survey, KAFKA)
    (after,) = findings(Application("app", (KV,), has_run=True), survey, KAFKA)
    assert [(one.rule, one.severity) for one in (before, after)] == [
        ("topic-absent", "warning"),
        ("topic-absent", "error"),
    ]
    assert "may be the last copy" in after.why


def test_absent_source_topic_is_told_once_also_where_it_is_a_changelog() -> None:
    survey = LogSurvey((), {}, {"src": None})
    (found,) = findings(Application("app", (TABLE,), ("src",)), survey, KAFKA)
    assert (found.rule, found.severity, found.where) == ("topic-absent", "error", "source topic src")
    assert found.command == "standfast topic create src --partitions N --log kafka://h1:9092,h2:9092"


@pytest.mark.parametrize(("most", "rules"), [("1001024", []), ("1001023", ["message-size"]), (None, [])])
def test_output_topic_that_takes_less_than_the_largest_result_is_told(most: str | None, rules: list[str]) -> None:
    settings = {} if most is None else {"max.message.bytes": most}
    survey = LogSurvey((), {}, {"out": topic("out", settings=settings)})
    found = findings(Application("app", outputs=("out",)), survey, KAFKA)
    assert [(one.rule, one.severity, one.where) for one in found] == [
        (rule, "warning", "output topic out") for rule in rules
    ]
    for one in found:
        assert "falls under on_error" in one.why and "a dead letter is cut" in one.why
        assert one.command == KV_CHANGE.format("out", "max.message.bytes=1001024")


def test_absent_output_topic_is_told() -> None:
    (found,) = findings(Application("app", outputs=("out",)), LogSurvey((), {}, {"out": None}), KAFKA)
    assert (found.rule, found.severity, found.where) == ("topic-absent", "error", "output topic out")


def test_changelog_of_a_store_that_nobody_defined_is_told_and_judged_as_far_as_it_can_be() -> None:
    name = "app-old-changelog"
    survey = LogSurvey((0,), {}, {name: topic(name, settings={"message.timestamp.type": "LogAppendTime"}, copies=1)})
    found = findings(Application("app", unknown=(name,)), survey, KAFKA)
    assert [(one.rule, one.severity) for one in found] == [("timestamp-type", "error"), ("store-unknown", "warning")]
    assert "--store old:KIND" in found[1].fix


@pytest.mark.parametrize(
    ("policy", "rules"),
    [
        (TopicPolicy(), []),
        (TopicPolicy(retention_ms=0), [("retention", "warning")]),
        (COMPACT, [("cleanup-policy", "error")]),
        (BOTH, [("cleanup-policy", "error")]),
    ],
)
def test_topic_between_tasks_keeps_all_that_is_not_processed(policy: TopicPolicy, rules: list[tuple[str, str]]) -> None:
    name = "app-x-repartition"
    survey = LogSurvey((), {}, {name: topic(name, policy)})
    found = findings(Application("app", repartitions=(name,)), survey, KAFKA)
    assert [(one.rule, one.severity) for one in found] == rules


# -- partitions -------------------------------------------------------------------------------------------------------


def counted(app: Application, **counts: int) -> list[tuple[str, str]]:
    names = {"kv": KV.topic, "x": "app-x-repartition", "src": "src", "other": "other"}
    policies = {"kv": COMPACT}
    topics = {
        names[name]: topic(names[name], policies.get(name, TopicPolicy()), count) for name, count in counts.items()
    }
    return [(one.what, one.command) for one in findings(app, LogSurvey((), {}, topics), EMBEDDED)]


def test_changelog_has_as_many_partitions_as_the_topic_its_tasks_read() -> None:
    app = Application("app", (KV,), ("src",))
    assert counted(app, kv=2, src=2) == []
    assert counted(app, kv=1, src=2) == [
        (
            "has 1 partitions but src has 2",
            grown(KV.topic, 2),
        )
    ]
    assert counted(app, kv=3, src=2) == [("has 3 partitions but src has 2", grown("src", 3))]


def test_store_behind_a_repartition_has_the_partitions_of_that_topic() -> None:
    app = Application("app", (KV,), ("src",), ("app-x-repartition",))
    assert counted(app, kv=4, src=2, x=4) == []
    assert counted(app, kv=2, src=2, x=4) == []  # it is unknown which of them its tasks read
    known = replace(
        app, changelogs=(replace(KV, group=1),), groups={0: frozenset({"src"}), 1: frozenset({"app-x-repartition"})}
    )
    assert counted(known, kv=4, src=2, x=4) == []
    assert [what for what, _ in counted(known, kv=2, src=2, x=4)] == ["has 2 partitions but app-x-repartition has 4"]


def test_topics_that_one_group_reads_have_equal_counts() -> None:
    app = Application("app", sources=("src", "other"), groups={0: frozenset({"src", "other"})})
    assert counted(app, src=2, other=2) == []
    assert counted(app, src=3, other=2) == [
        (
            "has 2 partitions but src, which group 0 reads too, has 3",
            grown("other", 3),
        )
    ]


# -- the log itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "brokers", "rules"),
    [
        ({}, 1, []),
        ({"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}, 3, []),
        ({"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}, 2,
         ["transaction-log"]),
        ({"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "2"}, 2,
         ["transaction-log"]),
        ({"transaction.max.timeout.ms": "10000"}, 1, []),
        ({"transaction.max.timeout.ms": "9999"}, 1, ["transaction-timeout"]),
        ({"offsets.retention.minutes": "10080"}, 1, []),
        ({"offsets.retention.minutes": "10079"}, 1, ["offsets-retention"]),
    ],
)  # fmt: skip
def test_brokers_can_keep_transactions_and_offsets(settings: dict[str, str], brokers: int, rules: list[str]) -> None:
    survey = LogSurvey(tuple(range(brokers)), settings, {})
    assert [one.rule for one in findings(Application("app"), survey, KAFKA)] == rules


def test_topics_of_kafka_itself_are_counted_too() -> None:
    survey = LogSurvey((0, 1, 2), {}, {"__transaction_state": topic("__transaction_state", copies=1)})
    (found,) = findings(Application("app"), survey, KAFKA)
    assert (found.rule, found.where) == ("replication-one", "Kafka's topic __transaction_state")


@pytest.mark.parametrize(("copies", "needed", "refused"), [(2, 2, False), (1, 2, True), (3, 2, False), (1, 1, False)])
def test_changelog_is_not_made_with_fewer_replicas_than_a_write_needs(copies: int, needed: int, refused: bool) -> None:
    settings = {"default.replication.factor": str(copies), "min.insync.replicas": str(needed)}
    problems = default_problems(KV, LogSurvey((0, 1, 2), settings, {}), 4, KAFKA)
    assert bool(problems) == refused
    for problem in problems:
        assert problem.endswith(
            "kafka-topics.sh --bootstrap-server h1:9092,h2:9092 --create --topic app-kv-changelog --partitions 4 "
            "--replication-factor 2 --config cleanup.policy=compact"
        )
    assert default_problems(KV, LogSurvey((), {}, {}), 4, EMBEDDED) == []


@pytest.mark.parametrize(
    ("found", "allow", "told"),
    [
        (2, "none", None),
        (3, "none", "has 3 partitions but the application has 2: run it with 3, or give the application a new name"),
        (1, "none", f"let the topic grow: {grown('app-kv-changelog', 2)}"),
        (3, "more", None),  # another process saw the source grow before us
        (1, "more", "has 1 partitions but the application has 2"),
        (1, "fewer", None),  # it is going to follow its source
        (3, "fewer", "has 3 partitions but the application has 2"),
    ],
)
def test_changelog_has_as_many_partitions_as_there_are_tasks(found: int, allow: Other, told: str | None) -> None:
    spec = sf.KeyValueStore("kv", TEXT, TEXT)
    problems = policy_problems("app", spec, TopicInfo(KV.topic, "id", found, COMPACT), 2, EMBEDDED, allow)
    assert len(problems) == (told is not None)
    assert told is None or told in problems[0]


def test_changelogs_are_made_with_the_timestamps_of_the_rows() -> None:
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    assert KV.policy.extra == {"message.timestamp.type": "CreateTime"} | any_time
    spec = sf.KeyValueStore("kv", TEXT, TEXT, changelog={"message.timestamp.type": "LogAppendTime", "segment.ms": "1"})
    own = {"message.timestamp.type": "LogAppendTime", "segment.ms": "1"}
    assert changelog_need("app", spec).policy.extra == own | any_time


def test_errors_come_first() -> None:
    found = judged(KV, TopicPolicy(), copies=1, brokers=2)
    assert [one.severity for one in found] == ["error", "warning"]
    assert errors(found) == found[:1]
