"""Stopped processes that hold a lock of an embedded log, for tests of the processes that wait for it.

    stopped(path, "ours")       a writer of ours, in the middle of its write
    stopped(path, "program")    a program that knows SQLite and not our lock

Rules of this file: real processes, ended by their own id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from standfast.store.failpoint import VARIABLE
from support.processes import is_stopped
from support.serve import wait_for

WAIT_S = 60.0  # a busy machine takes long to start a process

PROGRAM = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("has it", flush=True)
time.sleep(600)
"""
OURS = """
import sys
from standfast.replication.embedded.db import Database

db = Database(sys.argv[1])
with db.lock(), db.mutex, db.guard, db.write():
    pass
"""


class Stopped:
    """A stopped process that holds a lock of the log: a writer of ours in its write, or a program that knows SQLite."""

    def __init__(self, path: Path, kind: str) -> None:
        environment = os.environ | ({VARIABLE: "log.locked=stop:1"} if kind == "ours" else {})
        self.process = subprocess.Popen(
            [sys.executable, "-c", OURS if kind == "ours" else PROGRAM, str(path)],
            env=environment,
            stdout=subprocess.PIPE,
        )
        self.pid = self.process.pid
        if kind == "program":
            assert self.process.stdout is not None
            assert self.process.stdout.readline() == b"has it\n"
            os.kill(self.pid, signal.SIGSTOP)
        wait_for(lambda: is_stopped(self.pid), WAIT_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=WAIT_S)


@contextmanager
def stopped(path: Path, kind: str) -> Iterator[Stopped]:
    holder = Stopped(path, kind)
    try:
        yield holder
    finally:
        holder.end()
