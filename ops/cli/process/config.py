"""Commands about settings: `config show [--origin]`, `config schema`, `config validate`.

Rules of this file: it shows the settings of file, environment and flags together; changes nothing, prints no secret.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.ops.cli.arguments import add_flags, config_of, prints

if TYPE_CHECKING:
    from standfast.ops.shared.output import Output


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "config", help="settings: show, schema, validate", description="Show and check settings."
    )
    commands = parser.add_subparsers(dest="config_command", required=True, metavar="COMMAND")
    text = "the settings that file, environment and flags give, without secrets"
    show = commands.add_parser("show", help=text, description=f"{text.capitalize()}.")
    _add_file(show, needed=False)
    show.add_argument("--origin", action="store_true", help="also the origin of each value")
    prints(show, run_show)
    text = "the JSON Schema of a settings file"
    schema = commands.add_parser("schema", help=text, description="The JSON Schema of a settings file, for editors.")
    schema.set_defaults(handler=run_schema)
    text = "report every problem of a settings file, or the settings that it gives"
    # `check` is the name that it had at first.
    validate = commands.add_parser(
        "validate", aliases=["check"], help=text, description=f"{text.capitalize()} (exit code 78: problems)."
    )
    _add_file(validate, needed=True)
    prints(validate, run_show, origin=False)


def _add_file(parser: argparse.ArgumentParser, *, needed: bool) -> None:
    parser.add_argument("config", type=Path, metavar="FILE", nargs=None if needed else "?")
    add_flags(parser, "set", "json")


def run_show(args: argparse.Namespace, out: Output) -> int:
    """config show, config validate."""
    from standfast.ops.config.show import document, rows

    loaded = config_of(args)
    out.document(document(loaded, args.config))
    columns = ("setting", "value", "from") if args.origin else ("setting", "value")
    out.table(columns, [row[: len(columns)] for row in rows(loaded)], fold=("value", "from"))
    return 0


def run_schema(args: argparse.Namespace) -> int:
    """config schema."""
    import json

    from standfast.ops.config.show import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0
