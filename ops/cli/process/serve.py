"""The commands `standfast serve`, which runs the sidecar, and `standfast drain`, which makes one stop its work.

Rules of this file: arguments only; `standfast.ops.sidecar.serve` runs the sidecar.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from standfast.ops.cli.arguments import add_flags

if TYPE_CHECKING:
    from standfast.ops.config.types import Config

CLOSE_S = 30.0  # for closing the tasks, after the wait for their writers


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve",
        help="run the sidecar: stores for an application in any language",
        description="Run the sidecar: data over the Redis wire protocol on a Unix socket, control over HTTP on "
        "loopback. Its info file (STATE_DIR/APP/run/INFO.json) names both addresses.",
    )
    add_flags(parser, "config", "set")
    parser.add_argument(
        "--log-format", choices=("text", "json"), help="lines of its log on stderr, as the setting logging.format"
    )
    parser.add_argument(
        "--snapshots", metavar="STORAGE", help="store snapshots of the tasks there, as the setting snapshots.to"
    )
    parser.add_argument(
        "--snapshots-every", metavar="TIME", help="time between two of a task, as the setting snapshots.every"
    )
    parser.add_argument("--check", action="store_true", help="check the settings and whether the log answers, then end")
    parser.set_defaults(handler=run_serve)
    text = "make a sidecar take no more work and close its tasks; it goes on answering until it is stopped"
    drain = subparsers.add_parser("drain", help=text, description=f"{text.capitalize()}.")
    drain.add_argument("--wait", default="20s", metavar="TIME", help="how long writers may take to commit (20s)")
    add_flags(drain, "instance")
    drain.set_defaults(handler=run_drain)


def run_drain(args: argparse.Namespace) -> int:
    """drain."""
    from standfast.ops.cli.arguments import client_of
    from standfast.ops.config.values import parse_duration
    from standfast.store.errors import InvalidRequest

    try:
        wait_ms = parse_duration(args.wait)
    except ValueError as error:
        raise InvalidRequest(f"--wait is {args.wait!r}: {error}") from error
    # The sidecar answers once its tasks are closed.
    args.timeout = max(args.timeout, wait_ms / 1_000 + CLOSE_S)
    client_of(args).post("/v1/drain", {"wait_ms": wait_ms})
    print("drained")
    return 0


def run_serve(args: argparse.Namespace) -> int:
    """serve."""
    from standfast.ops.cli.arguments import config_of
    from standfast.ops.shared.extras import SERVE, require

    require("serve", *SERVE, "uvloop", "hiredis")  # first: the import of the sidecar would fail without a remedy
    if args.log_format is not None:
        args.set.append(f"logging.format={args.log_format}")
    for name, value in (("to", args.snapshots), ("every", args.snapshots_every)):
        if value is not None:
            args.set.append(f"snapshots.{name}={value}")
    loaded = config_of(args)
    config = loaded.config
    from standfast.ops.sidecar import serve

    serve.check(config)
    if args.check:
        serve.check_log(config)
        print("the settings are fine and the log answers")
        return 0

    # From the same sources as at the start, so that flags and environment still win after a SIGHUP.
    def reload() -> Config:
        return config_of(args).config

    return serve.serve(loaded, reload)
