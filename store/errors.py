"""The one error tree of standfast, named by what the caller must do.

    StandfastError
      InvalidRequest      fix the call or the settings
        UnknownStore        no store, family or topic of that name
        BadConfig           settings that cannot be used; carries every problem at once
      NotReady            all is well, ask again later
        Backpressure        the write buffer is full: commit, then write again
        DiskFull            too little space is free: free some, then write or commit again
      Unavailable         retry the operation (log or file system did not answer)
        Held                another process holds the directory or the task
        CommitUnknown       a commit may have happened: read the source offsets before anything is sent again
      StateLost           local state does not fit the log: reinitialise
      Fenced              a newer owner exists: give up the task
      Corruption          stop and call a person (or restore from the log)
      Closed              it was closed: open a new one
      InternalError       our bug, please report

Rules of this file: a message says what, where (store, topic-partition, offset) and the fix. Classes do
not multiply: a new one is added only where a caller must act differently.
"""

from __future__ import annotations

from collections.abc import Sequence


class StandfastError(Exception):
    """Root of every error that standfast raises on purpose. Never raised itself.

    `sources` are the partitions (topic, number) that a log's reader means; empty where it is about none in particular.
    `in_doubt`: what failed so was a write or commit of which the log may have taken some or all. `unwritten`: it was
    given up before its first byte, so that nothing of it is in the log.
    """

    sources: tuple[tuple[str, int], ...] = ()
    in_doubt = False
    unwritten = False


class InvalidRequest(StandfastError):
    """The call or the settings are wrong; nothing was changed."""


class TooLarge(InvalidRequest):
    """A key, a value or a record is over its limit; nothing was changed."""


class UnknownStore(InvalidRequest):
    """A store, column family or topic that does not exist was named."""


class BadConfig(InvalidRequest):
    """Settings that cannot be used. `problems` lists every one of them, not only the first."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class NotReady(StandfastError):
    """The state is not whole yet (the restore gate is shut). Ask again later."""


class Backpressure(NotReady):
    """The task's write buffer is at its hard bound. Commit, then repeat the write; it changed nothing."""


class DiskFull(NotReady):
    """Less space is free than the floor (`disk_floor`) or, for a commit, the reserve below it. The write changed
    nothing, the commit was not begun: what is uncommitted stays. The message names volume and sizes."""


class Unavailable(StandfastError):
    """The log or the file system did not answer. Retry."""


class Held(Unavailable):
    """Another process holds the state directory or the task. The message names the holder.

    `by_us`: it is this process, so that a handle was not let go of: if that does not change, only a new process helps.
    """

    by_us = False


class CommitUnknown(Unavailable):
    """Whether a write or a commit happened is not known. Only the log can tell: open the task again and read its
    source offsets before anything is sent again; what is sent blindly may count twice."""

    in_doubt = True


class StateLost(StandfastError):
    """Local state does not fit the log (truncated, recreated, ahead of its end). Reinitialise the task."""

    def __init__(self, message: str, *, reason: str = "state-lost") -> None:
        self.reason = reason
        super().__init__(message)


class Fenced(StandfastError):
    """A writer with a newer epoch owns the task. Give it up; nothing of this write was kept."""


class Corruption(StandfastError):
    """Stored bytes are damaged. Reads fail instead of answering short.

    `families` are the column families whose rows are damaged; empty where the error does not tell. `of_log`: the log
    is damaged, and the state here is not: to restore it would only read what is damaged. `of_serde`: the bytes are as
    they were written, and the serde that the program declares cannot read them: a restore would bring the same ones.
    """

    families: frozenset[str] = frozenset()
    of_log = False
    of_serde = False


class Closed(StandfastError):
    """The object was closed."""


class InternalError(StandfastError):
    """An invariant of standfast itself does not hold. Please report it."""


def is_of_serde(error: BaseException) -> bool:
    """Whether an error is the program's serde, which cannot read what is stored, and no damage."""
    return isinstance(error, Corruption) and error.of_serde


def is_of_log(error: BaseException) -> bool:
    """Whether an error is about the log as a whole (it does not answer, or its file is damaged), and not about a task.

    Who keeps trying tries again after it.
    """
    if isinstance(error, Corruption):
        return error.of_log and not error.sources
    return isinstance(error, Unavailable) and not isinstance(error, Held)
