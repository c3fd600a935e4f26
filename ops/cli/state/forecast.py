"""Plans of restores on the command line: `standfast restore --dry-run`, and the expected time of any restore.

Rules of this file: tables and documents; `standfast.restore.forecast` looks and decides. Nothing is written: no folder,
no lock, no topic. Schema of its document: `standfast.restore-plan/1`.
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
    from standfast.restore.forecast.look import Forecast
    from standfast.restore.forecast.rates import Rate

SCHEMA = "standfast.restore-plan/1"
UNITS = {"replay": "records/s", "download": "bytes/s"}


def run_forecast(args: argparse.Namespace, out: Output) -> int:
    """restore --dry-run without folders."""
    from standfast.restore.forecast.look import Look
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
        look = Look(log, app, state_path, storage=storage, declared=declared, now_ms=SystemClock().wall_ms())
        found = look.forecast(tasks)
    finally:
        log.close()
    pid = owner_pid(state_path)
    if pid is not None:
        out.note(f"pid {pid} owns {state_path} and is running: the plan is that of a start after it has ended")
    out.document(document(found, None if storage is None else storage.where))
    show(found, out)
    return NEGATIVE if any(task.refused for task in found.tasks) else OK


def show_import(state_dir: Path, folders: Sequence[Path], log: Log | None, group: int, out: Output) -> int:
    """restore --from FOLDER --dry-run."""
    from standfast.restore.files.manifest_files import read_manifest
    from standfast.restore.forecast.rates import REPLAY, read_rates
    from standfast.restore.verify.import_tasks import plan_import

    planned = plan_import(state_dir, folders, log=log, group=group)
    rates = read_rates(state_dir / read_manifest(folders[0]).app)
    columns = ("task", "store", "from", "position", "bytes", "records")
    rows = [(str(one.task), one.store, one.folder, one.position, one.bytes, one.records) for one in planned]
    records = None if log is None else sum(one.records or 0 for one in planned)
    expected_s = None if records is None else records / rates[REPLAY].per_s
    out.document(
        {
            "schema": SCHEMA,
            "dry_run": True,
            "stores": [dict(zip(columns, row, strict=True)) for row in rows],
            "bytes": sum(one.bytes for one in planned),
            "records": records,
            "seconds": expected_s,
            "rates": {REPLAY: rate_document(rates[REPLAY])},
        }
    )
    out.table(columns, rows, right=("position", "bytes", "records"), fold=("from",))
    if records is None:
        out.line("give --log ADDRESS for the records that would be left to read")
    else:
        out.line(expected(records, 0, expected_s or 0.0, rates, out))
    return OK


def show(found: Forecast, out: Output) -> None:
    """A plan for people."""
    columns = ("task", "store", "from", "position", "end", "records", "bytes", "reason")
    rows = [
        (task.task, one.store, one.source, one.position, one.end, one.records, one.bytes, one.reason)
        for task in found.tasks
        for one in task.stores
    ]
    numbers = ("position", "end", "records", "bytes")
    out.table(columns, rows, right=numbers, wide=("position", "end"))
    for task in found.tasks:
        if task.snapshot is not None:
            out.line(f"{task.task} begins with snapshot {task.snapshot}: "
                     f"{task.download_files} files, {task.download_bytes} bytes")  # fmt: skip
        for one in task.stores:
            if one.message:
                out.note(f"{task.task}: {one.message}")
        show_passed_over(task.passed_over, out)
        if task.local and task.source != "local":
            out.note(f"{task.task}: {task.local}")
    out.line(expected(found.records, found.download_bytes, found.seconds, found.rates, out))


def show_passed_over(passed_over: Mapping[str, str], out: Output) -> None:
    """Why newer snapshots are not used."""
    for name, why in passed_over.items():
        out.note(f"{name} is passed over: {why}")


def expected(records: int, download_bytes: int, seconds: float, rates: Mapping[str, Rate], out: Output) -> str:
    """`about 12 s: at most 1,000 records at 200,000 records/s (default) and a download of 5 bytes at ...`."""
    from standfast.ops.observe.verdict import duration

    parts = []
    # Without any work the line still says how the time was reckoned.
    if records or not download_bytes:
        parts.append(f"at most {records} records at {_rate(rates['replay'], 'replay', out)}")
    if download_bytes:
        parts.append(f"a download of {download_bytes} bytes at {_rate(rates['download'], 'download', out)}")
    return f"expected time: {duration(seconds)}, {' and '.join(parts)}"


def document(found: Forecast, storage: str | None) -> dict[str, Any]:
    """A plan for programs."""
    return {
        "schema": SCHEMA,
        "dry_run": True,
        "app": found.app,
        "storage": storage,
        "tasks": [_task_document(found, task) for task in found.tasks],
        "records": found.records,
        "bytes": found.bytes,
        "download_bytes": found.download_bytes,
        "seconds": found.seconds,
        "rates": {what: rate_document(rate) for what, rate in found.rates.items()},
    }


def rate_document(rate: Rate) -> dict[str, Any]:
    """A rate for programs; `measured_ms` is null for a default."""
    return {"per_s": rate.per_s, "measured": rate.measured_ms is not None, "measured_ms": rate.measured_ms}


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


def _task_document(found: Forecast, task: TaskForecast) -> dict[str, Any]:
    shape = asdict(task)
    return {**shape, "passed_over": dict(task.passed_over), "records": task.records, "bytes": task.bytes,
            "seconds": found.seconds_of(task.records, task.download_bytes)}  # fmt: skip


def _rate(rate: Rate, what: str, out: Output) -> str:
    how = "default rate" if rate.measured_ms is None else f"measured {out.time(rate.measured_ms)}"
    return f"{rate.per_s:,.0f} {UNITS[what]} ({how})"
