"""Parsers of the texts of RocksDB and the binding: errors for a caller, and the time for which writes were held back.

Stalls come from the property `rocksdb.dbstats`, which counts them without the database's statistics switched on: these
cost a get a tenth of its time and more.

Rules of this file: imports nothing of rocksdict. The binding has one class of error, so only the text shows the kind;
this file alone reads it. An error of unknown text is an InternalError and is never ignored.
"""

from __future__ import annotations

import re
from pathlib import Path

from standfast.store.errors import Closed, Corruption, Held, InternalError, InvalidRequest, StandfastError, Unavailable
from standfast.store.file_errors import NO_DESCRIPTORS_TEXT, errno_of_text, no_descriptors, no_room
from standfast.store.process.tracebacks import is_foreign

_TABLE_FILE = re.compile(r"([0-9]{6,})\.sst")
_PLACE = re.compile(r"([0-9]{6,}\.sst)(?: offset ([0-9]{1,18}) size ([0-9]{1,18}))?")
STALLS_PROPERTY = "rocksdb.dbstats"
_TOTAL = re.compile(r"^Cumulative stall: (\d+):(\d+):(\d+)\.(\d{3}) H:M:S", re.MULTILINE)


def damaged_file(text: str) -> str | None:
    """The number of the table file that an error of the binding names, without leading zeros; None if it names none."""
    found = _TABLE_FILE.search(text)
    return None if found is None else str(int(found[1]))


def damaged_place(text: str) -> tuple[str, int, int | None] | None:
    """The table file that an error names, with offset and size of the damaged block; (0, None) without a place."""
    found = _PLACE.search(text)
    if found is None:
        return None
    return (found[1], int(found[2]), int(found[3])) if found[2] else (found[1], 0, None)


def translate(error: Exception, where: str, path: Path | None = None) -> StandfastError:
    """Our error for the binding's, which has one class for all kinds, so that the text decides.

    `path`: the database's folder, of which the error then says more.
    """
    if isinstance(error, StandfastError):
        return error
    if is_foreign(error):
        raise error  # a signal handler raised it during our call: the program expects its own exception
    text = str(error).strip()
    # By its name: this file imports nothing of rocksdict.
    if type(error).__name__ == "DbClosedError" or "mutably borrowed" in text or text.startswith("Shutdown in"):
        return Closed(f"{where}: it was closed meanwhile: open a new one")
    if NO_DESCRIPTORS_TEXT in text:  # before the test for damage: a file that fails to open for this reason is whole
        return no_descriptors(where)
    if (number := errno_of_text(text)) is not None:  # likewise: a write is missing, no byte is damaged
        return no_room(where, number, path)
    if "raw mode only support bytes" in text or isinstance(error, TypeError):
        return InvalidRequest(f"{where}: keys and values must be bytes ({text})")
    if "IO error" in text and "LOCK" in text and ("lock hold" in text or "While lock file" in text):
        holder = "another process or engine" if path is None else lock_holder(path / "LOCK")
        held = Held(f"{where}: {holder} holds it: stop that one first, or open read-only")
        held.by_us = "lock hold by current process" in text
        return held
    # RocksDB reports a removed file as an IO error, but only a restore brings its rows back.
    lost_file = "No such file" in text and any(mark in text for mark in (".sst", "MANIFEST"))
    if "Corruption" in text or "checksum mismatch" in text or lost_file:
        return Corruption(f"{where}: stored bytes are damaged ({text}): restore this task from its log")
    if "comparator" in text:
        return InvalidRequest(f"{where}: not a database of standfast ({text}): choose another directory")
    if isinstance(error, OSError) or any(mark in text for mark in ("IO error", "Busy", "Incomplete", "timed out")):
        return Unavailable(f"{where}: the file system failed ({text}): check space and rights, then retry")
    return InternalError(f"{where}: {type(error).__name__}: {text}")


def lock_holder(lock: Path) -> str:
    """The process that holds RocksDB's LOCK file, as far as /proc/locks shows it."""
    try:
        inode = str(lock.stat().st_ino)
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if len(fields) > 5 and fields[5].rpartition(":")[2] == inode:
                return f"process {fields[4]}"
    except OSError:
        pass
    return "another process or engine"


def stalled_ms(text: str) -> int:
    """Milliseconds of stalls since the database was opened; 0 if the text has no such figure."""
    found = _TOTAL.search(text)
    if found is None:
        return 0
    hours, minutes, seconds, thousandths = map(int, found.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000 + thousandths
