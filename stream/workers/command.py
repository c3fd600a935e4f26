"""The command that runs this program once more, for a worker process.

    python -X dev -m shop.app --day 3     the same options of the interpreter, `-m shop.app`, the same arguments
    python shop.py                        the same file, by its whole path
    standfast run shop:app --workers 2    the same command
    a notebook, a REPL, -c, stdin         BadConfig: there is no program to run again

Rules of this file: pure but for `this_program`, which looks at the interpreter. The program is never forked: threads,
open logs and databases do not survive that.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from standfast.store.errors import BadConfig

STARTED_IN = Path.cwd()  # a program may change its folder, and its own name may be relative to the first one
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


class Program(NamedTuple):
    """A command line, and the folder to run it in."""

    command: tuple[str, ...]
    folder: str


def program_of_command(module: str, arguments: Sequence[str]) -> Program:
    """A module as a program, with the present folder on its path."""
    return Program((sys.executable, "-m", module, *arguments), str(Path.cwd()))


def program_command(
    executable: str, given: Sequence[str], module: str | None, file: str | None, argv: Sequence[str]
) -> tuple[str, ...]:
    """The command of a program that was started as `given`, the original arguments of its interpreter.

    `module`: the name of the main module; `file`: the path of its file; `argv`: the program's own view of its
    arguments, which count where another program, such as a debugger, runs this one. Raises BadConfig.
    """
    options, rest = _split(given[1:])
    first = rest[0] if rest else ""
    if module is not None and first.startswith("-m"):
        started, arguments = (rest[1], rest[2:]) if first == "-m" and len(rest) > 1 else (first[2:], rest[1:])
        if module in (started, f"{started}.__main__"):
            return (executable, *options, "-m", started, *arguments)
    if file is not None and first and first != "-" and not first.startswith("-c"):
        own = not first.startswith("-m") and PurePath(first).name == PurePath(file).name
        return (executable, *options, file, *(rest[1:] if own else argv[1:]))
    raise BadConfig(
        [
            "workers run the program again, and this one was not started from a file or a module (a notebook, a REPL, "
            "-c or standard input): put it into a module and start it with `standfast run MODULE:APP --workers N`"
        ]
    )


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The interpreter's options, and the rest from the program on."""
    at = 0
    while at < len(arguments):
        one = arguments[at]
        # `-c`, `-m` and `-` are the program itself, also in one word with other letters, such as -Im.
        if not one.startswith("-") or one == "-" or one[:2] in ("-c", "-m"):
            break
        if not one.startswith("--") and one[1] not in "WX" and one[-1] in "cm":
            return [*arguments[:at], one[:-1]], [f"-{one[-1]}", *arguments[at + 1 :]]
        at += 2 if one in _WITH_VALUE else 1
    return list(arguments[:at]), list(arguments[at:])


def this_program() -> Program:
    """The command that runs this program again. Raises BadConfig for one that cannot be run again."""
    if getattr(sys, "frozen", False) or not sys.executable:
        raise BadConfig(["workers run the program again by its Python interpreter, and this process has none"])
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    path = None if file is None else STARTED_IN / file
    if hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__") or (path is not None and not path.is_file()):
        spec = path = None
    name = None if spec is None else spec.name
    return Program(
        program_command(sys.executable, sys.orig_argv, name, None if path is None else str(path), sys.argv),
        str(STARTED_IN),
    )
