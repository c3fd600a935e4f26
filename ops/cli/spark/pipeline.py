"""The command `pipeline`: all stores of an application in one run of Spark: inspect, rebuild, verify, report.

    standfast pipeline --log ADDRESS --state-dir DIR [--app NAME]   --out FOLDER     tasks at rest, or s3://bucket/path
    standfast pipeline --log ADDRESS --snapshot FOLDER              --out FOLDER     folders with manifests
    standfast pipeline --log ADDRESS --app NAME --store S [...]     --out FOLDER     only the log

    FOLDER/rebuilt/<store>/    files and a manifest of each store, which `standfast restore --from` imports
    FOLDER/report.html         one page over all stores, whole by itself
    FOLDER/differences.parquet, summary.json      every difference; the numbers, written last

The same program runs by `python -m standfast pipeline`, and by spark-submit with the file `standfast/__main__.py`.

Rules of this file: arguments, the choice of state, and tables; the work is in `standfast.restore.spark.pipeline`. Wrong
arguments are refused before Spark is started. Exit codes as of verify: 0 equal, 1 different, 3 inconclusive.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.arguments import log_of, prints, settings_of
from standfast.ops.cli.spark.verify import EXIT_CODES, state_dir_argument
from standfast.ops.cli.spark_arguments import (
    PartBar,
    add_at_once,
    add_rebuilding,
    add_spark,
    add_splitting,
    connector_options,
    file_bytes,
    part_progress,
    session_for,
    split_bytes,
    stores_at_once,
)
from standfast.restore.addresses import shown_address
from standfast.store.names import few

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.replication.log import Log
    from standfast.restore.spark.folder import Folder
    from standfast.restore.spark.pipeline import PipelineDone, PipelineReader, Steps, StoreJob
    from standfast.store.specs import StoreSpec

OpenSession: TypeAlias = Callable[..., AbstractContextManager[Any]]
Json: TypeAlias = dict[str, Any]
PLAN_SCHEMA = "standfast.pipeline-plan/1"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "pipeline",
        help="inspect, rebuild and verify all stores of an application on Spark, with one report",
        description="One run of Spark over all stores of an application: inspect every changelog, rebuild every store "
        "from it, compare the stored rows with it, and write one report.",
        epilog="Exit codes: 0 equal, 1 different, 3 inconclusive (the log does not suffice to judge a store).",
    )
    parser.add_argument("--log", metavar="ADDRESS", help="the log, as sqlite:///./log or kafka://host:9092")
    parser.add_argument("--app", metavar="NAME", help="application; optional if the state is of only one")
    parser.add_argument(
        "--state-dir",
        type=state_dir_argument,
        metavar="DIR",
        help="its state at rest: a state directory, an application's, or s3://bucket/path and the like",
    )
    parser.add_argument(
        "--snapshot",
        metavar="FOLDER",
        help="instead of --state-dir: a folder with a manifest, or with a folder for each store; or a snapshot in a "
        "storage, as s3://bucket/path/0_3/12-4711, or .../latest for the newest of each task",
    )
    parser.add_argument(
        "--store",
        dest="stores",
        action="append",
        default=[],
        metavar="STORE",
        help="instead of --state-dir: read only the log, for this store: totals:keyvalue:key=string; repeatable",
    )
    parser.add_argument("--partition", type=int, metavar="P", help="only this partition")
    parser.add_argument("--out", metavar="FOLDER", help="a new or empty folder, or s3://bucket/path and the like")
    parser.add_argument(
        "--include-values",
        action="store_true",
        help="write values of rows that differ to the report, not only their hashes",
    )
    add_rebuilding(parser)
    add_splitting(parser)
    add_at_once(parser)
    add_spark(parser)
    prints(parser, run_pipeline_command, "json", "wide", "config")


def run_pipeline_command(args: argparse.Namespace, out: Output, open_session: OpenSession = session_for) -> int:
    """pipeline; `open_session` opens the Spark session to run on."""
    from standfast.ops.cli.spark.verify_spark import opened_notes
    from standfast.restore.spark.session import check_libraries
    from standfast.store.errors import InvalidRequest

    check_libraries(report=True)  # Jinja2 is used by the driver at the very end; a missing one is reported now
    if not (args.out or args.plan):
        raise InvalidRequest("no folder for the result: name a new folder with --out FOLDER")
    for check in (file_bytes, split_bytes, stores_at_once):
        check(args)  # before a log or a session is opened
    looked_at = _looked_at(args)
    with closing(log_of(args)) as log:
        jobs = _jobs(args, log, looked_at)
        for line in opened_notes({job.name: job.stored for job in jobs}):
            out.note(line)
        if args.plan:
            return _show_plan(jobs, out)
        done, summary = _run(args, out, log, jobs, looked_at, open_session)
    out.document(summary)
    _show(done, summary, out)
    return EXIT_CODES[done.verdict]


def _run(
    args: argparse.Namespace,
    out: Output,
    log: Log,
    jobs: list[StoreJob],
    looked_at: str,
    open_session: OpenSession,
) -> tuple[PipelineDone, Json]:
    from standfast.restore.spark.folder import Folder
    from standfast.restore.spark.pipeline import PipelineReader, check_out
    from standfast.restore.spark.settle import settled_jobs

    folder = Folder(args.out)
    check_out(folder)  # before a session is opened: a folder with a report would else be found after hours
    options = connector_options(log.address) if args.source == "connector" else {}
    about = {
        "looked_at": looked_at,
        # `shown_address`, because an address may hold keys and secrets.
        "state": None if looked_at == "log" else shown_address(str(args.snapshot or state_of(args))),
        "source": args.source,
    }
    split, at_once = split_bytes(args), stores_at_once(args)
    reader = PipelineReader(args.source, options, file_bytes(args), args.include_values, split, at_once)
    session = open_session(args, out, f"standfast pipeline {jobs[0].app}")
    # Settled in the session: positions of state in object storage are in its databases, which tasks of Spark fetch.
    with session as spark, steps_shown(out) as steps, settled_jobs(spark, log, jobs) as jobs:
        return run_and_report(spark, log, jobs, folder, steps, about, reader=reader)


def run_and_report(
    spark: Any,
    log: Log,
    jobs: list[StoreJob],
    folder: Folder,
    steps: Steps,
    about: Json,
    *,
    reader: PipelineReader | None = None,
) -> tuple[PipelineDone, Json]:
    """Run all steps, then write the report to `folder`; returns the results and their document. `about`: looked_at,
    state, source."""
    from standfast.ops.cli.spark.pipeline_summary import summary_of
    from standfast.restore.spark.pipeline import run_pipeline
    from standfast.restore.spark.report import write_pipeline_report
    from standfast.store.clock import SystemClock

    clock = SystemClock()
    done = run_pipeline(spark, log, jobs, folder, steps, now_ms=clock.wall_ms, reader=reader)
    ran = {"spark": spark.version, "master": spark.conf.get("spark.master", ""), "ended_ms": clock.wall_ms()}
    summary = summary_of(done, {"app": jobs[0].app, "log": log.address, "out": str(folder), **about, **ran})
    rows = [row for one in done.stores for row in one.found]
    write_pipeline_report(folder, summary, rows)  # its summary last: a folder that has one is complete
    return done, summary


def state_of(args: argparse.Namespace) -> str | None:
    """The state directory or address of flags, environment or file."""
    from standfast.ops.cli.arguments import is_url

    if is_url(args.state_dir):
        return str(args.state_dir)
    found = settings_of(args).state_dir
    return None if found is None else str(found)


def _looked_at(args: argparse.Namespace) -> str:
    """The chosen input: state, snapshot or log. Raises InvalidRequest for none or several."""
    from standfast.store.errors import InvalidRequest

    given = [name for name, flag in (("--snapshot", args.snapshot), ("--store", args.stores)) if flag]
    given += ["--state-dir"] if args.state_dir is not None else []
    if len(given) > 1:
        raise InvalidRequest(f"{' and '.join(given)} do not go together: state, a snapshot, or only the log")
    if args.snapshot:
        return "snapshot"
    if args.stores:
        return "log"
    if state_of(args) is None:
        raise InvalidRequest(
            "which stores? name state at rest with --state-dir DIR, folders with manifests with --snapshot FOLDER, or "
            "for the log alone each store with --store NAME:KIND"
        )
    return "state"


def _jobs(args: argparse.Namespace, log: Log, looked_at: str) -> list[StoreJob]:
    from standfast.ops.cli.spark.verify_spark import places_of
    from standfast.restore.spark.pipeline import jobs_of_log, jobs_of_state, only_partition, snapshot_places
    from standfast.store.errors import InvalidRequest

    if looked_at == "log":
        app = settings_of(args).app
        if app is None:
            raise InvalidRequest("which application? name it with --app NAME")
        partitions = None if args.partition is None else [args.partition]
        specs = [_spec(log, app, text) for text in args.stores]
        names = [spec.name for spec in specs]
        # Two jobs would write to one folder.
        if len(set(names)) != len(names):
            raise InvalidRequest(f"--store names a store twice: {few(names)}")
        return jobs_of_log(log, app, specs, partitions=partitions, allow_truncated=args.allow_truncated)
    places = snapshot_places(args.snapshot, settings_of(args).app) if looked_at == "snapshot" else places_of(args)
    app = getattr(args, "app", None)
    if app is not None and places[0].app != app:
        raise InvalidRequest(
            f"{shown_address(args.snapshot)} holds stores of application {places[0].app!r}, not {app!r}"
        )
    if args.partition is not None:
        places = only_partition(places, args.partition)
    return jobs_of_state(log, places, allow_truncated=args.allow_truncated)


def _spec(log: Log, app: str, text: str) -> StoreSpec:
    from standfast.ops.cli.spark.rebuild import declared

    return declared(log, app, text)


class _Steps:
    """Progress: a bar on a terminal, a line for each step anywhere else."""

    def __init__(self, out: Output, bar: PartBar) -> None:
        self._out, self._bar = out, bar
        self._lines = not sys.stderr.isatty()
        self.at = bar.at

    def step(self, number: int, total: int, what: str) -> None:
        # A line each for the logs of a cluster, where a bar would be thousands of lines.
        if self._lines:
            print(f"step {number} of {total}: {what}", file=sys.stderr, flush=True)
        else:
            self._bar.describe(what)

    def note(self, text: str) -> None:
        self._out.note(text)


@contextmanager
def steps_shown(out: Output) -> Iterator[Steps]:
    """A receiver of a pipeline's progress that shows it on stderr."""
    with part_progress(out, "pipeline") as bar:
        yield _Steps(out, bar)


