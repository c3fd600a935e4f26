"""A session with one of each store that attacks are made on, and a model of its rows afterwards.

    open ── rows and offsets committed ── a row put ── the call under attack ──> check

    check    the session works, if need be after `reopen` or on the same directory again
             rows and source offsets are the model's: acknowledged ones are there; those of an interrupted call may be
             a commit then works, and another instance restores the same rows and offsets from the log alone

Rules of this file: the model is a plain dict, which follows from the results of calls alone. Rows have one flat key
each: (store, key, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import standfast as sf
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import ManualClock
from support.holders import holders
from support.sessions import HOUR_MS, START_MS, Bench

Row = tuple[Any, ...]
Rows = Mapping[Row, Any]
SRC = TopicPartition("src", 0)
LIMIT_S = 5.0  # by the test's clock
STEP = 10_000  # between the offsets of two calls


class Noisy(sf.Listener):
    """A listener whose every method raises while it is armed."""

    def __init__(self) -> None:
        self.armed = False

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_") and self.armed:
            raise ListenerFailed(name)
        return super().__getattribute__(name)


class ListenerFailed(Exception):
    """The error of the program's listener."""


class Stage:
    """One instance; `rows` and `offset` are committed, `pending` rows are put and not committed."""

    def __init__(self, root: Path, clock: ManualClock, **settings: Any) -> None:
        self.root = root
        self.bench = Bench(root, clock)
        self.noisy = Noisy()
        self._settings = {"listeners": [self.noisy], "restore_workers": 0, **settings}
        self._number = 0
        self.rows: dict[Row, Any] = {}
        self.pending: dict[Row, Any] = {}
        self.offset = 0
        self.last = "a"  # key of the rows that were put last
        self.session = self._opened()
        for topic in ("src", "out"):
            self.bench.log.admin.create_topic(topic, 1, TopicPolicy())
        self.put("a")
        self.put("b")
        self.settle()

    def number(self) -> int:
        """The number of the next call; its rows and offsets carry it, and offsets grow with it."""
        self._number += 1
        return self._number

    def _opened(self, directory: str = "a") -> sf.Session:
        session = self.bench.session(directory, partitions=1, **self._settings)
        session.assign(active=[0])
        session.wait_ready(LIMIT_S)
        return session

    @property
    def log(self) -> Any:
        return self.bench.log

    @property
    def task(self) -> Any:
        return self.session.task(0)

    @property
    def kv(self) -> Any:
        return self.task.store("kv")

    @property
    def win(self) -> Any:
        return self.task.store("win")

    @property
    def ses(self) -> Any:
        return self.task.store("ses")

    @property
    def ver(self) -> Any:
        return self.task.store("ver")

    def put(self, key: str) -> None:
        """A row of each store, not committed."""
        self.kv.put(key, key, START_MS)
        self.win.put(key, key, START_MS, START_MS)
        self.ses.put(key, START_MS, START_MS + 1, key, START_MS)
        self.ver.put(key, key, START_MS)
        self.pending |= rows_of(key)
        self.last = key

    def found(self, session: sf.Session | None = None, *, beside: Rows | None = None) -> dict[Row, Any]:
        """The rows of a session as its program sees them; `beside` has keys that the model does not know yet."""
        task = (session or self.session).task(0)
        rows: dict[Row, Any] = {("kv", key): value for key, value in task.store("kv").all()}
        for name in ("win", "ses"):
            rows |= {(name, *at): value for at, value in task.store(name).all()}
        for key in {row[1] for row in {**rows, **self.rows, **self.pending, **(beside or {})}}:
            record = task.store("ver").get(key)
            if record is not None:
                rows["ver", key] = record.value
        return rows

    def recover(self) -> bool:
        """The remedies that errors name: assign, reopen, or a new session. Returns whether anything was needed."""
        needed = False
        for _ in range(4):
            try:
                if 0 not in self.session.tasks():
                    needed = True
                    self.session.assign(active=[0])
                    self.session.wait_ready(LIMIT_S)
                self.task.store("kv").get("a")
            except sf.Closed:
                needed = True
                self._close()
                self.session = self._opened()
            except sf.StandfastError:
                needed = True
                try:
                    self.session.reopen(0)
                    self.session.wait_ready(LIMIT_S)
                except sf.Held as error:
                    raise AssertionError(f"{error}\nkept by this process:\n{holders()}") from error
            else:
                return needed
        raise AssertionError(f"not usable after four attempts: {self.session.missing()}")

    def commit(self, offset: int) -> None:
        self.session.commit({SRC: offset})

    def settle(self) -> None:
        """Commit the rows of a call, and put rows after it."""
        self.recover()
        offset = self.number() * STEP
        self.commit(offset)
        found = self.found()
        lost = {row for row, value in self.rows.items() if found.get(row) != value}
        assert not lost, f"committed rows are gone: {lost}"
        self.rows, self.offset, self.pending = found, offset, {}
        self.put(f"pending{self._number}")

    def check(
        self,
        *,
        returned: bool,
        new: Rows,
        offsets: frozenset[int],
        drops: bool = False,
        atomic: bool = False,
    ) -> None:
        """The postcondition. `new` rows and `offsets` are those of the calls under attack; `returned`: all returned.

        `drops`: uncommitted rows may be gone. `atomic`: rows put before the call and its offset are one commit.
        """
        reopened = self.recover()
        offset, found = self.task.source_offsets().get(SRC, 0), self.found(beside=new)
        expected = {at: value for at, value in {**self.rows, **self.pending, **new}.items() if value is not None}
        if returned and not drops and not reopened:
            assert found == expected, difference(found, expected)
        for row in {*expected, *found}:
            allowed = (expected.get(row), self.rows.get(row), self.pending.get(row))
            assert found.get(row) in allowed, f"{row}: {found.get(row)!r} is none of {allowed}"
        assert offset in offsets or (offset == self.offset and not (returned and offsets and not drops)), (
            f"offset {offset}"
        )
        if atomic and reopened:
            there = {row for row in self.pending if row in found}
            assert there == (set(self.pending) if offset in offsets else set()), (
                f"rows of half a commit, offset {offset}"
            )

    def finish(self) -> None:
        """A commit, and a restore of another instance from the log alone."""
        self.settle()
        self.rows = {**self.rows, **self.pending}
        self.commit(self.number() * STEP)
        assert (here := self.found()) == self.rows, difference(here, self.rows)
        self._close()
        other = self._opened("other")
        assert (there := self.found(other)) == self.rows, f"another instance: {difference(there, self.rows)}"
        assert other.task(0).source_offsets() == {SRC: self._number * STEP}

    def _close(self) -> None:
        self.session.close()

    def close(self) -> None:
        self.noisy.armed = False
        self.bench.close()


def rows_of(key: str) -> dict[Row, Any]:
    """The rows that `Stage.put` makes."""
    return {
        ("kv", key): key,
        ("win", key, START_MS, START_MS + HOUR_MS): key,
        ("ses", key, START_MS, START_MS + 1): key,
        ("ver", key): key,
    }


def difference(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> str:
    """The difference of two sets of rows, for a test's message."""
    lost = sorted(row for row in expected if row not in found)
    other = {row: value for row, value in found.items() if expected.get(row) != value}
    return f"lost rows: {lost}; other rows: {other}"
