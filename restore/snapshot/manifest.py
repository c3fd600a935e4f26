"""The manifest of a snapshot, and the two notes beside it: the intent of an upload and that of a prune.

    {"format": "standfast.snapshot/1", "id": "5f0c...",
     "app": "delays", "task": "0_3", "epoch": 12, "position": 4711,
     "cut": {"positions": {"aircraft": {"topic": "delays-aircraft-changelog", "partition": 3, "topic_id": "...",
                                        "offset": 900, "leader_epoch": -1, "tag": "", "at_ms": 0, "marker": false}},
             "sources": {"flights/3": 3811}, "source_tags": {}, "stream_times": {...}, "observed": {"aircraft": 0},
             "epoch": 12},
     "stores": {"aircraft": {...definition..., "engine": "rocksdb"}}, "memory_stores": [],
     "files": [{"name": "000012.sst", "bytes": 4096, "sha256": "..."}],
     "made": {"at_ms": 0, "instance": "...", "standfast": "0.1.0", "rocksdict": "0.3.29"}}

`cut` is for readers that choose a snapshot; the database in the files has the whole record. Stores in memory have no
rows in the files: a restore reads them from the log.

Rules of this file: pure. A field is never renamed or given another meaning within a version. A name of a file is one of
those that RocksDB and standfast give to files of a task's directory, so no manifest can lead a restore elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from standfast.replication.shapes import Count, Shape, fit, plain
from standfast.restore.snapshot.names import SnapshotName, position_of
from standfast.store.errors import Corruption, InvalidRequest

FORMAT_NAME = "standfast.snapshot"
FORMAT_VERSION = 1
FORMAT = f"{FORMAT_NAME}/{FORMAT_VERSION}"
INTENT_FORMAT = "standfast.snapshot-intent/1"
PRUNE_FORMAT = "standfast.snapshot-prune/1"

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_FORMAT = re.compile(rf"{re.escape(FORMAT_NAME)}/([1-9][0-9]{{0,8}})")
_FILE_NAME = re.compile(
    r"[0-9]{1,20}\.(?:sst|log|blob)|(?:MANIFEST|OPTIONS)-[0-9]{1,20}|CURRENT|IDENTITY|STORES|rocksdict-config\.json"
)


class SnapshotFile(Shape, frozen=True):
    """One file of the task's directory."""

    name: str
    bytes: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    sha256: Sha256


class CutPosition(Shape, frozen=True):
    """A changelog's position: the next offset, and the facts by which a restore checks it (see `Position`)."""

    topic: str
    partition: Count
    topic_id: str
    offset: Count
    leader_epoch: int
    tag: str
    at_ms: int
    marker: bool


class SnapshotCut(Shape, frozen=True):
    """The point of a snapshot. Sources, their tags and stream times are keyed `topic/partition`, the rest by store."""

    positions: Mapping[str, CutPosition]
    sources: Mapping[str, int]
    source_tags: Mapping[str, str]
    stream_times: Mapping[str, int]
    observed: Mapping[str, int]
    epoch: int

    @property
    def place(self) -> int:
        """The position in a snapshot's name."""
        return position_of((one.offset for one in self.positions.values()), self.sources.values())


class SnapshotMade(Shape, frozen=True):
    """When (wall clock, milliseconds) and where the snapshot was made, and by which versions."""

    at_ms: int
    instance: str
    standfast: str
    rocksdict: str


class Snapshot(Shape, frozen=True, tag_field="format", tag=FORMAT):
    """See the header. `id` is random: it distinguishes two attempts at the same name."""

    id: str
    app: str
    task: str
    epoch: Count
    position: Count
    cut: SnapshotCut
    stores: Mapping[str, Mapping[str, Any]]
    memory_stores: tuple[str, ...]
    files: tuple[SnapshotFile, ...]
    made: SnapshotMade

    @property
    def name(self) -> SnapshotName:
        """The snapshot's name."""
        return SnapshotName(self.task, self.epoch, self.position)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def contents(self) -> frozenset[str]:
        """The sha256 of every file."""
        return frozenset(file.sha256 for file in self.files)

    @property
    def lineage(self) -> frozenset[str]:
        """The topics that the positions count in. Epochs and positions of other topics cannot be compared with them."""
        return frozenset(one.topic_id for one in self.cut.positions.values())


