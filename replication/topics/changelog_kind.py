"""Recognises the store kind of a changelog by its newest records' keys, and by its policy if it has no records.

    window     ... | start, 8 bytes | sequence, 4 bytes          cleanup compact,delete, or delete with duplicates
    session    ... | end, 8 bytes   | start, 8 bytes             cleanup compact,delete
    plain      any other key: key-value, versioned               cleanup compact, as created

The last bytes of a plain text key are no time: read as a time they lie far in the future. A plain store's changelog
may have been set to cleanup compact,delete, so keys decide there, if it has any.

Rules of this file: pure. It refuses only a kind that is certainly wrong; it must not know its caller.
"""

from __future__ import annotations

from collections.abc import Iterable

from standfast.replication.log import Record, TopicInfo
from standfast.store.errors import Corruption
from standfast.store.specs import TRAITS
from standfast.store.traits import KeyTimes

LOOK_RECORDS = 100
AHEAD_MS = 10 * 366 * 24 * 3_600_000  # ten years: no window or session lies further ahead of its record
_TIMES = {kind: traits.times for kind, traits in TRAITS.items() if traits.times is not None}
_TIMED = f"a {' or '.join(_TIMES)} store"
_PLAIN = f"a {' or '.join(kind for kind in TRAITS if kind not in _TIMES)} store"


def kind_problem(name: str, kind: str, info: TopicInfo, newest: Iterable[Record]) -> str | None:
    """Why store `name` cannot be of this kind (`keyvalue`, `window`, ...); None if it may be."""
    records = [record for record in newest if record.key is not None]  # no store wrote the others
    deletes = "delete" in info.policy.cleanup
    timed = [name for name, times in _TIMES.items() if records and all(_possible(times, one) for one in records)]
    found = f"a {timed[0]} store" if timed else ""
    times = _TIMES.get(kind)
    if times is not None:
        if any(_possible(times, one) for one in records) or (not records and deletes):
            return None
        found = found or _PLAIN
    else:
        if not deletes or (records and not timed):
            return None  # every window or session store's changelog has delete, so keys do not matter without it
        found = found or _TIMED
    why = f"its records are those of {found}" if records else f"cleanup.policy={_cleanup(info)} is that of {found}"
    return f"store {name!r} is declared as {kind}, but {info.name} is of another kind, {why}: declare that kind"


def _possible(times: KeyTimes, record: Record) -> bool:
    """Whether the record's key may have this layout."""
    key = record.key or b""
    try:
        times.unpack(key)
    except Corruption:  # too short, or no time
        return False
    return times.time_of(key) <= record.timestamp + AHEAD_MS


def _cleanup(info: TopicInfo) -> str:
    return ",".join(sorted(info.policy.cleanup))
