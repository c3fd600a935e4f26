"""Bind this process to the one that started it.

Rules of this file: Linux, plain system calls; it imports nothing of ours, so that small processes start quickly.
"""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def bind_to_parent(parent: int) -> bool:
    """Have the kernel kill this process as soon as the thread that started it ends, however that ends.

    False if the process `parent` had ended before the kernel knew: the caller must end by itself.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    return os.getppid() == parent
