"""Permissions that a log requires of its user, as values, and the sentence that reports a missing one.

    Need("topic", "orders-kv-changelog", "WRITE")    resource, name, operation: the words of Kafka's ACLs

    changelog             READ WRITE DESCRIBE_CONFIGS, CREATE if it does not exist; of a window or session store also
                          DELETE and ALTER_CONFIGS, without which the log keeps its records by the clock
    source, output topic  READ, WRITE; DESCRIBE_CONFIGS of both
    between tasks         as a changelog, and DELETE: processed records are removed

Rules of this file: pure. It must not know how to ask a log. Kafka derives DESCRIBE from READ, WRITE, ALTER and
DELETE, so this file never names it beside one of them. A test compares README's table with it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import NamedTuple

TOPIC, GROUP, TRANSACTIONAL_ID, CLUSTER = "topic", "group", "transactional-id", "cluster"
CLUSTER_NAME = "kafka-cluster"  # the only name of a cluster in Kafka's ACLs
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
    """The given operations on each of the topics."""
    # Each topic once, in order: one may be source and output at the same time.
    return tuple(Need(TOPIC, name, operation) for name in dict.fromkeys(names) for operation in operations)


def write_needs(sources: Iterable[tuple[str, int]]) -> tuple[Need, ...]:
    """Permissions for writing to these partitions; a client that numbers its records needs one of the two."""
    return (*topic_needs((topic for topic, _ in sources), "WRITE"), Need(CLUSTER, CLUSTER_NAME, "IDEMPOTENT_WRITE"))


def changelog_needs(names: Iterable[str], *, followed: bool = False) -> tuple[Need, ...]:
    """Permissions of a session on its existing changelogs; `followed`: they are another application's."""
    return topic_needs(names, *(_FOLLOWED if followed else _CHANGELOG))


def application_needs(sources: Iterable[str], outputs: Iterable[str], between: Iterable[str]) -> tuple[Need, ...]:
    """Permissions of an application on the topics that it reads, writes, and has between its tasks."""
    own = dict.fromkeys(between)
    return (
        *topic_needs((name for name in sources if name not in own), "READ", "DESCRIBE_CONFIGS"),
        *topic_needs((name for name in outputs if name not in own), "WRITE", "DESCRIBE_CONFIGS"),
        *topic_needs(own, *_BETWEEN),
    )


def lack(need: Need, principal: str, servers: str) -> str:
    """A sentence with the missing permission, its principal, and the command that grants it.

    `principal` is `User:name`, or words for a principal that the client cannot know; the command then leaves it open.
    """
    known = principal if principal.startswith("User:") else "User:NAME"
    operation = "".join(word.capitalize() for word in need.operation.split("_"))
    target = f"--{need.resource}" + ("" if need.resource == CLUSTER else f" {shlex.quote(need.name)}")
    return (
        f"{principal} has no permission {need}: allow it (kafka-acls.sh --bootstrap-server {servers} --add "
        f"--allow-principal {shlex.quote(known)} --operation {operation} {target}), or use a login that has it"
    )
