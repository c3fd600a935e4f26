"""The task's record (commit record): the facts that must move together with the rows, in the default family.

    "cut"     01 | JSON   positions, source offsets, stream times, observed times, epoch, heads of changelogs
    "stores"  01 | JSON   definition of every store, to recognise a changed one; copied to a file (definitions_file)
    "ingesting" 01 | JSON   {store: {}} while the store ingests files; if an opening finds it, a crash came between
                          files and position, and it is unknown which files are in: the store is restored again
                          {store: {"from": FOLDER}} while readable rows of a damaged store, which no log has, are copied
                          from a folder that was set aside: the copy runs again

Rules of this file: the record is written in the same batch as its rows, so it can be neither ahead of them nor behind.
The first byte is the format; never renumber, add fields instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from standfast.store.engine import DEFAULT_FAMILY, Engine
from standfast.store.errors import Corruption, InvalidRequest

CUT_KEY = b"cut"
STORES_KEY = b"stores"
INGESTING_KEY = b"ingesting"
FORMAT = 1


class Position(NamedTuple):
    """A changelog's position: next offset, leader epoch (-1: none), topic id, and the time of writing in ms.

    `marker`: the next offset holds no record, but the marker of the last written transaction. `tag`: that of the log's
    epoch in which the record before the offset was written ("": unknown, or the log has none).
    """

    offset: int
    leader_epoch: int = -1
    topic_id: str = ""
    at_ms: int = 0
    marker: bool = False
    tag: str = ""


class StoreTimes(NamedTuple):
    """A store's observed stream time (-1: none) and the last sequence number of its duplicates."""

    observed_ms: int = -1
    sequence: int = 0


class Unwritten(NamedTuple):
    """Rows of unlogged stores, by family, left by a failed commit, with each store's stream time after it."""

    rows: dict[str, dict[bytes, bytes | None]]
    times: dict[str, StoreTimes]


class Heads(NamedTuple):
    """The first offset of each kept span of a store, by the span's start, in the changelog with this topic id."""

    topic_id: str
    firsts: Mapping[int, int]

    @property
    def first(self) -> int:
        """The least offset that a kept row may have; 0 if no span is known."""
        return min(self.firsts.values(), default=0)


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One consistent point of a task. Sources, their tags and stream times are keyed `topic/partition`, else by store.

    `source_tags` are the epoch tags of the records before the source offsets, where the log has epochs. `heads`: see
    heads.py; versions that know none drop them.
    `task` names the owner task, in the bytes only: it exposes files of another task; "" from versions that wrote none.
    `commit` is the number of the epoch's commit, counted from 1; -1: not counted, as where every row is in a log.
    """

    positions: Mapping[str, Position] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)
    stream_times: Mapping[str, int] = field(default_factory=dict)
    stores: Mapping[str, StoreTimes] = field(default_factory=dict)
    progress: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0
    source_tags: Mapping[str, str] = field(default_factory=dict)
    task: str = ""
    heads: Mapping[str, Heads] = field(default_factory=dict)
    commit: int = -1

    def encode(self) -> bytes:
        """The bytes of the "cut" row; without tags and numbers of commits they are as earlier versions wrote them."""
        return _encode(
            {
                # Without a tag the bytes are those of earlier versions, which know no tags and can go on reading them.
                "positions": {store: value if value.tag else value[:-1] for store, value in self.positions.items()},
                "sources": self.sources,
                "stream_times": self.stream_times,
                "stores": self.stores,
                "progress": self.progress,
                "epoch": self.epoch,
                **({"source_tags": self.source_tags} if self.source_tags else {}),
                "task": self.task,
                # A list: the starts would become texts as keys of an object.
                **(
                    {"heads": {name: (one[0], sorted(one[1].items())) for name, one in self.heads.items()}}
                    if self.heads
                    else {}
                ),
                **({"commit": self.commit} if self.commit >= 0 else {}),
            }
        )

    @classmethod
    def decode(cls, raw: bytes, where: str) -> CommitRecord:
        """Inverse of encode; `where` names the database in errors."""
        fields = decode_record(raw, where)
        try:
            return cls(
                positions={store: Position(*value) for store, value in fields["positions"].items()},
                sources=fields["sources"],
                stream_times=fields["stream_times"],
                stores={store: StoreTimes(*value) for store, value in fields["stores"].items()},
                progress=fields["progress"],
                epoch=fields["epoch"],
                source_tags=fields.get("source_tags", {}),  # this field and the next ones are absent in older records
                task=fields.get("task", ""),
                heads={name: Heads(one[0], dict(one[1])) for name, one in fields.get("heads", {}).items()},
                commit=fields.get("commit", -1),
            )
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise Corruption(f"{where}: the task record lacks a part ({error!r}): restore the task") from error


def read_record(engine: Engine, where: str) -> CommitRecord:
    """A task's record; an empty one before the first commit. Raises Corruption."""
    raw = engine.get(DEFAULT_FAMILY, CUT_KEY)
    return CommitRecord() if raw is None else CommitRecord.decode(raw, where)


def source_key(topic: str, partition: int) -> str:
    """A source partition as a key of a cut; a topic name cannot hold a slash."""
    return f"{topic}/{partition}"


def parse_source_key(key: str) -> tuple[str, int]:
    """Inverse of source_key."""
    topic, _, partition = key.rpartition("/")
    return topic, int(partition)


def encode_definitions(definitions: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The bytes of the "stores" row."""
    return _encode(definitions)


def encode_ingesting(*stores: str) -> bytes:
    """The bytes of the "ingesting" row while these stores ingest files."""
    return _encode({store: {} for store in sorted(stores)})


def encode_copying(stores: Mapping[str, str]) -> bytes:
    """The bytes of the "ingesting" row while rows of these stores are copied from folders that were set aside."""
    return _encode({store: {"from": folder} for store, folder in stores.items()})


def decode_ingesting(raw: bytes | None, where: str) -> dict[str, str]:
    """The marked stores, each with the folder that its rows come from ("" for an ingest of files)."""
    if raw is None:
        return {}
    return {store: str(mark.get("from", "")) for store, mark in decode_record(raw, where).items()}


def decode_record(raw: bytes, where: str) -> dict[str, Any]:
    """JSON of a record row, after a check of its format byte."""
    if not raw or raw[0] != FORMAT:
        # A newer format is the newer version's good data; any other byte is damage.
        written = raw[0] if raw else None
        if written is not None and written > FORMAT:
            raise InvalidRequest(
                f"{where}: the task record has format {written}, this version of standfast reads up to {FORMAT}: "
                "run the newer version, or let the task restore into an empty state directory"
            )
        raise Corruption(f"{where}: the task record begins with {written!r} instead of format {FORMAT}")
    try:
        return json.loads(raw[1:])  # type: ignore[no-any-return]
    except ValueError as error:
        raise Corruption(f"{where}: the task record is not readable: {error}") from error


def _encode(fields: Mapping[str, Any]) -> bytes:
    return bytes([FORMAT]) + json.dumps(fields, separators=(",", ":")).encode()
