"""One running side of the comparison: a child process that takes commands, and is measured from outside.

    plan        JSON for the child: app, bootstrap, state_dir, source, partitions, kind, window_ms, retention_ms,
                guarantee, tuned (any of "reads", "writes"), standbys, commit_ms, detect_ms (for so long a dead member
                counts as alive), snapshots (address of their storage; standfast alone)
    events      restore     the replay of its first task begins
                processed   every partition has processed its first record
                drained     no compaction or flush runs or is due any more
    usage       of the process and its descendants, from /proc: processor time, bytes written to the disk, resident size

Rules of this file: Linux only. Figures are taken alike for every side. A child ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE_S = 0.05
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WAIT_S = 3_600.0
ANSWER_S = 600.0
POLL_S = 0.1
MARKS = ("restore", "processed", "drained")


@dataclass(frozen=True)
class Usage:
    """Usage of a process and its descendants until now; resident bytes are those of this moment."""

    cpu_s: float = 0.0
    written_bytes: int = 0
    resident_bytes: int = 0


class Side:
    """A started child. `command` ends with the plan."""

    def __init__(self, command: list[str], errors: Path) -> None:
        self.errors = errors
        self.marks: dict[str, dict[str, Any]] = {}
        self.usage: dict[str, Usage] = {}
        self.peak_bytes = 0
        self.started_ns = time.monotonic_ns()
        # bound_exec: after a SIGKILL of this process the child ends too.
        bound = [sys.executable, "-P", "-m", "standfast.ops.tools.bound_exec", str(os.getpid())]
        with errors.open("ab") as file:
            self._process = subprocess.Popen(
                [*bound, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._read, self._sample)]
        for thread in self._threads:
            thread.start()

    def wait_mark(self, name: str) -> None:
        """Wait for an event."""
        self._until(lambda: name in self.marks, f"event {name}")

    def wait_processed(self, count: int) -> None:
        """Wait until the child has processed `count` records."""
        self._until(lambda: self.ask("processed")["processed"] >= count, f"{count} records processed")

    def wait_lag(self, role: str) -> None:
        """Wait until the child has a task in that role, and no task is behind its changelog."""

        def there() -> bool:
            found = self.ask("lag")
            return found[role] > 0 and found["lag"] == 0

        self._until(there, f"{role} tasks without lag")

    def ask(self, *words: object) -> dict[str, Any]:
        """Send a command; returns its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        try:
            answer = self._answers.get(timeout=ANSWER_S)
        except queue.Empty:
            answer = None
        if answer is None:
            raise self._failed(f"asked for {words[0]}")
        return answer

    def stop(self) -> None:
        """Stop the child in order; raises if its exit code is not 0."""
        assert self._process.stdin is not None
        self._process.stdin.write("stop\n")
        self._process.stdin.flush()
        code = self._process.wait(ANSWER_S)
        if code != 0:
            raise self._failed("told to stop")
        self.end()

    def kill(self) -> None:
        """SIGKILL the child, as a crash; its children end with it."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        """End the child, its threads and pipes; nothing happens if it has ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _until(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not reached():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise self._failed(f"waiting for: {what}")
            time.sleep(POLL_S)

    def _failed(self, doing: str) -> RuntimeError:
        told = self.errors.read_text(encoding="utf-8", errors="replace")[-4_000:]
        return RuntimeError(f"a side ended ({self._process.poll()}) or hangs, {doing}; {self.errors} says:\n{told}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fields = json.loads(line)
            if "event" in fields:
                # The usage first: a thread that waits for the event reads the usage at once.
                self.usage.setdefault(fields["event"], usage(self._process.pid))
                self.marks.setdefault(fields["event"], fields)
            else:
                self._answers.put(fields)
        self._answers.put(None)

    def _sample(self) -> None:
        while self._process.poll() is None and "drained" not in self.marks:
            if "restore" in self.marks:
                self.peak_bytes = max(self.peak_bytes, usage(self._process.pid).resident_bytes)
            time.sleep(SAMPLE_S)


def usage(root: int) -> Usage:
    """Usage of a process and its descendants; a parent's figures include its ended children."""
    total = Usage()
    for pid in tree(root):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            resident = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
            io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines())
        except (OSError, ValueError, IndexError):
            continue  # the process ended a moment ago
        ticks = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
        total = Usage(
            total.cpu_s + ticks * TICK_S,
            total.written_bytes + int(io["write_bytes"]),
            total.resident_bytes + resident * os.sysconf("SC_PAGE_SIZE"),
        )
    return total


def tree(root: int) -> Iterator[int]:
    """A process and its descendants."""
    yield root
    for path in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = path.read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in children:
            yield from tree(int(child))
