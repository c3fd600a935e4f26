"""Permissions as values: the needs of an application, its user at the brokers, the wording of a missing permission."""

from __future__ import annotations

import pytest

from standfast.replication.kafka.address import parse_kafka_address
from standfast.replication.permissions import (
    CLUSTER,
    CLUSTER_NAME,
    TRANSACTIONAL_ID,
    Need,
    application_needs,
    changelog_needs,
    lack,
    topic_needs,
    write_needs,
)


def needs(topic: str, operations: str) -> set[Need]:
    return set(topic_needs([topic], *operations.split()))


def test_application_needs_to_read_sources_write_outputs_and_do_both_and_delete_between_its_tasks() -> None:
    found = application_needs(["in", "app-r-repartition"], ["out"], ["app-r-repartition"])
    assert len(found) == len(set(found))
    assert set(found) == needs("in", "READ DESCRIBE_CONFIGS") | needs("out", "WRITE DESCRIBE_CONFIGS") | needs(
        "app-r-repartition", "READ WRITE DESCRIBE_CONFIGS DELETE"
    )


def test_topic_that_is_read_and_written_needs_both() -> None:
    assert set(application_needs(["t"], ["t"], [])) == needs("t", "READ WRITE DESCRIBE_CONFIGS")


def test_followed_changelog_is_not_written() -> None:
    assert set(changelog_needs(["c"])) == needs("c", "READ WRITE DESCRIBE_CONFIGS")
    assert set(changelog_needs(["c"], followed=True)) == needs("c", "READ DESCRIBE_CONFIGS")


def test_writing_needs_write_on_each_topic_once() -> None:
    found = write_needs([("a", 0), ("a", 1), ("b", 0)])
    assert found == (Need("topic", "a", "WRITE"), Need("topic", "b", "WRITE"),
                     Need(CLUSTER, CLUSTER_NAME, "IDEMPOTENT_WRITE"))  # fmt: skip


@pytest.mark.parametrize(
    ("need", "principal", "command"),
    [
        (Need("topic", "a", "DESCRIBE_CONFIGS"), "User:bob", "User:bob --operation DescribeConfigs --topic a"),
        (Need("group", "g 1", "READ"), "User:b b", "--allow-principal 'User:b b' --operation Read --group 'g 1'"),
        (Need(TRANSACTIONAL_ID, "x", "WRITE"), "the client's principal", "User:NAME --operation Write --transactional"),
        (Need(CLUSTER, CLUSTER_NAME, "IDEMPOTENT_WRITE"), "User:a", "--operation IdempotentWrite --cluster)"),
    ],
)  # fmt: skip
def test_lack_names_permission_resource_and_principal_and_gives_the_command(
    need: Need, principal: str, command: str
) -> None:
    text = lack(need, principal, "h:9092")
    assert text.startswith(f"{principal} has no permission {need.operation} on {need.resource} {need.name!r}: ")
    assert "kafka-acls.sh --bootstrap-server h:9092 --add " in text and command in text


@pytest.mark.parametrize(
    ("options", "principal"),
    [
        ("", "User:ANONYMOUS"),
        ("?sasl.username=bob", "User:ANONYMOUS"),  # not used without SASL
        ("?security.protocol=SASL_SSL&sasl.mechanism=PLAIN&sasl.username=bob", "User:bob"),
        ("?security.protocol=sasl_plaintext&sasl.mechanisms=SCRAM-SHA-512&sasl.username=bob", "User:bob"),
        ("?security.protocol=SASL_SSL&sasl.mechanism=OAUTHBEARER&sasl.username=bob", "the client's principal"),
        ("?security.protocol=SASL_SSL&sasl.kerberos.principal=a/b@C", "the client's principal (Kerberos a/b@C)"),
        ("?security.protocol=SASL_SSL", "the client's principal"),
        ("?security.protocol=SSL", "User:ANONYMOUS"),
        (
            "?security.protocol=SSL&ssl.certificate.location=/etc/c.pem",
            "the client's principal (the subject of its certificate, /etc/c.pem)",
        ),
        (
            "?security.protocol=ssl&ssl.keystore.location=/etc/k.p12&ssl.keystore.password.file=/run/s",
            "the client's principal (the subject of its certificate, /etc/k.p12)",
        ),
        (
            "?security.protocol=SSL&ssl.certificate.pem=-----BEGIN",
            "the client's principal (the subject of its certificate, ssl.certificate.pem)",
        ),
    ],
)
def test_principal_is_what_the_brokers_take_the_client_for(options: str, principal: str) -> None:
    assert parse_kafka_address(f"kafka://h:9092{options}").principal == principal
