"""The manifest of sorted files with a position: runs of a bulk restore, rebuilds, snapshots, tables.

    folder/manifest.json       written last: without it the files beside it count for nothing
    folder/<name>.sst          each named in the manifest with its bytes, entries, key span and sha256

    {"format": "standfast.manifest/1",
     "app": "delays", "store": "aircraft", "definition": {...}, "topic": "delays-aircraft-changelog",
     "topic_id": "...", "partition_count": 4,
     "partitions": [{"partition": 0, "start": 0, "end": 900, "converge_offset": 950, "observed_ms": -1, "sequence": 0,
                     "records": 880, "tombstones": 10, "superseded": 300, "expired": 0, "entries": 570,
                     "digest": "23a-...", "files": [{"name": "0-0.sst", "family": "aircraft", "bytes": 4096,
                     "entries": 570, "deletes": 0, "first_key": "61", "last_key": "7a", "sha256": "..."}]}],
     "made": {"how": "rebuild", "at_ms": 0, "standfast": "0.1.0", "rocksdict": "0.3.29", "compression": "lz4"}}

The next read begins at `end`, which is not the last record's offset. If a log is compacted during the read, the rows
equal the log only after tailing has passed `converge_offset`. Files are listed in the order of ingestion; if two hold
the same key, the later one wins, and only then do files hold deletes.

Rules of this file: pure; frozen values to and from JSON. File access is in `standfast.restore.files.manifest_files`. A
field is never renamed or given another meaning within a version; a reader refuses unknown fields, because files made
under another rule must not be ingested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from standfast.replication.shapes import Count, Shape, fit, plain
from standfast.restore.digest import Digest
from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.names import few

FORMAT_NAME = "standfast.manifest"
FORMAT_VERSION = 1
FORMAT = f"{FORMAT_NAME}/{FORMAT_VERSION}"
FILE_NAME = "manifest.json"

How: TypeAlias = Literal["run", "rebuild", "snapshot", "table"]
Hex = Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{2})*\Z")]  # \Z, because $ would accept a newline at the end
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Positive = Annotated[int, Meta(ge=1)]

_PART = r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,250}"  # no leading dot, so that ".." cannot lead out of the folder
_NAME = re.compile(rf"{_PART}(?:/{_PART}){{0,7}}")
_FORMAT = re.compile(rf"{re.escape(FORMAT_NAME)}/([1-9][0-9]{{0,8}})")


class ManifestFile(Shape, frozen=True):
    """One SST file. `name` is relative to the manifest's folder, keys are hex, `entries` counts deletes too."""

    name: str
    family: Annotated[str, Meta(min_length=1)]
    bytes: Positive
    entries: Positive
    first_key: Hex
    last_key: Hex
    sha256: Sha256
    deletes: Count


class ManifestPartition(Shape, frozen=True, omit_defaults=True):
    """The rows of one changelog partition, folded over the offsets start <= o < end.

    observed_ms   largest stream time that the store observed (-1: none), expired records included
    sequence      last sequence number of retained duplicates
    records       records read. Each is a row of the files, or one of the tombstones (the last record of its key
                  deletes), superseded (a later one has the same key), expired, or skipped
    skipped       records without a key, or records of a source topic that the store cannot hold; written only if not
                  0, because a version that does not know this field must not ingest such files
    entries       entries of all files
    digest        digest of the rows (`Digest.hex()`); None for a run, whose rows later runs may replace
    """

    partition: int
    start: int
    end: int
    converge_offset: int
    files: tuple[ManifestFile, ...]
    observed_ms: Annotated[int, Meta(ge=-1)]
    sequence: Count
    records: Count
    tombstones: Count
    superseded: Count
    expired: Count
    entries: Count
    digest: str | None
    skipped: Count = 0


class Made(Shape, frozen=True):
    """How and when (wall clock, milliseconds) the files were made, and with which versions."""

    how: How
    at_ms: int
    standfast: str
    rocksdict: str
    compression: str


