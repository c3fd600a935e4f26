"""The command placement: where the tasks of an application are (`placement_seen.py`), or of a document would be.

    standfast placement --app NAME --log ADDRESS [--task TASK]
    standfast placement explain --file FILE [--task TASK]      a document of members, reports and previous assignment

    document ──> place (the leader's own function) ──> instances, tasks with reasons, moves

Rules of this file: arguments, tables and JSON. It decides nothing, and talks to no instance.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.arguments import FLAGS, prints
from standfast.ops.shared.exit_codes import NEGATIVE, OK
from standfast.store.errors import InvalidRequest
from standfast.store.timestamps import duration_text

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.replication.offsets import TaskId
    from standfast.replication.placement.model import Reason, Round, View

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.placement-explain/1"
STDIN = "-"
BYTES_MAX = 256 << 20


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    from standfast.ops.cli.process.placement_seen import run_seen

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
    commands = parser.add_subparsers(dest="placement_command", metavar="[COMMAND]")
    explain = commands.add_parser(
        "explain",
        help="the placement of a document, with a reason for each choice",
        description="Work out the placement of a document that names instances, their copies and the previous "
        "assignment: actives, standbys, warm-ups and moves, and a reason for each. Nothing is changed.",
        epilog="Exit codes: 0 every task has its place, 1 tasks wait for slots, 2 the document is wrong.",
    )
    explain.add_argument("--file", required=True, metavar="FILE", help="the document, JSON; - is standard input")
    # Flags before the sub-command count too, which its own defaults would hide.
    own: dict[str, Any] = {"default": argparse.SUPPRESS}
    explain.add_argument("--task", metavar="TASK", help="only this task, with a reason for each copy", **own)
    for name in ("json", "wide"):
        explain.add_argument(f"--{name}", **FLAGS[name], **own)
    prints(explain, run_explain)


def run_explain(args: argparse.Namespace, out: Output) -> int:
    """placement explain."""
    from standfast.replication.placement.document import read_view
    from standfast.replication.placement.place import place

    if args.app is not None or args.log is not None:
        raise InvalidRequest(
            "placement explain works on a document and reads no log: leave --app and --log out, or leave explain out"
        )
    view = read_view(_text(args.file))
    tasks = sorted(view.tasks) if args.task is None else [_task(args.task, view)]
    result = place(view)
    out.document(_document(view, result, tasks))
    _print_instances(view, result, out)
    _print_tasks(result, tasks, out, copies=args.task is not None)
    _print_moves(result, tasks, out)
    if result.slots_missing:
        out.line()
        what = "the tasks without an owner wait" if result.assignment.active else "no task starts"
        out.text(f"WAITING_FOR_SLOTS: {result.slots_missing:,} more slots are needed; until then {what}.")
    if result.standbys_missing:
        out.note(f"{result.standbys_missing:,} standbys have no instance to run on")
    return NEGATIVE if result.slots_missing else OK


def _text(name: str) -> bytes:
    try:
        if name == STDIN:
            raw = sys.stdin.buffer.read(BYTES_MAX + 1)
        else:
            with Path(name).open("rb") as file:
                raw = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be read: {error.strerror}") from error
    if len(raw) > BYTES_MAX:
        raise InvalidRequest(f"{name} has more than {BYTES_MAX:,} bytes, which no placement document has")
    return raw


def _task(text: str, view: View) -> TaskId:
    from standfast.replication.offsets import TaskId
    from standfast.replication.placement.document import TASK

    if not TASK.fullmatch(text) or TaskId.parse(text) not in view.tasks:
        raise InvalidRequest(
            f"the document has no task {text!r}: name one of its tasks, such as {min(view.tasks, default='0_0')}"
        )
    return TaskId.parse(text)


def _print_instances(view: View, result: Round, out: Output) -> None:
    assignment = result.assignment
    actives = Counter(assignment.active.values())
    standing = Counter(name for names in assignment.standbys.values() for name in names)
    warming = Counter(assignment.warmups.values())
    rows: list[tuple[Any, ...]] = []
    for member in sorted(view.members, key=lambda one: one.id):
        tags = " ".join(f"{key}={value}" for key, value in sorted(member.tags.items()))
        state = f"waits: {member.waits}" if member.waits else "up"
        counts = actives[member.id], standing[member.id], warming[member.id]
        rows.append((member.id, member.slots, member.max_tasks, member.rack or "", tags, *counts, state))
    for name, away in sorted(view.away.items()):
        how = "stopped" if away.stopped else "gone"
        rows.append((name, "", "", "", "", 0, standing[name], 0, f"{how} {duration_text(away.for_ms)} ago"))
    columns = ("instance", "slots", "max tasks", "rack", "tags", "actives", "standbys", "warm-ups", "state")
    numbers = ("slots", "max tasks", "actives", "standbys", "warm-ups")
    out.table(columns, rows, right=numbers, fold=("state",), wide=("tags",))


def _print_tasks(result: Round, tasks: list[TaskId], out: Output, *, copies: bool) -> None:
    from standfast.replication.placement.reasons import words

    assignment = result.assignment
    out.line()
    rows = [
        (
            str(task),
            assignment.active.get(task, ""),
            " ".join(assignment.standbys.get(task, ())),
            assignment.warmups.get(task, ""),
            words(result.why[task]),
        )
        for task in tasks
    ]
    out.table(("task", "active", "standbys", "warm-up", "why"), rows, fold=("why", "standbys"))
    if copies and result.why_copies:
        named = [(name, role, words(reason)) for task in tasks for name, role, reason in _copies(result, task)]
        out.line()
        out.table(("instance", "role", "why"), named, fold=("why",))


def _print_moves(result: Round, tasks: list[TaskId], out: Output) -> None:
    from standfast.replication.placement.reasons import words

    wanted = set(tasks)
    rows = [
        (move.kind.value, str(move.task), move.source or "", move.target or "", words(move.reason))
        for move in result.moves
        if move.task in wanted
    ]
    out.line()
    if rows:
        out.table(("move", "task", "from", "to", "why"), rows, fold=("why",))
    else:
        out.line("no moves")
    if result.again_ms is not None:
        out.line(f"looked at again after {duration_text(result.again_ms)}")


def _copies(result: Round, task: TaskId) -> list[tuple[str, str, Reason]]:
    """(instance, role, reason) of the standbys and the warm-up of a task."""
    assignment = result.assignment
    found = [(name, "standby") for name in assignment.standbys.get(task, ())]
    if task in assignment.warmups:
        found.append((assignment.warmups[task], "warm-up"))
    return [(name, role, result.why_copies[task, name]) for name, role in found]


def _document(view: View, result: Round, tasks: list[TaskId]) -> Json:
    from standfast.replication.placement.document import assignment_document
    from standfast.replication.placement.place import is_changed

    assignment = result.assignment
    wanted = set(tasks)
    return {
        "schema": SCHEMA,
        "changed": view.previous is None or is_changed(view.previous, assignment),
        "slots_missing": result.slots_missing,
        "standbys_missing": result.standbys_missing,
        "again_ms": result.again_ms,
        "tasks": [
            {
                "task": str(task),
                "active": assignment.active.get(task),
                "after": assignment.after.get(task),
                **_reason(result.why[task]),
                "copies": [
                    {"instance": name, "role": role, **_reason(reason)} for name, role, reason in _copies(result, task)
                ],
            }
            for task in tasks
        ],
        "moves": [
            {
                "move": move.kind.value,
                "task": str(move.task),
                "from": move.source,
                "to": move.target,
                **_reason(move.reason),
            }
            for move in result.moves
            if move.task in wanted
        ],
        "assignment": assignment_document(assignment),
    }


def _reason(reason: Reason) -> Json:
    from standfast.replication.placement.reasons import words

    return {"code": reason.code, "facts": dict(reason.facts), "why": words(reason)}
