"""Servers of other programs on loopback: a process is started and waited for until it listens.

Rules of this file: no import of a test's library, since programs in proof/benchmarks/ import it, too.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

from standfast.ops.shared.loopback import HOST


def start_server(
    command: Sequence[str], port: int, within_s: float, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program and wait until it listens at the port; `environment` None: this process's own."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + within_s
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
                return process
            assert process.poll() is None, f"the server ended with {process.returncode}"
            assert time.monotonic() < deadline, f"the server does not listen after {within_s} s"
            time.sleep(0.05)
    except BaseException:
        process.kill()  # its owner never gets it
        process.wait()
        raise
