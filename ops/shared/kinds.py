"""One table of what each kind of store offers to clients: reads as JSON rows, and commands of the RESP server.

    get, fetch, scan    a store, and raw bounds -> rows (key, further fields of the JSON object, value)
    verbs               SF.WFETCH store key from to [REV] [LIMIT n]  ──> one call of the store ──> a reply

A verb's usage is its declaration: brackets around capitals are options with so many values, other brackets are optional
as a whole, `...` takes any number. `key` and `value` are bytes, `keyfrom` and `keyto` bytes where "" is an open end,
every other word is a whole number. A verb without a call has its own handler (`standfast.ops.sidecar.resp.keyvalue`).

Rules of this file: pure calls of a store that is opened over raw bytes; one row a kind, and nothing else in `ops` lists
verbs or reads of a kind. The settings of a declaration follow from the kind's traits (`standfast.store.specs`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from standfast.store import window_key
from standfast.store.results import VersionedRecord, Windowed
from standfast.store.types.keyvalue import after_prefix

TIME_MAX = 2**63 - 1
MANY = 1 << 20  # arguments of a verb with `...`; `limits.batch_ops`, which may not be larger, bounds them

Store: TypeAlias = Any  # of the kind of the row
RawRow: TypeAlias = tuple[bytes, dict[str, Any], bytes]
Reply = Literal["ok", "number", "value", "starts", "windowed", "version", "versions", "valid to"]

_WORDS = re.compile(r"\[([^]]+)\]|(\S+)")


class KeyBounds(NamedTuple):
    """Raw keys of a scan: from low to high, both included, None is open; or keys with a prefix. `behind`: only keys
    after it in the order of the scan."""

    low: bytes | None = None
    high: bytes | None = None
    prefix: bytes | None = None
    behind: bytes | None = None

    def within(self, key: bytes) -> bool:
        """Whether a key lies within the ends and has the prefix."""
        return (
            (self.low is None or key >= self.low)
            and (self.high is None or key <= self.high)
            and (self.prefix is None or key.startswith(self.prefix))
        )


@dataclass(frozen=True, slots=True)
class Verb:
    """One command of a kind; `deletes`: it only makes room, so that a full disk does not refuse it.

    The call takes the store, the words as values, and as keywords `timestamp` (writes), `reverse` for REV, `ascending`
    for ASC, `as_of` for ASOF.
    """

    usage: str
    access: Literal["read", "write"]
    call: Callable[..., Any] | None = None
    reply: Reply = "ok"
    deletes: bool = False
    name: str = field(init=False)
    words: tuple[str, ...] = field(init=False)  # after the store's name
    needed: int = field(init=False)  # number of words that are not optional
    options: Mapping[bytes, int] = field(init=False)
    most: int = field(init=False)  # largest number of arguments, including the command's name

    def __post_init__(self) -> None:
        words: list[str] = []
        needed, options = 0, dict[bytes, int]()
        for bracket, word in _WORDS.findall(self.usage.partition(":")[0]):
            parts = (bracket or word).split()
            if bracket and parts[0].isupper():
                options[parts[0].encode()] = len(parts) - 1
            else:
                words += parts
                needed += 0 if bracket else 1
        many = words[-1] == "..."
        words, needed = words[: len(words) - many], needed - many
        most = MANY if many else len(words) + sum(1 + takes for takes in options.values())
        made = {"name": words[0], "words": tuple(words[2:]), "needed": needed - 2, "options": options, "most": most}
        for name, value in made.items():
            object.__setattr__(self, name, value)  # a frozen dataclass sets its derived fields no other way

    @property
    def least(self) -> int:
        """Smallest number of arguments, including the command's name."""
        return self.needed + 2


