"""The verbs of `standfast snapshot` that work on a storage: a folder or a bucket.

Rules of this file: arguments, tables and documents. Each document has the schema `standfast.snapshots/1`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import app_of, settings_of
from standfast.ops.cli.state.snapshot_checkpoint import checkpoint_shape, run_restore_checkpoint, show_checkpoints
from standfast.ops.cli.state.snapshot_points import run_restore_point, wants_point
from standfast.ops.shared.exit_codes import NEGATIVE, OK
from standfast.store.errors import InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.restore.snapshot.fetch import Restored
    from standfast.restore.snapshot.manifest import Snapshot
    from standfast.restore.snapshot.names import SnapshotName
    from standfast.restore.snapshot.planning import Judged
    from standfast.restore.snapshot.storage import Storage
    from standfast.restore.snapshot.upload import Created
    from standfast.store.task.state_dir import StateDir

SCHEMA = "standfast.snapshots/1"


def run_create_closed(args: argparse.Namespace, out: Output) -> int:
    """snapshot create --to."""
    from standfast.restore.snapshot.checkpoint import NothingCommitted
    from standfast.restore.snapshot.closed import create, disk_tasks
    from standfast.restore.snapshot.opening import open_storage
    from standfast.store.clock import SystemClock

    with closing(_state_dir(args, out)) as state:
        storage = open_storage(args.to, state.app)
        done = []
        for task in disk_tasks(state):
            with suppress(NothingCommitted):
                done.append(create(storage, state, task, clock=SystemClock()))
    return _show_created(out, storage, done)


def run_create_copies(args: argparse.Namespace, out: Output, tasks: list[str]) -> int:
    """snapshot create NAME --to: store the copies that a sidecar on this machine has made."""
    from standfast.ops.cli.arguments import state_path_of
    from standfast.restore.snapshot.checkpoint import NothingCommitted
    from standfast.restore.snapshot.closed import create_of_copy
    from standfast.restore.snapshot.opening import open_storage
    from standfast.store.clock import SystemClock
    from standfast.store.task.state_dir import kept_instance

    state_path = state_path_of(args)
    app, copies = state_path.name, state_path / "snapshots" / args.name
    storage = open_storage(args.to, app)
    instance, done = kept_instance(state_path), []
    for task in tasks:
        with suppress(NothingCommitted):
            done.append(create_of_copy(storage, copies / task, app, task, instance, clock=SystemClock()))
    return _show_created(out, storage, done)


def _show_created(out: Output, storage: Storage, done: list[Created]) -> int:
    for made in done:
        how = f"{made.uploaded_files} files, {made.uploaded_bytes} bytes uploaded" if made.new else "was there"
        out.line(f"{made.snapshot.name}  {how}")
    shapes = [{**_shape(made.snapshot), "new": made.new, "uploaded_bytes": made.uploaded_bytes} for made in done]
    out.document({"schema": SCHEMA, "storage": storage.where, "created": shapes})
    if not done:
        out.line("no task has a commit on disk")
    return OK


def run_list_storage(args: argparse.Namespace, out: Output) -> int:
    """snapshot list --from."""
    from standfast.restore.snapshot.catalogue import listed
    from standfast.restore.snapshot.checkpoints import checkpoints

    storage = _storage(args)
    found, made = listed(storage), checkpoints(storage)
    shapes = [{**_shape(one.snapshot), "stored_ms": one.modified_ms} for one in found.whole]
    broken = [{"snapshot": str(name), "fault": fault} for name, fault in found.broken.items()]
    document = {"schema": SCHEMA, "storage": storage.where, "snapshots": shapes, "broken": broken}
    out.document({**document, "checkpoints": [checkpoint_shape(one) for one in made]})
    rows = [
        (str(one.snapshot.name), out.time(one.modified_ms), one.snapshot.bytes, len(one.snapshot.files))
        for one in found.whole
    ]
    out.table(("snapshot", "stored", "bytes", "files"), rows, right=("bytes", "files"))
    for name, fault in found.broken.items():
        out.note(f"{name} cannot be used: {fault}")
    show_checkpoints(made, out)
    return OK


def run_show(args: argparse.Namespace, out: Output) -> int:
    """snapshot show."""
    from standfast.replication.shapes import plain
    from standfast.restore.snapshot.catalogue import missing, present, read_snapshot
    from standfast.restore.snapshot.names import parse_name

    storage = _storage(args)
    snapshot = read_snapshot(storage, parse_name(args.snapshot))
    faults = missing(snapshot.files, present(storage, snapshot.contents))
    out.document({"schema": SCHEMA, "storage": storage.where, "manifest": plain(snapshot), "faults": faults})
    out.line(f"{snapshot.name} of {snapshot.app}: {len(snapshot.files)} files, {snapshot.bytes} bytes, "
             f"made {out.time(snapshot.made.at_ms)} by {snapshot.made.instance}")  # fmt: skip
    cut = snapshot.cut
    rows: list[tuple[Any, ...]] = [
        (name, at.topic, at.partition, at.offset) for name, at in sorted(cut.positions.items())
    ]
    rows += [("(source)", *_source(key), offset) for key, offset in sorted(cut.sources.items())]
    out.table(("store", "topic", "partition", "next offset"), rows, right=("partition", "next offset"))
    if snapshot.memory_stores:
        out.note(f"in memory, and so not in the files: {', '.join(snapshot.memory_stores)}; the log has their rows")
    for fault in faults:
        out.note(fault)
    return OK


def run_verify(args: argparse.Namespace, out: Output) -> int:
    """snapshot verify."""
    from standfast.restore.snapshot.catalogue import listed, read_snapshot, verify_files
    from standfast.restore.snapshot.names import parse_name

    storage = _storage(args)
    broken: dict[str, list[str]] = {}
    if args.snapshot:
        wanted = [read_snapshot(storage, parse_name(text)) for text in args.snapshot]
    else:
        found = listed(storage)
        wanted = [one.snapshot for one in found.whole]
        broken = {str(name): [fault] for name, fault in found.broken.items()}
    faults = broken | {str(one.name): verify_files(storage, one) for one in wanted}
    results = [{"snapshot": name, "faults": found} for name, found in faults.items()]
    out.document({"schema": SCHEMA, "storage": storage.where, "verified": results})
    out.table(("snapshot", "verdict"), [(name, "; ".join(found) or "whole") for name, found in faults.items()],
              fold=("verdict",))  # fmt: skip
    return NEGATIVE if any(faults.values()) else OK


def run_restore(args: argparse.Namespace, out: Output) -> int:
    """snapshot restore."""
    from standfast.restore.snapshot.catalogue import names
    from standfast.restore.snapshot.names import parse_name

    if args.checkpoint is not None:
        return run_restore_checkpoint(args, out, _storage(args))
    if wants_point(args):
        return run_restore_point(args, out, _storage(args))
    if args.snapshot is not None and len(args.snapshot) != 1:
        raise InvalidRequest("several --snapshot go with -o DIR or --as NAME: give one here")
    wanted = None if args.snapshot is None else parse_name(args.snapshot[0])
    if wanted is not None and args.task not in ([], [wanted.task]):
        raise InvalidRequest(f"--task {' '.join(args.task)} and --snapshot {wanted} name different tasks: give one")
    storage = _storage(args)
    tasks = args.task or sorted({name.task for name in names(storage)}) if wanted is None else [wanted.task]
    if args.dry_run:
        return _plan_restore(args, out, storage, tasks, wanted)
    lines = _restored(args, out, storage, tasks, wanted)
    out.document({"schema": SCHEMA, "storage": storage.where, "dry_run": False, "restored": lines})
    _show_restored(lines, out)
    return OK if all(one["kept"] or one["snapshot"] for one in lines) else NEGATIVE


def _restored(
    args: argparse.Namespace, out: Output, storage: Storage, tasks: list[str], wanted: SnapshotName | None
) -> list[dict[str, Any]]:
    """Restore these tasks; a line for each."""
    from standfast.restore.snapshot.closed import restore
    from standfast.restore.snapshot.fetch import holds_database

    lines = []
    with closing(_state_dir(args, out)) as state:
        for task in tasks:
            line = _line(task, kept=holds_database(state.task_path(task)))
            if not line["kept"]:
                with out.progress(f"task {task}", 1) as bar:
                    done = restore(storage, state, task, wanted=wanted, step=_step(bar))
                line["passed_over"] = {str(name): why for name, why in done.passed_over.items()}
                if done.snapshot is not None:
                    line |= {"snapshot": str(done.snapshot.name), "bytes": done.snapshot.bytes}
            lines.append(line)
    return lines


def _plan_restore(
    args: argparse.Namespace, out: Output, storage: Storage, tasks: list[str], wanted: SnapshotName | None
) -> int:
    """snapshot restore --dry-run: by manifests, and with --log by the changelogs; writes nothing."""
    from standfast.restore.snapshot.fetch import holds_database

    settings, app = settings_of(args), _app(args)
    state_path = None if settings.state_dir is None else settings.state_dir / app
    lines, known = [], settings.log is not None
    with _judge(args, app) as judge:
        for task in tasks:
            line = _line(task, kept=state_path is not None and holds_database(state_path / task))
            if not line["kept"]:
                found = _usable(storage, task, judge, wanted)
                line["passed_over"] = {str(name): why for name, why in found.passed_over.items()}
                if found.snapshot is not None:
                    line |= {"snapshot": str(found.snapshot.name), "bytes": found.snapshot.bytes}
                    line["records"] = found.tail if known else None
            lines.append(line)
    records = sum(one.get("records") or 0 for one in lines)
    out.document({"schema": SCHEMA, "storage": storage.where, "dry_run": True, "restored": lines,
                  "records": records if known else None})  # fmt: skip
    _show_restored(lines, out)
    if known:
        out.line(f"at most {records:,} records would be left to read")
    else:
        out.line("give --log ADDRESS for the records that would be left to read, and to check that the log has them")
    return OK if all(one["kept"] or one["snapshot"] for one in lines) else NEGATIVE


def _usable(
    storage: Storage, task: str, judge: Callable[[Snapshot, str], Judged], wanted: SnapshotName | None
) -> Restored:
    from standfast.restore.snapshot.fetch import find_usable

    return find_usable(storage, task, judge=lambda snapshot: judge(snapshot, task), wanted=wanted)


@contextmanager
def _judge(args: argparse.Namespace, app: str) -> Iterator[Callable[[Snapshot, str], Judged]]:
    """Judges a snapshot of a task: by its names, and by the log where the arguments name one."""
    from standfast.ops.cli.arguments import log_of
    from standfast.restore.forecast.look import ForecastLook
    from standfast.restore.snapshot.planning import judge_names
    from standfast.store.clock import SystemClock

    if settings_of(args).log is None:
        yield lambda snapshot, task: judge_names(snapshot, app, task)
        return
    with closing(log_of(args)) as log:
        look = ForecastLook(log, app, None, now_ms=SystemClock().wall_ms())
        yield look.judge


def _line(task: str, *, kept: bool) -> dict[str, Any]:
    return {"task": task, "snapshot": None, "bytes": 0, "passed_over": {}, "kept": kept}


def _step(bar: Any) -> Callable[[Snapshot, int], None]:
    def step(snapshot: Snapshot, count: int) -> None:
        if not count:  # its begin
            bar.describe(f"snapshot {snapshot.name}", snapshot.bytes)
        bar.advance(count)

    return step


def _show_restored(lines: list[dict[str, Any]], out: Output) -> None:
    from standfast.ops.cli.state.forecast import show_passed_over

    rows = [(one["task"], "has local state, kept" if one["kept"] else one["snapshot"] or "none", one["bytes"])
            for one in lines]  # fmt: skip
    out.table(("task", "snapshot", "bytes"), rows, right=("bytes",))
    for one in lines:
        show_passed_over(one["passed_over"], out)


def run_prune(args: argparse.Namespace, out: Output) -> int:
    """snapshot prune."""
    from standfast.restore.snapshot.planning import Retention
    from standfast.restore.snapshot.policy import GRACE_MIN_MS
    from standfast.restore.snapshot.prune import prune
    from standfast.store.clock import SystemClock

    if args.keep < 1:
        raise InvalidRequest(f"--keep is {args.keep}: the newest snapshot of a task always stays, so give 1 or more")
    grace_ms = _duration("--grace", args.grace)
    if grace_ms < GRACE_MIN_MS:
        raise InvalidRequest(f"--grace is {args.grace}: give at least {GRACE_MIN_MS} ms, and as long as the policy's")
    keep_ms = None if args.keep_for is None else _duration("--keep-for", args.keep_for)
    storage = _storage(args)
    done = prune(storage, Retention(args.keep, keep_ms), clock=SystemClock(), grace_ms=grace_ms, dry_run=args.dry_run)
    removed = [str(name) for name in done.plan.snapshots]
    out.document(
        {
            "schema": SCHEMA,
            "storage": storage.where,
            "dry_run": args.dry_run,
            "checkpoints": [one.number for one in done.checkpoints],
            "snapshots": removed,
            "files": len(done.plan.files),
            "bytes": done.plan.bytes,
            "probes": done.probes,
        }
    )
    for one in done.checkpoints:
        out.line(f"checkpoint {one.number}, {one.state}")
    for text in removed:
        out.line(text)
    would = "would be removed" if args.dry_run else "removed"
    out.line(f"{len(removed)} snapshots and {len(done.plan.files)} files of {done.plan.bytes} bytes {would}")
    if done.probes:
        out.line(f"{done.probes} probes of processes that died {would}")
    for why in done.stays:
        out.note(why)
    return OK


def _storage(args: argparse.Namespace) -> Storage:
    from standfast.restore.snapshot.opening import open_existing

    return open_existing(args.storage, _app(args))


def _app(args: argparse.Namespace) -> str:
    from standfast.store.names import check_name

    return check_name("application", app_of(settings_of(args)))


def _state_dir(args: argparse.Namespace, out: Output) -> StateDir:
    from standfast.store.task.state_dir import StateDir, find_app

    settings = settings_of(args)
    if settings.state_dir is None:
        raise InvalidRequest("which state directory? name it with --state-dir DIR (or --config FILE)")
    if settings.app is None:
        found = find_app(settings.state_dir, None)
        return StateDir(found.parent, found.name)
    return StateDir(settings.state_dir, settings.app)


def _duration(flag: str, text: str) -> int:
    from standfast.ops.config.config import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidRequest(f"{flag}: {error}, got {text!r}") from error


def _source(key: str) -> tuple[str, int]:
    from standfast.store.task.commit_record import parse_source_key

    return parse_source_key(key)


def _shape(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "snapshot": str(snapshot.name),
        "task": snapshot.task,
        "epoch": snapshot.epoch,
        "position": snapshot.position,
        "bytes": snapshot.bytes,
        "files": len(snapshot.files),
        "made_ms": snapshot.made.at_ms,
        "memory_stores": list(snapshot.memory_stores),
    }
