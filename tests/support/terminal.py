"""A command in a terminal of a given width, as a person sees it.

Rules of this file: a real pseudo-terminal and a real process; lines that a progress bar overwrites are left out. Tests
and the documentation's pictures use it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def lines_shown(words: Sequence[str], folder: Path, columns: int, env: Mapping[str, str]) -> list[str]:
    """The lines that `standfast` with these words leaves on the screen, run in `folder`, with their colours."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        command = [sys.executable, "-P", "-m", "standfast", *words]
        os.execve(command[0], command, {**os.environ, **env, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    output = b""
    try:
        while chunk := os.read(terminal, 65_536):
            output += chunk
    except OSError:
        pass  # Linux ends the reading of a terminal whose last process has gone with EIO
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    lines = output.decode().replace("\r\n", "\n").split("\n")
    return [line.rsplit("\r", 1)[-1] for line in lines]


def shown(words: Sequence[str], folder: Path, columns: int, env: Mapping[str, str]) -> str:
    """The text of these lines, without colours."""
    lines = lines_shown(words, folder, columns, env)
    return "\n".join(CONTROL.sub("", line).rstrip() for line in lines).strip("\n") + "\n"