class Intent(Shape, frozen=True, tag_field="format", tag=INTENT_FORMAT):
    """An upload under way: a prune leaves these files. `instance` is for people."""

    id: str
    task: str
    instance: str
    files: tuple[Sha256, ...]


class PruneNote(Shape, frozen=True, tag_field="format", tag=PRUNE_FORMAT):
    """A prune under way: an upload relies on none of these files."""

    id: str
    files: tuple[Sha256, ...]


def dump_snapshot(snapshot: Snapshot) -> bytes:
    """The manifest as JSON. Raises Corruption for one that `parse_snapshot` would refuse."""
    text = json.dumps(plain(snapshot), indent=1).encode() + b"\n"
    # Read back before it is written: one that readers refuse would be a snapshot that no restore can use.
    if parse_snapshot(text, "a manifest to be written") != snapshot:
        raise InvalidRequest("a manifest to be written holds values that JSON does not keep: use plain JSON values")
    return text


def dump_note(note: Intent | PruneNote) -> bytes:
    """An intent or a note as JSON."""
    return json.dumps(plain(note)).encode() + b"\n"


def parse_snapshot(text: bytes, where: str) -> Snapshot:
    """The manifest of a JSON text; `where` names it in errors.

    Raises InvalidRequest for a newer version or a text that is no manifest, Corruption for a damaged one.
    """
    shape = _decoded(text, where)
    # The version before the fields: a newer manifest has other fields, and "damaged" would be the wrong answer.
    found = shape.get("format") if isinstance(shape, dict) else None
    version = _FORMAT.fullmatch(found) if isinstance(found, str) else None
    if version is None:
        raise InvalidRequest(f"{where} is not a manifest of a snapshot: its format is {found!r:.100}, not {FORMAT!r}")
    if int(version[1]) > FORMAT_VERSION:
        raise InvalidRequest(
            f"{where} has format {found!r}, this version of standfast reads up to {FORMAT!r}: run the newer version"
        )
    try:
        snapshot = fit(shape, Snapshot)
        _check(snapshot)
    except ValueError as error:
        raise Corruption(f"{where} is damaged: {error}; use another snapshot") from error
    return snapshot


def parse_intent(text: bytes, where: str) -> Intent:
    """An intent. Raises Corruption."""
    try:
        return fit(_decoded(text, where), Intent)
    except ValueError as error:
        raise Corruption(f"{where} is damaged: {error}") from error


def parse_prune(text: bytes, where: str) -> PruneNote:
    """The note of a prune. Raises Corruption."""
    try:
        return fit(_decoded(text, where), PruneNote)
    except ValueError as error:
        raise Corruption(f"{where} is damaged: {error}") from error


def _decoded(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deep
        raise Corruption(f"{where} is not readable ({error})") from error


def _check(snapshot: Snapshot) -> None:
    names = [file.name for file in snapshot.files]
    for name in names:
        # Names become paths: a slash, "..", an absolute path, or a marker or lock of ours must never pass.
        if not _FILE_NAME.fullmatch(name):
            raise ValueError(f"{name!r:.200} cannot be the name of a file of a task's directory")
    if len(set(names)) != len(names):
        raise ValueError("it names a file twice")
    if "CURRENT" not in names:
        raise ValueError("it has no file CURRENT, without which no database opens")
    if snapshot.cut.place != snapshot.position:
        raise ValueError(f"its positions add up to {snapshot.cut.place}, its name says {snapshot.position}")
