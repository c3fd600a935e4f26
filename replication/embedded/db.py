"""One connection to the file of the embedded log: locking, schema, WAL checkpoints, errors.

    <file>        the database (WAL mode, incremental vacuum)      mode 0600
    <file>.lock   an empty file; its flock is the log's one lock   mode 0600

Rules of this file: it alone imports sqlite3. Every write, every WAL checkpoint, every open and every close happens
under the flock. That avoids SQLite's WAL-reset race between processes (fixed in 3.51.3, and older ones are in use), and
waiters queue in the kernel instead of sleeping and trying again (p99 14 ms instead of 81-735 ms). The database file
itself is never opened by our own code while a connection may exist: closing such a descriptor would drop SQLite's POSIX
locks of the whole process. This file must not know the meaning of topics or groups.
"""

from __future__ import annotations

import io
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias
from urllib.parse import quote

from standfast.replication.embedded.lock import AGAIN, PATIENT, SOON, START, LogLock, Patience
from standfast.replication.embedded.schema import SCHEMA_VERSION, check_described, create, migrate
from standfast.replication.embedded.wal import FRAME_HEADER_BYTES, HEADER_BYTES
from standfast.replication.embedded.watch import (
    OpenFiles,
    check_header,
    check_place,
    check_wal,
    damaged,
    held_by_program,
    in_place,
    place_of,
    sqlite_writer,
)
from standfast.store.errors import (
    Closed,
    CommitUnknown,
    Corruption,
    InternalError,
    InvalidRequest,
    StandfastError,
    Unavailable,
)
from standfast.store.failpoint import reach
from standfast.store.file_errors import file_error, no_descriptors, out_of_descriptors
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.process import forks

Transaction: TypeAlias = sqlite3.Connection  # yielded by read() and write()

SQLITE_VERSION = sqlite3.sqlite_version
APPLICATION_ID = 0x53464C47  # "SFLG"
PAGE_BYTES = 8_192  # fewer and larger pages than the default: 10 % faster appends and half the checkpoint time
CACHE_KIB = 4_096  # per connection
WAL_SOFT_BYTES = 8 << 20
WAL_HARD_BYTES = 64 << 20
BUSY_TIMEOUT_MS = 5_000  # only foreign tools and crash recovery lock outside of the flock
BUSY_SOON_MS = 500  # with SOON before it, less than two seconds
HARD_WAIT_MS = 200  # how long a truncating checkpoint waits for readers while it holds the flock
SQLITE_FILES = 10  # most descriptors of one opening: database, WAL, its index, folder, temporary, the read-only check
# FULL is the default at 4 % of the speed: with NORMAL a power loss may put a store ahead of its log.
SYNCHRONOUS = ("full", "normal")

_FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES


