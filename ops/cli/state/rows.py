"""Commands about rows: get, scan, fetch; of a running instance, or of files.

Rules of this file: arguments and tables. Live answers come over the HTTP API, offline ones from files opened
read-only; both are the same documents.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.arguments import client_of, key_of, owned, prints, time_of
from standfast.ops.shared.exit_codes import NEGATIVE

if TYPE_CHECKING:
    from standfast.ops.observe.reads import ReadRequest
    from standfast.ops.shared.output import Output

Json: TypeAlias = dict[str, Any]
HOW = "milliseconds since the epoch, or ISO as 2013-01-01T08:00:00Z"
# Error codes (or errors) of refused reads: rows that --stale or --partition would read, and rows of other instances.
BEHIND = frozenset({"NOT_ACTIVE", "RESTORING", "NotActive", "NotReady"})
ELSEWHERE = frozenset({"NOT_ASSIGNED", "NotAssigned"})


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "the row of a key"
    get = subparsers.add_parser("get", help=text, description=f"Show {text} (exit code 1: there is none).")
    get.add_argument("store", metavar="STORE")
    get.add_argument("key", type=key_of, metavar="KEY")
    get.add_argument("--as-of", type=time_of, metavar="TIME", help=f"versioned store: the version valid then; {HOW}")
    scan = subparsers.add_parser("scan", help="rows in key order", description="Show rows in raw key order.")
    scan.add_argument("store", metavar="STORE")
    scan.add_argument("--from", dest="key_from", type=key_of, metavar="KEY", help="first key, included")
    scan.add_argument("--to", dest="key_to", type=key_of, metavar="KEY", help="last key, included")
    scan.add_argument("--prefix", type=key_of, metavar="TEXT", help="only keys whose bytes begin with TEXT")
    text = "rows of a key by time: windows, sessions or versions"
    fetch = subparsers.add_parser("fetch", help=text, description=f"Show {text}.")
    fetch.add_argument("store", metavar="STORE")
    fetch.add_argument("key", type=key_of, metavar="KEY")
    fetch.add_argument("--start", type=time_of, metavar="TIME", help=f"earliest time, included; {HOW}")
    fetch.add_argument("--end", type=time_of, metavar="TIME", help="latest time, included")
    for parser in (get, scan, fetch):
        if parser is not get:
            parser.add_argument("--limit", type=int, default=100, metavar="N", help="rows at most (100; up to 10000)")
        parser.add_argument("--partition", type=int, metavar="P", help="only this partition")
        parser.add_argument("--stale", action="store_true", help="also read standbys and stores that are restoring")
        parser.add_argument(
            "--key-format", choices=("utf8", "hex"), default="utf8", help="keys as text, or as raw bytes in hex"
        )
        prints(parser, run_read, "json", "times", "instance", "offline")


def run_read(args: argparse.Namespace, out: Output) -> int:
    """get, scan, fetch."""
    from standfast.ops.shared.error_codes import ERROR_SCHEMA, NotFound

    request = _request(args)
    try:
        document = _offline_rows(args, request, out) if args.offline is not None else _live_rows(args, request)
    except NotFound as absent:  # an absent row is an answer: no `error:` line, and exit code 1
        out.document({"schema": ERROR_SCHEMA, "error": "NotFound", "message": str(absent), "exit_code": NEGATIVE})
        out.note(str(absent))
        return NEGATIVE
    out.document(document)
    show_rows(document, out)
    if document["truncated"]:
        out.note(f"there are more rows than these {len(document['rows'])}: narrow the range, or raise --limit")
    return 0


def show_rows(document: Json, out: Output) -> None:
    """Rows of a store."""
    from standfast.ops.shared.text import shown
    from standfast.ops.shared.times import TIME_FIELDS
    from standfast.store.names import few

    rows = document["rows"]
    lagging = [part for part in document["partitions"] if part["lag_records"]]
    if lagging:
        out.note("; ".join(f"partition {part['partition']} lacks {part['lag_records']} records" for part in lagging))
    if document.get("not_read"):  # absent in an answer of an earlier version
        out.note(
            f"not read: the standbys of partitions {few(document['not_read'])}; ask their active instances, or "
            "give --stale"
        )
    columns = list(rows[0]) if rows else ["partition", "key", "value"]
    cells = [[out.time(row.get(one)) if one in TIME_FIELDS else shown(row.get(one)) for one in columns] for row in rows]
    out.table(columns, cells, right=("partition", *TIME_FIELDS), fold=("key", "value"))


def _request(args: argparse.Namespace) -> ReadRequest:
    from standfast.ops.observe.reads import LIMIT_DEFAULT, ReadRequest

    return ReadRequest(
        args.command,
        args.store,
        key=getattr(args, "key", None),
        key_from=getattr(args, "key_from", None),
        key_to=getattr(args, "key_to", None),
        prefix=getattr(args, "prefix", None),
        time_from=getattr(args, "start", None),
        time_to=getattr(args, "end", None),
        as_of=getattr(args, "as_of", None),
        partition=args.partition,
        limit=getattr(args, "limit", LIMIT_DEFAULT),
        key_format=args.key_format,
    )


def _live_rows(args: argparse.Namespace, request: ReadRequest) -> Json:
    from standfast.ops.client.client import error_in, store_path
    from standfast.store.errors import NotReady

    times = request.verb == "fetch"
    parameters = {
        "key": request.key,
        "from": request.time_from if times else request.key_from,
        "to": request.time_to if times else request.key_to,
        "prefix": request.prefix,
        "as_of": request.as_of,
        "partition": request.partition,
        "limit": None if request.verb == "get" else request.limit,  # the server refuses parameters of other verbs
        "stale": 1 if args.stale else None,
        "key_format": request.key_format,
    }
    status, found = client_of(args).ask(store_path(request.store, request.verb), parameters)
    if status == 200:
        return found
    error = error_in(status, found)
    flags = _flags_for(args, found)
    raise NotReady(f"{error}; as flags of this command: {flags}") if flags and isinstance(error, NotReady) else error


def _flags_for(args: argparse.Namespace, refusal: Json) -> str:
    """The flags of this command that would read the refused rows, or "". The server's error names its parameters."""
    why = str(refusal.get("reason") or refusal.get("error"))
    if why in ELSEWHERE:
        return "" if args.partition is None else "--partition with a partition held here, or another instance"
    if why not in BEHIND or (args.stale and args.partition is not None):
        return ""
    alone = "--partition P for one partition that can be read"
    if args.stale:
        return alone
    stale = "--stale for rows of a standby or a restore, which may lack the newest records"
    # A sidecar's worker reads pages of one partition at a time, so that its pipe never fills.
    return f"{stale} (a sidecar reads them with --partition P only)" if args.partition is None else stale


