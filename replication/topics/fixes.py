"""Commands that correct a topic, ready to paste: Kafka's own tools, a line of Python for the log that has none.

    kafka-configs.sh --bootstrap-server host:9092 --alter --entity-type topics --entity-name T --add-config a=b
    python -c "import standfast; standfast.open_log('sqlite:///./log').admin.change_topic('T', {'a': 'b'})"

Rules of this file: pure; text only. A secret is never in an address, and so never in a command: if the address has
security settings, Kafka's tools get them by `--command-config client.properties`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

REPLICAS_WANTED = 3


@dataclass(frozen=True, slots=True)
class Fixes:
    """Commands for the log at `address`."""

    address: str

    def change(self, topic: str, settings: Mapping[str, str]) -> str:
        """Change settings of a topic."""
        if not self._on_kafka:
            return self._python(f"change_topic({topic!r}, {dict(settings)!r})")
        # Kafka's tool takes a list in brackets: a comma ends a setting.
        given = ",".join(f"{name}=[{value}]" if "," in value else f"{name}={value}" for name, value in settings.items())
        return f"{self._tool('configs')} --alter --entity-type topics --entity-name {topic} --add-config {_word(given)}"

    def grow(self, topic: str, partitions: int) -> str:
        """Grow a topic to that many partitions."""
        if not self._on_kafka:
            return self._python(f"add_partitions({topic!r}, {partitions})")
        return f"{self._tool('topics')} --alter --topic {topic} --partitions {partitions}"

    def create(self, topic: str, partitions: int | None) -> str:
        """Create a topic; without a number of partitions the command has N, for the reader to fill in."""
        count = "N" if partitions is None else str(partitions)
        return f"standfast topic create {topic} --partitions {count} --log {_word(self.address)}"

    def absent(self, topic: str) -> str:
        """A text for an absent topic: its name, where it is missing, and the command that creates it."""
        return f"{topic!r} does not exist in {self.address}: create it: {self.create(topic, None)}"

    def create_replicated(self, topic: str, partitions: int, settings: Mapping[str, str], replicas: int) -> str:
        """Create a topic with `replicas` copies, which only the brokers' own tool can set."""
        given = " ".join(f"--config {_word(f'{name}={value}')}" for name, value in settings.items())
        return (
            f"{self._tool('topics')} --create --topic {topic} --partitions {partitions} --replication-factor "
            f"{replicas} {given}"
        ).rstrip()

    def replicate(self, topic: str, replicas: Sequence[Sequence[int]], brokers: Sequence[int], wanted: int) -> str:
        """Give each partition `wanted` replicas: its present ones first, then further brokers in turn."""
        plan = [
            {"topic": topic, "partition": number, "replicas": _more(have, brokers, number, wanted)}
            for number, have in enumerate(replicas)
        ]
        text = json.dumps({"version": 1, "partitions": plan}, separators=(",", ":"))
        file = f"{topic}.json"
        return (
            f"echo {shlex.quote(text)} > {file} && "
            f"{self._tool('reassign-partitions')} --reassignment-json-file {file} --execute"
        )

    @property
    def _on_kafka(self) -> bool:
        return self.address.startswith("kafka://")

    def _python(self, call: str) -> str:
        return f"python -c {_word(f'import standfast; standfast.open_log({self.address!r}).admin.{call}')}"

    def _tool(self, name: str) -> str:
        servers, _, query = self.address.removeprefix("kafka://").partition("?")
        login = any(part.startswith(("security.", "sasl.", "ssl.")) for part in query.split("&"))
        return f"kafka-{name}.sh --bootstrap-server {servers}" + (
            " --command-config client.properties" if login else ""
        )


def _more(have: Sequence[int], brokers: Sequence[int], turn: int, wanted: int) -> list[int]:
    # Present replicas stay in front, since the first is the preferred leader and keeps its data.
    others = [broker for broker in brokers if broker not in have]
    turned = [others[(turn + at) % len(others)] for at in range(len(others))]
    return [*have, *turned][: max(wanted, len(have))]


def _word(text: str) -> str:
    return shlex.quote(text)
