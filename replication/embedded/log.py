"""The embedded log: a partitioned, replayable log in one SQLite file, for any number of processes of one machine.

    EmbeddedLog ── admin    topics.py       ── reader   reader.py
                ── writer   writer.py       ── group    group.py
                ── care     care.py         each part on its own connection, db.py

Rules of this file: it opens and closes parts and decides nothing. A write assigns offsets under the log's lock, so here
they are contiguous until compaction or retention removes records. Acknowledged writes survive power loss with
`synchronous="full"`; with "normal" a power loss (not a kill) may take the latest writes back. In the child of a fork it
is closed: open the log after forking.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from standfast.replication.checks import check_text
from standfast.replication.embedded.care import Care, CareReport
from standfast.replication.embedded.db import SYNCHRONOUS, Database
from standfast.replication.embedded.group import EmbeddedGroup
from standfast.replication.embedded.holder import STUCK_MS, holder_of
from standfast.replication.embedded.look import LogWatch
from standfast.replication.embedded.reader import EmbeddedReader
from standfast.replication.embedded.rows import LEAST_TIMESTAMP_MS
from standfast.replication.embedded.topics import EmbeddedAdmin
from standfast.replication.embedded.writer import Began, EmbeddedWriter, open_epoch
from standfast.replication.log import LockHolder, WriterClaim
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.clock import Clock, SystemClock, boot_id
from standfast.store.errors import Closed, InvalidRequest, StandfastError
from standfast.store.process import forks

DEFAULT_FILE = "log.sqlite"
Part = TypeVar("Part")


class EmbeddedLog:
    """Log on SQLite. `path` is a file; for a folder (existing, or ending in "/") it is `log.sqlite` inside.

    Writes wait for the log's lock for a minute at most; unless `patient`, they are Unavailable once one process has had
    it for 1.5 seconds. `create=False` is for a worker of a process that has the log open: a missing
    file is Corruption then, and no new log is created in its place. Raises Corruption if the file is not a database,
    InvalidRequest if it belongs to another program or has a newer format.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: str = "full",
        clock: Clock | None = None,
        patient: bool = True,
        create: bool = True,
    ) -> None:
        if synchronous not in SYNCHRONOUS:
            raise InvalidRequest(f"synchronous is {synchronous!r}, use {' or '.join(SYNCHRONOUS)}")
        given = os.fspath(path)
        where = Path(given) / DEFAULT_FILE if given.endswith("/") or Path(given).is_dir() else Path(given)
        # Parts are opened later, perhaps from another working directory; links to one file must share one lock.
        self._path = str(where.resolve())
        self._synchronous = synchronous
        self._patient = patient
        self._clock = clock if clock is not None else SystemClock()
        self._boot = boot_id()
        self._mutex = threading.Lock()
        self._parts: set[Any] = set()
        self._closed = False
        self._produced = Began()  # one epoch for all producers: while this log is open no other file can replace it
        # The only connection that checks the description at opening: parts open beside it and see the same files.
        self._admin_db = Database(self._path, synchronous=synchronous, checked=True, patient=patient, create=create)
        self._watch: LogWatch | None = None
        self._care = Care(self._connect)
        self._admin = EmbeddedAdmin(self._admin_db, self._care.purge, self._care.truncate)
        forks.dies_in_child(self)

    @property
    def address(self) -> str:
        """Address that opens this log again."""
        options = "" if self._synchronous == "full" else f"?synchronous={self._synchronous}"
        return f"sqlite:///{quote(self._path)}{options}"

    @property
    def path(self) -> str:
        """The file, absolute."""
        return self._path

    @property
    def least_timestamp_ms(self) -> int:
        """0: the log takes every timestamp from 0 on."""
        return LEAST_TIMESTAMP_MS

    @property
    def remote(self) -> bool:
        """False: all writers of the machine write one after the other."""
        return False

    @property
    def admin(self) -> EmbeddedAdmin:
        """Admin of the topics; several threads may use it."""
        self._check_open()
        return self._admin

    def reader(self, *, narrow: bool = False) -> EmbeddedReader:
        """A reader without assignment; it fetches nothing ahead, narrow or not."""
        return self._keep(lambda db: EmbeddedReader(db, self._clock, self._forget))

    def writer(self, transactional_id: str, *, group: str, owner: str, if_free: bool = False) -> EmbeddedWriter:
        """Open a writer and fence every older one of this id. See Log.writer; raises Held."""

        def build(db: Database) -> EmbeddedWriter:
            epoch = open_epoch(
                db, transactional_id, group=group, owner=owner, if_free=if_free, clock=self._clock, boot=self._boot
            )
            return EmbeddedWriter(db, self._clock, self._forget, Began(), WriterClaim(transactional_id, epoch))

        return self._keep(build)

    def prepare(self, transactional_ids: Iterable[str]) -> None:
        """Nothing to prepare: a writer of this log has no network connection."""
        self._check_open()

    def producer(self) -> EmbeddedWriter:
        """A writer without fencing; its epoch is 0."""
        return self._keep(lambda db: EmbeddedWriter(db, self._clock, self._forget, self._produced))

    def group(self, name: str) -> EmbeddedGroup:
        """A group by name; it need not exist yet."""
        check_text("group name", name)
        return self._keep(lambda db: EmbeddedGroup(db, name, self._clock, self._boot, self._forget))

    def close(self) -> None:
        """Close the log and all its parts. Twice is fine."""
        with self._mutex:
            self._closed = True
            parts = list(self._parts)
            watch, self._watch = self._watch, None
        # Without the mutex: each part that closes calls `_forget`, which takes it.
        for part in parts:
            part.close()
        if watch is not None:
            watch.close()
        self._care.close()
        self._admin_db.close()

    # -- beyond the port ----------------------------------------------------------------------------------------------

    def truncate(self, partition: TopicPartition, before: int) -> Bounds:
        """Remove all records below offset `before`; returns the bounds then."""
        self._check_open()
        return self._care.truncate(partition, before)

    def compact(self, topic: str, now_ms: int) -> int:
        """Compact a topic now, at any dirty ratio; returns the number of removed records."""
        self._check_open()
        return self._care.compact(topic, now_ms)

    def apply_retention(self, now_ms: int) -> int:
        """Remove records past their topic's `retention_ms`, by timestamp and by append; returns their number."""
        self._check_open()
        return self._care.apply_retention(now_ms)

    def lock_holder(self) -> LockHolder | None:
        """See Log."""
        holder = holder_of(self._path)
        return holder if holder is not None and holder.held_ms >= STUCK_MS else None

    def trouble(self) -> StandfastError | None:
        """See Log."""
        self._check_open()
        with self._mutex:
            if self._watch is None:
                self._watch = LogWatch(self._path, self._connect)
            watch = self._watch
        return watch.look()

    def care(self, now_ms: int) -> CareReport:
        """One round of retention, compaction and vacuum. Call it every minute or so, from any process."""
        self._check_open()
        return self._care.run(now_ms)

    def hasten(self) -> None:
        """Nothing: no call waits for another machine."""

    def integrity_check(self) -> list[str]:
        """All damage found in the file, in sentences; empty if all is well."""
        self._check_open()
        return self._care.integrity_check()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"log {self._path} was closed, or belongs to the parent process: open a new one")

    def forked(self) -> None:
        """As in `forks.Owned`; its connections are closed each by itself."""
        self._closed, self._mutex, self._parts = True, threading.Lock(), set()

    def _connect(self) -> Database:
        self._check_open()
        return Database(self._path, synchronous=self._synchronous, patient=self._patient, beside=self._admin_db)

    def _keep(self, build: Callable[[Database], Part]) -> Part:
        """Build a part on a new connection; the log closes it when it closes itself."""
        db = self._connect()
        try:
            part = build(db)
        except BaseException:
            db.close()
            raise
        with self._mutex:
            self._parts.add(part)
        return part

    def _forget(self, part: object) -> None:
        with self._mutex:
            self._parts.discard(part)
