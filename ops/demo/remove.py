"""The command `standfast demo --log kafka://... --prefix x --remove`: topics that demos left on a shared cluster.

Rules of this file: without --yes it only lists. Every topic is named before it is deleted; nothing else is touched.
"""

from __future__ import annotations

import argparse
from contextlib import closing

from standfast.ops.demo.place import KAFKA, PREFIX_DEFAULT, found_topics, remove
from standfast.ops.shared.exit_codes import OK
from standfast.ops.shared.output import Output
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import InvalidRequest

SCHEMA = "standfast.demo-remove/1"


def run_remove(args: argparse.Namespace) -> int:
    """demo --remove."""
    if not args.remove:
        raise InvalidRequest("--yes goes with --remove")
    if args.log in (None, KAFKA):
        raise InvalidRequest("--remove goes with --log kafka://host:9092: elsewhere the demo leaves nothing")
    prefix, out = args.prefix or PREFIX_DEFAULT, Output(as_json=args.json)
    with closing(open_log(args.log)) as log:
        found = found_topics(log, prefix)
        if args.yes:
            remove(log, prefix, found)
        address = log.address
    out.document(
        {
            "schema": SCHEMA,
            "log": address,
            "prefix": prefix,
            "removed": bool(args.yes and found),
            "topics": [{"topic": one.name, "partitions": one.partitions, "offsets": one.offsets} for one in found],
        }
    )
    if not found:
        out.line(f"{address} has nothing of a demo with the prefix {prefix}")
        return OK
    rows = [(one.name, one.partitions, one.offsets) for one in found]
    out.table(("topic", "partitions", "offsets held"), rows, right=("partitions", "offsets held"))
    out.line(
        f"removed {len(found)} topics" if args.yes else f"nothing was removed: to delete these {len(found)}, add --yes"
    )
    return OK
