"""The command `standfast`: parses the command line and calls the module of the command.

    main ──> register(subparsers) of the command (for --help of all) ──> args.handler(args) ──> exit code

Rules of this file: arguments and exit codes only. Modules of commands import heavy libraries inside their handlers, so
that `--help` answers soon. A handler takes the arguments and returns an exit code, or raises; errors become exit codes
in `guard`. It knows nothing of storage.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from standfast.ops.command.commands import COMMANDS, register_of
from standfast.ops.command.gone import check_gone
from standfast.ops.command.parser import CommandParser
from standfast.store.base.version import __version__

EXIT_USAGE = 2
SILENT = ("serve", "run")  # commands that print no result


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """The command line as far as `command` needs it; the whole one for any other text."""
    parser = CommandParser(
        prog="standfast",
        description="Durable local state for stream applications, with standbys that take over at once.",
        epilog="Exit codes: 0 fine, 1 a negative answer, 2 usage, 3 inconclusive, 65 damaged or lost data, "
        "69 log or instance unreachable, 70 our bug, 73 held by another process, 75 fenced, 78 configuration.",
    )
    parser.add_argument("--version", action="version", version=f"standfast {__version__}")
    subparsers: argparse._SubParsersAction[Any] = parser.add_subparsers(dest="command", metavar="COMMAND")
    for register in dict.fromkeys(map(register_of, [command] if command in COMMANDS else COMMANDS)):
        register(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; `argv` is without the program's name (default: the process's own). Returns the exit code."""
    from standfast.ops.shared import streams
    from standfast.ops.shared.guard import tell
    from standfast.store.errors import DiskFull, InvalidRequest, Unavailable
    from standfast.store.outside import process_id

    if argv is None and process_id() == 1 and sys.argv[1:2] and sys.argv[1] in SILENT:
        from standfast.ops.command.first_process import run_below

        return run_below()
    arguments = sys.argv[1:] if argv is None else argv
    if streams.prepare() and (not arguments or arguments[0] not in SILENT):
        return tell(
            InvalidRequest("standard output is closed: give the command a place for its result, or > /dev/null")
        )
    code = 0
    try:
        check_gone(arguments)
        code = _run_command(arguments)
        sys.stdout.flush()  # here, since a stream that takes nothing would else show only as the interpreter exits
    except BrokenPipeError:
        streams.discard(sys.stdout)  # the reader of our output has closed the pipe (`| head`)
    except (DiskFull, InvalidRequest, Unavailable) as error:
        return tell(error)
    return code


def _run_command(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        from standfast.replication.kafka.native_library import native

        print(f"standfast {__version__}")  # without the module of a command
        for part in ("reader", "writer"):  # the same module has both
            print(f"{part} of Kafka: {native().text}")
        return 0
    parser = build_parser(*arguments[:1])
    try:
        args = parser.parse_args(arguments)
    except SystemExit as stopped:  # --help, or a usage error that argparse has printed
        return stopped.code if isinstance(stopped.code, int) else EXIT_USAGE
    if args.command is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    return run(args)


def run(args: argparse.Namespace) -> int:
    """Run the handler of parsed arguments; each of its ends becomes an exit code."""
    from standfast.ops.shared.guard import error_printed, guard

    def handle() -> int:
        code: int = args.handler(args)
        sys.stdout.flush()  # within `guard`, which reports a stream that takes nothing
        return code

    def on_error(error: BaseException) -> None:
        if getattr(args, "json", False):
            from standfast.ops.shared.text import dumps

            print(dumps(error_printed(error), encoding=sys.stdout.encoding))

    return guard(handle, on_error)


if __name__ == "__main__":
    raise SystemExit(main())
