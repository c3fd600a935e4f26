"""Topics that benches of restores and of the rest of `proof/bench` left on a broker."""

from __future__ import annotations

from standfast.replication.kafka.log import KafkaLog


def topics_of(address: str) -> list[str]:
    """Names of the topics of benchmarks, and of their groups' members."""
    log = KafkaLog(address)
    try:
        return [name for name in log._cluster.names() if name.startswith("standfast-bench")]
    finally:
        log.close()
