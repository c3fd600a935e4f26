"""The command `standfast snapshot`: make a running sidecar copy the files of its active tasks, and list the copies.

Rules of this file: arguments and tables; the sidecar makes and counts the copies, on its own disk.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from standfast.ops.cli.arguments import client_of, prints

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output

PATH = "/v1/snapshots"
COPY_S = 300.0  # files are linked where possible, but a busy disk takes its time


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "copies of the files of a sidecar's active tasks"
    parser = subparsers.add_parser("snapshot", help=text, description=f"Make or list {text}.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    create = verbs.add_parser(
        "create",
        help="make a snapshot",
        description="Copy the files of every active task to STATE_DIR/APP/snapshots/NAME: each copy is one cut, can be "
        "read with --offline, and serves as a task's directory where no instance runs. Each snapshot needs a new name.",
    )
    create.add_argument("name", metavar="NAME")
    listed = verbs.add_parser("list", help="list the snapshots", description="List the snapshots, the newest first.")
    for one, run in ((create, run_create), (listed, run_list)):
        prints(one, run, "json", "instance")


def run_create(args: argparse.Namespace, out: Output) -> int:
    """snapshot create."""
    args.timeout = max(args.timeout, COPY_S)  # giving up would not end the copy
    made = client_of(args).post(PATH, {"name": args.name})
    out.document(made)
    rows = [
        (f"0_{partition}", store, position)
        for partition, positions in sorted(made["positions"].items(), key=lambda item: int(item[0]))
        for store, position in sorted(positions.items())
    ]
    out.line(f"made snapshot {made['name']}")
    out.table(("task", "store", "position"), rows, right=("position",))
    return 0


def run_list(args: argparse.Namespace, out: Output) -> int:
    """snapshot list."""
    found = client_of(args).get(PATH)
    out.document(found)
    rows = [(one["name"], out.time(one["made_ms"]), " ".join(one["tasks"])) for one in found["snapshots"]]
    out.table(("snapshot", "made", "tasks"), rows, fold=("tasks",))
    return 0