def _show_plan(jobs: list[StoreJob], out: Output) -> int:
    columns = ("store", "kind", "topic", "partitions", "records at most", "not rebuilt")
    rows: list[tuple[Any, ...]] = []
    for job in jobs:
        what = job.what
        at_most = 0 if what is None else what.records_max
        count = len(job.stored) if what is None else len(what.ranges)
        rows.append((job.name, job.spec.kind, job.spec.changelog_of(job.app), count, at_most, job.left_out))
    names = ("store", "kind", "topic", "partitions", "records_max", "left_out")
    out.document({"schema": PLAN_SCHEMA, "stores": [dict(zip(names, row, strict=True)) for row in rows]})
    numbers = ("partitions", "records at most")
    out.table(columns, rows, right=numbers, fold=("not rebuilt",), wide=("kind",))
    out.line(f"{len(rows)} stores, {sum(row[4] for row in rows)} records at most")
    return 0


def _show(done: PipelineDone, summary: Json, out: Output) -> None:
    from standfast.restore.verdict import verdict_text

    columns = (
        "store",
        "kind",
        "verdict",
        "records",
        "keys, about",
        "rows",
        "files",
        "MB",
        "matched",
        "wrong",
        "indeterminate",
    )
    rows = []
    for one in summary["stores"]:
        made, wrong = one["rebuilt"], sum(one[name] for name in ("missing", "extra", "different", "stale"))
        rows.append(
            (
                one["store"],
                one["kind"],
                one["verdict"],
                sum(part["records"] for part in one["inspected"]),
                sum(part["keys"] for part in one["inspected"]),
                *(("", "", "") if made is None else (made["rows"], made["files"], f"{made['bytes'] / 1e6:.1f}")),
                one["matched"],
                wrong,
                one["indeterminate"],
            )
        )
    out.table(columns, rows, right=columns[3:], wide=("kind", "keys", "rows", "files", "MB"))
    for one in summary["stores"]:
        for line in explanations(one):
            out.note(line)
    seconds = max(done.elapsed_ms, 1) / 1_000
    said = verdict_text(done.verdict, summary["indeterminate"])
    out.line(
        f"{summary['app']}: {said}; {len(rows)} stores, {summary['records']} records in {seconds:.1f} s "
        f"(report: {summary['out']})"
    )


def explanations(store: Json) -> Iterator[str]:
    """Lines for people about one store of a summary."""
    if store["rebuild_left_out"]:
        yield f"{store['store']} was not rebuilt: {store['rebuild_left_out']}"
    if store["rebuilt_differs"]:
        numbers = ", ".join(map(str, store["rebuilt_differs"]))
        yield f"{store['store']}: rebuilt and stored rows of partition {numbers} differ at one offset"
    reasons: dict[str, list[int]] = {}
    for one in store["verified"]:
        if one["explanation"]:
            reasons.setdefault(one["explanation"], []).append(one["partition"])
    for reason, partitions in reasons.items():
        yield f"{store['store']}, partition {', '.join(map(str, partitions))}: {reason}"
