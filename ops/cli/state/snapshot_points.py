"""`standfast snapshot restore` to a point in time, into a folder (-o DIR) or as another application (--as NAME).

Rules of this file: arguments, tables and documents; `standfast.restore.snapshot` chooses the points and does the work.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import app_of, log_of, settings_of
from standfast.ops.shared.exit_codes import OK
from standfast.store.errors import InvalidRequest
from standfast.store.names import few

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.ops.shared.output import Output
    from standfast.replication.log import Log
    from standfast.restore.snapshot.at_point import AtPoint, WantedPoint
    from standfast.restore.snapshot.clone import Cloned
    from standfast.restore.snapshot.manifest import Snapshot
    from standfast.restore.snapshot.storage import Storage

SCHEMA = "standfast.snapshots/1"


def add_point_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `snapshot restore` for a point, and for the place of the restored state."""
    where = parser.add_argument_group("into another place (never over a live application)")
    place = where.add_mutually_exclusive_group()
    place.add_argument("-o", "--output", type=Path, metavar="DIR", help="make DIR/APP, which must be new")
    place.add_argument("--as", dest="as_name", metavar="NAME", help="restore the whole application under a new name")
    point = where.add_mutually_exclusive_group()
    point.add_argument(
        "--to-offset",
        action="append",
        default=[],
        metavar="[STORE=]N",
        help="state of records below offset N of the changelog; of each store of one --task",
    )
    point.add_argument(
        "--to-time", metavar="T", help="state of records before the first one of this time: ISO 8601, or milliseconds"
    )


def wants_point(args: argparse.Namespace) -> bool:
    """Whether the arguments name a point, or another place."""
    return bool(args.output is not None or args.as_name is not None or args.to_offset or args.to_time is not None)


def run_restore_point(args: argparse.Namespace, out: Output, storage: Storage) -> int:
    """snapshot restore with -o or --as."""
    from standfast.restore.snapshot.at_point import choose_task
    from standfast.restore.snapshot.tails import Tails
    from standfast.store.clock import SystemClock

    if args.output is None and args.as_name is None:
        raise InvalidRequest(
            "a point in time goes into a new place, never over a live application: name it with -o DIR, or --as NAME"
        )
    wanted = _wanted(args)
    with ExitStack() as last:
        log: Log | None = None
        tails: Tails | None = None
        if args.as_name is not None or not wanted.own:
            log = last.enter_context(closing(log_of(args)))
            tails = last.enter_context(closing(Tails(log, SystemClock())))
        if args.as_name is not None and wanted.own and not wanted.snapshots and log is not None:
            from standfast.restore.snapshot.clone import begun_parts

            begun = begun_parts(log, app_of(settings_of(args)), args.as_name, storage)
            if begun is not None:  # there may be newer snapshots by now
                return _restore_as(args, out, storage, begun, log)
        tasks = _tasks(args, storage, wanted)
        # An application goes on from its source offsets, which are known at the point of a snapshot alone.
        exact = args.as_name is not None
        chosen = [choose_task(storage, task, wanted, tails, exact=exact) for task in tasks]
        if args.as_name is None:
            return _restore_folder(args, out, storage, chosen, tails)
        assert log is not None
        return _restore_as(args, out, storage, [one.snapshot for one in chosen], log)


def show_cloned(out: Output, storage: Storage, cloned: Cloned) -> int:
    """Print the restore of an application under another name, or the plan of it."""
    out.document(
        {
            "schema": SCHEMA,
            "storage": storage.where,
            "dry_run": cloned.dry_run,
            "app": cloned.app,
            "as": cloned.name,
            "resumed": cloned.resumed,
            "topics": list(cloned.topics),
            "restored": [
                {
                    "task": one.task,
                    "snapshot": str(one.snapshot),
                    "rows": one.rows,
                    "positions": dict(one.positions),
                    "sources": dict(one.sources),
                }
                for one in cloned.tasks
            ],
        }
    )
    rows = [
        (
            one.task,
            str(one.snapshot),
            one.rows,
            " ".join(f"{at}={offset}" for at, offset in sorted(one.sources.items())),
        )
        for one in cloned.tasks
    ]
    out.table(("task", "snapshot", "rows", "source offsets"), rows, right=("rows",), fold=("source offsets",))
    done = "would be restored" if cloned.dry_run else "is restored"
    out.line(f"application {cloned.app} {done} as {cloned.name}, with topics {', '.join(cloned.topics) or 'none'}")
    if cloned.resumed:
        out.note("an earlier run had begun it" + ("" if cloned.dry_run else ", and is completed"))
    return OK


