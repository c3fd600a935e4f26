"""One manifest for everything that is "SST files + a position": runs of a bulk restore, rebuilds, snapshots, tables.

    folder/manifest.json       written last: without it the files beside it are nothing
    folder/<name>.sst          each named in the manifest with its bytes, entries, key span and sha256

    {"format": "standfast.manifest/1",
     "app": "delays", "store": "aircraft", "definition": {...}, "topic": "delays-aircraft-changelog",
     "topic_id": "...", "partition_count": 4,
     "partitions": [{"partition": 0, "start": 0, "end": 900, "converge_offset": 950, "observed_ms": -1, "sequence": 0,
                     "records": 880, "tombstones": 10, "superseded": 300, "expired": 0, "entries": 570,
                     "digest": "23a-...", "files": [{"name": "0-0.sst", "family": "aircraft", "bytes": 4096,
                     "entries": 570, "deletes": 0, "first_key": "61", "last_key": "7a", "sha256": "..."}]}],
     "made": {"how": "rebuild", "at_ms": 0, "standfast": "0.1.0", "rocksdict": "0.3.29", "compression": "lz4"}}

`end` is where the next read begins, not the last record's offset. Where a log is compacted while it is read, the rows
equal the log only once tailing passed `converge_offset`. Files are listed in the order in which they are ingested;
where two hold the same key, the later one wins, and only then do files hold deletes.

Rules of this file: pure; frozen values to and from JSON. It opens no file: see
`standfast.restore.files.manifest_files`. A field is never renamed or given another meaning within a version; fields
that a reader does not know are an error, because files that were made under another rule must not be ingested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from standfast.restore.digest import Digest
from standfast.store.errors import Corruption, InvalidRequest

FORMAT_NAME = "standfast.manifest"
FORMAT_VERSION = 1
FORMAT = f"{FORMAT_NAME}/{FORMAT_VERSION}"
FILE_NAME = "manifest.json"

How: TypeAlias = Literal["run", "rebuild", "snapshot", "table"]

_PART = r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,250}"
_NAME = re.compile(rf"{_PART}(?:/{_PART}){{0,7}}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_FORMAT = re.compile(rf"{re.escape(FORMAT_NAME)}/([1-9][0-9]{{0,8}})")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One SST file. `name` is relative to the manifest's folder, keys are hex, `entries` counts deletes too."""

    name: str
    family: str
    bytes: int
    entries: int
    first_key: str
    last_key: str
    sha256: str
    deletes: int = 0