def translate(path: str, error: sqlite3.Error) -> StandfastError:
    """The error of our tree for SQLite's error on this file; its text says how to fix it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return held_by_program(path, sqlite_writer(path))
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path, f"damaged or not a database ({error})")
    if "Could not decode to UTF-8" in str(error):  # bytes where a text was written; Python's own error, without a code
        return _damaged(path, f"damaged ({error})")
    if code == sqlite3.SQLITE_FULL:
        return Unavailable(f"no space left for log {path} ({error}): free disk space on its volume")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR) and out_of_descriptors(SQLITE_FILES):
        return no_descriptors(f"opening log {path}")  # SQLite says neither which file it could not open nor why
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH):
        return Unavailable(f"log {path} cannot be opened for writing ({error}): check owner and modes, then retry")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT):
        return Unavailable(f"log {path} did not answer ({error}): check disk and memory, then retry")
    if isinstance(error, sqlite3.IntegrityError | sqlite3.InterfaceError | sqlite3.DataError):
        return InvalidRequest(f"log {path} refused the data, nothing was written: {error}")
    return InternalError(f"log {path}: {type(error).__name__}: {error}")


def _damaged(path: str, how: str) -> Corruption:
    return damaged(path, f"is {how}: set it aside and restore a copy, and check the disk")


class Database:
    """One connection with the log's lock. Each call is one transaction; threads take turns.

    Raises Corruption if the file is not a database, InvalidRequest if it belongs to another program or has a newer
    version (and then changes nothing), Unavailable if it cannot be opened.
    """

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "full",
        checked: bool = False,
        patient: bool = True,
        beside: Database | None = None,
        create: bool = True,
    ) -> None:
        """`checked`: first compare the rows that describe the log with their seals.

        `beside`: an open connection, whose very files this one must open; Corruption if they are there no more. Unless
        `create`, Corruption if there is no file.

        `patient`: waits for the lock last as in lock.py; otherwise each is one of SOON.
        """
        self.path = path
        self._lock_path = f"{path}.lock"
        self._patient = patient
        self._busy_ms = BUSY_TIMEOUT_MS if patient else BUSY_SOON_MS
        self._synchronous = synchronous
        self._level = synchronous
        self.mutex = threading.RLock()  # of the connection; reentrant for a signal handler that closes it
        self._closed = False
        self._wal_fd = -1
        self._wal_salt = b""
        self._wal_next_frames = 0
        self._checkpoint_due = False
        if beside is not None:  # without this check a removed log would be created again, empty
            check_place(path, beside._place)
        elif not create and not Path(path).exists():
            raise damaged(path, "was removed while another process has it open: put the file back")
        self._lock = self._create_files()
        try:
            self._connection = sqlite3.connect(
                path, timeout=self._busy_ms / 1_000, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise translate(path, error) from error
        try:
            with self._lock.take(START if patient else SOON):
                try:
                    with nullcontext() if beside is not None else self._wal_looked_at():
                        self._prepare()
                    self._place: OpenFiles = place_of(path)
                    if beside is not None:
                        check_place(path, beside._place)
                finally:
                    self._lock.leave()
            if checked:
                self._check_described()
            forks.dies_in_child(self)
        except BaseException as error:
            self._connection.close()
            if isinstance(error, sqlite3.Error):
                raise translate(path, error) from error
            if isinstance(error, OSError):
                raise Unavailable(f"log {path} went away while it was opened ({error}): retry") from error
            raise

    # An exception of a signal handler may come anywhere, so what other threads and processes need is released in C:
    #
    #     with db.lock(), db.mutex, db.guard, db.write() as run:          with db.mutex, db.guard, db.read() as run:

    def lock(self, *, patient: bool = True) -> io.FileIO:
        """Take the log's lock, for `with`. Before the mutex: a thread that only reads must not wait for the lock.

        Raises Unavailable as lock.py says; unless `patient`, as for work that is tried again anyway. Corruption if the
        file was removed or replaced since it was opened: a write to it would be lost.
        """
        self._check_open()
        try:
            taken = self._lock.take(self._patience(patient))
        except Unavailable:
            check_place(self.path, self._place)  # the lock's file may be gone
            raise
        try:
            reach("log.locked")
            if not in_place(self.path, self._lock_path, self._place):
                check_place(self.path, self._place)
        except BaseException:
            taken.close()
            raise
        return taken

    @property
    def guard(self) -> sqlite3.Connection:
        """The connection, for `with`: a transaction that `read` or `write` could not end is rolled back."""
        self._check_open()
        return self._connection

    def read(self) -> Read:
        """A read transaction: one consistent view. Keep it short, the WAL cannot be reset meanwhile."""
        return Read(self)

    def write(self, *, durable: bool = True) -> Write:
        """A write transaction; any exception rolls it back.

        `durable=False` leaves the sync to the next durable write (a lease need not survive power loss).
        """
        return Write(self, durable)

    def _commit(self) -> None:
        """End the transaction. Raises CommitUnknown if SQLite refuses: the WAL may hold all of it by then, and recovery
        after a kill would take it for committed (a sync that fails, a WAL index that cannot grow)."""
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise  # before it wrote anything
            raise CommitUnknown(
                f"log {self.path}: the end of the last transaction failed ({error}), so the log may or may not hold it"
            ) from error

    def data_version(self) -> int:
        """A number that changes when another connection has committed. Cheap."""
        with self.mutex:
            self._check_open()
            try:
                row = self._connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error as error:
                raise translate(self.path, error) from error
            return int(row[0])

    def checkpoint(self, *, truncate: bool = False) -> None:
        """Move the WAL into the database file as far as readers allow."""
        self._check_open()
        with self._lock.take(self._patience()), self.mutex:
            try:
                self._check_open()
                self._checkpoint("TRUNCATE" if truncate else "PASSIVE")
            except sqlite3.Error as error:
                raise translate(self.path, error) from error
            finally:
                self._lock.leave()

    def check_file(self) -> None:
        """Raise Corruption if another file is in its place, or the rows that describe the log are damaged.

        Reads the file and not SQLite's cache. Unavailable if a lock keeps it from that for long.
        """
        check_place(self.path, self._place)
        check_header(self.path, self._place)
        with self.mutex, self.guard, self.read() as run:
            run.execute("PRAGMA shrink_memory")  # drops cached pages, which would hide damage of the file
            wrong = list(check_described(run.execute, self.path))
        if wrong:
            raise _damaged(self.path, f"damaged ({few(wrong, '; ')})")

    def close(self) -> None:
        """Close the connection (the last one of all processes checkpoints the WAL). Twice is fine."""
        with self.mutex:
            if self._closed:
                return
        with self._lock_to_close(), self.mutex:
            if self._closed:
                return
            self._closed = True
            try:
                self._connection.close()
            except sqlite3.Error as error:
                raise translate(self.path, error) from error
            finally:
                fd, self._wal_fd = self._wal_fd, -1
                if fd >= 0:
                    os.close(fd)
                self._lock.leave()

    def _lock_to_close(self) -> io.FileIO | nullcontext[None]:
        mutex: Any = self.mutex
        if mutex._is_owned():  # a signal handler closes it in the middle of a transaction of this thread
            return nullcontext()
        try:
            return self._lock.take(SOON)
        except Unavailable as error:
            # The lock's holder has the file open as well, so this connection is not the last one, and only the close of
            # the last one would write a checkpoint.
            logger.warning(
                "log %s is closed without its lock: %s",
                self.path,
                error,
                extra=as_event("log_closed_unlocked", log=str(self.path)),
            )
            return nullcontext()

    def _patience(self, patient: bool = True) -> Patience:
        if not self._patient:
            return SOON
        return PATIENT if patient else AGAIN

    def forked(self) -> None:
        """As in `forks.Owned`: the connection stays as it is, and has no destructor any more."""
        self._closed, self.mutex = True, threading.RLock()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"log {self.path} was closed, or belongs to the parent process: open a new one")

    def _begin(self, durable: bool) -> None:
        self._end_left()
        level = self._synchronous if durable else "normal"
        if level != self._level:
            self._level = ""  # not known, should a signal handler raise in between
            self._connection.execute(f"PRAGMA synchronous={level}")
            self._level = level
        self._connection.execute("BEGIN IMMEDIATE")

    def _end(self, statement: str) -> None:
        # On some errors (disk full, I/O) SQLite has ended the transaction by itself.
        if self._connection.in_transaction:
            self._connection.execute(statement)

    def _end_left(self) -> None:
        # An exception from a signal handler may come just before the statement that ends a transaction. That
        # transaction was not committed, and its caller got the exception.
        self._end("ROLLBACK")

    # -- opening ------------------------------------------------------------------------------------------------------

    def _create_files(self) -> LogLock:
        try:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            # O_EXCL: our code may open and close only a file that did not exist (see the rules above).
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
            return LogLock(self.path)
        except (NotADirectoryError, FileExistsError, IsADirectoryError) as error:
            raise InvalidRequest(
                f"log {self.path} cannot be created, a part of its path is not a folder ({error}): choose another path"
            ) from error
        except OSError as error:
            raise file_error(error, "opening the embedded log", Path(str(error.filename or self.path))) from error

    @contextmanager
    def _wal_looked_at(self) -> Iterator[None]:
        """Raise Corruption if the WAL lost commits, before anything writes to it.

        A read-only connection looks first: the close of a writable one would remove the rest of the WAL.
        """
        if not Path(f"{self.path}-wal").exists():
            yield
            return
        with closing(
            sqlite3.connect(f"file:{quote(self.path)}?mode=ro", uri=True, timeout=self._busy_ms / 1_000)
        ) as looking:
            application = int(looking.execute("PRAGMA application_id").fetchone()[0])  # SQLite reads the WAL for it
            if application in (0, APPLICATION_ID):  # the WAL of another program's database is not ours to judge
                lost = check_wal(self.path, PAGE_BYTES, synced=self._synchronous == "full")
                if lost is not None:
                    logger.warning(
                        "log %s lost its last %d commits: with synchronous=normal a power loss may do so, and so does "
                        "damage to its WAL (frame %d); the log goes on without them",
                        *(self.path, lost.commits, lost.frame),
                        extra=as_event("log_commits_lost", log=str(self.path), commits=lost.commits, frame=lost.frame),
                    )
            yield

    def _prepare(self) -> None:
        run = self._connection.execute
        version = int(run("PRAGMA user_version").fetchone()[0])
        application = int(run("PRAGMA application_id").fetchone()[0])
        tables = int(run("SELECT count(*) FROM sqlite_master").fetchone()[0])
        if application != APPLICATION_ID and (version or tables or application):
            raise InvalidRequest(f"{self.path} is the SQLite database of another program: choose another path")
        if version > SCHEMA_VERSION:
            raise InvalidRequest(
                f"log {self.path} has format version {version}, this build reads up to {SCHEMA_VERSION}: "
                "use the newer standfast that wrote it"
            )
        if version == 0:
            self._create_schema()
        elif version < SCHEMA_VERSION:
            self._migrate(version)
        run("PRAGMA cell_size_check=ON")
        run("PRAGMA wal_autocheckpoint=0")  # an automatic checkpoint may run outside of the flock
        run(f"PRAGMA cache_size=-{CACHE_KIB}")
        run(f"PRAGMA synchronous={self._synchronous}")

    def _create_schema(self) -> None:
        run = self._connection.execute
        run(f"PRAGMA page_size={PAGE_BYTES}")
        run("PRAGMA auto_vacuum=INCREMENTAL")
        mode = run("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise InvalidRequest(f"the file system of {self.path} cannot keep a WAL (got {mode}): use a local disk")
        run("PRAGMA synchronous=FULL")
        run("BEGIN IMMEDIATE")
        create(run)
        run(f"PRAGMA application_id={APPLICATION_ID}")
        run(f"PRAGMA user_version={SCHEMA_VERSION}")
        run("COMMIT")

    def _migrate(self, version: int) -> None:
        """Migrate within the flock and one transaction: a kill leaves the old format as it was."""
        run = self._connection.execute
        run("PRAGMA synchronous=FULL")
        run("BEGIN IMMEDIATE")
        try:
            migrate(run, version)
            run(f"PRAGMA user_version={SCHEMA_VERSION}")
            run("COMMIT")
        except BaseException:
            self._end("ROLLBACK")
            raise

    def _check_described(self) -> None:
        self._connection.execute("BEGIN")
        try:
            wrong = list(check_described(self._connection.execute, self.path))
        finally:
            self._end("COMMIT")
        if wrong:
            raise _damaged(self.path, f"damaged ({few(wrong, '; ')})")

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _checkpoint_if_grown(self) -> None:
        """Checkpoint after a commit, under the flock. The next write reports a failure: this commit succeeded."""
        try:
            frames = self._wal_grown_to()
            if frames:
                self._checkpoint("TRUNCATE" if frames * _FRAME_BYTES >= WAL_HARD_BYTES else "PASSIVE")
        except (sqlite3.Error, OSError):
            self._checkpoint_due = True

    def _wal_grown_to(self) -> int:
        """Number of frames at which a checkpoint is due and which the WAL has passed, else 0.

        The file's size says nothing, since SQLite starts over inside it. Frames of the present round carry the salt
        of the file's header, so the salt of that one frame answers for the writes of all processes.
        """
        if self._wal_fd < 0:
            self._wal_fd = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        salt = os.pread(self._wal_fd, 8, 16)
        if salt != self._wal_salt:
            self._wal_salt = salt
            self._wal_next_frames = WAL_SOFT_BYTES // _FRAME_BYTES
        at = HEADER_BYTES + self._wal_next_frames * _FRAME_BYTES
        passed = len(salt) == 8 and os.pread(self._wal_fd, 8, at + 8) == salt
        return self._wal_next_frames if passed else 0

    def _checkpoint(self, mode: str) -> None:
        run = self._connection.execute
        self._checkpoint_due = True
        if mode == "TRUNCATE":
            run(f"PRAGMA busy_timeout={HARD_WAIT_MS}")
        try:
            frames = int(run(f"PRAGMA wal_checkpoint({mode})").fetchone()[1])
        finally:
            if mode == "TRUNCATE":
                run(f"PRAGMA busy_timeout={self._busy_ms}")
        self._checkpoint_due = False
        # A reader may hinder the reset, so the next try comes only after the WAL has grown by a quarter.
        self._wal_next_frames = max(frames, 0) + max(frames, WAL_SOFT_BYTES // _FRAME_BYTES) // 4


class Read:
    """The read transaction of `Database.read`."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def __enter__(self) -> Transaction:
        db = self._db
        try:
            db._end_left()
            db._connection.execute("BEGIN")
        except sqlite3.Error as error:
            raise translate(db.path, error) from error
        return db._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        db = self._db
        try:
            db._end("COMMIT")
        except sqlite3.Error as failed:
            error = failed
        if isinstance(error, sqlite3.Error):
            raise translate(db.path, error) from error


