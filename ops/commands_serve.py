"""The command `standfast serve`: the sidecar.

Rules of this file: arguments only; what runs is in `serve`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from standfast.ops.arguments import add_config, add_set

if TYPE_CHECKING:
    from standfast.ops.config_types import Config


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve",
        help="run the sidecar: stores for an application in any language",
        description="Run the sidecar: data over the Redis wire protocol on a Unix socket, control over HTTP on "
        "loopback. Its info file (STATE_DIR/APP/run/INFO.json) says where both are.",
    )
    add_config(parser)
    add_set(parser)
    parser.add_argument("--check", action="store_true", help="check the settings and whether the log answers, then end")
    parser.set_defaults(handler=run_serve)


def run_serve(args: argparse.Namespace) -> int:
    """serve."""
    import logging
    import sys

    from standfast.ops.arguments import config_of
    from standfast.ops.extras import require

    for module in ("starlette", "uvicorn", "uvloop", "hiredis"):
        require("serve", module)
    config = config_of(args).config
    from standfast.ops import serve

    serve.check(config)
    if args.check:
        serve.check_log(config)
        print("the settings are fine and the log answers")
        return 0
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")

    def reload() -> Config:
        return config_of(args).config

    return serve.serve(config, reload)
