"""Coordinated checkpoints on the command line: `snapshot create --app NAME --log ADDRESS`, `restore --checkpoint N`,
and their part of `list`.

    request ──> placement topic ──> the leader's orders, until one of them ends the checkpoint of this request

Rules of this file: arguments and output. It decides nothing: the leader does, and the storage has the outcome.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import app_of, log_of, settings_of
from standfast.ops.shared.exit_codes import NEGATIVE, OK
from standfast.store.errors import InvalidRequest, NotReady, Unavailable
from standfast.store.timestamps import duration_text

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.replication.log import Log
    from standfast.replication.placement.checkpoint import Order
    from standfast.restore.snapshot.checkpoints import Checkpoint
    from standfast.restore.snapshot.storage import Storage

SCHEMA = "standfast.snapshots/1"
LOOK_MS = 100


def run_create_checkpoint(args: argparse.Namespace, out: Output, patience_s: float) -> int:
    """snapshot create --app."""
    from standfast.replication.placement.checkpoint import OrderState

    app = app_of(settings_of(args))
    with closing(log_of(args)) as log:
        order = ask(log, app, max(args.timeout, patience_s))
    complete = order.state is OrderState.COMPLETE
    out.document(
        {
            "schema": SCHEMA,
            "app": app,
            "checkpoint": order.number,
            "state": order.state.value,
            "why": order.why,
            "pause_ms": order.pause_ms,
        }
    )
    if complete:
        pause = duration_text(order.pause_ms)
        out.line(f"checkpoint {order.number} is complete; a group of tasks stood still for at most {pause}")
    elif order.state is OrderState.REFUSED:
        out.line(f"no checkpoint was made: {order.why}")
    else:
        out.line(f"checkpoint {order.number} was abandoned: {order.why}")
    return OK if complete else NEGATIVE


def ask(log: Log, app: str, patience_s: float) -> Order:
    """Ask the leader of an application for a checkpoint; returns the order that ends it.

    Raises InvalidRequest for an application without managed placement, NotReady without a live instance, Unavailable
    if no leader answers in time.
    """
    from standfast.replication.placement.checkpoint import OrderState, Request
    from standfast.replication.placement.topic import PlacementTopic
    from standfast.store.clock import SystemClock

    clock = SystemClock()
    topic = PlacementTopic(log, app, "", clock, acceptable_lag=0)
    with closing(topic):
        if topic.look_whole() is None:
            raise InvalidRequest(
                f'application {app!r} was never run with placement="managed" on log {log.address}: coordinated '
                "checkpoints need a leader"
            )
        with closing(log.group(app)) as group:
            if not group.view().members:
                raise NotReady(f"no instance of application {app!r} is live: start one, or use --to for closed tasks")
        request = Request(uuid.uuid4().hex, clock.wall_ms(), int(patience_s * 1_000))
        topic.ask(request)
        until_ms = clock.monotonic_ms() + request.patience_ms
        # By the request: another checkpoint, such as one of the schedule, may end meanwhile.
        wanted, seen = {request.id}, False
        while clock.monotonic_ms() < until_ms:
            state = topic.look()
            order, last = state.order, state.request
            if last is not None and last.id == request.id:
                seen = True
            elif last is not None and seen:
                wanted.add(last.id)  # it took the place of this one; its checkpoint begins later still
            if order is not None and order.request in wanted and order.state is not OrderState.RUNNING:
                return order
            clock.sleep_ms(LOOK_MS)
        order = topic.state.order
    under_way = order is not None and order.request in wanted
    what = f"checkpoint {order.number} is under way" if order is not None and under_way else "no leader has answered"
    raise Unavailable(
        f"application {app!r}: {what} after {patience_s:.0f} s; `standfast snapshot list --from STORAGE` shows what "
        "becomes of it"
    )


def run_restore_checkpoint(args: argparse.Namespace, out: Output, storage: Storage) -> int:
    """snapshot restore --checkpoint N --as NAME."""
    from standfast.ops.cli.state.snapshot_points import show_cloned
    from standfast.restore.snapshot.checkpoints import parts_of, read_checkpoint
    from standfast.restore.snapshot.clone import clone_app
    from standfast.store.clock import SystemClock

    settings = settings_of(args)
    if args.as_name is None:
        raise InvalidRequest("a checkpoint is restored as an application of its own: name it with --as NAME")
    if args.task or args.snapshot or args.to_offset or args.to_time is not None or args.output is not None:
        raise InvalidRequest("--checkpoint is one cut over all tasks: leave out tasks, snapshots, points and folders")
    if settings.state_dir is None:
        raise InvalidRequest("--as needs the state directory of the new application: name it with --state-dir DIR")
    # Only a complete one: an abandoned or unfinished checkpoint is refused here.
    outcome = read_checkpoint(storage, args.checkpoint)
    parts, offsets = parts_of(storage, outcome)
    with closing(log_of(args)) as log:
        cloned = clone_app(
            storage,
            parts,
            name=args.as_name,
            log=log,
            state_dir=settings.state_dir,
            clock=SystemClock(),
            coordinated=True,
            stateless=offsets,
            dry_run=args.dry_run,
        )
    return show_cloned(out, storage, cloned)


def checkpoint_shape(one: Checkpoint) -> dict[str, Any]:
    """A checkpoint as JSON."""
    outcome = one.outcome
    return {
        "checkpoint": one.number,
        "state": one.state.value,
        "why": one.why,
        "at_ms": one.at_ms,
        "fault": one.fault,
        "pause_ms": None if outcome is None else outcome.pause_ms,
        "parts": [] if outcome is None else [{"task": part.task, "snapshot": part.snapshot} for part in outcome.parts],
    }


def show_checkpoints(found: Sequence[Checkpoint], out: Output) -> None:
    """Print a table of checkpoints, the newest first; nothing if there are none."""
    if not found:
        return
    out.line()
    rows = [
        (one.number, one.state.value, out.time(one.at_ms), len(one.outcome.parts) if one.outcome else "", one.why)
        for one in reversed(found)
    ]
    out.table(("checkpoint", "state", "at", "parts", "why"), rows, right=("checkpoint", "parts"), fold=("why",))
    for one in found:
        if one.fault:
            out.note(f"checkpoint {one.number} cannot be read: {one.fault}")
