"""The command verify: do the stores of a state directory hold what their changelogs say?

    standfast verify --state-dir DIR [--app NAME] [--store NAME] [--partition P] --log ADDRESS [--limit N] [--json]

    standfast verify --snapshot ADDRESS/0_3/12-4711 --app NAME --log ADDRESS        a snapshot in a storage

With --spark (or --master) Spark does the same for stores of any size: see `verify_spark.py`.

Rules of this file: arguments and tables; the comparison is in `standfast.restore.verify.verify`. It opens files
read-only and changes nothing, so a live owner may keep running: then the state at the opening of the files is verified.
In one process, one store after the other, each store's rows in memory.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.arguments import is_url, log_of, prints, settings_of
from standfast.ops.cli.spark_arguments import add_at_once, add_spark, add_splitting
from standfast.ops.shared.exit_codes import INCONCLUSIVE, NEGATIVE, OK
from standfast.restore.addresses import shown_address
from standfast.store.names import few

if TYPE_CHECKING:
    from standfast.ops.observe.offline import OfflineStores
    from standfast.ops.shared.output import Output
    from standfast.replication.log import Log
    from standfast.restore.compare import RowSide, UnequalRow
    from standfast.restore.verify.at_rest import TaskAtRest
    from standfast.restore.verify.verify import StoreVerdict
    from standfast.store.task.task_stores import AnyStore

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.verify/1"
LIMIT_DEFAULT = 20
EXIT_CODES = {"equal": OK, "different": NEGATIVE, "inconclusive": INCONCLUSIVE}
WRONG = ("missing", "extra", "different", "stale")
COUNTS = ("matched", *WRONG, "indeterminate")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "verify",
        help="compare stores with their changelogs",
        description="Compare each store of a state directory with its changelog, folded to the position of the store.",
        epilog="Exit codes: 0 equal, 1 different, 3 inconclusive (the log does not suffice to judge a store).",
    )
    parser.add_argument(
        "--state-dir",
        type=state_dir_argument,
        metavar="DIR",
        help="a state directory, an application's, or a task's; on Spark also s3://bucket/path and the like",
    )
    parser.add_argument("--app", metavar="NAME", help="application; optional if DIR holds only one")
    parser.add_argument("--store", metavar="NAME", help="only this store")
    parser.add_argument("--partition", type=int, metavar="P", help="only this partition")
    parser.add_argument("--log", metavar="ADDRESS", help="the log, as sqlite:///./log or kafka://host:9092")
    parser.add_argument(
        "--limit", type=int, default=LIMIT_DEFAULT, metavar="N", help="differing rows to show of each store (20)"
    )
    add_on_spark(parser)
    prints(parser, run_verify, "json", "wide", "times", "config")


def state_dir_argument(text: str) -> Path | str:
    """A folder, or an address as text."""
    # Path would join the slashes of `s3://` and make a folder of it.
    return text if "://" in text else Path(text)


def add_on_spark(parser: argparse.ArgumentParser) -> None:
    """Flags of a verify on Spark only."""
    parser.add_argument("--spark", action="store_true", help="on Spark, for stores of any size; --master implies it")
    parser.add_argument(
        "--snapshot",
        metavar="ADDRESS",
        help="a snapshot in a storage, ADDRESS/TASK/EPOCH-POSITION, or ADDRESS/latest for the newest of each task; on "
        "Spark also a folder with a manifest (of a rebuild)",
    )
    parser.add_argument(
        "--report", metavar="FOLDER", help="on Spark: write summary.json, differences.parquet, report.html"
    )
    parser.add_argument(
        "--include-values",
        action="store_true",
        help="show values of rows that differ, and write them to the report; else their sizes and hashes only",
    )
    parser.add_argument(
        "--sample", type=float, default=1.0, metavar="SHARE", help="on Spark: only this share of the keys"
    )
    parser.add_argument(
        "--digest-only", action="store_true", help="on Spark: compare digests only, without rows that differ"
    )
    parser.add_argument("--plan", action="store_true", help="on Spark: show the plan of the run, and stop")
    add_splitting(parser)
    add_at_once(parser)
    add_spark(parser)


def on_spark(args: argparse.Namespace) -> bool:
    """Whether a flag demands Spark."""
    from standfast.restore.snapshot.place import names_snapshot

    # A flag that only Spark knows must not be passed over without --spark.
    return bool(
        args.spark
        or args.master
        or (args.snapshot and not names_snapshot(args.snapshot))
        or args.report
        or args.plan
        or args.digest_only
        or args.sample != 1.0
        or args.split_mb is not None
        or args.stores_at_once is not None
        or args.source != "native"
        or is_url(args.state_dir)
    )


def run_verify(args: argparse.Namespace, out: Output) -> int:
    """verify."""
    from standfast.ops.observe.offline import open_tasks
    from standfast.restore.verdict import verdict_text
    from standfast.store.errors import InvalidRequest

    if args.limit < 0:
        raise InvalidRequest(f"--limit is {args.limit}: give 0 or more")
    if on_spark(args):
        from standfast.ops.cli.spark.verify_spark import run_verify_spark

        return run_verify_spark(args, out)
    with ExitStack() as stack:  # snapshots are fetched to folders that are removed at the end
        tasks = _fetched(args, stack) if args.snapshot else _tasks(args)
        # Read before the files are opened: an owner that ends in between may have written to them.
        app, owner = tasks[0].app, tasks[0].owner_pid
        log = stack.enter_context(closing(log_of(args)))
        opened = stack.enter_context(open_tasks(tasks))
        if owner is not None:
            out.note(f"pid {owner} owns these files and is running: this verifies their state at opening")
        verdicts, left_out = _verify(opened, args, log, out)
    verdict = overall(verdicts)
    out.document(_document(args, app, owner, verdict, verdicts, left_out))
    show(verdicts, out)
    for line in left_out:
        out.note(f"not verified: {line}")
    out.line(f"{app}: {verdict_text(verdict, indeterminate(verdicts))}")
    return EXIT_CODES[verdict]


def overall(verdicts: list[StoreVerdict]) -> str:
    """The worst of all verdicts: one wrong row outweighs rows that could not be decided."""
    found = {one.verdict for one in verdicts}
    return next((verdict for verdict in ("different", "inconclusive", "equal") if verdict in found), "inconclusive")


def indeterminate(verdicts: list[StoreVerdict]) -> int:
    """Number of rows of all stores that could not be decided."""
    return sum(one.indeterminate for one in verdicts)


def show(verdicts: list[StoreVerdict], out: Output) -> None:
    """Tables for people: stores, explanations of verdicts, rows that differ."""
    digests = ("digest of the log", "of the store")
    columns = ("store", "partition", "verdict", "position", "end", "matched", "wrong", *COUNTS[1:], *digests)
    rows = [
        [one.store, one.task.partition, one.verdict, _offset(one.position), _offset(one.end), one.matched]
        + [sum(getattr(one, count) for count in WRONG)]
        + [getattr(one, count) for count in COUNTS[1:]]
        + [one.log_digest.hex(), one.store_digest.hex()]
        for one in verdicts
    ]
    out.table(
        columns,
        rows,
        right=("partition", "position", "end", "wrong", *COUNTS),
        wide=("position", "end", *WRONG, *digests),
    )
    for one in verdicts:
        if one.explanation:
            out.line(f"- {one.store}, partition {one.task.partition}: {one.explanation}")
    from standfast.restore.report.text import key_text, side_text, skipped_text

    for one in verdicts:
        if one.skipped:
            out.line(f"- {skipped_text(f'{one.store}, partition {one.task.partition}', one.skipped)}")

    differing = [(one, row) for one in verdicts for row in one.differences]
    if differing:
        cells = [
            (
                one.store,
                one.task.partition,
                row.kind,
                key_text(one.kind, row.key),
                side_text(row.log, out.time),
                side_text(row.store, out.time),
            )
            for one, row in differing
        ]
        sides = ("key", "in the log", "in the store")
        out.table(("store", "partition", "row", *sides), cells, right=("partition",), fold=sides)
    for one in verdicts:
        if one.truncated:
            out.note(f"{one.store}, partition {one.task.partition}: more rows differ than these: raise --limit")


def _fetched(args: argparse.Namespace, stack: ExitStack) -> list[TaskAtRest]:
    """The snapshots that --snapshot names, as tasks at rest."""
    from standfast.restore.snapshot.place import fetched, find_snapshots
    from standfast.restore.verify.at_rest import find_tasks
    from standfast.store.errors import InvalidRequest

    if args.state_dir is not None:
        raise InvalidRequest("--state-dir and --snapshot both name the state to verify: give one")
    found = find_snapshots(args.snapshot, settings_of(args).app)
    tasks = [(address, one) for address, one in found if args.partition in (None, int(one.task.rpartition("_")[2]))]
    if not tasks:
        raise InvalidRequest(f"{shown_address(args.snapshot)} has no snapshot of partition {args.partition}")
    return [
        task for address, one in tasks for task in find_tasks(stack.enter_context(fetched(address, one.app)), one.app)
    ]


def _tasks(args: argparse.Namespace) -> list[TaskAtRest]:
    from standfast.restore.verify.at_rest import find_tasks
    from standfast.store.errors import InvalidRequest

    settings = settings_of(args)
    if settings.state_dir is None:
        raise InvalidRequest(
            "which state directory? name it with --state-dir DIR (or --config FILE, or STANDFAST_APP__STATE_DIR)"
        )
    tasks = find_tasks(Path(settings.state_dir), settings.app)
    if args.partition is not None:
        held = few(str(task.task.partition) for task in tasks)
        tasks = [task for task in tasks if task.task.partition == args.partition]
        if not tasks:
            raise InvalidRequest(f"{settings.state_dir} has no task of partition {args.partition}, it has {held}")
    return tasks


def _verify(
    opened: list[OfflineStores], args: argparse.Namespace, log: Log, out: Output
) -> tuple[list[StoreVerdict], list[str]]:
    from standfast.restore.compare import VALUE_MAX_BYTES
    from standfast.restore.verify.verify import verify_task
    from standfast.store.clock import SystemClock

    now_ms = SystemClock().wall_ms()
    opened = _having(opened, args.store)
    selected = [_stores(one, args.store) for one in opened]
    verdicts: list[StoreVerdict] = []
    total = sum(
        one.cut.positions[name].offset
        for one, (stores, _) in zip(opened, selected, strict=True)
        for name in stores
        if name in one.cut.positions
    )
    with out.progress("verifying", total) as bar:
        for one, (stores, _) in zip(opened, selected, strict=True):
            verdicts += verify_task(
                one.task.task,
                stores,
                one.cut.positions,
                log,
                one.task.app,
                now_ms=now_ms,
                differences_max=args.limit,
                # Without the flag only sizes and hashes: whole values would go to terminals and files.
                value_max=VALUE_MAX_BYTES if args.include_values else 0,
                on_records=bar.advance,
                # Records of a source topic pass through the serdes: without these, rows that differ prove nothing.
                serdes_unknown=[name for name in stores if one.custom_serdes(name)],
            )
    return verdicts, sorted({line for _, left_out in selected for line in left_out})


def _having(opened: list[OfflineStores], name: str | None) -> list[OfflineStores]:
    """Tasks that have the store; tasks of other groups have other stores. All tasks if none has it, for the error."""
    return [one for one in opened if name in one.definitions] or opened


def _stores(opened: OfflineStores, name: str | None) -> tuple[dict[str, AnyStore], list[str]]:
    """Stores of a task that can be verified, and a line for each other store with the reason."""
    from standfast.store.errors import InvalidRequest, UnknownStore

    stores: dict[str, AnyStore] = {}
    left_out = []
    for each, definition in sorted(opened.definitions.items()):
        if name not in (None, each):
            continue
        if definition["engine"] == "memory":
            left_out.append(f"store {each!r} is kept in memory and has no files")
        elif not definition["logging"]:
            left_out.append(f"store {each!r} is not logged: it has no changelog to compare with")
        else:
            stores[each] = opened.store(each)
    # A store that was named and cannot be verified is an error, and no note beside "equal".
    if name is not None and left_out:
        raise InvalidRequest(f"{left_out[0]}: verify another store")
    if name is not None and not stores:
        known = few(sorted(opened.definitions)) or "none"
        raise UnknownStore(f"task {opened.task.task} in {opened.task.path} has no store {name!r}: it has {known}")
    return stores, left_out


def _document(
    args: argparse.Namespace,
    app: str,
    owner: int | None,
    verdict: str,
    verdicts: list[StoreVerdict],
    left_out: list[str],
) -> Json:
    return {
        "schema": SCHEMA,
        "app": app,
        "state_dir": shown_address(args.snapshot or str(settings_of(args).state_dir)),
        "log": settings_of(args).log,
        "owner_pid": owner,
        "verdict": verdict,
        "indeterminate": indeterminate(verdicts),
        "stores": [store_document(one) for one in verdicts],
        "left_out": left_out,
    }


def store_document(one: StoreVerdict) -> Json:
    """One verdict as JSON."""
    return {
        "store": one.store,
        "kind": one.kind,
        "task": str(one.task),
        "partition": one.task.partition,
        "changelog": str(one.changelog),
        "verdict": one.verdict,
        "reason": one.reason,
        "explanation": one.explanation,
        "position": _offset(one.position),
        "begin": _offset(one.begin),
        "end": _offset(one.end),
        "observed_ms": one.observed_ms,
        "records": one.records,
        **{count: getattr(one, count) for count in COUNTS},
        "skipped": one.skipped,
        "log_digest": one.log_digest.hex(),
        "store_digest": one.store_digest.hex(),
        "differences": [_difference(one.kind, row) for row in one.differences],
        "truncated": one.truncated,
    }


def _difference(kind: str, row: UnequalRow) -> Json:
    from standfast.ops.shared.text import bytes_text, hex_text
    from standfast.restore.report.text import key_text
    from standfast.store.specs import TRAITS

    def side(found: RowSide | None) -> Json | None:
        if found is None:
            return None
        # Sizes and hashes show a difference without its contents; values only with --include-values.
        told = {"timestamp": found.timestamp, "value_bytes": found.value_bytes, "hash": found.hash_hex}
        return told if found.value is None else told | {"value_hex": hex_text(found.value)}

    return {
        "row": row.kind,
        # Keys of windows and sessions hold their times in binary, which would be hex.
        "key": bytes_text(row.key) if TRAITS[kind].times is None else key_text(kind, row.key),
        "key_hex": hex_text(row.key),
        "log": side(row.log),
        "store": side(row.store),
    }


def _offset(offset: int) -> int | None:
    return None if offset < 0 else offset
