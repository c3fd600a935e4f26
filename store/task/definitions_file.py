"""A task's definitions of stores beside its database, for readers that must know its stores without copying the task.

    <task>/STORES   {"schema": "standfast.stores/1", "crc": 1234, "stores": {name: definition}}

The database has the same in its record, and the record decides. The file is removed before the record changes and
written after it, so that a crash leaves no file rather than an old one; the next opening writes it again. It holds no
positions: these move with every commit, and a copy beside the database would be behind.

Rules of this file: one small file, written by the process that has the task open. A version of standfast that does not
know the file leaves it unchanged, so a reader checks it against the database as soon as that is open.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from standfast.store import files
from standfast.store.errors import Unavailable
from standfast.store.log import as_event, logger

STORES_FILE = "STORES"
SCHEMA = "standfast.stores/1"


class FileStores(NamedTuple):
    """The content of such a file: definitions by name, or None and the reason why the file does not count."""

    stores: dict[str, Any] | None
    fault: str = ""


def dump(stores: Mapping[str, Any]) -> str:
    """The text of the file."""
    return json.dumps({"schema": SCHEMA, "crc": _checksum(stores), "stores": stores}) + "\n"


def parse(raw: bytes | None) -> FileStores:
    """The file's content; any text that `dump` does not write is a fault, and never a partial answer."""
    if raw is None:
        return FileStores(None, f"there is no file {STORES_FILE} (an earlier version wrote the task)")
    try:
        fields = json.loads(raw)
        schema, crc, stores = fields["schema"], fields["crc"], fields["stores"]
        whole = isinstance(stores, dict) and all(isinstance(one, dict) for one in stores.values())
    except (ValueError, KeyError, TypeError) as error:
        return FileStores(None, f"its file {STORES_FILE} is not readable ({error!r})")
    if schema != SCHEMA:
        return FileStores(None, f"its file {STORES_FILE} is {schema!r}, and this version reads {SCHEMA}")
    if not whole or crc != _checksum(stores):
        return FileStores(None, f"its file {STORES_FILE} is damaged (wrong checksum)")
    return FileStores(stores)


def forget_other(directory: Path, stores: Mapping[str, Any]) -> None:
    """Remove the file if its definitions differ from `stores`: the record is about to change to these."""
    path = directory / STORES_FILE
    try:
        if path.exists() and parse(path.read_bytes()).stores != stores:
            files.remove(path)
    except OSError as error:
        raise Unavailable(f"removing {path}: {error}: check the rights of this user") from error


def keep(directory: Path, stores: Mapping[str, Any]) -> None:
    """Write the file unless it has these definitions already; if the disk refuses, it is left out."""
    path = directory / STORES_FILE
    try:
        if not path.is_file() or parse(path.read_bytes()).stores != stores:
            files.write_atomically(path, dump(stores))
    except OSError as error:
        # The file is a convenience of readers; a commit or an opening must not fail for it.
        with contextlib.suppress(OSError):
            files.remove(path, missing_ok=True)
        logger.warning(
            "%s is not written (%s): readers of copies open the database instead",
            path,
            error,
            extra=as_event("definitions_unwritten", path=str(path)),
        )


def _checksum(stores: Mapping[str, Any]) -> int:
    # Sorted, so that a reader that parsed the JSON computes the same bytes.
    return zlib.crc32(json.dumps(stores, sort_keys=True, separators=(",", ":")).encode())
