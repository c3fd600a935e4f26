"""Opens a storage of snapshots by its address.

Rules of this file: the library of the extra `snapshots` is imported when a storage is opened, and not before.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from standfast.restore.snapshot.address import OTHERS, parse_storage
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.process.threads import THREADS, Threads

if TYPE_CHECKING:
    from standfast.restore.snapshot.storage import Storage

MISSING = "snapshots need the library 'obstore', which is not installed: pip install 'standfast[snapshots]'"


def missing_library() -> list[str]:
    """The problem, with the line that installs it, if the library of the extra is missing."""
    if find_spec("obstore") is not None:
        return []
    return [MISSING]


def open_storage(text: str, app: str, *, patience_s: int | None = None, threads: Threads = THREADS) -> Storage:
    """The storage of an application's snapshots; `patience_s` bounds the repeats of a failed request.

    `threads`: for requests that are made beside each other. Raises BadConfig for an unusable address, and with the line
    that installs the library if that is missing.
    """
    storage = _opened(text, app, patience_s)
    storage.threads = threads
    return storage


def open_existing(text: str, app: str, *, patience_s: int | None = None) -> Storage:
    """As `open_storage`, for a look: it makes no folder. Raises InvalidRequest for a folder without the application."""
    folder = parse_storage(text).folder
    # Opening would make the folder, and a mistyped one would look like a storage without snapshots.
    if folder is not None and not (folder / app).is_dir():
        raise InvalidRequest(f"{folder} has no snapshots of application {app!r}: check the folder and the application")
    return open_storage(text, app, patience_s=patience_s)


def _opened(text: str, app: str, patience_s: int | None) -> Storage:
    address = parse_storage(text)
    if address.service in OTHERS:
        return OTHERS[address.service](address, app, patience_s)
    try:
        from standfast.restore.snapshot.storage import PATIENCE_S, Storage
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "obstore":
            raise
        raise BadConfig([MISSING]) from error
    return Storage(address, app, patience_s=PATIENCE_S if patience_s is None else patience_s)
