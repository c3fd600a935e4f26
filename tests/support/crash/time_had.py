"""The time that a process had: the machine's other load must not fail a check of seconds, and a fault must.

    Beats        this process or the disk stalled all others          Patience(beats, pids).spent_s
    /proc        a sidecar's process was ready to run, and not let run  ──> seconds that were really theirs

Rules of this file: only time that was surely lost is taken off: of a process, the wait of its thread that waited most.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.processes import descendants

LOOK_S = 0.02
LATE_S = 0.05


class Beats(threading.Thread):
    """A thread that sleeps and syncs a byte, and writes down how late it was."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="beats", daemon=True)
        self._path = path
        self._over = threading.Event()
        self._lost: list[tuple[float, float]] = []

    def run(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            while not self._over.is_set():
                began_s = time.monotonic()
                time.sleep(LOOK_S)
                file.write(b".")
                os.fdatasync(file.fileno())
                now_s = time.monotonic()
                if now_s - began_s > LOOK_S + LATE_S:
                    self._lost.append((now_s, now_s - began_s - LOOK_S))

    def lost_s(self, since_s: float) -> float:
        """Seconds lost since then."""
        return sum(min(lost, at - since_s) for at, lost in self._lost[::] if at > since_s)

    def stop(self) -> None:
        self._over.set()
        self.join()


class Patience:
    """The time that processes had from now on. They may end and begin meanwhile: `look` takes the present ones."""

    def __init__(self, beats: Beats) -> None:
        self._beats = beats
        self._since_s = time.monotonic()
        self._first: dict[int, dict[int, int]] = {}
        self._waited: dict[int, float] = {}

    def look(self, pids: Iterable[int]) -> None:
        """Note how long these have waited since they were first seen."""
        for pid in pids:
            threads = waited_ns(pid)
            first = self._first.setdefault(pid, threads)
            longest = max((ns - first.get(thread, 0) for thread, ns in threads.items()), default=0)
            self._waited[pid] = max(self._waited.get(pid, 0.0), longest / 1e9)

    @property
    def raw_s(self) -> float:
        """Seconds by the clock."""
        return time.monotonic() - self._since_s

    @property
    def spent_s(self) -> float:
        """Seconds without those lost: here, or in the sidecar's processes, which wait for each other."""
        lost_s = max(self._beats.lost_s(self._since_s), sum(self._waited.values()))
        return max(0.0, self.raw_s - lost_s)


@contextmanager
def patience(path: Path) -> Iterator[Callable[[], float]]:
    """The seconds since the begin of the block that this process's descendants had: instances, and the broker of their
    log. Alone, as in `make crash`, those of the clock. `path`: a file for the beats."""
    beats = Beats(path)
    beats.start()
    try:
        had = Patience(beats)
        had.look(descendants(os.getpid()))

        def spent_s() -> float:
            had.look(descendants(os.getpid()))
            return had.spent_s if "PYTEST_XDIST_WORKER" in os.environ else had.raw_s

        yield spent_s
    finally:
        beats.stop()


def waited_ns(pid: int) -> dict[int, int]:
    """How long each thread of a process was ready to run but did not run, since it began."""
    found: dict[int, int] = {}
    try:
        threads = [path.name for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return found  # it ended
    for thread in threads:
        with suppress(OSError, ValueError, IndexError):
            found[int(thread)] = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
    return found
