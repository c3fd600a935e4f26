"""Places of the demo's log: a file in its folder, a Kafka broker that it starts and stops, or a cluster of the user's.

    (nothing)                            <folder>/log.db
    --log kafka                          a broker in <folder>/kafka, stopped by its pid however the demo ends
    --log kafka://host:9092 --prefix x   a cluster: topics, group and transactional ids all begin with "x-"

On a cluster the demo begins only if nothing of its names is there, so all of them are its own afterwards: they are
removed after a good run, and else kept for a look, with the line that removes them.

Rules of this file: places and names. It removes only topics that it is given by name, and lists them before.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from standfast.ops.demo.board import VIEW_MS, BoardSettings, topics
from standfast.ops.demo.display import Display
from standfast.ops.demo.result import LogUsed, removal_line
from standfast.ops.demo.worker import log_address
from standfast.ops.shared.exit_codes import OK
from standfast.ops.shared.output import Output
from standfast.ops.shared.streams import say
from standfast.ops.tools.kafka_probe import check_listening
from standfast.replication.kafka.address import SCHEME, parse_kafka_address
from standfast.replication.log import Log
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.app_topics import MEMBERS, PLACEMENT
from standfast.store.clock import Clock
from standfast.store.errors import InvalidRequest
from standfast.store.names import check_name

SCHEMA = "standfast.demo-remove/1"
KAFKA = "kafka"
PREFIX_DEFAULT = "standfast-demo"
SHOWN_MAX = 3
ADDRESS_FORMS = "leave it out (a file), write kafka (the demo starts a broker), or kafka://host:9092 (yours)"


@dataclass(frozen=True, slots=True)
class Topic:
    """An existing topic of the demo; `offsets` is how many it holds."""

    name: str
    partitions: int
    offsets: int


def check_place(log: str | None, prefix: str | None) -> None:
    """Raise InvalidRequest or BadConfig for arguments that mean nothing."""
    if log not in (None, KAFKA):
        if not log.startswith(f"{SCHEME}://"):
            raise InvalidRequest(f"--log {log}: {ADDRESS_FORMS}")
        parse_kafka_address(log)
    elif prefix is not None:
        raise InvalidRequest("--prefix goes with --log kafka://host:9092: elsewhere all names are the demo's own")
    if prefix is not None:
        check_name("--prefix", prefix)


@contextmanager
def place_for(log: str | None, prefix: str | None, folder: Path, display: Display, clock: Clock) -> Iterator[LogUsed]:
    """The place that the arguments name, ready to be used. Raises StandfastError if it cannot be."""
    if log is None:
        yield LogUsed("embedded", log_address(folder))
    elif log == KAFKA:
        with _started(folder / "kafka", display, clock) as used:
            yield used
    else:
        used = _others(log, prefix or PREFIX_DEFAULT, display, clock)
        try:
            yield used
        except BaseException:
            say(
                f"note: topics that begin with {used.prefix}- may be left on {used.address}; remove them with: "
                f"{removal_line(used.address, used.prefix)}"
            )
            raise


def found_topics(log: Log, prefix: str) -> list[Topic]:
    """Existing topics of a demo with this prefix."""
    found = []
    with closing(log.reader()) as reader:
        for name in names(prefix):
            info = log.admin.describe_topic(name)
            if info is not None:
                bounds = reader.bounds([TopicPartition(name, part) for part in range(info.partitions)])
                found.append(Topic(name, info.partitions, sum(end - begin for begin, end in bounds.values())))
    return found


def remove(log: Log, prefix: str, found: Sequence[Topic]) -> None:
    """Delete these topics, and the group. Transactional ids are no objects of a broker: it forgets unused ones."""
    for topic in found:
        log.admin.delete_topic(topic.name)
    log.admin.delete_group(BoardSettings(0, 0, prefix=prefix).app)


def names(prefix: str) -> tuple[str, ...]:
    """Every topic that a demo with this prefix makes, those of its instances included."""
    settings = BoardSettings(0, VIEW_MS, prefix=prefix)  # names do not depend on times
    return (*topics(settings), settings.app + MEMBERS, settings.app + PLACEMENT)


@contextmanager
def _started(directory: Path, display: Display, clock: Clock) -> Iterator[LogUsed]:
    """A broker of our own."""
    from standfast.ops.tools.broker import Broker

    display.event("starting a Kafka broker for this run")
    began_ms = clock.monotonic_ms()
    # Compiling less halves the processor time of the start, which is most of what this broker costs.
    with Broker(directory, light=True, say=display.event, clock=clock) as broker:
        running, took_ms = broker.running, clock.monotonic_ms() - began_ms
        display.event(f"Kafka {running.version} answers at {running.address} after {took_ms / 1_000:.1f} s")
        yield LogUsed(
            KAFKA, f"{SCHEME}://{running.address}", kafka=running.version, pid=running.pid, started_ms=took_ms
        )


def _others(address: str, prefix: str, display: Display, clock: Clock) -> LogUsed:
    """The user's cluster, on which no topic of our names may exist."""
    # At once: a client of Kafka would only go on trying to connect.
    check_listening(parse_kafka_address(address).servers, "have the demo start one: --log kafka")
    with closing(open_log(address, clock=clock)) as log:
        found = found_topics(log, prefix)
        address = log.address
    # So all topics of these names are the demo's own afterwards, and may be removed.
    if found:
        raise InvalidRequest(
            f"{address} already has {_listed([one.name for one in found])}: choose another --prefix, or if they are of "
            f"an earlier demo, remove them with: {removal_line(address, prefix)}"
        )
    display.event(f"on {address}, every name begins with {prefix}-")
    return LogUsed(KAFKA, address, prefix=prefix, topics=names(prefix))


def _listed(found: Sequence[str]) -> str:
    shown = ", ".join(found[:SHOWN_MAX])
    more = len(found) - SHOWN_MAX
    return f"topic{'s' * (len(found) > 1)} {shown}" + (f" and {more} more" if more > 0 else "")


def remove_own(used: LogUsed, display: Display, clock: Clock) -> LogUsed:
    """Remove the demo's topics and group from the user's cluster."""
    with closing(open_log(used.address, clock=clock)) as log:
        remove(log, used.prefix, found_topics(log, used.prefix))
    display.event(f"removed the {len(used.topics)} topics of {used.prefix}-")
    return replace(used, removed=True)


def run_remove(args: argparse.Namespace) -> int:
    """demo --remove: topics that demos left on a shared cluster; without --yes it only lists them."""
    if not args.remove:
        raise InvalidRequest("--yes goes with --remove")
    if args.log in (None, KAFKA):
        raise InvalidRequest("--remove goes with --log kafka://host:9092: elsewhere the demo leaves nothing")
    prefix, out = args.prefix or PREFIX_DEFAULT, Output(as_json=args.json)
    with closing(open_log(args.log)) as log:
        found = found_topics(log, prefix)
        if args.yes:
            remove(log, prefix, found)
        address = log.address
    out.document(
        {
            "schema": SCHEMA,
            "log": address,
            "prefix": prefix,
            "removed": bool(args.yes and found),
            "topics": [{"topic": one.name, "partitions": one.partitions, "offsets": one.offsets} for one in found],
        }
    )
    if not found:
        out.line(f"{address} has nothing of a demo with the prefix {prefix}")
        return OK
    rows = [(one.name, one.partitions, one.offsets) for one in found]
    out.table(("topic", "partitions", "offsets held"), rows, right=("partitions", "offsets held"))
    out.line(
        f"removed {len(found)} topics" if args.yes else f"nothing was removed: to delete these {len(found)}, add --yes"
    )
    return OK
