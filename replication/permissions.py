"""Permissions that a log asks of its user, as values: what is needed, and how a lack is put into words.

    Need("topic", "orders-kv-changelog", "WRITE")    resource, name, operation: the words of Kafka's ACLs

    changelog             READ WRITE DESCRIBE_CONFIGS, CREATE where it does not exist
    source, output topic  READ, WRITE; DESCRIBE_CONFIGS of both
    between tasks         as a changelog, and DELETE: processed records are removed

Rules of this file: pure. It must not know how a log is asked. Kafka derives DESCRIBE from READ, WRITE, ALTER and
DELETE, so it is never named here beside one of them. README's table is compared with this by a test.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import NamedTuple

TOPIC, GROUP, TRANSACTIONAL_ID, CLUSTER = "topic", "group", "transactional-id", "cluster"
CLUSTER_NAME = "kafka-cluster"
_CHANGELOG = ("READ", "WRITE", "DESCRIBE_CONFIGS")
_FOLLOWED = ("READ", "DESCRIBE_CONFIGS")
_BETWEEN = (*_CHANGELOG, "DELETE")


class Need(NamedTuple):
    """One operation on one resource."""

    resource: str
    name: str
    operation: str

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name!r}"


def topic_needs(names: Iterable[str], *operations: str) -> tuple[Need, ...]:
    """These operations on each of these topics."""
    return tuple(Need(TOPIC, name, operation) for name in dict.fromkeys(names) for operation in operations)


def write_needs(sources: Iterable[tuple[str, int]]) -> tuple[Need, ...]:
    """What writing to these partitions takes; a client that numbers its records needs one of the two."""
    return (*topic_needs((topic for topic, _ in sources), "WRITE"), Need(CLUSTER, CLUSTER_NAME, "IDEMPOTENT_WRITE"))


def changelog_needs(names: Iterable[str], *, followed: bool = False) -> tuple[Need, ...]:
    """What a session needs of its changelogs once they exist; `followed`: they are another application's."""
    return topic_needs(names, *(_FOLLOWED if followed else _CHANGELOG))


def application_needs(sources: Iterable[str], outputs: Iterable[str], between: Iterable[str]) -> tuple[Need, ...]:
    """What an application needs of the topics that it reads, writes, and has between its tasks."""
    own = dict.fromkeys(between)
    return (
        *topic_needs((name for name in sources if name not in own), "READ", "DESCRIBE_CONFIGS"),
        *topic_needs((name for name in outputs if name not in own), "WRITE", "DESCRIBE_CONFIGS"),
        *topic_needs(own, *_BETWEEN),
    )


def lack(need: Need, principal: str, servers: str) -> str:
    """What is missing, for whom, and the command that allows it.

    `principal` is `User:name`, or words for one that the client cannot know; then the command leaves it open.
    """
    known = principal if principal.startswith("User:") else "User:NAME"
    operation = "".join(word.capitalize() for word in need.operation.split("_"))
    target = f"--{need.resource}" + ("" if need.resource == CLUSTER else f" {shlex.quote(need.name)}")
    return (
        f"{principal} has no permission {need}: allow it (kafka-acls.sh --bootstrap-server {servers} --add "
        f"--allow-principal {shlex.quote(known)} --operation {operation} {target}), or use a login that has it"
    )