@dataclass(frozen=True, slots=True)
class KindOps:
    """A row of the table. A kind whose rows need more than a key has no `get`; one whose rows have no time, no
    `fetch`."""

    verbs: tuple[Verb, ...]
    scan: Callable[[Store, KeyBounds], Iterator[RawRow]]
    get: Callable[[Store, bytes, int | None], Iterator[RawRow]] | None = None
    fetch: Callable[[Store, bytes, int, int], Iterator[RawRow]] | None = None


def get_value(store: Store, key: bytes, as_of: int | None) -> Iterator[RawRow]:
    """The row of a key."""
    value = store.get(key)
    if value is not None:
        yield key, {}, value


def scan_keys(store: Store, bounds: KeyBounds) -> Iterator[RawRow]:
    """Rows of a store that has one row a key."""
    low, high, prefix, behind = bounds
    plain = prefix is not None and behind is None
    for key, value in store.prefix_scan(prefix) if plain else store.range_raw(low, high, behind=behind):
        if prefix is not None and not key.startswith(prefix):
            return
        yield key, {}, value


def _scan_windowed(store: Store, bounds: KeyBounds, rows: Iterator[tuple[Windowed[bytes], bytes]]) -> Iterator[RawRow]:
    unit = store.spec.traits.times.unit
    beyond = None if bounds.prefix is None else after_prefix(bounds.prefix)
    for (key, start, end), value in rows:
        if beyond is not None and key >= beyond:
            return  # raw key order: no later key begins with the prefix
        if bounds.prefix is None or key.startswith(bounds.prefix):
            yield key, {f"{unit}_start": start, f"{unit}_end": end}, value


def _first(bounds: KeyBounds) -> bytes | None:
    return bounds.low if bounds.prefix is None else bounds.prefix


def _fetch_windows(store: Store, key: bytes, first: int, last: int) -> Iterator[RawRow]:
    size_ms = store.spec.window_size_ms
    for start, value in store.fetch_range(key, first, last):
        yield key, {"window_start": start, "window_end": window_key.end_of(start, size_ms)}, value


def _scan_windows(store: Store, bounds: KeyBounds) -> Iterator[RawRow]:
    return _scan_windowed(store, bounds, store.fetch_key_range(_first(bounds), bounds.high, 0, TIME_MAX))


def _fetch_sessions(store: Store, key: bytes, first: int, last: int) -> Iterator[RawRow]:
    for (_, start, end), value in store.find_sessions(key, first, last):
        yield key, {"session_start": start, "session_end": end}, value


def _scan_sessions(store: Store, bounds: KeyBounds) -> Iterator[RawRow]:
    return _scan_windowed(store, bounds, store.fetch_key_range(_first(bounds), bounds.high))


def _version(key: bytes, record: VersionedRecord[bytes]) -> RawRow:
    return key, {"valid_from": record.valid_from, "valid_to": record.valid_to}, record.value


def _get_version(store: Store, key: bytes, as_of: int | None) -> Iterator[RawRow]:
    record = store.get(key, as_of)
    if record is not None:
        yield _version(key, record)


def _fetch_versions(store: Store, key: bytes, first: int, last: int) -> Iterator[RawRow]:
    return (_version(key, record) for record in store.range(key, first, last, ascending=True))


def _scan_versions(store: Store, bounds: KeyBounds) -> Iterator[RawRow]:
    by_number = store.numbers is not None
    for key, valid_from, value in (
        store.logical_rows_in_order(bounds.low, bounds.high) if by_number else store.logical_rows()
    ):
        if by_number or bounds.within(key):
            yield key, {"valid_from": valid_from}, value