class Manifest(Shape, frozen=True, tag_field="format", tag=FORMAT):
    """See the header. `definition` is `StoreSpec.definition()`; partitions ascend and may be a part of the topic's."""

    app: str
    store: str
    definition: Mapping[str, Any]
    topic: str
    topic_id: str
    partition_count: int
    partitions: tuple[ManifestPartition, ...]
    made: Made

    def partition(self, number: int) -> ManifestPartition:
        """One partition. Raises InvalidRequest if the manifest does not have it."""
        for one in self.partitions:
            if one.partition == number:
                return one
        have = few(one.partition for one in self.partitions) or "none"
        raise InvalidRequest(
            f"the manifest of store {self.store!r} has no partition {number} (it has {have}): make it for {number} too"
        )

    def file_names(self) -> frozenset[str]:
        """Names of all files; other files in the folder are orphans."""
        return frozenset(file.name for one in self.partitions for file in one.files)


def dump_manifest(manifest: Manifest) -> str:
    """The manifest as JSON text. Raises Corruption for one that `parse_manifest` would refuse."""
    # Written by the standard library and not by msgspec: golden tests hold these bytes.
    text = json.dumps(plain(manifest), indent=1) + "\n"
    # Read back before it is written: a manifest that readers refuse would leave files that cannot be ingested.
    if parse_manifest(text, "a manifest to be written") != manifest:
        raise InvalidRequest("a manifest to be written holds values that JSON does not keep: use plain JSON values")
    return text


def parse_manifest(text: str | bytes, where: str) -> Manifest:
    """The manifest of a JSON text; `where` names it in errors.

    Raises InvalidRequest for a newer version or a text that is no manifest, Corruption for a damaged one.
    """
    try:
        shape = json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deep
        raise Corruption(f"{where} is not readable ({error}): make the files and their manifest again") from error
    # The version before the fields: a newer manifest has other fields, and "damaged" would be the wrong answer.
    _check_format(shape.get("format") if isinstance(shape, dict) else None, where)
    try:
        manifest = fit(shape, Manifest)
    except ValueError as error:
        raise _damaged(where, error) from error
    check_manifest(manifest, where)
    return manifest


def check_manifest(manifest: Manifest, where: str) -> None:
    """Raise Corruption for values that contradict each other, and for files outside the folder."""
    try:
        _check(manifest)
    except ValueError as error:
        raise _damaged(where, error) from error


def _damaged(where: str, error: ValueError) -> Corruption:
    return Corruption(f"{where} is damaged: {error}; make the files and their manifest again")


def _check_format(found: object, where: str) -> None:
    version = _FORMAT.fullmatch(found) if isinstance(found, str) else None
    if version is None:
        raise InvalidRequest(f"{where} is not a manifest of standfast: its format is {found!r}, not {FORMAT!r}")
    if int(version[1]) > FORMAT_VERSION:
        raise InvalidRequest(
            f"{where} has format {found!r}, this version of standfast reads up to {FORMAT!r}: run the newer version, "
            "or make the files again with this one"
        )


def _check(manifest: Manifest) -> None:
    numbers = [one.partition for one in manifest.partitions]
    if numbers != sorted(set(numbers)) or any(not 0 <= number < manifest.partition_count for number in numbers):
        raise ValueError(f"its partitions are {numbers} of {manifest.partition_count}")
    names = [file.name for one in manifest.partitions for file in one.files]
    if len(names) != len(set(names)):
        raise ValueError("it names a file twice")
    for one in manifest.partitions:
        _check_partition(one)


def _check_partition(one: ManifestPartition) -> None:
    where = f"partition {one.partition}"
    if not 0 <= one.start <= one.end <= one.converge_offset:
        raise ValueError(f"{where} has start {one.start}, end {one.end}, converge offset {one.converge_offset}")
    if one.entries != sum(file.entries for file in one.files):
        raise ValueError(f"{where} has {one.entries} entries, its files have another number")
    if one.digest is not None:
        try:
            Digest.from_hex(one.digest)
        except InvalidRequest as error:
            raise ValueError(f"the digest of {where}: {error}") from error
    for file in one.files:
        _check_file(file)


def _check_file(file: ManifestFile) -> None:
    # The name becomes a path of an ingest: it must stay in the folder, and not be the manifest's own.
    if not _NAME.fullmatch(file.name) or file.name == FILE_NAME:
        raise ValueError(f"{file.name!r} cannot be the name of a file in its folder")
    if file.deletes > file.entries:
        raise ValueError(f"file {file.name}: {file.deletes} deletes are more than its {file.entries} entries")
    if file.first_key > file.last_key:
        raise ValueError(f"file {file.name}: first key {file.first_key!r} is above last key {file.last_key!r}")
