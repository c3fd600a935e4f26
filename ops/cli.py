"""The command `standfast`: reads the command line and hands over to the room that does the work.

Rules of this file: arguments and exit codes only. Heavy modules are imported by the command that needs them, so
that `standfast --version` and `--help` answer at once. Must not know how anything is stored.
"""

from __future__ import annotations

import argparse
import sys

from standfast._version import __version__

EXIT_USAGE = 2


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="standfast",
        description="Durable local state for stream applications, with standbys that take over at once.",
    )
    parser.add_argument("--version", action="version", version=f"standfast {__version__}")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; `argv` is without the program's name (default: the process's own). Returns the exit code."""
    parser = build_parser()
    parser.parse_args(argv)
    parser.print_help(sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    raise SystemExit(main())
