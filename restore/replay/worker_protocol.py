"""Messages between the owner and its workers: one JSON object a line, each with its kind.

    owner  ── job ──────────────────────────────────>  worker      on its standard input; its end ends the worker
    owner  <── ready ── survey | progress* run+ done | failed ──   on its standard output

    survey job      read the tail and samples of a changelog, and report where to begin and how to split it
    range job       fold offsets start <= o < end into runs; the last one ends at `end`, also where it has no rows

Rules of this file: pure, values only. A job may hold the log's address, so it goes through the pipe and not on a
command line that every user can list. A run is a manifest (`standfast.restore.files.manifest`) of one partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from standfast.replication.shapes import Shape, line, read
from standfast.restore.files.manifest import Manifest, check_manifest, dump_manifest
from standfast.store.errors import (
    Corruption,
    InternalError,
    InvalidRequest,
    StandfastError,
    StateLost,
    Unavailable,
    UnknownStore,
)


class Job(Shape, frozen=True):
    """Work on offsets start <= o < end of one changelog.

    observed_ms     a stream time that the store is known to observe: rows that are dead by then are skipped
    drop_deletes    deletes of the first run may go, because the store has no rows below it
    budget_bytes    bytes of rows that the worker may hold; checked after every `fetch_records`
    survey          read only: the changelog is to be split into `parts` ranges of at least `least` records
    disk_floor_bytes    a run waits until it leaves so much disk free
    """

    number: int
    address: str
    app: str
    store: str
    definition: Mapping[str, Any]
    topic: str
    topic_id: str
    partition: int
    partition_count: int
    start: int
    end: int
    folder: str
    prefix: str
    budget_bytes: int
    fetch_records: int
    observed_ms: int = -1
    drop_deletes: bool = False
    survey: bool = False
    parts: int = 1
    least: int = 1
    disk_floor_bytes: int = 0


class Ready(Shape, frozen=True, tag_field="event", tag=True):
    """The worker runs and can take a job."""

    pid: int


class Surveyed(Shape, frozen=True, tag_field="event", tag=True):
    """Answer to a survey: ranges to restore, ascending; records before them are expired."""

    number: int
    ranges: tuple[tuple[int, int], ...]
    observed_ms: int


class Progress(Shape, frozen=True, tag_field="event", tag=True):
    """The worker's position, with the records and bytes of keys and values read since the last report."""

    number: int
    position: int
    records: int
    bytes: int


class Run(Shape, frozen=True, tag_field="event", tag=True):
    """A run whose files are complete."""

    number: int
    manifest: Manifest


class Done(Shape, frozen=True, tag_field="event", tag=True):
    """The job is done. `peak_rss_bytes`: the worker's largest resident size so far; `phases_ns`: time by phase."""

    number: int
    peak_rss_bytes: int
    phases_ns: Mapping[str, int] = {}


class Failed(Shape, frozen=True, tag_field="event", tag=True):
    """The job ended with this error."""

    number: int
    kind: str
    message: str
    reason: str = ""
    sources: tuple[tuple[str, int], ...] = ()

    def error(self) -> StandfastError:
        """The error as the worker raised it."""
        if self.kind == "StateLost":
            made: StandfastError = StateLost(self.message, reason=self.reason)
        else:
            made = _ERRORS.get(self.kind, InternalError)(self.message)
        made.sources = self.sources  # partitions at fault, for the restorer
        return made


# By name, since a line of JSON carries no class; an unknown kind is a fault of ours.
_ERRORS: dict[str, type[StandfastError]] = {
    kind.__name__: kind for kind in (Corruption, InvalidRequest, Unavailable, UnknownStore)
}

Event: TypeAlias = Ready | Surveyed | Progress | Run | Done | Failed


def failed(number: int, error: BaseException) -> Failed:
    """The event that reports an error."""
    if not isinstance(error, StandfastError):
        return Failed(number, "InternalError", f"{type(error).__name__}: {error}")
    reason = error.reason if isinstance(error, StateLost) else ""
    sources = tuple((str(topic), int(partition)) for topic, partition in error.sources)
    return Failed(number, type(error).__name__, str(error), reason, sources)


job_line = line


def parse_job(line: bytes) -> Job:
    """The job in a line. Raises InternalError."""
    try:
        return read(line, Job)
    except ValueError as error:
        raise InternalError(f"the worker process received a job that it cannot read: {error}") from error


def event_line(event: Event) -> bytes:
    """The line of an event. Raises Corruption for a run that `parse_event` would refuse."""
    if isinstance(event, Run):
        dump_manifest(event.manifest)  # its check fails this job; a line that the owner refuses would kill the worker
    return line(event)


def parse_event(line: bytes) -> Event:
    """Inverse of event_line. Raises InternalError for any other line, Corruption for an impossible run."""
    try:
        event: Event = read(line, Event)
    except ValueError as error:
        raise InternalError(f"the worker process sent {line[:200]!r}, which is not an event: {error}") from error
    if isinstance(event, Run):
        # Names of files become paths of an ingest, so a worker's run is checked like a manifest from a disk.
        check_manifest(event.manifest, "a run")
    return event
