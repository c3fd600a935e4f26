"""Folders for files, local or in object storage, that rebuild writes and verify reads.

    /data/rebuilt, file:///data/rebuilt       a local folder
    s3://bucket/path, gs://..., hdfs://...    object storage, by pyarrow's file systems (credentials: environment)

Rules of this file: names are flat and checked by the caller that lists them; only `remove` deletes files. RocksDB needs
real files, so executors write and read SST files in a local scratch folder and copy them; a local folder is written in
place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from standfast.restore.addresses import shown_address
from standfast.store.errors import BadConfig, InvalidRequest, Unavailable
from standfast.store.files import write_atomically

CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a folder: its name relative to the folder, bytes, and time of the last write (ms, -1: unknown)."""

    name: str
    bytes: int
    changed_ms: int


class Folder:
    """One folder. `address` opens it again, in another process or on another machine."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.local: Path | None = None
        if "://" not in address:
            self.local = Path(address).absolute()  # tasks of Spark run in folders of their own
            self.address = str(self.local)
            self._files: Any = fs.LocalFileSystem()
            self._root = str(self.local)
            return
        try:
            self._files, self._root = fs.FileSystem.from_uri(address)
        except (pa.ArrowException, ValueError, OSError) as error:
            # The library's text repeats the address, with login and options.
            why = str(error) if shown_address(address) == address else type(error).__name__
            raise BadConfig(
                [f"folder {shown_address(address)!r} cannot be used: {why}: give a path, or s3://, gs://, hdfs://"]
            ) from None
        # file:// is a local folder too, which needs no scratch copies.
        if isinstance(self._files, fs.LocalFileSystem):
            self.local = Path(self._root)

    def __str__(self) -> str:
        """The address without login and options, safe to show."""
        return shown_address(self.address)

    def make(self) -> None:
        """Create the folder unless it exists."""
        with self._telling("creating"):
            self._files.create_dir(self._root, recursive=True)

    def list(self) -> Iterator[StoredFile]:
        """All files below the folder, by name; none if it does not exist."""
        with self._telling("listing"):
            found = self._files.get_file_info(fs.FileSelector(self._root, allow_not_found=True, recursive=True))
        for one in sorted(found, key=lambda info: info.path):
            if one.type == fs.FileType.File:
                changed = -1 if one.mtime_ns is None else one.mtime_ns // 1_000_000
                name = one.path[len(self._root.rstrip("/")) + 1 :]
                yield StoredFile(name, one.size or 0, changed)

    def is_folder(self) -> bool:
        """Whether the folder exists."""
        with self._telling("checking"):
            return bool(self._files.get_file_info(self._root).type == fs.FileType.Directory)

    def read(self, name: str) -> bytes | None:
        """The bytes of a small file; None if it does not exist."""
        path = self._path(name)
        with self._telling(f"reading {name} of"):
            if self._files.get_file_info(path).type != fs.FileType.File:
                return None
            with self._files.open_input_stream(path) as stream:
                return bytes(stream.read())

    def write(self, name: str, content: bytes) -> None:
        """Write a small text file (UTF-8) atomically: a reader sees all of it or nothing."""
        if self.local is not None:
            write_atomically(self.local / name, content.decode())
            return
        # Object storage shows an object only when it is complete, so no temporary name is needed.
        with self._telling(f"writing {name} to"), self._files.open_output_stream(self._path(name)) as stream:
            stream.write(content)

    def put(self, path: Path, name: str) -> None:
        """Copy a local file into the folder."""
        target = self._path(name)
        telling, source = self._telling(f"writing {name} to"), path.open("rb")
        with telling, source, self._files.open_output_stream(target) as stream:
            while chunk := source.read(CHUNK_BYTES):
                stream.write(chunk)

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file of the folder to a local path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        telling, target = self._telling(f"reading {name} of"), path.open("wb")
        with telling, target, self._files.open_input_stream(self._path(name)) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                target.write(chunk)

    def remove(self, name: str) -> None:
        """Delete one file."""
        with self._telling(f"removing {name} of"):
            self._files.delete_file(self._path(name))

    def _path(self, name: str) -> str:
        # A name may be from a manifest, and must not lead out of the folder.
        if name.startswith("/") or ".." in name.split("/"):
            raise InvalidRequest(f"{name!r} is not the name of a file in {self}")
        return f"{self._root.rstrip('/')}/{name}"

    def _telling(self, what: str) -> _Telling:
        return _Telling(f"{what} {self}")


def below(address: str, name: str) -> str:
    """The address of `name` below another address; `?endpoint_override=...` stays at the end."""
    path, mark, query = address.partition("?") if "://" in address else (address, "", "")
    return f"{path.rstrip('/')}/{name}{mark}{query}"


class _Telling:
    """Turns errors of the file system into ours."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError | pa.ArrowException):
            raise Unavailable(f"{self._what}: {error}: check the address, and the rights of this user") from error


def sync(path: Path) -> None:
    """Make a file's bytes durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
