"""The command replica: follow the changelogs of another application, and answer reads.

    standfast replica --app ID --log kafka://host:9092 --store NAME:KIND[:OPTIONS]... [--state-dir DIR] [--port P]

Rules of this file: arguments, signals and messages; `standfast.stream.session.replica` follows, the HTTP server
answers. It ends in order on SIGTERM and Ctrl-C, and a second start continues at the stored positions.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.ops.cli.arguments import log_of, prints, settings_of
from standfast.store.errors import InvalidRequest
from standfast.store.process.interrupts import Flag, stopped_by_signals

if TYPE_CHECKING:
    from standfast.ops.config.store_argument import StoreArgument
    from standfast.ops.shared.output import Output
    from standfast.store.specs import StoreSpec
    from standfast.stream.session.replica import Replica

SCHEMA = "standfast.replica/1"
LOOK_S = 0.1


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "follow the stores of another application, such as one of Kafka Streams, to read them here"
    parser = subparsers.add_parser(
        "replica",
        help=text,
        description=f"{text[0].upper()}{text[1:]}. It only reads: nothing is written to the log, and no group is "
        "joined. It runs until it is stopped; read it with get, scan, fetch, status and lag of the same --state-dir.",
        epilog="OPTIONS, separated by commas: key=SERDE, value=SERDE (bytes, string, int64, float64, json, msgpack), "
        "plain, source=TOPIC, size=1h, retention=2d, history=7d, duplicates.",
    )
    parser.add_argument("--app", metavar="ID", help="the application's id, as in the names of its changelogs")
    parser.add_argument("--log", metavar="ADDRESS", help="the log, as kafka://host:9092")
    parser.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="NAME:KIND[:OPTIONS]",
        help="a store to follow: keyvalue, window, session or versioned; repeatable",
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="folder of the copy (default: one per user)")
    parser.add_argument(
        "--port", type=int, default=0, metavar="P", help="port of its HTTP server (default: a free one)"
    )
    parser.add_argument(
        "--accept-empty-log", action="store_true", help="give up local rows whose changelog was emptied"
    )
    prints(parser, run_replica, "json", "config")


def run_replica(args: argparse.Namespace, out: Output) -> int:
    """replica."""
    from standfast.ops.http.server import OpsServer
    from standfast.stream.session.replica import Replica

    settings = settings_of(args)
    if settings.app is None or settings.log is None or not args.store:
        raise InvalidRequest("which stores of which application? give --app ID, --log ADDRESS and --store NAME:KIND")
    if not 0 <= args.port < 1 << 16:
        raise InvalidRequest(f"--port is {args.port}: give 1 to 65535, or 0 for a free one")
    state_dir = settings.state_dir or _default_dir()  # a fixed one, so that a second start continues
    replica = Replica(
        settings.app,
        log=settings.log,
        state_dir=state_dir,
        stores=_specs(args, settings.app),
        memory_bytes=settings.memory_bytes,
        accept_empty_log=args.accept_empty_log,
    )
    # A flag and no exception, which could be raised in the middle of an apply. A handler that sets an Event of the
    # standard library waits for ever where it comes in the middle of that event's wait.
    stop = Flag()
    with replica, OpsServer(replica, args.port, settings.host) as server, stopped_by_signals(stop.set):
        out.note(f"following {len(args.store)} stores of {settings.app}, pid {os.getpid()}, at {server.address}")
        _follow(replica, server.address, state_dir, stop, out)
    return 0


def _follow(replica: Replica, address: str, state_dir: Path, stop: Flag, out: Output) -> None:
    told = False
    while not stop.wait(LOOK_S):
        ready = replica.ready  # raises the error that stopped the background work
        if told or not ready:
            continue
        told = True
        out.document(
            {
                "schema": SCHEMA,
                "app": replica.app,
                "instance": replica.instance_id,
                "pid": os.getpid(),
                "address": address,
                "state_dir": str(state_dir),
                "stores": {spec.name: spec.definition() for spec in replica.specs},
                "ready": True,
            }
        )
        records = sum(replica.statistics().counters.standby_records.values())
        out.line(f"read every changelog to its end ({records} records); following them from here")
        out.line(f"read it with: standfast scan {replica.specs[0].name} --state-dir {state_dir} --app {replica.app}")
        sys.stdout.flush()  # a supervisor that reads a pipe waits for this line, and the command goes on for days


def _specs(args: argparse.Namespace, app: str) -> list[StoreSpec]:
    from standfast.ops.cli.topic_records import check_kinds
    from standfast.ops.config.store_argument import parse_store, store_spec
    from standfast.replication.topics.foreign import foreign_changelog
    from standfast.store.errors import BadConfig

    stores: list[StoreArgument] = []
    problems: list[str] = []
    for text in args.store:
        try:
            stores.append(parse_store(text))
        except BadConfig as error:  # the problems of all stores are reported at once
            problems += error.problems
    if problems:
        raise BadConfig(problems)
    with closing(log_of(args)) as log:
        topics = [foreign_changelog(log.admin, app, store.name, store.changelog_of(app)) for store in stores]
        # A wrong declaration would make wrong rows of a foreign application's records, and no error.
        check_kinds(log, zip(stores, topics, strict=True))
    return [store_spec(store, topic.policy) for store, topic in zip(stores, topics, strict=True)]


def _default_dir() -> Path:
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local/state") / "standfast/replica"
