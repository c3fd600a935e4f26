"""Arguments that several commands share, and the instance, files or log that they name.

Rules of this file: flags only, and cheap to import; commands get the instance, the files or the log from here.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.store.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from standfast.ops.client.client import Client
    from standfast.ops.config.config import Loaded, Settings
    from standfast.ops.shared.output import Output
    from standfast.ops.shared.times import TimeStyle
    from standfast.replication.log import Log

TIMEOUT_DEFAULT_S = 10.0


# Flags that several commands share; `instance` and `times`, which are groups of flags, are added below.
FLAGS: dict[str, dict[str, Any]] = {
    "json": {"action": "store_true", "help": "one JSON document instead of a table"},
    # for a command whose table has more columns than a narrow terminal
    "wide": {"action": "store_true", "help": "all columns, each row on one line however long it is"},
    "config": {"type": Path, "metavar": "FILE", "help": "settings file, TOML; flags override it"},
    "offline": {
        "type": Path,
        "metavar": "DIR",
        "help": "read files: a state directory, an application's, or a task's",
    },
    "set": {
        "action": "append",
        "default": [],
        "metavar": "SECTION.KEY=VALUE",
        "help": "one setting; overrides the file and the environment; repeatable",
    },
}


def add_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add shared flags, in order: names of FLAGS, `times`, or `instance`."""
    for name in names:
        if name == "instance":
            _add_instance(parser)
        elif name == "times":
            style = parser.add_mutually_exclusive_group()
            style.add_argument("--utc", action="store_true", help="times in UTC (default: local time)")
            style.add_argument(
                "--ms", action="store_true", help="times in milliseconds since the epoch, as --json has them"
            )
        else:
            parser.add_argument(f"--{name}", **FLAGS[name])


def prints(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace, Output], int], *flags: str, **defaults: Any
) -> None:
    """Let a command run `run`, which prints through Output; `flags` are its shared flags."""

    def handle(args: argparse.Namespace) -> int:
        from standfast.ops.shared.output import Output

        times: TimeStyle = "utc" if getattr(args, "utc", False) else "ms" if getattr(args, "ms", False) else "local"
        return run(args, Output(as_json=args.json, wide=getattr(args, "wide", False), times=times))

    add_flags(parser, *flags)
    parser.set_defaults(handler=handle, **defaults)


def is_url(state: Any) -> bool:
    """Whether `--state-dir` is an address, such as s3://bucket/path, and no folder of this machine."""
    return isinstance(state, str) and "://" in state


def time_of(text: str) -> int:
    """Type of an argument that is a point in time."""
    from standfast.ops.shared.times import parse_time

    try:
        return parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def key_of(text: str) -> str:
    """Type of an argument that is a key or a part of one: its bytes as UTF-8, whatever the locale made of them."""
    try:
        return os.fsencode(text).decode()
    except UnicodeError:
        raise argparse.ArgumentTypeError(f"{text!a} is not UTF-8: give its bytes with --key-format hex") from None


def _add_instance(parser: argparse.ArgumentParser) -> None:
    """Flags that find a running instance and authenticate to it."""
    where = parser.add_argument_group("which instance")
    where.add_argument("--state-dir", type=Path, metavar="DIR", help="its state directory, on this machine")
    where.add_argument("--app", metavar="NAME", help="application; optional if DIR holds only one")
    where.add_argument("--run-dir", type=Path, metavar="DIR", help="a sidecar's run directory, instead of --state-dir")
    where.add_argument("--url", metavar="URL", help="its HTTP endpoint, http(s)://host:port, instead of a directory")
    where.add_argument(
        "--timeout", type=float, default=TIMEOUT_DEFAULT_S, metavar="S", help="seconds to wait for its answer"
    )
    where.add_argument("--config", **FLAGS["config"])
    who = parser.add_argument_group("credentials, where the endpoint requires them")
    who.add_argument("--token-file", type=Path, metavar="FILE", help="file of mode 0600 that holds the token")
    who.add_argument("--ca", type=Path, metavar="FILE", help="authorities to trust, PEM (default: the machine's)")
    who.add_argument("--cert", type=Path, metavar="FILE", help="client certificate, PEM, for mutual TLS")
    who.add_argument("--cert-key", type=Path, metavar="FILE", help="private key of --cert, PEM")
    who.add_argument("--tls-name", metavar="NAME", help="the name in its certificate, if not the host of its address")


