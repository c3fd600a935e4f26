"""Standard input, output and error of a command, in whatever state its caller left them.

    not UTF-8         a character that the encoding lacks is printed as `?`; JSON has it as \\uXXXX
    closed            /dev/null takes its place, since the next file would get its descriptor, and be printed into
    full, unwritable  output: an error of the tree, with its exit code; error: the text is lost, and the command goes on

Rules of this file: the three streams of this process alone.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any, Protocol

from standfast.store.errors import DiskFull, Unavailable

NAMES = ("stdin", "stdout", "stderr")  # by descriptor
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class HasDescriptor(Protocol):
    """A stream over a file of the system."""

    def fileno(self) -> int:
        """Its descriptor."""
        ...


class StandardOutput(io.FileIO):
    """Standard output, whose errors of writing are those of the library. Only a closed pipe stays BrokenPipeError."""

    def write(self, data: Any, /) -> int:
        """Write; raises DiskFull or Unavailable, once: all further output goes nowhere."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            # Not by a second flush, which Python's buffer passes without an error.
            discard(self)
            text = (
                f"standard output cannot be written ({error.strerror}): a part of the result is lost; send it to a "
                "place that takes it"
            )
            raise (DiskFull(text) if error.errno in FULL else Unavailable(text)) from error


def prepare() -> bool:
    """Make the three streams usable; returns whether standard output was closed."""
    closed = sys.stdout is None
    for number, name in enumerate(NAMES):
        if getattr(sys, name) is None:
            _occupy(number)
            setattr(sys, name, Path(os.devnull).open("w" if number else "r", encoding="utf-8"))  # noqa: SIM115
    now: Any = sys.stdout
    own: Any = sys.__stdout__
    if now is own:
        now.flush()
        raw = StandardOutput(now.fileno(), "wb", closefd=False)
        buffer: Any = raw if now.write_through else io.BufferedWriter(raw)  # as Python made it, with -u or without
        sys.stdout = io.TextIOWrapper(
            buffer,
            now.encoding,
            "replace",
            line_buffering=now.line_buffering,
            write_through=now.write_through,
        )
    elif hasattr(now, "reconfigure"):  # a stream that a program put there may be any object
        now.reconfigure(errors="replace")
    return closed


def say(text: str) -> None:
    """A line on standard error; lost if that takes nothing, since a remark must not end a command."""
    try:
        print(text, file=sys.stderr)
    except OSError:
        discard(sys.stderr)


def discard(stream: HasDescriptor) -> None:
    """Let the text that a stream could not write, and all further text, go nowhere. Python's end would report it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _occupy(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)
