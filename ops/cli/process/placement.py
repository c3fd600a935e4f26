"""The command placement: where the tasks of an application are, and why.

    standfast placement --app NAME --log ADDRESS [--task TASK] [--json]

    the log ── placement topic, live members, claims ──> Seen ──> instances, tasks, moves

It needs no running instance: everything that it shows is in the log.

Rules of this file: arguments and output. It reads, writes nothing and creates nothing.
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
    from standfast.replication.log import Log
    from standfast.replication.placement.seen import PlacementSeen

HAS_OWNER = frozenset({"running", "restoring", "opening", "moving"})


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "where the tasks of an application with managed placement are, and why"
    parser = subparsers.add_parser(
        "placement",
        help=text,
        description=f"Show {text}: instances, owners, copies with their lags, and the last moves. It reads the log and "
        "needs no running instance.",
        epilog="Exit codes: 0 every task has a live instance, 1 some have none, 2 the application has no managed "
        "placement, 65 its records are damaged or of a newer version, 69 the log is unreachable.",
    )
    parser.add_argument("--app", metavar="NAME", help="the application")
    parser.add_argument("--log", metavar="ADDRESS", help="its log, as sqlite:///./log or kafka://host:9092")
    parser.add_argument("--task", metavar="TASK", help="only this task, such as 0_3, with a reason for each copy")
    prints(parser, run_seen, "json", "wide", "times", "config")


def run_seen(args: argparse.Namespace, out: Output) -> int:
    """placement."""
    from standfast.ops.cli.placement_tables import show_copies, show_moves, show_placed_instances, show_placed_tasks
    from standfast.ops.cli.whys import Whys
    from standfast.ops.observe.placement import placement_document

    app = app_of(settings_of(args))
    with closing(log_of(args)) as log:
        seen = look(log, app)
    document = placement_document(seen)
    if args.task is not None:
        document["tasks"] = [one for one in document["tasks"] if one["task"] == args.task]
        document["moves"] = [one for one in document["moves"] if one["task"] == args.task]
        if not document["tasks"]:
            known = ", ".join(str(one.task) for one in seen.tasks[:5]) or "no task"
            raise InvalidRequest(f"application {app!r} has no task {args.task!r}: its placement has {known}, ...")
    out.document(document)
    out.line(f"{app} on {log.address}")
    show_placed_instances(document, out)
    out.line()
    whys = Whys()
    show_placed_tasks(document["tasks"], out, whys)
    if args.task is not None:
        show_copies(document["tasks"][0], out)
    out.line()
    show_moves(document, document["moves"], out, whys)
    whys.show(out)
    waiting = [one["id"] for one in document["instances"] if one["state"] == "waits" and not one["waits"]]
    for one in document["instances"]:
        if one["waits"]:
            out.note(f"{one['id']} waits: {one['waits']}")
    if waiting:
        out.note(f"{', '.join(waiting[:5])}: live, with another version, program or placement than the leader's")
    homeless = [one["task"] for one in document["tasks"] if one["state"] not in HAS_OWNER]
    if homeless:
        out.note(f"{len(homeless):,} tasks have no live instance, {homeless[0]} is the first")
    return NEGATIVE if homeless else OK


def look(log: Log, app: str) -> PlacementSeen:
    """The placement of an application, as its log has it now.

    Raises InvalidRequest for an application without managed placement, NotReady before its first generation,
    Unavailable, and Corruption for records of a newer format.
    """
    from standfast.replication.placement.seen import seen
    from standfast.replication.placement.topic import PlacementTopic
    from standfast.replication.takeover import plans
    from standfast.replication.topics.app_topics import PLACEMENT
    from standfast.store.clock import SystemClock
    from standfast.store.errors import NotReady

    clock = SystemClock()
    topic = PlacementTopic(log, app, "", clock, acceptable_lag=0)
    with closing(topic):
        state = topic.look_whole()
        if state is None:
            managed = sorted(
                info.name.removesuffix(PLACEMENT) for info in log.admin.topics() if info.name.endswith(PLACEMENT)
            )
            raise InvalidRequest(
                f'application {app!r} was never run with placement="managed" on log {log.address}: it has no topic '
                f"{app}{PLACEMENT}; applications that have one: {few(managed) or 'none'}"
            )
        group = log.group(app)
        with closing(group):
            members = {name: plan.managed for name, plan in plans(group.view()).items()}
            leader = group.owners().get(topic.leader_id)
        if state.valid is None:
            raise NotReady(
                f"no generation of the placement of application {app!r} is published yet: "
                + (f"{len(members)} instances are live; ask again" if members else "no instance is live, start one")
            )
        return seen(app, state, members, leader, clock.wall_ms())