def _offline_rows(args: argparse.Namespace, request: ReadRequest, out: Output) -> Json:
    from standfast.ops.observe.offline import open_tasks
    from standfast.ops.observe.reads import document, read
    from standfast.ops.shared.error_codes import NotFound
    from standfast.restore.verify.at_rest import find_tasks
    from standfast.store.errors import InvalidRequest

    tasks = find_tasks(args.offline, args.app)
    if request.partition is not None:
        tasks = [task for task in tasks if task.task.partition == request.partition]
        if not tasks:
            raise InvalidRequest(f"{args.offline} has no task of partition {request.partition}")
    with open_tasks(tasks) as opened:
        # Tasks of other groups have other stores; if no task has this one, the first raises the error.
        having = [stores for stores in opened if request.store in stores.definitions] or opened
        parts = [stores.part(request.store) for stores in having]
        answer = read(parts, request)
        custom = having[0].custom_serdes(request.store)  # the definition holds names of serdes, and not their code
        found = document(tasks[0].app, request, parts, answer)
    owner = tasks[0].owner_pid
    found["offline"] = str(args.offline)
    found["owner_pid"] = owner
    if owner is not None:
        out.note(owned(owner))
    if custom:
        out.note(f"shown as hex: the serdes {', '.join(custom)} are the application's own and not known here")
    if request.verb == "get" and not answer.rows:
        raise NotFound(f"store {request.store!r} has no row of this key in {args.offline}")
    return found
