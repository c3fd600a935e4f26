"""The size of the batches of restores and standbys, by the time that they take: each holds the session's lock.

    round of the session   read and stage, until READ_MS or a full batch ──> write, for about WRITE_MS ──> lock is free

A batch has BATCH_ROWS rows and BATCH_BYTES of keys and values at most. A write that took longer than WRITE_MS, on a
slow disk or a busy machine, makes the next batches smaller, and quick ones let them grow again.

Rules of this file: one writer of batches has a pace, and one thread uses it.
"""

from __future__ import annotations

from standfast.store.clock import Clock

HOLD_MS = 50  # a call to a task that runs waits for so long behind one batch, not counting a last piece or slow row
READ_MS = HOLD_MS // 2
WRITE_MS = HOLD_MS - READ_MS
# Rows of a task that make a batch. Measured: 10,000 restore a tenth faster than 5,000 (they are sorted), 50,000 slower
# than both; a batch holds the interpreter and the session's lock for about 25 ms. Tasks that share a reader wait until
# each has a batch of its own: batches over all of them, 600 rows each of 16 tasks, took twice as long.
BATCH_ROWS = 10_000
BATCH_BYTES = 4 << 20  # measured: values of 10 kB take 15 to 20 ms, and larger batches are no faster a byte
LEAST = 32  # parts of a whole batch: smaller ones cost more in each write's fixed time than they save


class Pace:
    """How much the next batch may hold, as a part of the most."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._part = 1.0
        self._began_ms = 0

    def begin(self) -> None:
        """A read, or the writes of a round, begin."""
        self._began_ms = self._clock.monotonic_ms()

    @property
    def read_enough(self) -> bool:
        """Whether the read has taken its time."""
        return self._took_ms >= READ_MS

    @property
    def wrote_enough(self) -> bool:
        """Whether the writes have taken their time."""
        return self._took_ms >= WRITE_MS

    def wrote(self) -> None:
        """The writes of a round have ended."""
        # It grows by a half at most, so that a single quick write, such as a small one, does not undo the others.
        self._part = min(max(self._part * min(WRITE_MS / max(self._took_ms, 1), 1.5), 1 / LEAST), 1.0)

    def rows(self, most: int) -> int:
        """Rows of the next batch, of so many at most."""
        return max(int(most * self._part), 1)

    @property
    def payload_bytes(self) -> int:
        """Keys and values of the next batch."""
        return max(int(BATCH_BYTES * self._part), 1)

    @property
    def _took_ms(self) -> int:
        return self._clock.monotonic_ms() - self._began_ms
