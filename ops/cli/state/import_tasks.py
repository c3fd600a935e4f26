"""The command `restore`: imports folders with manifests as tasks, or shows the plan of the next start.

    standfast restore --from FOLDER [--from FOLDER ...] --state-dir DIR [--log ADDRESS] [-n] [--json]
    standfast restore -n --state-dir DIR --app APP --log ADDRESS [--snapshots STORAGE]

One folder for each store of the application; stores without one are restored from the log when the instance starts.

Rules of this file: arguments and a table; the work is in `standfast.restore.verify.import_tasks`. Existing tasks are
not touched, and a dry run writes nothing at all.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.ops.cli.arguments import log_of, prints, settings_of

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output

SCHEMA = "standfast.restore/1"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "restore",
        help="make a state directory from folders with manifests",
        description="Import the files of rebuilt stores as new tasks; the instance that opens them reads the rest from "
        "the log. With --dry-run and without --from, show the plan of the next start instead: for each store the "
        "source (local state, a snapshot, the changelog), and the records to read.",
        epilog="Exit codes: 0 fine, 1 a start would be refused (--dry-run).",
    )
    parser.add_argument(
        "--from",
        dest="folders",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a folder with a manifest, or s3://bucket/path and the like; one for each store",
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="the state directory that gets the tasks")
    parser.add_argument("--log", metavar="ADDRESS", help="check that this log continues at the folders' offsets")
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="show the plan, with the records to read; write nothing"
    )
    parser.add_argument("--app", metavar="NAME", help="application, for a plan without --from")
    parser.add_argument("--task", action="append", default=[], metavar="TASK", help="plan only this task; repeatable")
    parser.add_argument(
        "--snapshots", metavar="STORAGE", help="the application's storage of snapshots, for a plan without --from"
    )
    parser.add_argument(
        "--group", type=int, default=0, metavar="G", help="group number of the tasks: 0 unless there are several groups"
    )
    prints(parser, run_restore, "json", "wide", "config")


def run_restore(args: argparse.Namespace, out: Output) -> int:
    """restore."""
    from standfast.ops.cli.state.forecast import run_forecast, show_import
    from standfast.restore.verify.import_tasks import import_tasks
    from standfast.store.errors import InvalidRequest

    settings = settings_of(args)
    if not args.folders and args.dry_run:
        return run_forecast(args, out)
    if not args.folders:
        raise InvalidRequest(
            "which files? name a folder with a manifest by --from FOLDER; `standfast restore --dry-run` shows the plan "
            "of the next start, and `standfast snapshot restore` takes snapshots"
        )
    if args.task or args.snapshots is not None or args.app is not None:
        raise InvalidRequest("--app, --task and --snapshots are for a plan without --from: leave them out")
    if settings.state_dir is None:
        raise InvalidRequest("which state directory? name it with --state-dir DIR")
    with ExitStack() as stack:  # copies of folders in object storage are removed, also after an error
        folders = [_local(folder, stack) for folder in args.folders]
        log = None
        if settings.log is not None:
            log = log_of(args)
            stack.callback(log.close)
        if args.dry_run:
            return show_import(Path(settings.state_dir), folders, log, args.group, out)
        taken = import_tasks(Path(settings.state_dir), folders, log=log, group=args.group)
    rows = [(one.store, str(one.task), one.position, one.rows, one.digest.hex()) for one in taken]
    columns = ("store", "task", "position", "rows", "digest")
    out.document({"schema": SCHEMA, "stores": [dict(zip(columns, row, strict=True)) for row in rows]})
    out.table(columns, rows, right=("position", "rows"), wide=("digest",))
    out.line(f"{settings.state_dir}: {len({one.task for one in taken})} tasks made from {len(folders)} folders")
    return 0


def _local(folder: str, stack: ExitStack) -> Path:
    """The folder itself, or a local copy of a folder in object storage."""
    if "://" not in folder:
        return Path(folder)
    from standfast.restore.spark.session import check_libraries

    check_libraries()
    from standfast.restore.spark.places import local_copy

    return stack.enter_context(local_copy(folder))
