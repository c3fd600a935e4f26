"""The settings files of the single Kafka broker: KRaft, one node that is broker and controller, loopback only.

Rules of this file: pure text. Values are those of a broker for trying and testing: one replica of everything, small
internal topics, and housekeeping within a second where a cluster takes minutes. A test sets what concerns one topic
(`segment.ms`, `min.cleanable.dirty.ratio`) on that topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from standfast.ops.shared.loopback import HOST

NODE_ID = 1

FIXED = {
    "process.roles": "broker,controller",
    "node.id": str(NODE_ID),
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    # One replica of everything; few partitions, since each is a folder with files of its own.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # A killed broker is admitted again only after the end of its former session.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Groups form at once, and tests may have members expire soon.
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    # Compaction, retention, deletion and the end of abandoned transactions within about a second.
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),  # the default of 128 MiB would be a quarter of the heap
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "4",
}

# To standard output, which goes to the log file, without the 300 lines of settings that each start would write.
LOGGING = """\
rootLogger.level=INFO
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex{6}
logger.config.name=org.apache.kafka.common.config
logger.config.level=WARN
"""


def server_properties(
    data: Path, port: int, controller_port: int, settings: Mapping[str, str] | None = None
) -> dict[str, str]:
    """All settings; `settings` win, and may hold `{port}` and `{controller_port}`."""
    values = FIXED | {
        "controller.quorum.voters": f"{NODE_ID}@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "log.dirs": str(data),
    }
    ports = (("{port}", str(port)), ("{controller_port}", str(controller_port)))
    for name, value in (settings or {}).items():
        for mark, number in ports:
            value = value.replace(mark, number)
        values[name] = value
    return values


def properties_text(values: Mapping[str, str]) -> str:
    """The settings as a Java properties file."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in values.items())


def _escaped(value: str) -> str:
    # Java reads the file as Latin-1, with backslash as its escape.
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    return "".join(sign if sign.isascii() else f"\\u{ord(sign):04x}" for sign in escaped)
