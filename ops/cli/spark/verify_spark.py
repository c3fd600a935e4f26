"""The command verify on Spark: for stores of any size, here or on a cluster, with a report in files.

    standfast verify --spark (--state-dir DIR | --snapshot FOLDER) [--app NAME] [--store NAME] --log ADDRESS
                     [--master M] [--source native|connector] [--report FOLDER] [--sample SHARE] [--digest-only]
                     [--plan]

    --state-dir    tasks at rest: a state directory without a live owner, an application's, a task's, a checkpoint;
                   local, or s3://bucket/path with <app>/<task> below it
    --snapshot     a folder with a manifest, or a snapshot in a storage: ADDRESS/TASK/EPOCH-POSITION, ADDRESS/latest

Rules of this file: arguments, the choice of state, and tables; the work is in `standfast.restore.spark.verify`. A
directory with a live owner is refused: its files would change under the tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any, TypeAlias

from standfast.ops.cli.arguments import is_url, log_of, settings_of
from standfast.ops.cli.spark.verify import EXIT_CODES, SCHEMA, indeterminate, overall, show, store_document
from standfast.ops.cli.spark_arguments import (
    connector_options,
    part_progress,
    session_for,
    split_bytes,
    stores_at_once,
)
from standfast.restore.addresses import shown_address

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.replication.log import Log
    from standfast.restore.spark.places import TaskPlace
    from standfast.restore.spark.verify import StoredAt, StorePlan, Verified

OpenSession: TypeAlias = Callable[..., AbstractContextManager[Any]]

PLAN_SCHEMA = "standfast.verify-plan/1"
PLAN_COLUMNS = ("store", "partition", "position", "begin", "end", "place")
UNKNOWN = "unknown until run"  # a position in object storage is in the database, which a plan does not fetch


def run_verify_spark(args: argparse.Namespace, out: Output, open_session: OpenSession = session_for) -> int:
    """verify --spark; `open_session` opens the Spark session to run on."""
    from standfast.restore.spark.session import check_libraries
    from standfast.restore.verdict import verdict_text
    from standfast.store.clock import SystemClock
    from standfast.store.errors import InvalidRequest

    check_libraries(report=args.report is not None)  # Jinja2 too, where a page is to be made at the end
    if not 0 < args.sample <= 1:
        raise InvalidRequest(f"--sample is {args.sample}: give a share of the keys, above 0 and up to 1")
    for check in (split_bytes, stores_at_once):
        check(args)  # before files, log or session are opened
    from standfast.restore.spark.verify import plan_verify, stored_stores

    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    places = places_of(args)
    stored = stored_stores(_chosen(places, args), args.store)
    for line in opened_notes(stored):
        out.note(line)
    with closing(log_of(args)) as log:
        plans = [plan_verify(log, places[0].app, name, at) for name, at in sorted(stored.items())]
        if args.plan:
            return _show_plan(plans, out)
        done = _verify(args, out, log, plans, clock.wall_ms(), open_session)
    verdicts = [verdict for one in done for verdict in one.verdicts]
    verdict = overall(verdicts)
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "app": places[0].app,
        "state_dir": shown_address(
            str(args.snapshot or (args.state_dir if is_url(args.state_dir) else settings_of(args).state_dir))
        ),
        "log": settings_of(args).log,
        "source": args.source,
        "sample": args.sample,
        "digest_only": args.digest_only,
        "elapsed_ms": clock.monotonic_ms() - began_ms,
        "verdict": verdict,
        "indeterminate": indeterminate(verdicts),
        "stores": [store_document(one) for one in verdicts],
    }
    if args.report is not None:
        from standfast.restore.spark.folder import Folder
        from standfast.restore.spark.report import write_report

        rows = [row for one in done for row in one.found]
        write_report(Folder(args.report), summary, rows)
    out.document(summary)
    show(verdicts, out)
    said = verdict_text(verdict, indeterminate(verdicts))
    if args.sample < 1:  # or "equal" would speak for rows that were never compared
        said += f", of a sample of {args.sample:.4%} of the keys"
    out.line(f"{places[0].app}: {said}" + (f" (report: {shown_address(args.report)})" if args.report else ""))
    return EXIT_CODES[verdict]


def _verify(
    args: argparse.Namespace,
    out: Output,
    log: Log,
    plans: list[StorePlan],
    now_ms: int,
    open_session: OpenSession,
) -> list[Verified]:
    from standfast.restore.spark.settle import settled
    from standfast.restore.spark.stores import StoresProgress, StoreWork, each_store
    from standfast.restore.spark.verify import verify_store

    options = connector_options(log.address) if args.source == "connector" else {}
    bound, at_once = split_bytes(args), stores_at_once(args)
    session = open_session(args, out, "standfast verify")
    # Settled in the session: positions of state in object storage are in its databases, which tasks of Spark fetch.
    with session as spark, settled(spark, log, plans) as plans, part_progress(out, "verifying") as bar:
        progress = StoresProgress(len(plans), lambda _number, _total, what: bar.describe(what), bar.at)

        def work(plan: StorePlan) -> StoreWork[Verified]:
            def run(own: Any) -> Verified:
                return verify_store(
                    own,
                    log,
                    plan,
                    now_ms=now_ms,
                    source=args.source,
                    connector_options=options,
                    sample=args.sample,
                    digest_only=args.digest_only,
                    include_values=args.include_values,
                    shown_max=args.limit,
                    split_bytes=bound,
                    on_tasks=progress.tasks,
                )

            tasks = 0 if plan.what is None else len(plan.what.ranges)
            return StoreWork(plan.spec.name, f"verifying {plan.spec.name}", tasks, run)

        return each_store(spark, [work(plan) for plan in plans], progress, at_once=at_once, tell=out.note)


def opened_notes(stored: Mapping[str, Mapping[int, StoredAt]]) -> list[str]:
    """Notes about databases in object storage that had to be opened for their definitions, with the reasons."""
    reasons: dict[str, set[str]] = {}
    for at_place in stored.values():
        for at in at_place.values():
            if at.note:
                reasons.setdefault(at.note, set()).add(str(at.place))
    return [
        f"opened the databases of {len(places)} tasks for their definitions, the first {min(places)}: {reason}"
        for reason, places in sorted(reasons.items())
    ]


def places_of(args: argparse.Namespace) -> list[TaskPlace]:
    """The state that the flags name: a snapshot, or tasks at rest. Raises InvalidRequest if a live process owns it."""
    from standfast.restore.snapshot.place import names_snapshot
    from standfast.restore.spark.places import TaskPlace, manifest_places, remote_places, storage_places
    from standfast.store.errors import InvalidRequest

    settings = settings_of(args)
    if args.snapshot is not None:
        if names_snapshot(args.snapshot):
            return storage_places(args.snapshot, settings.app)
        return manifest_places(args.snapshot)
    if is_url(args.state_dir):
        return remote_places(args.state_dir, settings.app)
    if settings.state_dir is None:
        raise InvalidRequest(
            "which state? name a directory with --state-dir DIR, or a folder with a manifest with --snapshot FOLDER"
        )
    from pathlib import Path

    from standfast.restore.verify.at_rest import find_tasks

    tasks = find_tasks(Path(settings.state_dir), settings.app)
    owned = next((task for task in tasks if task.owner_pid is not None), None)
    if owned is not None:
        raise InvalidRequest(
            f"{owned.path} is owned by pid {owned.owner_pid}, which is running: its files would change under Spark's "
            "tasks; stop it, take a checkpoint, or verify without --spark"
        )
    return [TaskPlace(task.app, task.task, str(task.path)) for task in tasks]


def _chosen(places: list[TaskPlace], args: argparse.Namespace) -> list[TaskPlace]:
    from standfast.store.errors import InvalidRequest

    if args.partition is None:
        return places
    chosen = [place for place in places if place.task.partition == args.partition]
    if not chosen:
        held = ", ".join(str(place.task.partition) for place in places)
        raise InvalidRequest(f"there is no task of partition {args.partition}: the partitions are {held}")
    return chosen


def _show_plan(plans: list[StorePlan], out: Output) -> int:
    rows, documents = [], []
    for plan in plans:
        spans = plan.what.ranges if plan.what is not None else {}
        for number, at in sorted(plan.stored.items()):
            begin, end = spans.get(number) or (None, None)
            position = None if at.position is None else at.position.offset
            row = (plan.spec.name, number, position, begin, end, str(at.place))
            documents.append(dict(zip(PLAN_COLUMNS, row, strict=True)) | {"position_known": at.known})
            rows.append((*row[:2], position if at.known else UNKNOWN, *row[3:]))
    out.document({"schema": PLAN_SCHEMA, "tasks": documents})
    out.table(PLAN_COLUMNS, rows, right=("partition", "position", "begin", "end"), fold=("place",))
    total = sum(plan.records_max for plan in plans)
    out.line(f"{len(rows)} tasks, {total} records at most")
    return 0