def config_of(args: argparse.Namespace) -> Loaded:
    """All settings of --config, the environment and --set; later sources win. Raises BadConfig, InvalidRequest."""
    from standfast.ops.config.config import load_config

    flags: dict[str, Any] = {}
    for one in args.set:
        name, separator, value = one.partition("=")
        # The error does not repeat the text, which may hold a secret.
        if not separator or "." not in name:
            raise InvalidRequest("--set takes SECTION.KEY=VALUE, such as --set http.port=8080")
        flags[name] = value
    return load_config(args.config, os.environ, flags)


def settings_of(args: argparse.Namespace) -> Settings:
    """Settings of --config, the environment and the flags; later sources win."""
    from standfast.ops.config.config import load_settings

    state_dir = getattr(args, "state_dir", None)
    # The settings refuse an address, which would else become a folder `s3:`; commands that take one read the flag.
    state_dir = None if is_url(state_dir) else state_dir
    flags: dict[str, Any] = {
        "app.name": getattr(args, "app", None),
        "app.log": getattr(args, "log", None),
        "app.state_dir": None if state_dir is None else str(state_dir),
    }
    return load_settings(getattr(args, "config", None), os.environ, flags)


def app_of(settings: Settings) -> str:
    """The application that the settings name. Raises InvalidRequest if they name none."""
    if settings.app is None:
        raise InvalidRequest("which application? name it with --app NAME (or --config FILE, or STANDFAST_APP__NAME)")
    return settings.app


def client_of(args: argparse.Namespace) -> Client:
    """A client of the running instance that the flags name."""
    from standfast.ops.client.client import Client
    from standfast.ops.client.endpoint import TlsFiles, token_of

    if args.timeout <= 0:  # a socket's time-out of 0 means non-blocking, which fails at once with another error
        raise InvalidRequest(f"--timeout is {args.timeout}: give seconds above 0")
    if args.url is not None and args.run_dir is not None:
        raise InvalidRequest("--url and --run-dir both name an instance: give one of them")
    token = None if args.token_file is None else token_of(args.token_file)
    tls = TlsFiles(args.ca, args.cert, args.cert_key, args.tls_name)
    if args.url is not None:
        return Client.of_address(args.url, timeout_s=args.timeout, token=token, tls=tls)
    if args.run_dir is not None:
        return Client.of_run_dir(args.run_dir, timeout_s=args.timeout, token=token, tls=tls)
    return Client.of_state_path(state_path_of(args), timeout_s=args.timeout, token=token, tls=tls)


def state_path_of(args: argparse.Namespace) -> Path:
    """`<state_dir>/<app>` of the instance whose state directory the flags name."""
    from standfast.store.task.state_dir import find_app

    settings = settings_of(args)
    if settings.state_dir is None:
        raise InvalidRequest(
            "which instance? name its state directory with --state-dir DIR (or --config FILE, or "
            "STANDFAST_APP__STATE_DIR), a sidecar's run directory with --run-dir DIR, or its endpoint with --url "
            "http://host:port"
        )
    return find_app(settings.state_dir, settings.app)


def owned(pid: int) -> str:
    """The note about rows that the files of a running owner may lack."""
    return f"pid {pid} owns these files and is running: its newest rows may be missing here"


def log_address_of(args: argparse.Namespace) -> str:
    """The address of the log that --log or the settings name."""
    address = settings_of(args).log
    if address is None:
        raise InvalidRequest("which log? name it with --log ADDRESS (or --config FILE, or STANDFAST_APP__LOG)")
    return address


def log_of(args: argparse.Namespace) -> Log:
    """The log that --log or the settings name. It must exist: reading never creates one."""
    from standfast.ops.tools.kafka_probe import check_listening
    from standfast.replication.embedded.watch import damaged
    from standfast.replication.kafka.address import KafkaAddress
    from standfast.replication.tail.open_log import SqliteAddress, open_log, parse_address

    address = log_address_of(args)
    where = parse_address(address)
    if isinstance(where, SqliteAddress):
        # Opening would make an empty log at a mistyped address, beside which every store looks wrong.
        if not Path(where.path).exists():
            raise Unavailable(f"log {address} does not exist ({Path(where.path).absolute()}): check the address")
        # SQLite takes an empty file for a new database and would fill it.
        if Path(where.path).is_file() and not Path(where.path).stat().st_size:
            raise damaged(where.path, "is empty, it has 0 bytes: restore a copy, or remove it to begin a new log")
    elif isinstance(where, KafkaAddress):
        check_listening(where.servers)  # at once, where the client would try until its time-out
    return open_log(address)