def _restore_as(args: argparse.Namespace, out: Output, storage: Storage, parts: Sequence[Snapshot], log: Log) -> int:
    from standfast.restore.snapshot.clone import clone_app
    from standfast.store.clock import SystemClock

    state_dir = settings_of(args).state_dir
    if state_dir is None:
        raise InvalidRequest("--as needs the state directory of the new application: name it with --state-dir DIR")
    cloned = clone_app(
        storage,
        parts,
        name=args.as_name,
        log=log,
        state_dir=state_dir,
        clock=SystemClock(),
        dry_run=args.dry_run,
    )
    return show_cloned(out, storage, cloned)


def _restore_folder(
    args: argparse.Namespace, out: Output, storage: Storage, chosen: Sequence[AtPoint], tails: Any
) -> int:
    from standfast.restore.snapshot.at_point import refuse_folder, restore_folder

    app = chosen[0].snapshot.app
    # Before the download, and for a dry run as well.
    refuse_folder(args.output, app)
    applied = {} if args.dry_run else restore_folder(storage, chosen, args.output, tails)
    lines = [
        {
            "task": one.snapshot.task,
            "snapshot": str(one.snapshot.name),
            "bytes": one.snapshot.bytes,
            "point": dict(one.point),
            "tail": one.tail,
            "records": applied.get(one.snapshot.task, 0),
        }
        for one in chosen
    ]
    out.document(
        {
            "schema": SCHEMA,
            "storage": storage.where,
            "dry_run": args.dry_run,
            "folder": str(args.output / app),
            "restored": lines,
        }
    )
    rows = [
        (
            one.snapshot.task,
            " ".join(f"{name}={offset}" for name, offset in sorted(one.point.items())),
            str(one.snapshot.name),
            one.snapshot.bytes,
            one.tail,
        )
        for one in chosen
    ]
    out.table(("task", "point", "snapshot", "bytes", "tail"), rows, right=("bytes", "tail"), fold=("point",))
    memory = sorted({name for one in chosen for name in one.snapshot.memory_stores})
    if memory:
        out.note(f"not restored, since they are in memory and no snapshot has their rows: {few(memory)}")
    if not args.dry_run:
        out.line(f"restored into {args.output / app}: read it with --offline {args.output / app}")
    return OK


def _wanted(args: argparse.Namespace) -> WantedPoint:
    from standfast.ops.shared.times import parse_time
    from standfast.restore.snapshot.at_point import ONLY, WantedPoint
    from standfast.restore.snapshot.names import parse_name

    offsets: dict[str, int] = {}
    for text in args.to_offset:
        store, mark, number = text.rpartition("=")
        if not (number.isascii() and number.isdecimal()) or (mark and not store):
            raise InvalidRequest(
                f"--to-offset is {text!r}: give N, or STORE=N, with the next offset after the last record"
            )
        if (store if mark else ONLY) in offsets:
            raise InvalidRequest(f"--to-offset {text} names a store twice: give one offset of each")
        offsets[store if mark else ONLY] = int(number)
    time_ms = None
    if args.to_time is not None:
        try:
            time_ms = parse_time(args.to_time)
        except ValueError as error:
            raise InvalidRequest(f"--to-time: {error}") from error
    names = [] if args.snapshot is None else [parse_name(text) for text in args.snapshot]
    snapshots = {name.task: name for name in names}
    if len(snapshots) != len(names):
        raise InvalidRequest("--snapshot names two snapshots of one task: give one of each")
    return WantedPoint(offsets, time_ms, snapshots)


def _tasks(args: argparse.Namespace, storage: Storage, wanted: WantedPoint) -> list[str]:
    """The tasks to restore. A point of offsets is of one task; a whole application has all of its tasks."""
    from standfast.replication.offsets import TaskId
    from standfast.restore.snapshot.catalogue import listed

    if args.as_name is not None and args.task:
        raise InvalidRequest("--as restores the whole application: leave --task out, or restore into a folder (-o DIR)")
    tasks = args.task or sorted(listed(storage).tasks | set(wanted.snapshots), key=TaskId.parse)
    if wanted.snapshots and args.as_name is None:
        tasks = args.task or sorted(wanted.snapshots, key=TaskId.parse)
    if strange := sorted(wanted.snapshots.keys() - set(tasks)):
        raise InvalidRequest(f"--snapshot names task {strange[0]}, and --task does not: give both, or leave one out")
    if not tasks:
        raise InvalidRequest(f"{storage.where} has no whole snapshot: `standfast snapshot list` shows them")
    if wanted.offsets and len(tasks) != 1:
        raise InvalidRequest(
            f"--to-offset is of one task, and there are {few(tasks)}: name one with --task, or give --to-time"
        )
    return tasks
