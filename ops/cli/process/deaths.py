"""The command deaths: the records at which processes of an application died, and to let a task that was given up go on.

    standfast deaths --app NAME --log ADDRESS [--forget TASK]

Rules of this file: arguments and output. Without --forget it writes nothing.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from standfast.ops.cli.arguments import app_of, log_of, prints, settings_of
from standfast.ops.shared.exit_codes import NEGATIVE, OK
from standfast.store.errors import InvalidRequest
from standfast.store.names import few

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output

SCHEMA = "standfast.deaths/1"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "deaths",
        help="records at which processes of an application died; --forget lets a task that was given up go on",
        description="Show the records that processes of an application had in hand when they died, until a commit is "
        "past them. After five deaths at one record its task is given up, unless on_error leaves the record out.",
        epilog="Exit codes: 0 no death is noted, or they are forgotten, 1 some are noted, 69 the log is unreachable.",
    )
    parser.add_argument("--app", metavar="NAME", help="the application")
    parser.add_argument("--log", metavar="ADDRESS", help="its log, as sqlite:///./log or kafka://host:9092")
    parser.add_argument(
        "--forget", metavar="TASK", help="remove the notes of this task, such as 0_3: its instance opens it again soon"
    )
    prints(parser, run_deaths, "json", "wide", "config")


def run_deaths(args: argparse.Namespace, out: Output) -> int:
    """deaths."""
    from standfast.replication.shapes import plain
    from standfast.stream.deaths.deaths import all_deaths, forget_deaths

    app = app_of(settings_of(args))
    with closing(log_of(args)) as log, closing(log.group(app)) as group:
        found = all_deaths(group)
        if args.forget is not None:
            names = [name for name, one in found.items() if one.task == args.forget]
            if not names:
                tasks = few(sorted({one.task for one in found.values()})) or "none"
                raise InvalidRequest(
                    f"no death of task {args.forget!r} of application {app!r} is noted: {tasks} has some"
                )
            forget_deaths(group, names)
            out.document({"schema": SCHEMA, "app": app, "forgotten": len(names)})
            out.line(
                f"{len(names)} deaths of task {args.forget} are forgotten: its instance opens it again in a few seconds"
            )
            return OK
    deaths = sorted(found.values(), key=lambda one: (one.task, one.topic, one.partition, one.offset))
    out.document({"schema": SCHEMA, "app": app, "deaths": [plain(one) for one in deaths]})
    if not deaths:
        out.line(f"no process of {app} died with a record in hand that is not committed since")
        return OK
    columns = ("task", "topic", "partition", "offset", "instance", "how", "step")
    out.table(
        columns,
        [(one.task, one.topic, one.partition, one.offset, one.member, one.how, one.step) for one in deaths],
    )
    stacks = [one.stack for one in found.values() if one.stack]
    if stacks:
        out.line(f"\n{stacks[-1]}")
    return NEGATIVE
