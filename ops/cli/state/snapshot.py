"""The command `standfast snapshot`: copies of tasks on a sidecar's own disk, and snapshots in a folder or bucket.

    create NAME            a running sidecar copies its active tasks to STATE_DIR/APP/snapshots/NAME
    create NAME --to STORAGE    the same, and then the copies are stored there
    create --app NAME --log ADDRESS    a coordinated checkpoint of a running application
    create --to STORAGE    the tasks of a state directory that no instance has open
    list                   a sidecar's copies; with --from those of a storage
    show, verify, restore, prune --from STORAGE

Rules of this file: arguments and tables; `standfast.restore.snapshot` does the work on storages, the sidecar makes and
counts the copies on its own disk.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import FLAGS, client_of, prints, settings_of
from standfast.store.errors import InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output

PATH = "/v1/snapshots"
COPY_S = 300.0  # files are linked where possible, but a busy disk takes its time
STORAGE = "a folder, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://ACCOUNT/CONTAINER/PREFIX"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    from standfast.ops.cli.state import snapshot_storage as storage

    text = "snapshots of tasks: make, list, verify, restore and prune them"
    parser = subparsers.add_parser(
        "snapshot",
        help=text,
        description="Snapshots of tasks in a folder or bucket, and copies of the files of a sidecar's active tasks. "
        "Credentials of a bucket come from the environment. An application makes snapshots itself with "
        "snapshots=SnapshotPolicy(to=...).",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    create = _add_create(verbs)
    listed = verbs.add_parser(
        "list",
        help="list the snapshots",
        description="List the copies of a sidecar, or with --from the snapshots of a storage, the newest first, and "
        "its coordinated checkpoints.",
    )
    listed.add_argument("--from", dest="storage", metavar="STORAGE", help=STORAGE)
    for one, run in ((create, run_create), (listed, run_list)):
        prints(one, run, "json", "instance")
    show = verbs.add_parser("show", help="show one snapshot: its positions, stores and files")
    show.add_argument("snapshot", metavar="SNAPSHOT", help="as `list` names it, such as 0_3/12-4711")
    verify = verbs.add_parser(
        "verify",
        help="read every file of snapshots and compare its sha256",
        description="Read every file of the given snapshots, or of all, and compare its sha256.",
        epilog="Exit codes: 0 all are whole, 1 one is damaged.",
    )
    verify.add_argument("snapshot", metavar="SNAPSHOT", nargs="*", help="such as 0_3/12-4711 (default: all)")
    restore = _add_restore(verbs)
    prune = verbs.add_parser(
        "prune",
        help="remove old snapshots, and files that none names",
        description="Remove snapshots beyond the newest ones of each task, and files that no snapshot and no upload "
        "under way names.",
    )
    prune.add_argument("--keep", type=int, default=3, metavar="N", help="newest snapshots of a task that stay (3)")
    prune.add_argument("--keep-for", metavar="TIME", help="younger ones stay, too, such as 7d")
    prune.add_argument(
        "--grace", default="6h", metavar="TIME", help="uploads may take half of it (6h), as in the policy"
    )
    runs = {show: storage.run_show, verify: storage.run_verify, restore: storage.run_restore, prune: storage.run_prune}
    for one, storage_run in runs.items():
        one.add_argument("--from", dest="storage", required=True, metavar="STORAGE", help=STORAGE)
        one.add_argument("--app", metavar="NAME", help="application")
        if one in (restore, prune):
            one.add_argument("-n", "--dry-run", action="store_true", help="only show it, and write nothing")
        one.add_argument("--config", **FLAGS["config"])
        prints(one, storage_run, "json")


def _add_create(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    create = verbs.add_parser(
        "create",
        help="make a snapshot",
        description="With NAME a running sidecar copies the files of every active task to "
        "STATE_DIR/APP/snapshots/NAME: each copy is one cut, can be read with --offline, and serves as a task's "
        "directory where no instance runs. Each needs a new name. With NAME and --to the copies are then stored in a "
        "folder or bucket; with --to alone, the tasks of a state directory that no instance has open. With --app and "
        "--log alone, the leader of a running application with managed placement and a policy of snapshots makes a "
        "coordinated checkpoint: one consistent cut over all tasks.",
        epilog="Exit codes: 0 made, 1 the checkpoint was abandoned or refused, 69 no answer.",
    )
    create.add_argument("--log", metavar="ADDRESS", help="the application's log, for a coordinated checkpoint")
    create.add_argument("name", metavar="NAME", nargs="?", help="name of a sidecar's copy")
    create.add_argument("--to", metavar="STORAGE", help=f"store the tasks there: {STORAGE}")
    return create


def _add_restore(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    from standfast.ops.cli.state.snapshot_points import add_point_flags

    restore = verbs.add_parser(
        "restore",
        help="restore tasks from their newest snapshots",
        description="Put the newest usable snapshot of each task in the place of its missing directory. A directory "
        "with a database is never replaced. The instance that starts next compares the positions with its log and "
        "reads the rest; it does all of this itself with a policy of snapshots. With -o the tasks come into a new "
        "folder, with --as the whole application gets a new name, changelogs and source offsets of its own. A point "
        "(--to-offset, --to-time) is reached from a snapshot and the records after it; one whose records compaction "
        "may have removed is refused, with the nearest ones.",
        epilog="Exit codes: 0 done (or shown), 1 a task has no usable snapshot.",
    )
    restore.add_argument("--state-dir", type=Path, metavar="DIR", help="state directory, which no instance has open")
    restore.add_argument("--task", action="append", default=[], metavar="TASK", help="only this task; repeatable")
    restore.add_argument(
        "--snapshot",
        action="append",
        metavar="SNAPSHOT",
        help="this one, such as 0_3/12-4711; repeatable with -o, --as",
    )
    restore.add_argument(
        "--checkpoint", type=int, metavar="N", help="the coordinated checkpoint N, one cut over all tasks; with --as"
    )
    restore.add_argument(
        "--log", metavar="ADDRESS", help="the log, for a point and for --as; with --dry-run, to count the records left"
    )
    add_point_flags(restore)
    return restore


def run_create(args: argparse.Namespace, out: Output) -> int:
    """snapshot create."""
    if args.name is None and args.to is None:
        if args.log is None and (args.app is None or settings_of(args).log is None):
            raise InvalidRequest(
                "create takes NAME, for a copy of a running sidecar, --to STORAGE, for closed tasks, or --app NAME "
                "with --log ADDRESS, for a coordinated checkpoint of a running application"
            )
        from standfast.ops.cli.state.snapshot_checkpoint import run_create_checkpoint

        return run_create_checkpoint(args, out, COPY_S)
    if args.log is not None:
        raise InvalidRequest("--log is for a coordinated checkpoint, which has no NAME and no --to: leave it out")
    if args.name is None:
        from standfast.ops.cli.state.snapshot_storage import run_create_closed

        return run_create_closed(args, out)
    args.timeout = max(args.timeout, COPY_S)  # giving up would not end the copy
    made = client_of(args).post(PATH, {"name": args.name})
    if args.to is not None:
        from standfast.ops.cli.state.snapshot_storage import run_create_copies

        return run_create_copies(args, out, [f"0_{partition}" for partition in sorted(map(int, made["positions"]))])
    out.document(made)
    rows: list[tuple[Any, ...]] = [
        (f"0_{partition}", store, position)
        for partition, positions in sorted(made["positions"].items(), key=lambda item: int(item[0]))
        for store, position in sorted(positions.items())
    ]
    out.line(f"made snapshot {made['name']}")
    out.table(("task", "store", "position"), rows, right=("position",))
    return 0


def run_list(args: argparse.Namespace, out: Output) -> int:
    """snapshot list."""
    if args.storage is not None:
        from standfast.ops.cli.state.snapshot_storage import run_list_storage

        return run_list_storage(args, out)
    found = client_of(args).get(PATH)
    out.document(found)
    rows = [(one["name"], out.time(one["made_ms"]), " ".join(one["tasks"])) for one in found["snapshots"]]
    out.table(("snapshot", "made", "tasks"), rows, fold=("tasks",))
    return 0
