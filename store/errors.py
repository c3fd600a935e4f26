"""The one error tree of standfast; each class stands for the caller's next action.

    StandfastError
      InvalidRequest      fix the call or the settings
        UnknownStore        no store, family or topic of that name
        BadConfig           settings that cannot be used; carries every problem at once
      NotReady            all is well, ask again later
        Backpressure        the write buffer is full: commit, then write again
        DiskFull            too little space is free: free some, then write or commit again
      Unavailable         retry the operation (log, file system or schema registry did not answer)
        Held                another process holds the directory or the task
        CommitUnknown       a commit may have happened: read the source offsets before anything is sent again
      StateLost           local state does not fit the log: reinitialise
      Fenced              a newer owner exists: give up the task
      Corruption          stop and call a person (or restore from the log)
      Closed              it was closed: open a new one
      WorkerFailed        the program failed in a worker process: read its last lines, and fix it
      ListenerFailed      a listener of the program raised an exception: fix it, then open the task again
      InternalError       our bug, please report

Rules of this file: a message says what, where (store, topic-partition, offset) and the fix. A new class is added
only where a caller must act differently.
"""

from __future__ import annotations

from collections.abc import Sequence


class StandfastError(Exception):
    """Root of every error that standfast raises on purpose. Never raised itself.

    `sources` are the partitions (topic, number) that the error of a log's reader is about; empty for no partition in
    particular. `in_doubt`: a write or commit failed of which the log may have some or all. `unwritten`: the write was
    given up before its first byte, so the log has nothing of it. `beyond_record`: every record would meet it, such as a
    refused login or schema, so that no `on_error` may leave the record out.
    """

    sources: tuple[tuple[str, int], ...] = ()
    in_doubt = False
    unwritten = False
    beyond_record = False


class InvalidRequest(StandfastError):
    """The call or the settings are wrong; the call changed nothing."""


class TooLarge(InvalidRequest):
    """A key, a value or a record is over its limit; the call changed nothing."""


class UnknownStore(InvalidRequest):
    """The call names a store, column family or topic that does not exist."""


class BadConfig(InvalidRequest):
    """The settings cannot be used. `problems` lists every problem, not only the first."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class NotReady(StandfastError):
    """The state is not whole yet (the restore gate is shut). Ask again later."""


class Backpressure(NotReady):
    """The task's write buffer is at its hard bound. Commit, then repeat the write; it changed nothing."""


class DiskFull(NotReady):
    """Less space is free than the floor (`disk_floor`) or, for a commit, the reserve below it. The write changed
    nothing, the commit did not begin: uncommitted changes stay. The message names volume and sizes."""


class Unavailable(StandfastError):
    """The log, the file system or a schema registry did not answer. Retry. `service` names which."""

    service = "the log"
    of_task = False  # one directory or task alone waits for it: the others can be opened
    beyond_record = True  # the next record would not get an answer either


class Held(Unavailable):
    """Another process holds the state directory or the task. The message names the holder.

    `by_us`: this process holds it itself, by a handle that it did not release: if that lasts, only a new process helps.
    """

    of_task = True
    by_us = False


class CommitUnknown(Unavailable):
    """It is unknown whether a write or a commit happened. Only the log knows: open the task again and read its
    source offsets before sending anything again; records that are sent again blindly may count twice."""

    in_doubt = True


class StateLost(StandfastError):
    """Local state does not fit the log (truncated, recreated, ahead of its end). Reinitialise the task."""

    def __init__(self, message: str, *, reason: str = "state-lost") -> None:
        self.reason = reason
        super().__init__(message)


class Fenced(StandfastError):
    """A writer with a newer epoch owns the task. Give the task up; nothing of this write was kept."""


class Corruption(StandfastError):
    """Stored bytes are damaged. Reads fail instead of answering short.

    `families` are the column families whose rows are damaged; empty where the error does not say. `of_log`: the log
    is damaged and the local state is not: a restore would only read the damage. `of_serde`: the bytes are as they were
    written, and the serde that the program declares cannot read them: a restore would bring the same bytes. `noted`:
    the next opening of the task finds the damage, without a read of these bytes.
    """

    families: frozenset[str] = frozenset()
    of_log = False
    of_serde = False
    noted = False


class Closed(StandfastError):
    """The object was closed."""


class WorkerFailed(StandfastError):
    """A worker process of an application ended again and again, or the program failed in it. The message names the
    worker, how it ended, and the last lines of its standard error, or the program's own exception."""


class ListenerFailed(StandfastError):
    """A listener of the program raised an exception (`__cause__`), and the task of that call failed with this error.
    The message names the listener, the call and the task. Fix the listener, then open the task again."""


class InternalError(StandfastError):
    """An invariant of standfast itself does not hold. Please report it."""


def is_of_serde(error: BaseException) -> bool:
    """Whether the program's serde cannot read the stored bytes, which are not damaged."""
    return isinstance(error, Corruption) and error.of_serde


def is_of_log(error: BaseException) -> bool:
    """Whether an error is about the log as a whole (it does not answer, or its file is damaged), and not about a task.

    A caller that retries goes on retrying after such an error.
    """
    if isinstance(error, Corruption):
        return error.of_log and not error.sources
    return isinstance(error, Unavailable) and not error.of_task
