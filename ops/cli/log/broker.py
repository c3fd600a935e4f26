"""Commands about the local Kafka broker: `broker up`, `broker status`, `broker down`.

    --dir D     its directory; else $XDG_STATE_HOME/standfast/broker, or ~/.local/state/standfast/broker

Rules of this file: arguments and messages; `broker` does the work. Repeating `up` or `down` is fine.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import prints
from standfast.ops.shared.exit_codes import NEGATIVE, OK
from standfast.store.errors import InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output
    from standfast.ops.tools.broker_state import RunningBroker

SCHEMA = "standfast.broker/1"
PROBE_S_MAX = 5.0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    about = "a real Kafka broker on this machine, for trying and testing"
    parser = subparsers.add_parser(
        "broker",
        help=about,
        description=f"Run {about}: one node, reachable from this machine only. It needs Java 17 and fetches Kafka the "
        "first time (45 MB), and Java too (58 MB) where there is none.",
    )
    commands = parser.add_subparsers(dest="broker_command", required=True, metavar="COMMAND")
    for name, text, run in (
        ("up", "start the broker, and return once it answers", run_up),
        ("status", "show whether the broker runs (exit code 1: no)", run_status),
        ("down", "stop the broker; its topics stay for the next start", run_down),
    ):
        command = commands.add_parser(name, help=text, description=f"{text.capitalize()}.")
        command.add_argument(
            "--dir",
            type=Path,
            metavar="DIR",
            help="folder of the broker's files (default: ~/.local/state/standfast/broker)",
        )
        if name == "up":
            command.add_argument(
                "--port", type=int, default=0, metavar="P", help="port of the broker (default: a free one)"
            )
        prints(command, run, "json")


def run_up(args: argparse.Namespace, out: Output) -> int:
    """broker up."""
    from standfast.ops.tools.broker import Broker
    from standfast.ops.tools.broker_state import running_broker
    from standfast.store.clock import SystemClock

    directory, clock = _directory(args), SystemClock()
    began_ms = clock.monotonic_ms()
    running = running_broker(directory)
    started = running is None
    if running is None:
        out.note("starting a Kafka broker; this takes some seconds")
        # Not bound: the broker is to outlive this command.
        running = Broker(directory, args.port, bound=False, say=out.note).start()
    elif args.port not in (0, running.port):
        raise InvalidRequest(
            f"the broker in {directory} runs at {running.address}: stop it first to start one on port {args.port}"
        )
    took_ms = clock.monotonic_ms() - began_ms if started else None
    out.document(_document(directory, running) | {"started": started, "started_in_ms": took_ms})
    state = "already runs at" if took_ms is None else f"answers after {took_ms / 1_000:.1f} s at"
    out.line(f"Kafka {running.version} {state} {running.address}, pid {running.pid}")
    out.line(f"try it: standfast demo --log {_url(running)}, or use that address as the log of an application")
    out.line(f"files in {directory}; stop it with: standfast broker down{_flag(args)}")
    return OK


def run_status(args: argparse.Namespace, out: Output) -> int:
    """broker status."""
    from standfast.ops.shared.loopback import HOST
    from standfast.ops.tools.broker_state import running_broker
    from standfast.ops.tools.kafka_probe import live_nodes

    directory = _directory(args)
    running = running_broker(directory)
    # A process that runs may hang or still start, so the answer decides about the exit code.
    answers = running is not None and bool(live_nodes(HOST, running.port, PROBE_S_MAX))
    out.document(_document(directory, running) | {"answers": answers})
    if running is None:
        out.line(f"no broker runs in {directory}; start it with: standfast broker up{_flag(args)}")
        return NEGATIVE
    state = "answers" if answers else "runs but does not answer"
    out.line(f"Kafka {running.version} {state} at {running.address}, pid {running.pid}, log {running.log}")
    out.line(f"its address for applications and commands: {_url(running)}")
    return OK if answers else NEGATIVE


def run_down(args: argparse.Namespace, out: Output) -> int:
    """broker down."""
    from standfast.ops.tools.broker_state import end_broker

    directory = _directory(args)
    ended = end_broker(directory)
    out.document(_document(directory, None) | {"stopped": ended is not None, "pid": ended.pid if ended else None})
    out.line(
        f"no broker ran in {directory}"
        if ended is None
        else f"stopped pid {ended.pid}; topics stay in {directory} for the next start; delete it to remove them"
    )
    return OK


def _directory(args: argparse.Namespace) -> Path:
    if args.dir is not None:
        return Path(args.dir).absolute()
    # State and no cache: topics outlive the broker, and must not be cleared away.
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local/state") / "standfast/broker"


def _url(running: RunningBroker) -> str:
    return f"kafka://{running.address}"


def _flag(args: argparse.Namespace) -> str:
    return "" if args.dir is None else f" --dir {args.dir}"


def _document(directory: Path, running: RunningBroker | None) -> dict[str, Any]:
    """The JSON of each of the commands; absent values are null."""
    return {
        "schema": SCHEMA,
        "directory": str(directory),
        "running": running is not None,
        "address": running.address if running else None,
        "url": _url(running) if running else None,
        "pid": running.pid if running else None,
        "kafka": running.version if running else None,
        "java": running.java if running else None,
        "log": running.log if running else None,
    }
