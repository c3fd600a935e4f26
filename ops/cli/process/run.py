"""The command run: runs an application of a module, by one process or by several workers.

    standfast run shop:app --workers 4 --config shop.toml

    shop:app ──> import shop ──> App ── settings of file, environment, --set ──> App.run(workers=4)

Each worker runs this command again. Rules of this file: arguments and the look-up of the application only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.ops.cli.arguments import add_flags
from standfast.store.errors import BadConfig, InvalidRequest

if TYPE_CHECKING:
    from standfast.ops.config.config import Loaded
    from standfast.stream.app.app import App

# Names in a settings file, and the arguments of App that they replace. Other names of a file are a sidecar's.
SETTINGS: Mapping[str, str] = {
    "app.state_dir": "state_dir",
    "app.guarantee": "guarantee",
    "app.standby_replicas": "standby_replicas",
    "app.commit_interval": "commit_interval_ms",
    "app.gate": "gate",
    "app.discovery_interval": "discovery_interval_ms",
    "store.memory": "memory_bytes",
    "store.cache": "cache_max_bytes",
    "store.value_max": "value_max_bytes",
    "group.lease": "lease_ms",
    "group.max_stall": "max_stall_ms",
    "group.max_tasks": "max_tasks",
    "state.disk_floor": "disk_floor_bytes",
    "state.restore_workers": "restore_workers",
    "state.restore_memory": "restore_memory_bytes",
    "state.bulk_restore_records": "bulk_restore_records",
    "state.accept_empty_log": "accept_empty_log",
    "state.accept_missing_history": "accept_missing_history",
    "state.accept_unreadable_rows": "accept_unreadable_rows",
    "state.accept_foreign_offsets": "accept_foreign_offsets",
    "logging.format": "log_format",
}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "run",
        help="run an application of a Python module",
        description="Run an application until SIGTERM or SIGINT. Settings of the file, of variables "
        "STANDFAST_SECTION__KEY and of --set replace those that the module gives to App.",
    )
    parser.add_argument("target", metavar="MODULE:APP", help="module and the name of its App, such as shop.main:app")
    parser.add_argument(
        "--workers", metavar="N", help='worker processes of this instance, or "auto": one for each core (as App says)'
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="take the application over from live instances of a program with other groups, topics or stores, which "
        "give up their tasks and wait",
    )
    add_flags(parser, "config", "set")
    parser.set_defaults(handler=run_app)


def run_app(args: argparse.Namespace) -> int:
    """run."""
    from standfast.ops.cli.arguments import config_of
    from standfast.stream.workers.command import program_of_command

    workers = None if args.workers is None else _workers(args.workers)
    overrides = settings_of(loaded := config_of(args))
    app = find_app(args.target)
    named = loaded.config.app.name
    if named is not None and named != app.name:
        raise BadConfig([f"{loaded.origins['app.name']}: app.name is {named!r}, but {args.target} is {app.name!r}"])
    app.configure({**overrides, **({"replace": True} if args.replace else {})})
    # As this process was started by a script, or by another program that calls the command.
    app.program = program_of_command("standfast", _arguments(args))
    app.run(workers=workers)
    return 0


def _arguments(args: argparse.Namespace) -> list[str]:
    """The command's arguments, as a worker gets them."""
    found = ["run", args.target]
    found += [] if args.workers is None else ["--workers", args.workers]
    found += [] if args.config is None else ["--config", str(args.config)]
    for one in args.set:
        found += ["--set", one]
    return found


def _workers(text: str) -> Any:
    if (text != "auto" and not text.isascii()) or not (text == "auto" or text.isdigit()):
        raise InvalidRequest(f'--workers takes a whole number from 1, or "auto", not {text!r:.40}')
    return text if text == "auto" else int(text)


def settings_of(loaded: Loaded) -> dict[str, Any]:
    """Arguments of App that the settings replace: those that a file, the environment or a flag gives."""
    config = loaded.config
    found = {}
    for name, argument in SETTINGS.items():
        if name in loaded.origins:
            section, _, key = name.partition(".")
            values = getattr(config, section)
            (field,) = (one for one in (key, f"{key}_ms", f"{key}_bytes") if hasattr(values, one))
            found[argument] = getattr(values, field)
    if config.app.log is not None:
        found["log"] = config.log_address  # with the settings of [kafka]
    if config.snapshot_policy is not None:
        found["snapshots"] = config.snapshot_policy
    return found


def find_app(target: str) -> App:
    """The App that `MODULE:NAME` names. Raises InvalidRequest; an error of the module itself goes on."""
    from standfast.stream.app.app import App

    module_name, colon, name = target.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise InvalidRequest(f"{target!r:.100} is not MODULE:APP, such as shop.main:app")
    folder = str(Path.cwd())
    if folder not in sys.path:  # a script's own folder stands there, and no other
        sys.path.insert(0, folder)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not (module_name == missing or module_name.startswith(f"{missing}.")):
            raise  # the module imports one that is not there
        raise InvalidRequest(
            f"there is no module {module_name!r} in {folder} or among the installed packages: name it as "
            "`import` does, and start the command in its folder"
        ) from error
    found = getattr(module, name, None)
    if not isinstance(found, App):
        apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
        there = f"its applications are {', '.join(apps)}" if apps else "it has no application at its top level"
        what = "has no" if found is None else "has another object as"
        raise InvalidRequest(f"module {module_name!r} {what} {name!r}: {there}")
    return found
