"""Rules of a supervisor about one worker process: when it is killed, and when another one is started in its place.

    started ──> Ready within START_MS ──> heard of at least every third of the lease
                   │                          │ silent: stopped, or none of its threads works    killed at once
                   │                          │ silent in one long native call, or starved       max_stall_ms
                   │                          │ heard, but its loop or background work stalls    max_stall_ms
                   └── later, or stopped:     │ silent after it has closed all                   max_stall_ms

    ended with a record in hand ──> started again at once, then after pauses: DEATHS_MAX such ends give up the task
    ended ──> the first time in a row: started again at once; then after the delay of the restart strategy
          ──> FAILURES_MAX times in a row, or as often as the strategy allows: given up, and the run ends

A thread works if it runs, or waits for a processor or the disk. A native call that is announced (replay of a
write-ahead log) may take longer, by its allowance.

Rules of this file: pure. Times are monotonic milliseconds of the supervisor, which come in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from standfast.replication.lease.renewal import StallWatch
from standfast.store.process.child import Restarts
from standfast.store.timestamps import duration_text
from standfast.stream.restart import RestartHistory, RestartStrategy

START_MS = 120_000  # until run(): the imports of the program, and all that it does before
LEASE_PARTS = 3
BEATS_PER_LEASE = 6
BEAT_MIN_MS = 10
IDLE_MS = 20  # of processor time within a silence; the kernel counts in steps of 10 ms
FAILURES_MAX = 5
STOPPED = "it is stopped"  # the first words of a reason that is no fault of the process
WELL_MS = 600_000  # a worker that lived for so long begins a new row of failures
LOG_PAUSE_MS, LOG_PAUSE_MAX_MS = 500, 10_000
NAMED_PAUSE_MAX_MS = 10_000


def beat_ms(lease_ms: int) -> int:
    """Interval of a worker's heartbeats."""
    return max(lease_ms // BEATS_PER_LEASE, BEAT_MIN_MS)


class ProcessFacts(NamedTuple):
    """The state of a process: its processor time so far, whether a signal has stopped it, whether a thread works."""

    cpu_ms: int = 0
    stopped: bool = False
    works: bool = True


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """One look at a worker. `heard_ms`: when it last said a word; `ready`: it has come to run().

    `counts` and `allowance_ms` are those of its progress. `facts` reads the state of its process, if that matters.
    `closed`: it has closed all. Its interpreter ends from there on, which no beat and no count shows.
    """

    heard_ms: int
    ready: bool
    counts: Mapping[str, int]
    allowance_ms: int
    facts: Callable[[], ProcessFacts]
    closed: bool = False


class Watch:
    """Watches one process from its start."""

    def __init__(self, lease_ms: int, max_stall_ms: int, now_ms: int) -> None:
        self._silent_ms = lease_ms // LEASE_PARTS
        self._max_stall_ms = max_stall_ms
        self._started_ms = now_ms
        self._stalls = StallWatch(max_stall_ms)
        self._stopped_ms = now_ms  # when it was last seen not to be stopped, before it came to run()
        self._silence = (-1, 0)  # when it was last heard, and its processor time half of the way through the silence

    def look(self, seen: WorkerLook, now_ms: int) -> str:
        """Why the process must be killed; "" if it is well."""
        if not seen.ready:
            return self._starts(seen, now_ms)
        silent_ms = now_ms - seen.heard_ms
        if seen.closed:
            return (
                f"it closed all, and did not end within {duration_text(silent_ms)}"
                if silent_ms > self._max_stall_ms
                else ""
            )
        if silent_ms > self._silent_ms // 2:
            why = self._judge(silent_ms, seen, seen.facts())
            if why:
                return why
        still = self._stalls.look(seen.counts, seen.allowance_ms, now_ms)
        if still:
            return f"no progress for {duration_text(self._max_stall_ms + seen.allowance_ms)} ({' and '.join(still)})"
        return ""

    def _starts(self, seen: WorkerLook, now_ms: int) -> str:
        """Why a process that has not come to run() must be killed; "" if it may go on."""
        if now_ms - self._started_ms > START_MS:
            return f"it did not come to run() within {START_MS // 1_000} s"
        if not seen.facts().stopped:
            self._stopped_ms = now_ms
        stopped_ms = now_ms - self._stopped_ms
        return f"{STOPPED}, for {duration_text(stopped_ms)} now" if stopped_ms > self._silent_ms else ""

    def _judge(self, silent_ms: int, seen: WorkerLook, facts: ProcessFacts) -> str:
        """Why a silent process must be killed; "" if it may go on."""
        if seen.heard_ms != self._silence[0]:
            self._silence = (seen.heard_ms, facts.cpu_ms)
        if silent_ms <= self._silent_ms:
            return ""
        if facts.stopped:
            return f"{STOPPED}, and was silent for {duration_text(silent_ms)}"
        if not (seen.allowance_ms or facts.works or facts.cpu_ms - self._silence[1] > IDLE_MS):
            return f"it was silent for {duration_text(silent_ms)}, and none of its threads works"
        if silent_ms > self._max_stall_ms + seen.allowance_ms:
            return f"it was silent for {duration_text(silent_ms)}, in one call that holds the interpreter"
        return ""


class WorkerRestarts:
    """The ends of the processes of one worker, under the application's restart strategy."""

    def __init__(self, strategy: RestartStrategy) -> None:
        self._history = RestartHistory(strategy)
        self._row = 0
        self._log_pause_ms = LOG_PAUSE_MS
        self._named = Restarts(NAMED_PAUSE_MAX_MS)
        self._was_named = False
        self.reason = ""  # why it is not started again

    def ended(self, now_ms: int, lived_ms: int) -> int | None:
        """Note an unasked end; the pause until the next start, or None: it is given up."""
        self._row = 1 if lived_ms >= WELL_MS else self._row + 1
        delay_ms = self._history.failed(now_ms)
        if delay_ms is None:
            self.reason = self._history.reason
        elif self._row >= FAILURES_MAX:
            self.reason = f"it ended {self._row} times in a row, each time within {WELL_MS // 60_000} minutes"
        if self.reason:
            return None
        # A worker that was well until now is needed at once; one that dies again may do so each time.
        return 0 if self._row == 1 else delay_ms

    def named(self, lived_ms: int) -> int:
        """The pause after an end whose record is noted: the notes bound how often it comes."""
        first, self._was_named = not self._was_named or lived_ms >= WELL_MS, True
        return 0 if first else self._named.pause_ms(lived_ms)

    def log_away(self) -> int:
        """The pause after an end because the log did not answer, which is no fault of the worker."""
        pause_ms = self._log_pause_ms
        self._log_pause_ms = min(pause_ms * 2, LOG_PAUSE_MAX_MS)
        return pause_ms

    def opened(self) -> None:
        """Note that the worker has opened the log."""
        self._log_pause_ms = LOG_PAUSE_MS
