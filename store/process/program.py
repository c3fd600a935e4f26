"""A program of the user as a child process that takes orders from this process and ends with it.

    this process ── orders ───> pipe of its own     program     its standard input is empty
    this process <── answers ── pipe of its own     program     its standard output is that of this process
    this process <── lines ──── standard error      program     passed on line by line; the end goes into errors
    kernel ── SIGKILL ────────────────────────────> program     as soon as the thread that started it ends

The program is bound to this process before its first line runs: it starts as `parent.py`, which then executes the
program in its own place. The program's side is `standfast.store.process.parent.Parent`, with `lent_channel()`.

Rules of this file: as in `child.py`. A program that never calls for its channel still ends with this process.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, BinaryIO

from standfast.store.clock import Clock
from standfast.store.process import parent as parent_module
from standfast.store.process.child import WORDS_BYTES, Answer, ChildProcess
from standfast.store.process.parent import CHANNEL_VARIABLE

READ_BYTES = 1 << 16
LINE_BYTES_MAX = 1 << 16  # a longer line is passed on in parts
REST_S = 0.5  # a process that the program started may keep its standard error open


class ProgramProcess(ChildProcess[Answer]):
    """One run of a program, from its start to its end. Raises OSError if it does not start.

    `command` is the whole command line and `folder` its working directory. `variables` are added to the environment of
    this process. `parse`, `clock` and `lend` are as in `ChildProcess`.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: str,
        *,
        parse: Callable[[bytes], Answer],
        clock: Clock,
        lend: Sequence[int] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._command = tuple(command)
        self._folder = folder
        self._variables = dict(variables or {})
        self._forwarded = Forwarded()
        try:
            super().__init__("", parse=parse, clock=clock, lend=lend)
        except BaseException:
            self._forwarded.last()
            raise

    def _spawn(
        self, command: Sequence[str], lent: Sequence[int], parent: str, stderr: BinaryIO | None
    ) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
        orders, ours = os.pipe2(os.O_CLOEXEC)
        answers, theirs = os.pipe2(os.O_CLOEXEC)
        channel = f"{os.getpid()}:{orders}:{theirs}:{parent}"
        try:
            process = subprocess.Popen(
                # -I and -S: the few lines that bind the process need none of the user's packages.
                [sys.executable, "-I", "-S", str(parent_module.__file__), str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stderr=self._forwarded.fd,
                cwd=self._folder,
                pass_fds=[*lent, orders, theirs],
                process_group=0,
                env=os.environ | self._variables | {CHANNEL_VARIABLE: channel},
            )
        except BaseException:
            os.close(ours)
            os.close(answers)
            raise
        finally:
            os.close(orders)
            os.close(theirs)
            self._forwarded.close()
        return process, io.FileIO(ours, "w"), io.FileIO(answers, "r")

    def _last_words(self) -> str:
        return self._forwarded.last()


class Forwarded:
    """The standard error of a child, passed on to that of this process by a thread, which keeps the end of it.

    `fd` is the child's; `close` closes it here.
    """

    def __init__(self) -> None:
        self._reads, self.fd = os.pipe2(os.O_CLOEXEC)
        self._kept = bytearray()
        self._thread = threading.Thread(target=self._run, name="standfast-stderr", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the child's end in this process. Closing twice is fine."""
        fd, self.fd = self.fd, -1  # first: another thread that closes it, too, would close a later file of this number
        if fd >= 0:
            os.close(fd)

    def last(self) -> str:
        """The last lines of a child that has ended, at most `WORDS_BYTES` bytes."""
        self.close()
        self._thread.join(REST_S)
        kept = bytes(self._kept)
        lines = kept[-WORDS_BYTES:].decode(errors="replace").splitlines()
        return "\n".join(lines[1:] if len(kept) > WORDS_BYTES else lines)

    def _run(self) -> None:
        begun = b""
        with io.FileIO(self._reads, "r") as file:
            while piece := file.read(READ_BYTES):
                self._kept += piece
                del self._kept[: -2 * WORDS_BYTES]
                # Whole lines, so that those of several processes do not run into each other.
                lines, newline, begun = (begun + piece).rpartition(b"\n")
                if len(begun) > LINE_BYTES_MAX:
                    lines, newline, begun = lines + newline + begun, b"", b""
                _pass_on(lines + newline)
        _pass_on(begun)


def _pass_on(text: bytes) -> None:
    with contextlib.suppress(OSError):  # this process has no standard error, or its reader is gone
        while text:
            text = text[os.write(2, text) :]
