"""The command as the first process of a PID namespace: it starts itself again, and is that process's init.

    process 1 ── starts ──> the command, which never is process 1
              ── passes on: SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 ──>
              <── its end ── reaps it and every orphan, waits for the last ones, and ends with its exit code

The kernel ends all processes of a namespace with its process 1. The lease process of an application that is process 1
ends with it, before it can end the lease. Below this init it outlives the application, and standbys take over at once.

Rules of this file: processes and signals alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

from standfast.store.clock import SystemClock

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
LAST_MS = 1_500  # a lease process ends within a second of its owner
LOOK_MS = 5


def run_below() -> int:
    """Run this process's command line as a child, and return its exit code once it has ended."""
    early: list[int] = []
    child: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if child:
            os.kill(child[0], number)
        else:
            early.append(number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    # A group of its own: Ctrl-C of a terminal reaches this process, which passes it on once.
    process = subprocess.Popen([sys.executable, *sys.orig_argv[1:]], process_group=0, close_fds=False)
    child.append(process.pid)
    for came in early:
        os.kill(process.pid, came)
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            break
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN)  # its number may soon be another process's
    _reap_last()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _reap_last() -> None:
    """Wait for the processes that the child has left behind."""
    clock = SystemClock()
    until_ms = clock.monotonic_ms() + LAST_MS
    while clock.monotonic_ms() < until_ms:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            clock.sleep_ms(LOOK_MS)
