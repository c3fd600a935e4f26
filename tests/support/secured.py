"""A real broker with logins and permissions (SASL/PLAIN, StandardAuthorizer), and the permissions of its users.

Rules of this file: no fixtures, so tests import the parts they use. Users are declared when the broker starts, so there
is a store of them: each test takes one of its own, because WRITE on any topic allows more than that topic.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import admin as _admin

from standfast.ops.shared.loopback import HOST, free_port
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.permissions import GROUP, TOPIC, TRANSACTIONAL_ID, Need
from support.kafka import light_broker

_api: Any = _admin  # its names are public by its manual, but not to type checkers
WAIT_S = 40.0
USERS_MAX = 150
USERS = {"root": "root-secret", "reader": "reader-secret"} | {f"u{n}": f"secret-{n}" for n in range(USERS_MAX)}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SECURED = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} username="root" password="root-secret" '
    + " ".join(f'user_{name}="{secret}"' for name, secret in USERS.items())
    + ";",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root;User:ANONYMOUS",  # the broker's own listeners have no login
}
_RESOURCES = {
    TOPIC: _api.ResourceType.TOPIC,
    GROUP: _api.ResourceType.GROUP,
    TRANSACTIONAL_ID: _api.ResourceType.TRANSACTIONAL_ID,
}


class Secured:
    """`address` requires a login (`host:port`); `root` is a log with all permissions."""

    def __init__(self, root: Path, address: str, open_address: str) -> None:
        self.address = address
        self._folder = root
        self.root = KafkaLog(f"kafka://{open_address}")
        self._admin = _api.AdminClient({"bootstrap.servers": open_address})
        self._numbers = count()

    def new_user(self) -> str:
        """A user without permissions."""
        return f"u{next(self._numbers)}"

    def login(self, user: str, secret: str | None = None, mechanism: str = "PLAIN") -> str:
        """The address of a log for a user; the secret is in a file."""
        path = self._folder / f"{user}.secret"
        path.write_text((USERS[user] if secret is None else secret) + "\n")
        return (
            f"kafka://{self.address}?timeout.ms=5000&security.protocol=SASL_PLAINTEXT&sasl.mechanism={mechanism}"
            f"&sasl.username={user}&sasl.password.file={path}"
        )

    def allow(self, user: str, needs: Iterable[Need], *, prefixed: bool = False) -> None:
        """Give permissions, and wait until the broker applies them. `prefixed`: on all names with that prefix."""
        bindings = [_binding(user, need, prefixed) for need in needs]
        for future in self._admin.create_acls(bindings).values() if bindings else ():
            future.result()
        self._until(user, set(bindings), held=True)

    def take_away(self, user: str, need: Need) -> None:
        """Revoke a permission, and wait until the broker applies that."""
        binding = _binding(user, need)
        for future in self._admin.delete_acls([_filter(user, binding)]).values():
            future.result()
        self._until(user, {binding}, held=False)

    def close(self) -> None:
        self.root.close()

    def _until(self, user: str, bindings: set[Any], *, held: bool) -> None:
        """Wait for the node, broker and controller in one: it replies from the very state that it authorises by."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = set(self._admin.describe_acls(_filter(user)).result())
            if (bindings <= found) if held else not (bindings & found):
                return
            assert time.monotonic() < deadline, f"the broker does not go by {bindings}"
            time.sleep(0.01)


@contextmanager
def secured_broker(root: Path) -> Iterator[Secured]:
    """A broker that runs until the end of the block."""
    port = free_port()
    own = f"PLAINTEXT://{HOST}:{{port}},CONTROLLER://{HOST}:{{controller_port}}"
    listeners = {"listeners": f"{own},SASL_PLAINTEXT://{HOST}:{port}"}
    with light_broker(root / "kafka", SECURED | listeners) as broker:
        made = Secured(root, f"{HOST}:{port}", broker.address)
        try:
            yield made
        finally:
            made.close()


def _binding(user: str, need: Need, prefixed: bool = False) -> Any:
    pattern = _api.ResourcePatternType.PREFIXED if prefixed else _api.ResourcePatternType.LITERAL
    operation, allow = _api.AclOperation[need.operation], _api.AclPermissionType.ALLOW
    return _api.AclBinding(_RESOURCES[need.resource], need.name, pattern, f"User:{user}", "*", operation, allow)


def _filter(user: str, binding: Any = None) -> Any:
    if binding is not None:
        return _api.AclBindingFilter(
            *(binding.restype, binding.name, binding.resource_pattern_type, binding.principal, binding.host),
            *(binding.operation, binding.permission_type),
        )
    any_of = (_api.ResourceType.ANY, None, _api.ResourcePatternType.ANY, f"User:{user}", None)
    return _api.AclBindingFilter(*any_of, _api.AclOperation.ANY, _api.AclPermissionType.ANY)
