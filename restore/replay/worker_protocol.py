"""What the owner and its workers say to each other: one JSON object a line, each with its kind.

    owner  ── job ──────────────────────────────────>  worker      on its standard input; its end ends the worker
    owner  <── ready ── survey | progress* run+ done | failed ──   on its standard output

    survey job      look at the tail and at samples of a changelog, and say where to begin and how dense it is
    range job       fold offsets start <= o < end into runs; the last one ends at `end`, also where it has no rows

Rules of this file: pure, values only. Addresses may be in jobs, so that they go through the pipe and not on a command
line that every user can list. A run is a manifest (`standfast.restore.files.manifest`) of one partition.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from standfast.restore.files.manifest import Manifest, dump_manifest, parse_manifest
from standfast.store.errors import (
    Corruption,
    InternalError,
    InvalidRequest,
    StandfastError,
    StateLost,
    Unavailable,
    UnknownStore,
)


@dataclass(frozen=True, slots=True)
class Job:
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


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker runs and can take a job."""

    pid: int


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Answer to a survey: ranges to restore, ascending; what lies before them is expired."""

    number: int
    ranges: tuple[tuple[int, int], ...]
    observed_ms: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Read up to `position`, so many records and bytes of keys and values more than the last time."""

    number: int
    position: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Run:
    """A run whose files are complete."""

    number: int
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Done:
    """The job is done. `peak_rss_bytes`: the worker's largest resident size so far; `phases_ns`: where time went."""

    number: int
    peak_rss_bytes: int
    phases_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The job ended with this error."""

    number: int
    kind: str
    message: str
    reason: str = ""
    sources: tuple[tuple[str, int], ...] = field(default=())

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


def job_line(job: Job) -> bytes:
    """The line of a job."""
    return _line(asdict(job))


def parse_job(line: bytes) -> Job:
    """Inverse of job_line. Raises InternalError."""
    try:
        return Job(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise InternalError(f"a worker was given a job that it cannot read: {error}") from error


def event_line(event: Event) -> bytes:
    """The line of an event."""
    if isinstance(event, Run):
        return _line({"event": "Run", "number": event.number, "manifest": json.loads(dump_manifest(event.manifest))})
    return _line({"event": type(event).__name__} | asdict(event))


def parse_event(line: bytes) -> Event:
    """Inverse of event_line. Raises InternalError for anything else."""
    try:
        shape = json.loads(line)
        kind = shape.pop("event")
        if kind == "Run":
            return Run(shape["number"], parse_manifest(json.dumps(shape["manifest"]), "a run"))
        if kind == "Surveyed":
            shape["ranges"] = tuple((start, end) for start, end in shape["ranges"])
        if kind == "Failed":
            shape["sources"] = tuple((topic, partition) for topic, partition in shape["sources"])
        return _EVENTS[kind](**shape)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InternalError(f"a worker said {line[:200]!r}, which is no event: {error!r}") from error


_EVENTS: dict[str, type[Ready] | type[Surveyed] | type[Progress] | type[Done] | type[Failed]] = {
    "Ready": Ready,
    "Surveyed": Surveyed,
    "Progress": Progress,
    "Done": Done,
    "Failed": Failed,
}


def _line(shape: Mapping[str, Any]) -> bytes:
    return json.dumps(shape, separators=(",", ":")).encode() + b"\n"
