"""The log of a demo or of a bench: a file in its folder, a Kafka broker that it starts and stops, or a user's cluster.

    embedded               <folder>/log.db
    kafka                  a broker in <folder>/kafka, stopped by its pid however the run ends
    kafka://host:9092      a cluster: topics, groups and transactional ids begin with a prefix that no other run has

Rules of this file: on a cluster it removes only what begins with that prefix, however the run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from standfast.ops.tools.kafka_probe import check_listening
from standfast.replication.kafka.address import SCHEME, parse_kafka_address
from standfast.replication.kafka.members import MEMBERS_SUFFIX
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import InvalidRequest
from standfast.store.names import check_name

EMBEDDED, KAFKA = "embedded", "kafka"
FORMS = "embedded (the default), kafka (a broker is started for it), or kafka://host:9092 (yours)"


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """A log. `kafka` is the version of a broker that was started for it.

    Every name on a user's cluster begins with `prefix`.
    """

    kind: str
    address: str
    prefix: str = ""
    kafka: str | None = None

    def forget(self, beginning: str) -> None:
        """Delete the topics and groups on Kafka whose names begin so."""
        if self.kind == EMBEDDED:
            return
        with closing(open_log(self.address)) as log:
            groups = [name for name in log.admin.groups() if name.startswith(beginning)]
            topics = [name for name in log.admin.topic_names() if name.startswith(beginning)]
            # `topic_names` leaves out the topics of groups.
            topics += filter(log.admin.describe_topic, [name + MEMBERS_SUFFIX for name in groups])
            for name in topics:
                log.admin.delete_topic(name)
            for name in groups:
                log.admin.delete_group(name)


def check_place(log: str, prefix: str | None = None) -> None:
    """Raise InvalidRequest or BadConfig for arguments that mean nothing."""
    if log not in (EMBEDDED, KAFKA):
        if not log.startswith(f"{SCHEME}://"):
            raise InvalidRequest(f"--log is {log!r}: give {FORMS}")
        parse_kafka_address(log)
        check_name("--prefix", prefix or KAFKA)
    elif prefix is not None:
        raise InvalidRequest("--prefix goes with --log kafka://host:9092")


@contextmanager
def place_for(
    log: str, prefix: str, folder: Path, say: Callable[[str], None], *, light: bool = False, keep: bool = False
) -> Iterator[DemoPlace]:
    """The place that `--log` names, for the time of the block. Raises StandfastError if there is none to be had.

    `light` as in Broker. `keep`: topics and groups of a run stay on a user's cluster.
    """
    if log == EMBEDDED:
        yield DemoPlace(EMBEDDED, f"sqlite:///{quote(str(folder.absolute() / 'log.db'))}")
    elif log == KAFKA:
        from standfast.ops.tools.broker import Broker

        say("starting a Kafka broker for this run")
        with Broker(folder / "kafka", light=light, say=say) as broker:
            running = broker.running
            say(f"Kafka {running.version} answers at {running.address}")
            yield DemoPlace(KAFKA, f"{SCHEME}://{running.address}", kafka=running.version)
    else:
        # At once: a client of Kafka would only go on trying to connect.
        check_listening(parse_kafka_address(log).servers, "have a broker started: --log kafka")
        place = DemoPlace(KAFKA, log, f"{prefix}-{uuid4().hex[:8]}")
        say(f"on {log}, every name begins with {place.prefix}-")
        try:
            yield place
        finally:
            if keep:
                say(f"topics and groups that begin with {place.prefix}- stay on {log}")
            else:
                place.forget(place.prefix)
