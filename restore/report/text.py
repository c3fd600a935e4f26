"""Words of the reports, for pages and for terminals: bytes, keys, times, sizes, one side of a row.

Rules of this file: pure; plain text out, which the page escapes. Bytes are shown as text if they are text, else in hex.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from standfast.restore.compare import RowSide
from standfast.store.errors import Corruption
from standfast.store.specs import TRAITS

SHOWN_BYTES = 120


def skipped_text(whose: str, count: int) -> str:
    """The line about skipped records."""
    return f"{whose}: {count} records are skipped: they have no key, or the store cannot hold them"


def shown(raw: bytes) -> str:
    """Bytes for people: as text if they are text, else in hex; long ones are cut."""
    cut = raw[:SHOWN_BYTES]
    try:
        text = cut.decode("utf-8")
    except UnicodeDecodeError as error:
        # If the cut goes through a character, the bytes before it are text all the same.
        halved = len(raw) > SHOWN_BYTES and error.reason == "unexpected end of data"
        text = cut[: error.start].decode("utf-8") if halved else ""
    if not text.isprintable() or (raw and not text):
        text = "0x" + cut.hex()
    return text + ("…" if len(raw) > SHOWN_BYTES else "")


def key_text(kind: str, raw: bytes) -> str:
    """A row's key for people; keys of windows and sessions as the key and its times, not the bytes of both."""
    try:
        times = TRAITS[kind].times
        if times is not None:
            key, start, second = times.unpack(raw)
            if times.second == "end":
                return f"{shown(key)} [{time_text(start)} - {time_text(second)}]"
            return f"{shown(key)} [{time_text(start)}]" + (f" #{second}" if second else "")
    except Corruption:
        pass  # a key that does not fit the store is a finding of the report: its bytes are shown as they are
    return shown(raw)


def time_text(at_ms: int) -> str:
    """A time in UTC, to the millisecond; the number itself outside the calendar's range."""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def size_text(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1_000
    return f"{count:,.1f} TB"


def side_text(side: RowSide | None, time_of: Callable[[int], str | None] = str) -> str:
    """One side of a row for people: its value if it was kept, else its size and hash."""
    if side is None:
        return "(absent)"
    text = f"{side.value_bytes:,} B #{side.hash_hex}"
    if side.value is not None:
        text = shown(side.value) + (f" ({side.value_bytes:,} B)" if side.value_bytes > SHOWN_BYTES else "")
    return text + (f" @{time_of(side.timestamp)}" if side.timestamp >= 0 else "")


def moment_text(at_ms: int | None) -> str:
    """A time in UTC, to the second; "" for None."""
    if at_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)  # a time that an application made up
