"""Traits of the kinds of stores: one row a kind, which all parts of standfast read.

    settings      settings of a declaration beside serdes: in Python, TOML, JSON, --store and Spark's options
    plain         whether it may leave timestamps out
    retention     the setting that says how long rows are kept; "" for ever
    cleanup       policy of the changelog          kept_by   the topic's setting that follows the retention
    times         times at the end of a row's key (see KeyTimes); None: rows are in one family, as the key is given
    versions      every record is a version of its key, valid from the record's timestamp; else the last record wins

Rows stand beside the definitions (`standfast.store.specs`, table TRAITS), so that no definition lacks its row. Restore,
fold, comparison, rebuild and columns take a new kind that fits these traits without a line elsewhere.

Rules of this file: plain data and pure functions of bytes; it names no kind but by a row's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from standfast.store import session_key, window_key

KeptBy = Literal["", "retention.ms", "min.compaction.lag.ms"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a definition. `word` is its name on the command line; times are milliseconds from `least` on.

    `local`: it needs the application's serdes, so a sidecar's stores do not have it.
    """

    name: str
    word: str
    what: Literal["time", "flag", "text"] = "time"
    least: int = 1
    needed: bool = True
    local: bool = False

    @property
    def option(self) -> str:
        """Its name among Spark's options: windowSizeMs for window_size_ms; other settings than times use the word."""
        first, *rest = self.name.split("_")
        return first + "".join(map(str.capitalize, rest)) if self.what == "time" else self.word


@dataclass(frozen=True, slots=True)
class KeyTimes:
    """Times at the end of a row's key: (key, start, `second`), where `second` is the end, or a sequence number.

    `time_of` gives the time that decides on segment and retention; `lead` is the setting that bounds how far that time
    may be ahead of its record's timestamp, "" if no setting does.
    """

    unit: str
    suffix_bytes: int
    second: Literal["sequence", "end"]
    pack: Callable[[bytes, int, int], bytes]
    unpack: Callable[[bytes], tuple[bytes, int, int]]
    range_bounds: Callable[[bytes | None, bytes | None, int, int], tuple[bytes, bytes | None]]
    time_of: Callable[[bytes], int]
    lead: str = ""

    @property
    def needed(self) -> tuple[str, str]:
        """Columns that follow the key itself in the packed key."""
        return f"{self.unit}_start", "sequence" if self.second == "sequence" else f"{self.unit}_end"

    def columns(self, spec: Any, keys: Sequence[tuple[bytes, int, int]]) -> dict[str, list[Any]]:
        """Unpacked keys as columns; with a sequence, the window's end is computed from its start."""
        # The end of a window is not in the key: it follows from the definition's size.
        start, end = f"{self.unit}_start", f"{self.unit}_end"
        found: dict[str, list[Any]] = {"key": [key for key, _, _ in keys], start: [first for _, first, _ in keys]}
        seconds = [second for _, _, second in keys]
        if self.second == "end":
            return found | {end: seconds}
        size_ms = getattr(spec, self.lead)
        return found | {end: [window_key.end_of(first, size_ms) for first in found[start]], "sequence": seconds}


WINDOW_TIMES = KeyTimes(
    "window",
    window_key.SUFFIX_BYTES,
    "sequence",
    window_key.pack,
    window_key.unpack,
    window_key.range_bounds,
    window_key.start_of,
    lead="window_size_ms",
)
SESSION_TIMES = KeyTimes(
    "session",
    session_key.SUFFIX_BYTES,
    "end",
    session_key.pack,
    session_key.unpack,
    session_key.range_bounds,
    session_key.end_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """A row of the table of kinds; the header explains its fields."""

    settings: tuple[Setting, ...] = ()
    plain: bool = False
    retention: str = ""
    cleanup: frozenset[str] = frozenset({"compact"})
    kept_by: KeptBy = ""
    times: KeyTimes | None = None
    versions: bool = False

    @property
    def by_key(self) -> bool:
        """Whether each key has exactly one row, stored under the key itself."""
        return self.times is None and not self.versions

    @property
    def lead(self) -> str:
        """The setting that bounds how far a row's time may be ahead of its record's; "" if there is none."""
        return "" if self.times is None else self.times.lead
