"""The verbs of `standfast snapshot` that work on a storage: a folder or a bucket.

Rules of this file: arguments, tables and documents. Each document has the schema `standfast.snapshots/1`.
"""

from __future__ import annotations

import argparse
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import settings_of
from standfast.ops.cli.state.snapshot_checkpoint import checkpoint_shape, run_restore_checkpoint, show_checkpoints
from standfast.ops.cli.state.snapshot_points import run_restore_point, wants_point
from standfast.ops.shared.exit_codes import NEGATIVE, OK
from standfast.store.errors import InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.restore.snapshot.manifest import Snapshot
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
    from standfast.restore.snapshot.catalogue import listed
    from standfast.restore.snapshot.closed import restore
    from standfast.restore.snapshot.fetch import holds_database
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
    newest = {one.snapshot.task: one.snapshot for one in reversed(listed(storage).whole)}
    tasks = args.task or sorted(newest) if wanted is None else [wanted.task]
    lines: list[dict[str, Any]] = []
    with closing(_state_dir(args, out)) as state:
        for task in tasks:
            held = holds_database(state.task_path(task))
            line: dict[str, Any] = {"task": task, "snapshot": None, "bytes": 0, "passed_over": {}, "kept": held}
            if args.dry_run and not held:
                best = newest.get(task)
                line |= {
                    "snapshot": str(wanted or (best and best.name) or "") or None,
                    "bytes": best.bytes if best else 0,
                }
            elif not held:
                done = restore(storage, state, task, wanted=wanted)
                line["passed_over"] = {str(name): why for name, why in done.passed_over.items()}
                if done.snapshot is not None:
                    line |= {"snapshot": str(done.snapshot.name), "bytes": done.snapshot.bytes}
            lines.append(line)
    out.document({"schema": SCHEMA, "storage": storage.where, "dry_run": args.dry_run, "restored": lines})
    rows = [(one["task"], "has local state, kept" if one["kept"] else one["snapshot"] or "none", one["bytes"])
            for one in lines]  # fmt: skip
    out.table(("task", "snapshot", "bytes"), rows, right=("bytes",))
    for one in lines:
        for name, why in one["passed_over"].items():
            out.note(f"{name} is passed over: {why}")
    return OK if all(one["kept"] or one["snapshot"] for one in lines) else NEGATIVE


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
        }
    )
    for one in done.checkpoints:
        out.line(f"checkpoint {one.number}, {one.state}")
    for text in removed:
        out.line(text)
    would = "would be removed" if args.dry_run else "removed"
    out.line(f"{len(removed)} snapshots and {len(done.plan.files)} files of {done.plan.bytes} bytes {would}")
    for name, why in done.unread.items():
        out.note(f"no file is removed, since the manifest of {name} cannot be read: {why}")
    for number, why in done.unread_checkpoints.items():
        out.note(f"no snapshot is removed, since checkpoint {number} cannot be read: {why}")
    return OK


def _storage(args: argparse.Namespace) -> Storage:
    from standfast.restore.snapshot.address import parse_storage
    from standfast.restore.snapshot.opening import open_storage

    app = _app(args)
    folder = parse_storage(args.storage).folder
    # Opening would make the folder, and a mistyped one would look like a storage without snapshots.
    if folder is not None and not (folder / app).is_dir():
        raise InvalidRequest(f"{folder} has no snapshots of application {app!r}: check the folder and --app")
    return open_storage(args.storage, app)


def _app(args: argparse.Namespace) -> str:
    from standfast.store.names import check_name

    app = settings_of(args).app
    if app is None:
        raise InvalidRequest("which application? name it with --app NAME (or --config FILE, or STANDFAST_APP__NAME)")
    return check_name("application", app)


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
