"""Bodies of HTTP requests: the classes that check them are shown in the OpenAPI document.

    parse_body(bytes, Assignment) -> Assignment      InvalidRequest names the place: `$.tasks[2].role`

Rules of this file: pure; the shape of a request, and nothing of its meaning. Every text, list and number has a bound,
so that a body within the limit of the server stays small when parsed. An omitted optional field is UNSET: null
is no value of any field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from standfast.replication.shapes import Shape, fit
from standfast.store.errors import InvalidRequest
from standfast.store.specs import TRAITS

OFFSET_MAX = 2**63 - 1
PARTITION_MAX = 99_999
GENERATION_MAX = 2**53 - 1
TEXT = Meta(extra_json_schema={"type": "string"})  # msgspec gives no type for a list of allowed texts

Name = Annotated[str, Meta(pattern="^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$", max_length=128)]
Topic = Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{1,249}$", max_length=249)]
Partition = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]
Generation = Annotated[int, Meta(ge=0, le=GENERATION_MAX)]
Number = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
Positive = Annotated[int, Meta(ge=1, le=OFFSET_MAX)]
Wait = Annotated[int, Meta(ge=0, le=60_000)]
Changelog: TypeAlias = Annotated[dict[str, Annotated[str, Meta(max_length=200)]], Meta(max_length=50)]

if TYPE_CHECKING:
    Kind: TypeAlias = str
else:
    Kind = Literal[tuple(TRAITS)]

T = TypeVar("T")
Default = TypeVar("Default")


class Store(Shape, frozen=True):
    """A store to declare; the fields that its kind has, and needs, are checked later."""

    name: Name
    kind: Annotated[Kind, TEXT]
    timestamped: bool | UnsetType = UNSET
    caching: bool | UnsetType = UNSET
    logging: bool | UnsetType = UNSET
    engine: Annotated[Literal["rocksdb", "memory"], TEXT] | UnsetType = UNSET
    window_size_ms: Positive | UnsetType = UNSET
    retention_ms: Positive | UnsetType = UNSET
    history_retention_ms: Number | UnsetType = UNSET
    retain_duplicates: bool | UnsetType = UNSET
    changelog: Changelog | UnsetType = UNSET


class Stores(Shape, frozen=True):
    """Stores of the application, and the number of partitions into which they are split."""

    stores: Annotated[tuple[Store, ...], Meta(min_length=1, max_length=100)]
    partitions: Annotated[int, Meta(ge=1, le=PARTITION_MAX + 1)] | UnsetType = UNSET


class Source(Shape, frozen=True):
    """A source partition."""

    topic: Topic
    partition: Partition


class Task(Shape, frozen=True):
    """A task to hold; an active one reads the sources."""

    partition: Partition
    role: Annotated[Literal["active", "standby"], TEXT]
    sources: Annotated[tuple[Source, ...], Meta(max_length=1_000)] | UnsetType = UNSET


class Assignment(Shape, frozen=True):
    """All tasks to hold under a generation, and the time without a heartbeat after which they are closed."""

    generation: Generation
    tasks: Annotated[tuple[Task, ...], Meta(max_length=PARTITION_MAX)]
    lease_ms: Annotated[int, Meta(ge=100, le=3_600_000)] | UnsetType = UNSET


class Revoke(Shape, frozen=True):
    """Tasks to close: clean, or lost, without flushing."""

    generation: Generation
    partitions: Annotated[tuple[Partition, ...], Meta(min_length=1, max_length=PARTITION_MAX)]
    mode: Annotated[Literal["clean", "lost"], TEXT] | UnsetType = UNSET


class Heartbeat(Shape, frozen=True):
    """A sign of life of the application."""

    generation: Generation


class Schedule(Shape, frozen=True):
    """A punctuator of an active task."""

    partition: Partition
    kind: Annotated[Literal["stream_time", "wall_clock_time"], TEXT]
    interval_ms: Annotated[int, Meta(ge=1, le=366 * 86_400_000)]
    start_ms: Annotated[int, Meta(ge=0, le=2**53)] | UnsetType = UNSET


class Snapshot(Shape, frozen=True):
    """A snapshot by its name."""

    name: Name


class Verify(Shape, frozen=True):
    """The stores and partitions to compare with their changelogs; all by default."""

    store: Name | UnsetType = UNSET
    partition: Partition | UnsetType = UNSET


class Drain(Shape, frozen=True):
    """The time that the tasks may take to close."""

    wait_ms: Annotated[int, Meta(ge=0, le=3_600_000)] | UnsetType = UNSET


class Wipe(Shape, frozen=True):
    """A task whose state is to be set aside, under the epoch that it has."""

    partition: Partition
    epoch: Number


def parse_body(body: bytes, kind: type[T]) -> T:
    """The request in a body; one without bytes is an empty object. Raises InvalidRequest."""
    try:
        value = _DECODER.decode(body) if body else {}
    # Text that is nested too deep ends the decoder with RecursionError.
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from error
    try:
        return fit(value, kind)
    except ValueError as error:
        raise InvalidRequest(f"the body: {error}") from error


def given(value: T | UnsetType, otherwise: Default) -> T | Default:
    """The value of a field, or `otherwise` if it was omitted."""
    return otherwise if value is UNSET else value


def _number(text: str) -> float | int:
    """Read 7.0 as a whole number, as in JSON Schema, and in languages that know one kind of number."""
    found = float(text)
    return int(found) if found.is_integer() and abs(found) <= 2**53 else found


_DECODER = msgspec.json.Decoder(float_hook=_number)
