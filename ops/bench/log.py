"""The log of a benchmark: an embedded one in each run's folder, a Kafka broker of its own, or an existing cluster.

    sqlite              no address: each run has a log in its folder
    kafka               a broker is started in the folder, and stopped by its process id at the end
    kafka://host:port   that cluster; topics begin with a prefix that no other run has, and are deleted at the end

Rules of this file: it ends the broker that it started and deletes the topics that it made, also when a run fails.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.ops.bench.step import APP, STORE
from standfast.store.names import changelog_topic

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output

SQLITE, KAFKA = "sqlite", "kafka"
RUNS_DEFAULT = {SQLITE: 3, KAFKA: 5}


def add_log(parser: argparse.ArgumentParser) -> None:
    """Add `--log`."""
    parser.add_argument(
        "--log",
        default=SQLITE,
        metavar="LOG",
        help="sqlite (the default), kafka (start a broker for it), or kafka://host:port (topics of its own there)",
    )


@dataclass(frozen=True)
class BenchLog:
    """The log; `address` is empty for the embedded one. Applications are named `prefix` or begin with it."""

    kind: str
    address: str = ""
    prefix: str = APP
    broker: str | None = None

    def forget(self, app: str) -> None:
        """Delete the topics of applications whose names begin so; nothing for the embedded log."""
        if self.address:
            _delete_topics(self.address, app)

    def document(self) -> dict[str, Any]:
        """The log as JSON."""
        return {"kind": self.kind, "address": self.address or None, "broker": self.broker}


def kind_of(log: str) -> str:
    """Kind of the log: "sqlite" or "kafka". Raises InvalidRequest or BadConfig for any other."""
    from standfast.replication.kafka.address import parse_kafka_address
    from standfast.store.errors import InvalidRequest

    if log in (SQLITE, KAFKA):
        return log
    if not log.startswith(f"{KAFKA}://"):
        raise InvalidRequest(f"--log is {log!r}: give {SQLITE}, {KAFKA} or {KAFKA}://host:port")
    parse_kafka_address(log)
    return KAFKA


@contextmanager
def bench_log(log: str, folder: Path, out: Output) -> Iterator[BenchLog]:
    """The log for the time of a benchmark. Raises Unavailable if there is no broker to be had."""
    if kind_of(log) == SQLITE:
        yield BenchLog(SQLITE)
    elif log == KAFKA:
        from standfast.ops.tools.broker import Broker

        with Broker(folder / "broker", say=out.note) as broker:
            yield BenchLog(KAFKA, f"{KAFKA}://{broker.address}", _new_prefix(), broker.running.version)
    else:
        prefix = _new_prefix()
        try:
            yield BenchLog(KAFKA, log, prefix)
        finally:
            _delete_topics(log, prefix)


def _new_prefix() -> str:
    return f"standfast-{APP}-{uuid.uuid4().hex[:8]}"


def _delete_topics(address: str, prefix: str) -> None:
    from standfast.replication.kafka.members import MEMBERS_SUFFIX
    from standfast.replication.tail.open_log import open_log

    with closing(open_log(address)) as log:
        suffix = changelog_topic("", STORE)
        names = [info.name for info in log.admin.topics() if info.name.startswith(prefix)]
        # `topics` leaves topics of groups out, so their names are derived.
        members = [name.removesuffix(suffix) + MEMBERS_SUFFIX for name in names if name.endswith(suffix)]
        for name in names + [name for name in members if log.admin.describe_topic(name) is not None]:
            log.admin.delete_topic(name)