OPS: Mapping[str, KindOps] = {
    "keyvalue": KindOps(
        (
            Verb("SF.PUT store key value [NX] [GET] [TS ms]", "write"),
            Verb("SF.GET store key [WITHTS]", "read"),
            Verb("SF.DEL store key ...", "write"),
            Verb("SF.COUNT store: an estimate", "read", lambda s: s.approximate_num_entries(), "number"),
            Verb("SF.RANGE store from to [REV] [LIMIT n] [AFTER key] [BY serde]", "read"),
            Verb("SF.PREFIX store prefix [REV] [LIMIT n] [AFTER key]", "read"),
        ),
        scan=scan_keys,
        get=get_value,
    ),
    "window": KindOps(
        (
            Verb(
                "SF.WPUT store key start value [TS ms]: OK also for a late row, which changes nothing and is counted",
                "write",
                lambda s, key, start, value, timestamp: s.put(key, value, start, timestamp),
            ),
            Verb("SF.WGET store key start", "read", lambda s, key, start: s.fetch(key, start), "value"),
            Verb(
                "SF.WDEL store key start",
                "write",
                lambda s, key, start, timestamp: s.put(key, None, start, timestamp),
                deletes=True,
            ),
            Verb(
                "SF.WFETCH store key from to [REV] [LIMIT n]",
                "read",
                lambda s, key, first, last, reverse: s.fetch_range(key, first, last, reverse=reverse),
                "starts",
            ),
            Verb(
                "SF.WRANGE store keyfrom keyto from to [REV] [LIMIT n] [BY serde]",
                "read",
                lambda s, low, high, first, last, reverse: s.fetch_key_range(low, high, first, last, reverse=reverse),
                "windowed",
            ),
            Verb(
                "SF.WALL store from to [REV] [LIMIT n]",
                "read",
                lambda s, first, last, reverse: s.fetch_all(first, last, reverse=reverse),
                "windowed",
            ),
        ),
        scan=_scan_windows,
        fetch=_fetch_windows,
    ),
    "session": KindOps(
        (
            Verb(
                "SF.SPUT store key start end value [TS ms]: OK also for a late session, which changes nothing and is "
                "counted",
                "write",
                lambda s, key, start, end, value, timestamp: s.put(key, start, end, value, timestamp),
            ),
            Verb("SF.SGET store key start end", "read", lambda s, *session: s.fetch_session(*session), "value"),
            Verb(
                "SF.SDEL store key start end",
                "write",
                lambda s, key, start, end, timestamp: s.put(key, start, end, None, timestamp),
                deletes=True,
            ),
            Verb(
                "SF.SFETCH store key [earliest_end latest_start] [REV] [LIMIT n]",
                "read",
                lambda s, key, *times, reverse: (s.find_sessions if times else s.fetch)(key, *times, reverse=reverse),
                "windowed",
            ),
            Verb(
                "SF.SRANGE store keyfrom keyto earliest_end latest_start [REV] [LIMIT n] [BY serde]",
                "read",
                lambda s, *bounds, reverse: s.find_sessions_key_range(*bounds, reverse=reverse),
                "windowed",
            ),
            Verb(
                "SF.SALL store [keyfrom keyto] [REV] [LIMIT n]",
                "read",
                lambda s, low=None, high=None, *, reverse: s.fetch_key_range(low, high, reverse=reverse),
                "windowed",
            ),
        ),
        scan=_scan_sessions,
        fetch=_fetch_sessions,
    ),
    "versioned": KindOps(
        (
            Verb(
                "SF.VPUT store key value [TS ms]",
                "write",
                lambda s, *put, timestamp: s.put(*put, timestamp),
                "valid to",
            ),
            Verb("SF.VGET store key [ASOF ms]", "read", lambda s, key, as_of: s.get(key, as_of), "version"),
            Verb(
                "SF.VDEL store key [TS ms]",
                "write",
                lambda s, key, timestamp: s.delete(key, timestamp),
                "version",
                deletes=True,
            ),
            Verb(
                "SF.VRANGE store key from to [ASC] [LIMIT n]",
                "read",
                lambda s, key, first, last, ascending: s.range(key, first, last, ascending=ascending),
                "versions",
            ),
        ),
        scan=_scan_versions,
        get=_get_version,
        fetch=_fetch_versions,
    ),
}
