"""The commands of `standfast`, each with the module that adds it to the parser.

Rules of this file: a table. Only this file names modules of commands, and each stands in an import statement, so that
a frozen program has them all. A command loads its own module and no other one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

Register = Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], None]

# In the order of --help.
COMMANDS = (
    *("serve", "drain", "run", "status", "tasks", "lag", "health", "get", "scan", "fetch", "snapshot", "changelog"),
    *("topics", "config", "verify", "rebuild", "gc", "restore", "pipeline", "doctor", "topic", "reset", "broker"),
    *("replica", "placement", "deaths", "bench", "demo"),
)


def register_of(command: str) -> Register:
    """The function that adds one of COMMANDS to a parser, with the others of its module."""
    match command:
        case "serve" | "drain":
            from standfast.ops.cli.process.serve import register
        case "run":
            from standfast.ops.cli.process.run import register
        case "status" | "tasks" | "lag" | "health":
            from standfast.ops.cli.state.tasks import register
        case "get" | "scan" | "fetch":
            from standfast.ops.cli.state.rows import register
        case "snapshot":
            from standfast.ops.cli.state.snapshot import register
        case "changelog" | "topics":
            from standfast.ops.cli.log.changelog import register
        case "config":
            from standfast.ops.cli.process.config import register
        case "verify":
            from standfast.ops.cli.spark.verify import register
        case "rebuild" | "gc":
            from standfast.ops.cli.spark.rebuild import register
        case "restore":
            from standfast.ops.cli.state.import_tasks import register
        case "pipeline":
            from standfast.ops.cli.spark.pipeline import register
        case "doctor":
            from standfast.ops.cli.process.doctor import register
        case "topic":
            from standfast.ops.cli.log.topic import register
        case "reset":
            from standfast.ops.cli.process.reset import register
        case "broker":
            from standfast.ops.cli.log.broker import register
        case "replica":
            from standfast.ops.cli.state.replica import register
        case "placement":
            from standfast.ops.cli.process.placement import register
        case "deaths":
            from standfast.ops.cli.process.deaths import register
        case "bench":
            from standfast.ops.bench.bench import register
        case _:
            from standfast.ops.demo.demo import register
    return register
