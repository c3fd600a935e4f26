"""Commands for one topic: `topic create`, `topic release`, `topic write`.

    standfast topic create NAME --partitions N [--set SETTING=VALUE]... --log ADDRESS
    standfast topic release NAME --app APPLICATION --log ADDRESS
    standfast topic write NAME [FILE] --log ADDRESS                                     see `write.py`

`create` makes an embedded log that is absent; all other commands but those that run an application refuse one.

Rules of this file: arguments and messages; it works alike on both logs. Settings have Kafka's names.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.ops.cli.arguments import log_address_of, log_of, prints
from standfast.ops.cli.log.write import add_write
from standfast.store.errors import InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.replication.log import Log, TopicInfo, TopicPolicy

SCHEMA = "standfast.topic/1"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "create a topic, end a claim of one, or write records"
    parser = subparsers.add_parser("topic", help=text, description=f"{text[0].upper()}{text[1:]}.")
    commands = parser.add_subparsers(dest="topic_command", required=True, metavar="COMMAND")
    command = commands.add_parser("create", help="create a topic", description="Create a topic.")
    command.add_argument("topic", metavar="NAME", help="the topic")
    command.add_argument("--log", metavar="ADDRESS", help="the log, as kafka://host:9092 or sqlite:///./log")
    command.add_argument("--partitions", type=int, metavar="N", help="number of partitions in all")
    command.add_argument(
        "--set", action="append", default=[], metavar="SETTING=VALUE", help="such as cleanup.policy=compact,delete"
    )
    prints(command, run_create, "json", "config")
    text = "end an application's claim of an internal topic, so that another one may have it"
    command = commands.add_parser("release", help=text, description=f"{text[0].upper()}{text[1:]}. The topic stays.")
    command.add_argument("topic", metavar="NAME", help="the topic")
    command.add_argument("--app", metavar="APPLICATION", required=True, help="the application that has claimed it")
    command.add_argument("--log", metavar="ADDRESS", help="the log, as kafka://host:9092 or sqlite:///./log")
    prints(command, run_release, "json", "config")
    add_write(commands)


def run_create(args: argparse.Namespace, out: Output) -> int:
    """topic create."""
    from standfast.replication.log import TopicPolicy
    from standfast.replication.topics.settings import changed

    if args.partitions is None:
        raise InvalidRequest("how many partitions? give --partitions N")
    policy = changed(TopicPolicy(), _settings(args))
    with closing(_new_log(args, policy, out) or log_of(args)) as log:
        # Creating is idempotent for an application, but a person's settings would be passed over in silence.
        if log.admin.describe_topic(args.topic) is not None:
            raise InvalidRequest(f"topic {args.topic!r} exists already, and no create changes one")
        _tell(out, log.admin.create_topic(args.topic, args.partitions, policy))
    return 0


def run_release(args: argparse.Namespace, out: Output) -> int:
    """topic release."""
    from standfast.ops.doctor.reset import refuse_running
    from standfast.replication.topics.claims import CLAIM, claims_of

    with closing(log_of(args)) as log, closing(log.group(args.app)) as group:
        refuse_running(log, args.app)  # it would go on with the topic
        if args.topic not in claims_of(group.notes()):
            raise InvalidRequest(f"application {args.app!r} has not claimed topic {args.topic!r}")
        group.note({(CLAIM, args.topic): None})
    out.document({"schema": SCHEMA, "topic": args.topic, "released_by": args.app})
    out.line(f"{args.topic}: application {args.app} claims it no more, until it starts again")
    return 0


def _new_log(args: argparse.Namespace, policy: TopicPolicy, out: Output) -> Log | None:
    """A new embedded log if the file is absent; None if it exists, and for Kafka."""
    from standfast.replication.embedded.topics import check_new_topic
    from standfast.replication.tail.open_log import SqliteAddress, open_log, parse_address

    address = log_address_of(args)
    where = parse_address(address)
    if not isinstance(where, SqliteAddress) or Path(where.path).exists():
        return None
    check_new_topic(args.topic, args.partitions, policy)  # first, so that a refused topic leaves no log behind
    log = open_log(address)
    out.note(f"created a new log, {Path(where.path).absolute()}")  # in case the address was mistyped
    return log


def _settings(args: argparse.Namespace) -> dict[str, str]:
    wrong = [text for text in args.set if not text.partition("=")[0] or "=" not in text]
    if wrong:
        raise InvalidRequest(f"--set {wrong[0]!r} is not SETTING=VALUE")
    return dict(text.split("=", 1) for text in args.set)


def _tell(out: Output, info: TopicInfo) -> None:
    from standfast.replication.topics.settings import CLEANUP, DELETE_RETENTION, MIN_LAG, RETENTION, listed

    policy = info.policy
    settings = {
        CLEANUP: listed(policy.cleanup),
        RETENTION: str(policy.retention_ms),
        DELETE_RETENTION: str(policy.delete_retention_ms),
        MIN_LAG: str(policy.min_compaction_lag_ms),
        **policy.extra,
    }
    out.document({"schema": SCHEMA, "topic": info.name, "partitions": info.partitions, "settings": settings})
    out.table(
        ("setting", "value"),
        list(settings.items()),
        title=f"{info.name}: {info.partitions} partitions",
        fold=("value",),
    )