class Write:
    """The write transaction of `Database.write`."""

    __slots__ = ("_db", "_durable")

    def __init__(self, db: Database, durable: bool) -> None:
        self._db = db
        self._durable = durable

    def __enter__(self) -> Transaction:
        db = self._db
        try:
            if db._checkpoint_due:  # the last one failed after its commit: report that before more is written
                db._checkpoint("PASSIVE")
            db._begin(self._durable)
        except sqlite3.Error as error:
            raise self._unwritten(translate(db.path, error)) from error
        return db._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        db = self._db
        try:
            if error is None:
                self._commit()
            else:
                db._end("ROLLBACK")
        except sqlite3.Error as failed:
            error = failed
        finally:
            # The guard rolls a transaction back that is still open, and then the file's close unlocks.
            db._lock.leave(whole=not db._connection.in_transaction)
        if isinstance(error, StandfastError):
            self._unwritten(error)
        elif isinstance(error, sqlite3.Error):
            raise self._unwritten(translate(db.path, error)) from error

    def _commit(self) -> None:
        db = self._db
        try:
            db._commit()
        except sqlite3.Error as error:
            db._end("ROLLBACK")
            raise translate(db.path, error) from error
        except BaseException:
            db._end("ROLLBACK")
            raise
        db._checkpoint_if_grown()

    @staticmethod
    def _unwritten(error: StandfastError) -> StandfastError:
        error.unwritten = True
        return error
