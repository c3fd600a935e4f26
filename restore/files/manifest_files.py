"""Manifests on disk: written last; every file's sha256 is checked before an ingest.

Rules of this file: local folders only; `standfast.restore.files.manifest` decides which manifests are refused. This
file removes nothing. RocksDB checks no block checksum when it ingests a file, so a reader would find a damaged one much
later: `check_files` runs before every ingest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from standfast.restore.files.manifest import FILE_NAME, Manifest, ManifestFile, parse_manifest
from standfast.store.errors import Corruption, InvalidRequest, Unavailable


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder. Raises InvalidRequest for a missing or newer one, Corruption for a damaged one."""
    path = folder / FILE_NAME
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidRequest(
            f"{folder} has no {FILE_NAME}: standfast did not make it, or its making was interrupted; make it again"
        ) from None
    except OSError as error:
        raise Unavailable(f"reading {path}: {error}: check that this user may read it") from error
    return parse_manifest(content, str(path))


def check_files(folder: Path, files: Iterable[ManifestFile], digest: Callable[[Path], str] | None = None) -> list[Path]:
    """Paths of these files, each compared with its size and sha256. Raises Corruption for the first mismatch.

    `digest` is the function that gave the files' digests, if that was not sha256.
    """
    paths = []
    root = folder.resolve()
    for file in files:
        path = folder / file.name
        # The name cannot leave the folder; a link in the folder could.
        if not path.resolve().is_relative_to(root):
            raise InvalidRequest(f"{path} is a link out of {folder}: put the file itself there")
        try:
            size, found = path.stat().st_size, None
            if size == file.bytes:  # a file of another size is damaged without hashing it
                found = (digest or sha256_of)(path)
        except FileNotFoundError:
            raise Corruption(
                f"{path} is missing, though its manifest names it: copy or make the folder again"
            ) from None
        except OSError as error:
            raise Unavailable(f"reading {path}: {error}: check that this user may read it") from error
        if found != file.sha256:
            what = f"has {size} bytes instead of {file.bytes}" if found is None else f"has sha256 {found}"
            raise Corruption(
                f"{path} is damaged: it {what}, its manifest says {file.sha256}; copy or make the folder again"
            )
        paths.append(path)
    return paths


def sha256_of(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
