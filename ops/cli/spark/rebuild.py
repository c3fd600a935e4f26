"""The commands `rebuild`, which makes a store's files from its changelog on Spark, and `gc`, which removes leftovers.

    standfast rebuild --log ADDRESS --app NAME --store NAME:KIND[:OPTIONS] --out FOLDER [--plan] [--json]
    standfast gc FOLDER [--delete] [--older-than 3d]        lists files that no manifest names; deletes with --delete

Rules of this file: arguments and tables; the work is in `standfast.restore.spark.rebuild`. Wrong arguments are refused
before Spark is started.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import log_of, prints, settings_of
from standfast.ops.cli.spark_arguments import add_rebuilding, add_spark, add_splitting, file_bytes, split_bytes

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.replication.log import Log
    from standfast.restore.spark.rebuild import Rebuilt
    from standfast.restore.verify.preflight import Preflight
    from standfast.store.specs import StoreSpec

SCHEMA = "standfast.rebuild/1"
PLAN_SCHEMA = "standfast.rebuild-plan/1"
GC_SCHEMA = "standfast.gc/1"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "rebuild",
        help="make a store's files from its changelog, on Spark",
        description="Fold a changelog into sorted files with a manifest. `standfast restore` imports them; an instance "
        "then follows the changelog from their offsets.",
    )
    parser.add_argument("--log", metavar="ADDRESS", help="the log, as sqlite:///./log or kafka://host:9092")
    parser.add_argument("--app", metavar="NAME", help="application")
    parser.add_argument(
        "--store", required=True, metavar="STORE", help="the store as declared: totals:keyvalue:key=string,value=int64"
    )
    parser.add_argument("--out", metavar="FOLDER", help="an empty folder, or s3://bucket/path and the like")
    parser.add_argument("--partition", type=int, action="append", metavar="P", help="only this partition; repeatable")
    parser.add_argument(
        "--until",
        action="append",
        default=[],
        metavar="P=OFFSET",
        help="read partition P up to this offset; repeatable",
    )
    add_rebuilding(parser)
    add_splitting(parser)
    add_spark(parser)
    prints(parser, run_rebuild, "json", "wide", "config")

    gc = subparsers.add_parser(
        "gc",
        help="list files of a rebuild folder that no manifest names",
        description="List files that attempts of a rebuild left behind; --delete deletes them.",
    )
    gc.add_argument("folder", metavar="FOLDER", help="a folder of rebuilds, or s3://bucket/path and the like")
    gc.add_argument("--delete", action="store_true", help="delete the files")
    gc.add_argument("--dry-run", action="store_true", help="only list them (default)")
    gc.add_argument("--older-than", default="3d", metavar="TIME", help="delete only files at least as old (3d)")
    prints(gc, run_gc, "json")


def run_rebuild(args: argparse.Namespace, out: Output) -> int:
    """rebuild."""
    from standfast.ops.cli.spark_arguments import connector_options, session_for, task_progress
    from standfast.restore.verify.preflight import preflight
    from standfast.store.clock import SystemClock
    from standfast.store.errors import InvalidRequest

    target = args.out or ""
    if not (target or args.plan):
        raise InvalidRequest("no folder for the result: name an empty folder with --out FOLDER")
    size, bound = file_bytes(args), split_bytes(args)
    until = dict(_until(text) for text in args.until)
    with closing(log_of(args)) as log:
        app, spec = _store(args, log)
        what = preflight(log, app, spec, partitions=args.partition, until=until, allow_truncated=args.allow_truncated)
        if args.plan:
            return _show_plan(what, out)
        # After the plan, which needs the log alone and works without Spark.
        from standfast.restore.spark.session import check_libraries

        check_libraries()
        from standfast.restore.spark.folder import Folder
        from standfast.restore.spark.rebuild import check_target, rebuild

        folder = Folder(target)
        check_target(folder)
        options = connector_options(str(log.address)) if args.source == "connector" else {}
        with session_for(args, out, f"standfast rebuild {spec.name}") as spark, task_progress(out, "rebuilding") as bar:
            done = rebuild(
                spark,
                log,
                what,
                folder,
                now_ms=SystemClock().wall_ms,
                source=args.source,
                connector_options=options,
                file_bytes=size,
                split_bytes=bound,
                on_tasks=bar,
            )
    return _show(done, out)


def run_gc(args: argparse.Namespace, out: Output) -> int:
    """gc."""
    from standfast.ops.config.config import parse_duration
    from standfast.restore.spark.session import check_libraries
    from standfast.store.clock import SystemClock
    from standfast.store.errors import InvalidRequest

    if args.delete and args.dry_run:
        raise InvalidRequest("--delete and --dry-run do not go together: leave one out")
    try:
        age_ms = parse_duration(args.older_than)
    except ValueError as error:
        raise InvalidRequest(f"--older-than: {error}, got {args.older_than!r}") from error
    check_libraries()
    from standfast.restore.spark.folder import Folder
    from standfast.restore.spark.rebuild import orphans

    folder = Folder(args.folder)
    if not folder.is_folder():
        raise InvalidRequest(f"{folder} is not a folder: check the name")
    found = orphans(folder)
    # Only old files, because no manifest names those of a rebuild under way yet. A negative time is unknown.
    before_ms = SystemClock().wall_ms() - age_ms
    old = [one for one in found if 0 <= one.changed_ms <= before_ms]
    for one in old if args.delete else ():
        folder.remove(one.name)
    deleted = len(old) if args.delete else 0
    rows = [(one.name, one.bytes) for one in found]
    document = {"folder": str(folder), "orphans": [{"name": name, "bytes": size} for name, size in rows]}
    out.document({"schema": GC_SCHEMA, **document, "old_enough": len(old), "deleted": deleted})
    out.table(("file", "bytes"), rows, right=("bytes",), fold=("file",))
    out.line(f"{folder}: {len(found)} files that no manifest names, {len(old)} at least {args.older_than} old, "
             f"{deleted} deleted")  # fmt: skip
    return 0


def _store(args: argparse.Namespace, log: Log) -> tuple[str, StoreSpec]:
    from standfast.store.errors import InvalidRequest

    app = settings_of(args).app
    if app is None:
        raise InvalidRequest("which application? name it with --app NAME")
    return app, declared(log, app, args.store)


def declared(log: Log, app: str, text: str) -> StoreSpec:
    """A store as declared by `--store`, with times from its topic. Raises UnknownStore, BadConfig."""
    from standfast.ops.cli.topic_records import check_kinds
    from standfast.ops.config.store_argument import parse_store, store_spec
    from standfast.restore.verify.preflight import topic_of

    argument = parse_store(text)
    info = topic_of(log, app, argument.name, argument.changelog_of(app))
    # Records of windows taken for plain keys would become wrong rows, and no error.
    check_kinds(log, [(argument, info)])
    return store_spec(argument, info.policy)


def _until(text: str) -> tuple[int, int]:
    from standfast.store.errors import InvalidRequest

    partition, equals, offset = text.partition("=")
    if not equals or not partition.isdecimal() or not offset.isdecimal():
        raise InvalidRequest(f"--until {text!r} is not PARTITION=OFFSET, as 0=12000")
    return int(partition), int(offset)


def _show_plan(what: Preflight, out: Output) -> int:
    out.document(
        {
            "schema": PLAN_SCHEMA,
            "topic": what.topic,
            "topic_id": what.info.topic_id,
            "store": what.spec.name,
            "definition": what.spec.definition(),
            "partitions": [
                {"partition": number, "begin": span.begin, "end": span.end} for number, span in what.ranges.items()
            ],
            "tasks": len(what.ranges),
            "records_max": what.records_max,
            "bytes_estimate": what.bytes_estimate,
        }
    )
    rows = [(number, span.begin, span.end, span.end - span.begin) for number, span in what.ranges.items()]
    columns = ("partition", "begin", "end", "records at most")
    out.table(columns, rows, title=what.topic, right=columns)
    out.line(
        f"{len(rows)} tasks, {what.records_max} records at most, about {what.bytes_estimate / 1e6:.1f} MB of keys and "
        "values"
    )
    return 0


def _show(done: Rebuilt, out: Output) -> int:
    from standfast.restore.report.text import skipped_text

    manifest = done.manifest
    partitions: list[dict[str, Any]] = [
        {
            "partition": one.partition,
            "start": one.start,
            "end": one.end,
            "converge_offset": one.converge_offset,
            "records": one.records,
            "rows": one.entries,
            "tombstones": one.tombstones,
            "superseded": one.superseded,
            "expired": one.expired,
            "skipped": one.skipped,
            "files": len(one.files),
            "bytes": sum(file.bytes for file in one.files),
            "digest": one.digest,
        }
        for one in manifest.partitions
    ]
    out.document(
        {
            "schema": SCHEMA,
            "folder": done.folder,
            "store": manifest.store,
            "topic": manifest.topic,
            "records": done.records,
            "digest": done.digest.hex(),
            "elapsed_ms": done.elapsed_ms,
            "partitions": partitions,
            "warnings": list(done.warnings),
        }
    )
    hidden = ("end", "tombstones", "superseded", "expired", "skipped", "digest")
    columns = ("partition", "end", "records", "rows", *hidden[1:-1], "files", "bytes", "digest")
    out.table(columns, [[one[name] for name in columns] for one in partitions], right=columns[:-1], wide=hidden)
    for line in done.warnings:
        out.note(line)
    # Records without a key are skipped, as Kafka Streams does; counted, so that the numbers add up.
    if done.skipped:
        out.note(skipped_text(f"store {manifest.store}", done.skipped))
    seconds = max(done.elapsed_ms, 1) / 1_000
    out.line(
        f"{done.folder}: store {manifest.store} of {done.records} records in {seconds:.1f} s "
        f"({done.records / seconds:,.0f}/s), digest {done.digest.hex()}"
    )
    return 0
