"""Commands about settings: `config check FILE`.

Rules of this file: tells what a file and the environment amount to; starts and changes nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.ops.arguments import add_json, printing

if TYPE_CHECKING:
    from standfast.ops.output import Output

SCHEMA = "standfast.config/1"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser("config", help="check a settings file", description="Work with settings.")
    commands = parser.add_subparsers(dest="config_command", required=True, metavar="COMMAND")
    text = "report every problem of a settings file, or what it amounts to"
    check = commands.add_parser("check", help=text, description=f"{text.capitalize()} (exit code 78: problems).")
    check.add_argument("file", type=Path, metavar="FILE")
    add_json(check)
    check.set_defaults(handler=printing(run_check))


def run_check(args: argparse.Namespace, out: Output) -> int:
    """config check."""
    import os

    from standfast.ops.config import SETTINGS, load_settings

    settings = load_settings(args.file, os.environ)
    values = {setting.name: getattr(settings, setting.field) for setting in SETTINGS}
    shown = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    out.document({"schema": SCHEMA, "file": str(args.file), "settings": shown})
    out.table(("setting", "value"), list(shown.items()))
    return 0
