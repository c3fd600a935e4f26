"""What the owner and its workers say to each other: one JSON object a line, each with its kind.

    owner  ── job ──────────────────────────────────>  worker      on its standard input; its end ends the worker
    owner  <── ready ── survey | progress* run+ done | failed ──   on its standard output

    survey job      look at the tail and at samples of a changelog, and say where to begin and how dense it is
    range job       fold offsets start <= o < end into runs; the last one ends at `end`, also where it has no rows

Rules of this file: pure, values only. Addresses may be in jobs, so that they go through the pipe and not on a command
line that every user can list. A run is a manifest (`standfast.restore.files.manifest`) of one partition.
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

    observed_ms     a stream time that the store is known to observe: rows that are dead by then are left out
    drop_deletes    deletes of the first run may go, because there is nothing below it
    budget_bytes    what the worker may hold of rows; it looks after every `fetch_records`
    survey          look only: the changelog is to be split into `parts` ranges of at least `least` records
    disk_floor_bytes    a run waits until it leaves so much free
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
    """Answer to a survey: ranges to restore, ascending; what lies before them is expired."""

    number: int
    ranges: tuple[tuple[int, int], ...]
    observed_ms: int


class Progress(Shape, frozen=True, tag_field="event", tag=True):
    """Read up to `position`, so many records and bytes of keys and values more than the last time."""

    number: int
    position: int
    records: int
    bytes: int


class Run(Shape, frozen=True, tag_field="event", tag=True):
    """A run whose files are complete."""

    number: int
    manifest: Manifest


class Done(Shape, frozen=True, tag_field="event", tag=True):
    """The job is done. `peak_rss_bytes`: the worker's largest resident size so far; `phases_ns`: where time went."""

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
        made.sources = self.sources
        return made


_ERRORS: dict[str, type[StandfastError]] = {
    kind.__name__: kind for kind in (Corruption, InvalidRequest, Unavailable, UnknownStore)
}

Event: TypeAlias = Ready | Surveyed | Progress | Run | Done | Failed


def failed(number: int, error: BaseException) -> Failed:
    """What to say of an error."""
    if not isinstance(error, StandfastError):
        return Failed(number, "InternalError", f"{type(error).__name__}: {error}")
    reason = error.reason if isinstance(error, StateLost) else ""
    sources = tuple((str(topic), int(partition)) for topic, partition in error.sources)
    return Failed(number, type(error).__name__, str(error), reason, sources)


job_line = line


def parse_job(line: bytes) -> Job:
    """The job that a line holds. Raises InternalError."""
    try:
        return read(line, Job)
    except ValueError as error:
        raise InternalError(f"a worker was given a job that it cannot read: {error}") from error


def event_line(event: Event) -> bytes:
    """The line of an event. Raises Corruption for a run that `parse_event` would refuse."""
    if isinstance(event, Run):
        dump_manifest(event.manifest)  # which checks it
    return line(event)


def parse_event(line: bytes) -> Event:
    """Inverse of event_line. Raises InternalError for anything else, Corruption for a run that cannot be."""
    try:
        event: Event = read(line, Event)
    except ValueError as error:
        raise InternalError(f"a worker said {line[:200]!r}, which is no event: {error}") from error
    if isinstance(event, Run):
        check_manifest(event.manifest, "a run")
    return event
