"""Becomes another program that ends when the process that started it ends, however that ended.

    python -m standfast.ops.bound_exec PARENT_PID PROGRAM ARGUMENT...

Rules of this file: Linux. The process id stays, the program changes. The kernel watches the thread that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Bind this process to its parent, and become the program."""
    parent, program = int(arguments[0]), arguments[1]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the kernel was told
        raise SystemExit(1)
    os.execv(program, arguments[1:])  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
