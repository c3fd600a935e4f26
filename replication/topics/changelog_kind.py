"""Which kind of store a changelog is of: told by its newest records' keys, and by its policy where it has none.

    window     ... | start, 8 bytes | sequence, 4 bytes          cleanup compact,delete, or delete with duplicates
    session    ... | end, 8 bytes   | start, 8 bytes             cleanup compact,delete
    plain      anything else: key-value, versioned               cleanup compact, as it is made

The last bytes of a plain key that is text are no time: read as one they lie far in the future. A plain store's
changelog may have been given cleanup compact,delete, so keys decide there, if it has any.

Rules of this file: pure. Only what is certainly wrong is refused; it must not know who asks.
"""

from __future__ import annotations

from collections.abc import Iterable

from standfast.replication.log import Record, TopicInfo
from standfast.store import session_key, window_key
from standfast.store.errors import Corruption

LOOK_RECORDS = 100
AHEAD_MS = 10 * 366 * 24 * 3_600_000  # no window or session lies further ahead of its record
_WORDS = {"window": "a window store", "session": "a session store"}
_PLAIN = "a keyvalue or versioned store"


def kind_problem(name: str, kind: str, info: TopicInfo, newest: Iterable[Record]) -> str | None:
    """Why store `name` cannot be of this kind (`keyvalue`, `window`, ...); None if nothing speaks against it."""
    records = [record for record in newest if record.key is not None]
    deletes = "delete" in info.policy.cleanup
    timed = [shape for shape, possible in _POSSIBLE.items() if records and all(map(possible, records))]
    if kind in _POSSIBLE:
        if any(map(_POSSIBLE[kind], records)) or (not records and deletes):
            return None
        found = _WORDS[timed[0]] if timed else _PLAIN
    else:
        if not deletes or (records and not timed):
            return None  # no window or session store has a changelog without delete, whatever the keys look like
        found = _WORDS[timed[0]] if timed else "a window or session store"
    why = f"its records are those of {found}" if records else f"cleanup.policy={_cleanup(info)} is that of {found}"
    return f"store {name!r} is declared as {kind}, but {info.name} is a changelog of another kind, {why}: declare it so"


def _could_be_window(record: Record) -> bool:
    try:
        start = window_key.unpack(record.key or b"")[1]
    except Corruption:  # too short, or no time
        return False
    return start <= record.timestamp + AHEAD_MS


def _could_be_session(record: Record) -> bool:
    try:
        end = session_key.unpack(record.key or b"")[2]
    except Corruption:
        return False
    return end <= record.timestamp + AHEAD_MS


_POSSIBLE = {"window": _could_be_window, "session": _could_be_session}


def _cleanup(info: TopicInfo) -> str:
    return ",".join(sorted(info.policy.cleanup))
