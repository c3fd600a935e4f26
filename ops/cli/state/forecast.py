"""Plans of restores on the command line: `standfast restore --dry-run`.

Rules of this file: tables and documents; `standfast.restore.forecast` looks and decides. Nothing is written: no folder,
no lock, no topic. Schema of its document: `standfast.restore-plan/2`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import log_of, settings_of
from standfast.ops.shared.exit_codes import NEGATIVE, OK
from standfast.store.errors import InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.replication.log import Log
    from standfast.restore.forecast.forecast import TaskForecast

SCHEMA = "standfast.restore-plan/2"


def run_forecast(args: argparse.Namespace, out: Output) -> int:
    """restore --dry-run without folders."""
    from standfast.restore.forecast.look import ForecastLook
    from standfast.restore.snapshot.opening import open_existing
    from standfast.store.clock import SystemClock
    from standfast.store.task.state_dir import owner_pid

    settings = settings_of(args)
    state_path, app = _place(settings.state_dir, settings.app)
    tasks = [_task(text) for text in args.task]
    declared, to = _declared(args)
    to = to if args.snapshots is None else args.snapshots
    storage = None if to is None else open_existing(to, app)
    log = log_of(args)
    try:
        look = ForecastLook(log, app, state_path, storage=storage, declared=declared, now_ms=SystemClock().wall_ms())
        found = look.forecast(tasks)
    finally:
        log.close()
    pid = owner_pid(state_path)
    if pid is not None:
        out.note(f"pid {pid} owns {state_path} and is running: the plan is that of a start after it has ended")
    out.document(
        {
            "schema": SCHEMA,
            "dry_run": True,
            "app": app,
            "storage": None if storage is None else storage.where,
            "tasks": [{**asdict(task), "records": task.records} for task in found],
            "records": sum(task.records for task in found),
        }
    )
    show(found, out)
    return NEGATIVE if any(task.refused for task in found) else OK


def show_import(state_dir: Path, folders: Sequence[Path], log: Log | None, group: int, out: Output) -> int:
    """restore --from FOLDER --dry-run."""
    from standfast.restore.verify.import_tasks import plan_import

    planned = plan_import(state_dir, folders, log=log, group=group)
    columns = ("task", "store", "from", "records")
    rows = [(str(one.task), one.store, one.folder, one.records) for one in planned]
    records = None if log is None else sum(one.records or 0 for one in planned)
    out.document(
        {
            "schema": SCHEMA,
            "dry_run": True,
            "stores": [dict(zip(columns, row, strict=True)) for row in rows],
            "records": records,
        }
    )
    out.table(columns, rows, right=("records",), fold=("from",))
    if records is None:
        out.line("give --log ADDRESS for the records that would be left to read")
    return OK


def show(found: Sequence[TaskForecast], out: Output) -> None:
    """A plan for people."""
    rows = [(task.task, one.store, one.source, one.records, one.reason) for task in found for one in task.stores]
    out.table(("task", "store", "from", "records", "reason"), rows, right=("records",))
    for task in found:
        if task.snapshot is not None:
            out.line(f"{task.task} begins with snapshot {task.snapshot}")
        for one in task.stores:
            if one.message:
                out.note(f"{task.task}: {one.message}")
        show_passed_over(task.passed_over, out)
        if task.local and task.source != "local":
            out.note(f"{task.task}: {task.local}")


def show_passed_over(passed_over: Mapping[str, str], out: Output) -> None:
    """Why newer snapshots are not used."""
    for name, why in passed_over.items():
        out.note(f"{name} is passed over: {why}")


def _declared(args: argparse.Namespace) -> tuple[dict[str, dict[str, Any]], str | None]:
    """Definitions of the stores that the settings declare, by name, and the storage of snapshots in them."""
    from standfast.ops.config.config import load_config

    config = load_config(args.config, os.environ).config
    return {spec.name: spec.placed_definition() for spec in config.stores}, config.snapshots.to


def _place(state_dir: Path | None, app: str | None) -> tuple[Path, str]:
    """`<state_dir>/<app>`, which may be absent where the application is named, and the application."""
    from standfast.store.names import check_name
    from standfast.store.task.state_dir import find_app

    if state_dir is None:
        raise InvalidRequest("which state directory? name it with --state-dir DIR (or --config FILE)")
    if app is None:
        found = find_app(state_dir, None)
        return found, found.name
    return state_dir / check_name("application", app), app


def _task(text: str) -> str:
    from standfast.restore.forecast.look import is_task

    if not is_task(text):
        raise InvalidRequest(f"--task is {text!r:.100}: give a task such as 0_3")
    return text
