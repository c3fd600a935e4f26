"""The session store against a dict: sessions by gap, expiry by end, removal, strict hiding, restarts."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from standfast.restore.fold import Fold, fold_for
from standfast.store import serde
from standfast.store.results import Windowed
from standfast.store.specs import SessionStore
from support.machines import (
    Change,
    StoreMachine,
    bounds,
    keys,
    machine_settings,
    maybe_values,
    moment_ms,
    moments,
    pick,
    read_keys,
    timestamps,
)

RETENTION_MS = 50_000
INTERVAL_MS = 60_000  # the least length of a segment, here longer than the retention
TIME_MAX = 2**63 - 1
# Rows of the keys b"" and b"a" lie above all rows of these, though the keys are smaller: a time follows the key.
ABOVE = [(None, bytes(7)), (None, b"a" + bytes(5))]
lengths = st.sampled_from([0, 1, 1_000, INTERVAL_MS, 3 * INTERVAL_MS])
Moment = tuple[str, int, int]

pytestmark = pytest.mark.slow


def row_key(key: bytes, start: int, end: int) -> bytes:
    return key + end.to_bytes(8, "big") + start.to_bytes(8, "big")


class Sessions:
    """A session store by definition: (key, start, end) -> value, and the sessions that stream time hides."""

    def __init__(self) -> None:
        self.rows: dict[tuple[bytes, int, int], bytes] = {}
        self.observed_ms = -1
        self.late = 0
        self.changes: list[Change] = []

    def copy(self) -> Sessions:
        other = Sessions()
        other.rows, other.observed_ms = dict(self.rows), self.observed_ms
        return other

    def put(self, key: bytes, start: int, end: int, value: bytes | None, timestamp: int) -> None:
        observed_ms = max(self.observed_ms, end)
        if end // INTERVAL_MS < (observed_ms - RETENTION_MS) // INTERVAL_MS:
            self.late += 1
            return
        self.observed_ms = observed_ms
        self.changes.append((row_key(key, start, end), value, timestamp))
        self.rows.pop((key, start, end), None)
        if value is not None:
            self.rows[key, start, end] = value

    def keys(self) -> list[bytes]:
        return [key for key, _, _ in self.rows]

    def found(
        self, low: bytes | None = None, high: bytes | None = None, earliest_end: int = 0, latest_start: int = TIME_MAX
    ) -> list[tuple[Windowed[bytes], bytes]]:
        """Visible sessions in raw order of key, end, start."""
        return [
            (Windowed(*session), self.rows[session])
            for session in sorted(self.rows, key=lambda session: row_key(*session))
            if session[2] > self.observed_ms - RETENTION_MS
            and session[2] >= earliest_end
            and session[1] <= latest_start
            and (low is None or session[0] >= low)
            and (high is None or session[0] <= high)
        ]


def spec(name: str, **settings: object) -> SessionStore:
    return SessionStore(name, serde.bytes, serde.bytes, retention_ms=RETENTION_MS, **settings)  # type: ignore[arg-type]


class SessionMachine(StoreMachine):
    specs = [
        spec("rc"),
        spec("ru", caching=False),
        spec("mc", engine="memory"),
        spec("mu", engine="memory", caching=False),
    ]
    groups = {"sessions": ["rc", "ru", "mc", "mu"]}

    def new_oracle(self, group: str) -> Sessions:
        return Sessions()

    def new_fold(self, name: str) -> Fold:
        return fold_for("session", retention_ms=RETENTION_MS)

    @property
    def oracle(self) -> Sessions:
        return self.oracles["sessions"]  # type: ignore[no-any-return]

    def check_all(self) -> None:
        self.same_both_ways("sessions", self.oracle.found(), "all")
        self.same_time("sessions", self.oracle.observed_ms)

    def at(self, moment: Moment) -> int:
        return moment_ms(moment, self.oracle.observed_ms, RETENTION_MS, INTERVAL_MS)

    @rule(writes=st.lists(st.tuples(keys, moments, lengths, maybe_values, timestamps), min_size=3, max_size=12))
    def put(self, writes: list[tuple[bytes, Moment, int, bytes | None, int]]) -> None:
        for key, moment, length, value, timestamp in writes:
            end = self.at(moment)
            start, late = max(end - length, 0), self.oracle.late
            self.oracle.put(key, start, end, value, timestamp)
            for store in self.each("sessions"):
                counted = store.rows.counters.late_dropped
                store.put(key, start, end, value, timestamp)
                assert store.rows.counters.late_dropped - counted == self.oracle.late - late

    @rule(number=st.integers(0, 20), key=keys, moment=moments)
    def remove(self, number: int, key: bytes, moment: Moment) -> None:
        known = sorted(self.oracle.rows)
        end = self.at(moment)
        session = known[number % len(known)] if known and number else (key, end // 2, end)
        self.oracle.put(*session, None, 1_000_000)
        for store in self.each("sessions"):
            store.remove(*session)

    @rule(key=keys, moment=moments, length=lengths)
    def fetch_session(self, key: bytes, moment: Moment, length: int) -> None:
        end = self.at(moment)
        for session in [(key, max(end - length, 0), end), *sorted(self.oracle.rows)]:
            visible = session[2] > self.oracle.observed_ms - RETENTION_MS
            expected = self.oracle.rows.get(session) if visible else None
            self.same("sessions", expected, "fetch_session", *session)

    @rule(finds=st.lists(st.tuples(read_keys, moments, moments), min_size=2, max_size=5))
    def find_sessions(self, finds: list[tuple[bytes | int, Moment, Moment]]) -> None:
        for drawn, earliest_end, latest_start in finds:
            key, first, last = pick(drawn, self.oracle.keys()), self.at(earliest_end), self.at(latest_start)
            for begin, end in ((first, last), (0, last), (first, TIME_MAX)):
                expected = self.oracle.found(key, key, begin, end)
                self.same_both_ways("sessions", expected, "find_sessions", key, begin, end)
            self.same_both_ways("sessions", self.oracle.found(key, key), "fetch", key)

    @rule(ranges=st.lists(st.tuples(bounds, bounds), min_size=2, max_size=5))
    def fetch_key_range(self, ranges: list[tuple[bytes | int | None, bytes | int | None]]) -> None:
        for drawn_low, drawn_high in [*ranges, *ABOVE]:
            low, high = pick(drawn_low, self.oracle.keys()), pick(drawn_high, self.oracle.keys())
            self.same_both_ways("sessions", self.oracle.found(low, high), "fetch_key_range", low, high)

    @rule()
    def hold_an_iterator(self) -> None:
        self.hold("sessions", self.oracle.found(), "all")


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = machine_settings(max_examples=16, steps=40)
