"""The command reset: make an application start over.

    standfast reset --app NAME --log ADDRESS [--state-dir DIR [--local aside|remove|keep]] [--to WHERE]... [--dry-run]
    standfast reset --app NAME --log ADDRESS --state-dir DIR --offsets own [--dry-run]

Rules of this file: arguments, confirmation and messages; `reset_plan` decides, `reset` carries it out. Without --yes it
asks for the application's name, and without a terminal to ask on it refuses.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.arguments import app_of, log_of, prints, settings_of
from standfast.ops.shared.exit_codes import NEGATIVE, OK
from standfast.store.errors import InvalidRequest, StandfastError

if TYPE_CHECKING:
    from standfast.ops.doctor.reset_plan import ResetPlan
    from standfast.ops.shared.output import Output
    from standfast.replication.log import Log

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.reset/1"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "reset",
        help="make an application start over: source offsets, internal topics, local state",
        description="Commit new source offsets for an application, delete its changelogs and repartition topics, "
        "and set its state directory aside. Stop every instance first. Source and output topics stay.",
        epilog="Exit codes: 0 done (or shown), 1 the application runs, or the reset was not confirmed, "
        "73 the state directory has an owner.",
    )
    parser.add_argument("--app", metavar="NAME", help="application")
    parser.add_argument("--log", metavar="ADDRESS", help="the log, as kafka://host:9092 or sqlite:///./log")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="its state directory on this machine")
    parser.add_argument(
        "--local",
        choices=("aside", "remove", "keep"),
        help="its directory there is moved to DIR/.reset (default), removed, or kept",
    )
    parser.add_argument(
        "--to",
        action="append",
        default=[],
        metavar="WHERE",
        help="earliest (default), latest, TOPIC=latest, TOPIC-PARTITION=OFFSET; repeatable",
    )
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="TOPIC",
        help="a source topic, beside those with committed offsets",
    )
    parser.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="NAME",
        help="one of its stores, where topic names are ambiguous",
    )
    parser.add_argument(
        "--offsets",
        choices=("own",),
        help="keep topics and state, and only commit the source offsets of the state directory's own records again, "
        "where another client of the group has committed others",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only print the steps")
    how.add_argument("--yes", action="store_true", help="do it without asking")
    prints(parser, run_reset, "json", "config")


def run_reset(args: argparse.Namespace, out: Output) -> int:
    """reset."""
    import difflib

    from standfast.ops.doctor.reset import carry_out, look
    from standfast.ops.doctor.reset_plan import parse_target
    from standfast.store.names import changelog_topic, check_topic

    settings = settings_of(args)
    app = app_of(settings)
    targets = [parse_target(text) for text in args.to]
    sources = [check_topic(topic) for topic in args.source]
    known = [changelog_topic(app, text.partition(":")[0]) for text in args.store]
    if args.offsets and (named := [name for name in ("to", "source", "store", "local") if getattr(args, name)]):
        raise InvalidRequest(f"--offsets own takes no --{named[0]}: it changes no topic and no directory")
    # Before the log is asked, so that a script fails at once and not after the look.
    if not (args.dry_run or args.yes or sys.stdin.isatty()):
        return _unconfirmed(out)
    with _locked(settings.state_dir, app, args.offsets), closing(log_of(args)) as log:
        if args.offsets:
            plan = _own(log, app, settings.state_dir, out)
        else:
            plan = look(
                log,
                app,
                known=[*known, *_kept(settings.state_dir, app)],
                sources=sources,
                targets=targets,
                local=_local(settings.state_dir, app, args.local or "aside"),
            )
        _show(out, plan)
        # A mistyped name would else look like a reset that had nothing left to do.
        if plan.empty and (near := difflib.get_close_matches(app, set(log.admin.groups()) - {app}, 1, 0.6)):
            out.note(f"the log has an application {near[0]!r}: did you mean that one?")
        if args.dry_run or plan.empty:
            out.document(_document(plan, dry_run=args.dry_run, done=False))
            return OK
        if not args.yes and not _confirmed(app):
            out.document(_document(plan, dry_run=False, done=False))
            out.note("not confirmed: nothing was changed")
            return NEGATIVE
        steps = 0

        def on_step() -> None:
            nonlocal steps
            steps += 1

        try:
            carry_out(log, plan, on_step)
        except StandfastError:
            # An application that started now would meet offsets of the beginning beside changelogs of before.
            if steps:
                out.note(
                    f"the reset is not complete, {steps} of {len(plan.lines())} steps are done: run the same "
                    "command again before the application starts"
                )
            raise
    out.document(_document(plan, dry_run=False, done=True))
    out.line(f"{app}: reset, {steps} steps done")
    # Rows beside an empty changelog are refused at the start: they may be the last copy.
    if plan.local is None and not args.offsets:
        out.note("clear its state directories, here and on other machines, before it starts there")
    return OK


def _locked(state_dir: Path | None, app: str, offsets: str | None) -> AbstractContextManager[object]:
    """The lock of the state directory, for its records to be read and committed. Raises Held, InvalidRequest."""
    from standfast.store.task.state_dir import StateDir

    if offsets is None:
        return nullcontext()
    if state_dir is None or not (state_dir / app).is_dir():
        raise InvalidRequest(f"--offsets own needs --state-dir DIR, with the state of application {app!r} in it")
    return closing(StateDir(state_dir, app))


def _own(log: Log, app: str, state_dir: Path | None, out: Output) -> ResetPlan:
    from standfast.ops.doctor.own_offsets import look_for_own

    assert state_dir is not None, "`_locked` has checked it"
    own = look_for_own(log, app, state_dir.absolute())
    for task, count in sorted(own.behind.items()):
        out.note(
            f"task {task}: its changelogs have {count} records beyond this record, so that source records of later "
            "commits are processed twice; the state directory of the task's last owner has a newer record"
        )
    return own.plan


def _kept(state_dir: Path | None, app: str) -> list[str]:
    """Changelogs of the stores in a state directory; no source topics, which a reset never deletes."""
    from standfast.ops.doctor.doctor import app_tasks, known_of

    if state_dir is None:
        return []
    return [one.topic for one in known_of(app, app_tasks(state_dir, app)).changelogs if not one.from_source]


def _local(state_dir: Path | None, app: str, action: str) -> Any:
    import datetime

    from standfast.ops.doctor.reset import local_step
    from standfast.store.clock import SystemClock

    if state_dir is None:
        return None
    # Each reset has a folder of its own, so that a second one cannot take the place of the first one's copy.
    now = datetime.datetime.fromtimestamp(SystemClock().wall_ms() / 1_000, datetime.UTC)
    return local_step(state_dir.absolute(), app, action, now.strftime("%Y%m%dT%H%M%SZ"))


def _show(out: Output, plan: ResetPlan) -> None:
    if plan.empty:
        out.line(f"application {plan.app!r} has nothing to reset")
    for line in plan.lines():
        out.line(line)
    for topic, why in plan.left:
        out.note(f"topic {topic} is left alone: {why}")


def _confirmed(app: str) -> bool:
    # On stderr: stdout may be a file, and the question must be seen.
    print(f"this cannot be undone; type the application's name ({app}) to do it: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == app


def _unconfirmed(out: Output) -> int:
    from standfast.ops.shared.error_codes import ERROR_SCHEMA

    text = "a reset needs a confirmation, and there is no terminal: give --yes to do it, or --dry-run to see its steps"
    out.document({"schema": ERROR_SCHEMA, "error": "NotConfirmed", "message": text, "exit_code": NEGATIVE})
    out.note(text)
    return NEGATIVE


def _document(plan: ResetPlan, *, dry_run: bool, done: bool) -> Json:
    local = plan.local
    return {
        "schema": SCHEMA,
        "app": plan.app,
        "dry_run": dry_run,
        "done": done,
        "offsets": [
            {"topic": step.at.topic, "partition": step.at.partition, "before": step.before, "after": step.after}
            for step in plan.offsets
        ],
        "delete": [{"topic": step.topic, "kind": step.kind} for step in plan.deletes],
        "local": None
        if local is None
        else {"path": local.path, "action": local.action, "target": local.target or None},
        "left": [{"topic": topic, "why": why} for topic, why in plan.left],
        "steps": plan.lines(),
    }