@dataclass(frozen=True, slots=True)
class ManifestPartition:
    """What one changelog partition amounts to over the offsets start <= o < end.

    observed_ms   largest stream time that the store observed (-1: none), what was left out as expired too
    sequence      last sequence number of retained duplicates
    records       records read. Each is a row of the files, or one of the tombstones (the last record of its key
                  deletes), superseded (a later one has the same key), expired, or skipped
    skipped       without a key, or of a source topic and such that the store cannot hold them; in the text only where
                  there are any, because a version that does not know of them is not to ingest what was made so
    entries       entries of all files
    digest        of the rows (`Digest.hex()`); None for a run, whose rows later runs may replace
    """

    partition: int
    start: int
    end: int
    converge_offset: int
    files: tuple[ManifestFile, ...] = ()
    observed_ms: int = -1
    sequence: int = 0
    records: int = 0
    tombstones: int = 0
    superseded: int = 0
    expired: int = 0
    entries: int = 0
    digest: str | None = None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Made:
    """How the files came about: by what, when (wall clock, milliseconds), with which versions."""

    how: How
    at_ms: int
    standfast: str
    rocksdict: str
    compression: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the header. `definition` is `StoreSpec.definition()`; partitions ascend and need not be all of the topic."""

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
        have = ", ".join(str(one.partition) for one in self.partitions) or "none"
        raise InvalidRequest(
            f"the manifest of store {self.store!r} has no partition {number} (it has {have}): make it for that one too"
        )

    def file_names(self) -> frozenset[str]:
        """Names of all files; whatever else lies in the folder is an orphan."""
        return frozenset(file.name for one in self.partitions for file in one.files)


def dump_manifest(manifest: Manifest) -> str:
    """The manifest as JSON text. Raises Corruption for one that `parse_manifest` would refuse."""
    shape: dict[str, Any] = {"format": FORMAT, **asdict(manifest)}
    for one in shape["partitions"]:
        if not one["skipped"]:
            del one["skipped"]
    text = json.dumps(shape, indent=1, sort_keys=False) + "\n"
    if parse_manifest(text, "a manifest to be written") != manifest:
        raise InvalidRequest("a manifest to be written holds values that JSON does not keep: use plain JSON values")
    return text


def parse_manifest(text: str | bytes, where: str) -> Manifest:
    """The manifest of a JSON text; `where` names it in errors.

    Raises InvalidRequest for a newer version or something that is no manifest, Corruption for a damaged one.
    """
    try:
        shape = json.loads(text)
    except ValueError as error:
        raise Corruption(f"{where} is not readable ({error}): make the files and their manifest again") from error
    if not isinstance(shape, dict):
        raise InvalidRequest(f"{where} is not a manifest of standfast: it should begin with a format, {FORMAT!r}")
    _check_format(shape.pop("format", None), where)
    try:
        partitions = tuple(_partition(one) for one in _list(shape.pop("partitions", None), "partitions"))
        made = _build(Made, shape.pop("made", None), "made")
        manifest = _build(Manifest, shape | {"partitions": partitions, "made": made}, "manifest")
        _check(manifest)
    except _BadShape as error:
        raise Corruption(f"{where} is damaged: {error}; make the files and their manifest again") from error
    return manifest


def check_store(manifest: Manifest, definition: Mapping[str, Any], topic: str, topic_id: str, where: str) -> None:
    """Refuse files that were made for another store, definition or topic. Raises InvalidRequest."""
    problems = [
        f"{name} {found!r} instead of {wanted!r}"
        for name, found, wanted in (
            ("definition", dict(manifest.definition), dict(definition)),
            ("topic", manifest.topic, topic),
            ("topic id", manifest.topic_id, topic_id),
        )
        if found != wanted
    ]
    if problems:
        raise InvalidRequest(
            f"{where} was made for something else than store {manifest.store!r} here: {'; '.join(problems)}; "
            "make it again from this topic, with this definition"
        )


class _BadShape(Exception):
    """A field is missing, unknown or impossible; leaves this file as Corruption."""


def _check_format(found: object, where: str) -> None:
    version = _FORMAT.fullmatch(found) if isinstance(found, str) else None
    if version is None:
        raise InvalidRequest(f"{where} is not a manifest of standfast: its format is {found!r}, not {FORMAT!r}")
    if int(version[1]) > FORMAT_VERSION:
        raise InvalidRequest(
            f"{where} has format {found!r}, this version of standfast reads up to {FORMAT!r}: run the newer version, "
            "or make the files again with this one"
        )


def _partition(shape: object) -> ManifestPartition:
    if not isinstance(shape, dict):
        raise _BadShape(f"a partition is {shape!r}, not an object")
    files = tuple(_build(ManifestFile, one, "a file") for one in _list(shape.get("files"), "files"))
    return _build(ManifestPartition, {"skipped": 0} | shape | {"files": files}, "a partition")


def _list(shape: object, what: str) -> list[Any]:
    if not isinstance(shape, list):
        raise _BadShape(f"{what} is {shape!r}, not a list")
    return shape


_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "str | None": (str, type(None)),
    "Mapping[str, Any]": (dict,),
    "How": (str,),
}


def _build(cls: type[T], shape: object, what: str) -> T:
    """A dataclass from a JSON object: every field by name and type, nothing besides."""
    if not isinstance(shape, dict):
        raise _BadShape(f"{what} is {shape!r}, not an object")
    wanted = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]
    problems = [f"{what} lacks {name!r}" for name in wanted if name not in shape]
    problems += [f"{what} has {name!r}, which this version does not know" for name in shape if name not in wanted]
    for name, value in shape.items():
        allowed = _TYPES.get(str(wanted.get(name)))
        if allowed is not None and (not isinstance(value, allowed) or isinstance(value, bool)):
            problems.append(f"{name!r} of {what} is {value!r}")
    if problems:
        raise _BadShape("; ".join(problems))
    return cls(**shape)


def _check(manifest: Manifest) -> None:
    numbers = [one.partition for one in manifest.partitions]
    if numbers != sorted(set(numbers)) or any(not 0 <= number < manifest.partition_count for number in numbers):
        raise _BadShape(f"its partitions are {numbers} of {manifest.partition_count}")
    if manifest.made.how not in get_args(How):
        raise _BadShape(f"it was made by {manifest.made.how!r}, not by one of {', '.join(get_args(How))}")
    names = [file.name for one in manifest.partitions for file in one.files]
    if len(names) != len(set(names)):
        raise _BadShape("it names a file twice")
    for one in manifest.partitions:
        _check_partition(one)


def _check_partition(one: ManifestPartition) -> None:
    where = f"partition {one.partition}"
    if not 0 <= one.start <= one.end <= one.converge_offset:
        raise _BadShape(f"{where} has start {one.start}, end {one.end}, converge offset {one.converge_offset}")
    counts = (one.sequence, one.records, one.tombstones, one.superseded, one.expired, one.entries, one.skipped)
    if min(counts) < 0 or one.observed_ms < -1:
        raise _BadShape(f"{where} has counts below 0")
    if one.entries != sum(file.entries for file in one.files):
        raise _BadShape(f"{where} has {one.entries} entries, its files have other")
    if one.digest is not None:
        try:
            Digest.from_hex(one.digest)
        except InvalidRequest as error:
            raise _BadShape(f"the digest of {where}: {error}") from error
    for file in one.files:
        _check_file(file)


def _check_file(file: ManifestFile) -> None:
    if not _NAME.fullmatch(file.name) or file.name == FILE_NAME:
        raise _BadShape(f"{file.name!r} cannot be the name of a file in its folder")
    if not file.family or file.bytes <= 0 or not 0 <= file.deletes <= file.entries or file.entries == 0:
        raise _BadShape(f"file {file.name}: family, bytes or entries cannot be")
    if not _SHA256.fullmatch(file.sha256):
        raise _BadShape(f"file {file.name}: {file.sha256!r} is no sha256 in hex")
    if not (_HEX.fullmatch(file.first_key) and _HEX.fullmatch(file.last_key)) or file.first_key > file.last_key:
        raise _BadShape(f"file {file.name}: first key {file.first_key!r} and last key {file.last_key!r} cannot be")
