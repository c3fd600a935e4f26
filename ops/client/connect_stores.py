"""Stores of a sidecar with the methods of embedded stores: serdes run here, the sidecar sees bytes.

    get, put, range ...  ──serdes──>  SF.GET, SF.PUT, SF.RANGE ...  ──Unix socket──>  the task's store

Rules of this file: one class a kind, one call a method. Ranges are read in pages where the RESP server offers pages,
else in one reply; a closed iterator raises Closed, as an embedded one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from standfast.ops.client.connect_wire import Argument, Wire
from standfast.store import serde as serdes
from standfast.store.arguments import checked
from standfast.store.closing import Closing
from standfast.store.errors import Closed, InvalidRequest
from standfast.store.results import PUT_NOT_VALID, ValueAndTimestamp, VersionedRecord, Windowed
from standfast.store.specs import StoreSpec
from standfast.store.types.key_ranges import key_spans, number_order

T = TypeVar("T")
PAGE_ROWS = 1_000  # a whole range in one reply could pass `limits.reply_max`, which cuts the connection off
TIME_MAX_MS = 2**63 - 1


class RemoteIterator(Closing, Generic[T]):
    """Rows of a range; an iterator and context manager."""

    def __init__(self, rows: Iterator[T], store: str) -> None:
        self._rows: Iterator[T] | None = rows
        self._store = store

    def __iter__(self) -> RemoteIterator[T]:
        return self

    def __next__(self) -> T:
        if self._rows is None:
            raise Closed(f"iterator of store {self._store!r} is closed: open a new one")
        return next(self._rows)

    def close(self) -> None:
        """Read no further; twice is fine."""
        self._rows = None


class RemoteStore:
    """The parts that all kinds share."""

    def __init__(self, spec: StoreSpec, wire: Wire) -> None:
        self.spec = spec
        self.name = spec.name
        self._wire = wire

    def _call(self, command: str, *arguments: Argument) -> Any:
        return self._wire.call(command, self.name, *arguments)

    def _key(self, key: Any) -> bytes:
        if key is None:
            raise InvalidRequest(f"store {self.name!r}: a key cannot be None")
        return serdes.encode(self.spec.key, key, store=self.name, part="key")

    def _value(self, value: Any) -> bytes:
        return serdes.encode(self.spec.value, value, store=self.name, part="value")

    def _read_key(self, raw: bytes) -> Any:
        return serdes.decode(self.spec.key, raw, store=self.name, part="key")

    def _read_value(self, raw: bytes | None) -> Any:
        return None if raw is None else serdes.decode(self.spec.value, raw, store=self.name, part="value")

    def _iterate(self, rows: Iterator[T]) -> RemoteIterator[T]:
        return RemoteIterator(rows, self.name)

    def _ends(self, key_from: Any, key_to: Any) -> tuple[bytes, bytes, tuple[Argument, ...]]:
        """Both ends of a range, b"" for an open one, and the option that names the order of numbers."""
        low = None if key_from is None else self._key(key_from)
        high = None if key_to is None else self._key(key_to)
        key_spans(self.spec.key, low, high, store=self.name)  # for its errors, before the iterator is made
        order: tuple[Argument, ...] = () if number_order(self.spec.key) is None else ("BY", self.spec.key.name)
        return low or b"", high or b"", order

    def _windowed(self, flat: Sequence[Any]) -> Iterator[tuple[Windowed[Any], Any]]:
        for key, start, end, value in zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True):
            yield Windowed(self._read_key(key), start, end), self._read_value(value)


@checked(InvalidRequest, "__init__")
class RemoteKeyValue(RemoteStore):
    """See KeyValueState."""

    def get(self, key: Any) -> Any:
        return self._read_value(self._call("SF.GET", self._key(key)))

    def get_with_timestamp(self, key: Any) -> ValueAndTimestamp[Any] | None:
        found = self._call("SF.GET", self._key(key), "WITHTS")
        return None if found is None else ValueAndTimestamp(self._read_value(found[0]), found[1])

    def put(self, key: Any, value: Any, timestamp: int | None = None) -> None:
        if value is None:
            self._call("SF.DEL", self._key(key))
        else:
            self._call("SF.PUT", self._key(key), self._value(value), *_stamp(timestamp))

    def put_if_absent(self, key: Any, value: Any, timestamp: int | None = None) -> Any:
        """One step at the sidecar: NX writes only if the key is absent, GET returns the old value."""
        found = self._call("SF.PUT", self._key(key), self._value(value), "NX", "GET", *_stamp(timestamp))
        return self._read_value(found)

    def put_all(self, items: Iterable[tuple[Any, Any]], timestamp: int | None = None) -> None:
        commands: list[Sequence[Argument]] = []
        for key, value in items:
            if value is None:
                commands.append(("SF.DEL", self.name, self._key(key)))
            else:
                commands.append(("SF.PUT", self.name, self._key(key), self._value(value), *_stamp(timestamp)))
        # All or nothing, as the embedded put_all is.
        self._wire.calls([("MULTI",), *commands, ("EXEC",)])

    def delete(self, key: Any) -> Any:
        raw = self._key(key)
        old = self._call("SF.GET", raw)
        self._call("SF.DEL", raw)
        return self._read_value(old)

    def range(self, key_from: Any = None, key_to: Any = None, *, reverse: bool = False) -> RemoteIterator[Any]:
        start, end, order = self._ends(key_from, key_to)
        return self._iterate(self._pages("SF.RANGE", (start, end), reverse, order))

    def prefix_scan(self, prefix: Any, *, reverse: bool = False) -> RemoteIterator[Any]:
        return self._iterate(self._pages("SF.PREFIX", (self._key(prefix),), reverse))

    def all(self, reverse: bool = False) -> RemoteIterator[Any]:
        return self._iterate(self._pages("SF.RANGE", (b"", b""), reverse))

    def approximate_num_entries(self) -> int:
        return int(self._call("SF.COUNT"))

    def _pages(
        self, command: str, bounds: Sequence[bytes], reverse: bool, order: tuple[Argument, ...] = ()
    ) -> Iterator[tuple[Any, Any]]:
        after: tuple[Argument, ...] = ()
        while True:
            flat = self._call(command, *bounds, *_rev(reverse), *order, "LIMIT", PAGE_ROWS, *after)
            for key, value in zip(flat[::2], flat[1::2], strict=True):
                yield self._read_key(key), self._read_value(value)
            if len(flat) < 2 * PAGE_ROWS:
                return
            # By key and not by count, so that rows written between two pages shift nothing.
            after = ("AFTER", flat[-2])


# Below, negative times become 0 and empty ranges are answered here: embedded stores take them, but the words of a
# command are whole numbers from 0.
@checked(InvalidRequest, "__init__")
class RemoteWindow(RemoteStore):
    """See WindowState."""

    def put(self, key: Any, value: Any, window_start: int, timestamp: int | None = None) -> None:
        if value is None:
            self._call("SF.WDEL", self._key(key), window_start)
        else:
            self._call("SF.WPUT", self._key(key), window_start, self._value(value), *_stamp(timestamp))

    def fetch(self, key: Any, window_start: int) -> Any:
        return self._read_value(self._call("SF.WGET", self._key(key), window_start))

    def fetch_range(self, key: Any, time_from: int, time_to: int, *, reverse: bool = False) -> RemoteIterator[Any]:
        raw = self._key(key)
        if max(time_from, 0) > time_to:
            return self._iterate(iter(()))
        flat = self._call("SF.WFETCH", raw, max(time_from, 0), time_to, *_rev(reverse))
        rows = zip(flat[::2], flat[1::2], strict=True)
        return self._iterate((start, self._read_value(value)) for start, value in rows)

    def fetch_key_range(
        self, key_from: Any, key_to: Any, time_from: int, time_to: int, *, reverse: bool = False
    ) -> RemoteIterator[Any]:
        low, high, order = self._ends(key_from, key_to)
        if max(time_from, 0) > time_to:
            return self._iterate(iter(()))
        flat = self._call("SF.WRANGE", low, high, max(time_from, 0), time_to, *_rev(reverse), *order)
        return self._iterate(self._windowed(flat))

    def fetch_all(self, time_from: int, time_to: int, *, reverse: bool = False) -> RemoteIterator[Any]:
        if max(time_from, 0) > time_to:
            return self._iterate(iter(()))
        return self._iterate(self._windowed(self._call("SF.WALL", max(time_from, 0), time_to, *_rev(reverse))))

    def all(self, reverse: bool = False) -> RemoteIterator[Any]:
        return self.fetch_all(0, TIME_MAX_MS, reverse=reverse)


@checked(InvalidRequest, "__init__")
class RemoteSession(RemoteStore):
    """See SessionState."""

    def put(self, key: Any, start: int, end: int, value: Any, timestamp: int | None = None) -> None:
        if value is None:
            self.remove(key, start, end)
        else:
            self._call("SF.SPUT", self._key(key), start, end, self._value(value), *_stamp(timestamp))

    def remove(self, key: Any, start: int, end: int) -> None:
        self._call("SF.SDEL", self._key(key), start, end)

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        return self._read_value(self._call("SF.SGET", self._key(key), start, end))

    def find_sessions(
        self, key: Any, earliest_end: int, latest_start: int, *, reverse: bool = False
    ) -> RemoteIterator[Any]:
        raw = self._key(key)
        if latest_start < 0:
            return self._iterate(iter(()))
        flat = self._call("SF.SFETCH", raw, max(earliest_end, 0), latest_start, *_rev(reverse))
        return self._iterate(self._windowed(flat))

    def find_sessions_key_range(
        self, key_from: Any, key_to: Any, earliest_end: int, latest_start: int, *, reverse: bool = False
    ) -> RemoteIterator[Any]:
        low, high, order = self._ends(key_from, key_to)
        if latest_start < 0:
            return self._iterate(iter(()))
        flat = self._call("SF.SRANGE", low, high, max(earliest_end, 0), latest_start, *_rev(reverse), *order)
        return self._iterate(self._windowed(flat))

    def fetch(self, key: Any, *, reverse: bool = False) -> RemoteIterator[Any]:
        return self._iterate(self._windowed(self._call("SF.SFETCH", self._key(key), *_rev(reverse))))

    def fetch_key_range(self, key_from: Any, key_to: Any, *, reverse: bool = False) -> RemoteIterator[Any]:
        return self.find_sessions_key_range(key_from, key_to, 0, TIME_MAX_MS, reverse=reverse)

    def all(self, reverse: bool = False) -> RemoteIterator[Any]:
        return self._iterate(self._windowed(self._call("SF.SALL", *_rev(reverse))))


@checked(InvalidRequest, "__init__")
class RemoteVersioned(RemoteStore):
    """See VersionedState; only `delete` writes a tombstone."""

    def put(self, key: Any, value: Any, timestamp: int | None = None) -> int:
        if value is None:
            raise InvalidRequest(
                f"store {self.name!r}: over a sidecar a tombstone is written with delete(key, timestamp)"
            )
        found = self._call("SF.VPUT", self._key(key), self._value(value), *_stamp(timestamp))
        return PUT_NOT_VALID if found is None else int(found)

    def delete(self, key: Any, timestamp: int | None = None) -> VersionedRecord[Any] | None:
        return self._record(self._call("SF.VDEL", self._key(key), *_stamp(timestamp)))

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord[Any] | None:
        asked = () if as_of is None else ("ASOF", as_of)
        return self._record(self._call("SF.VGET", self._key(key), *asked))

    def range(self, key: Any, time_from: int, time_to: int, *, ascending: bool = False) -> RemoteIterator[Any]:
        raw = self._key(key)
        if max(time_from, 0) > time_to:
            return self._iterate(iter(()))
        flat = self._call("SF.VRANGE", raw, max(time_from, 0), time_to, *(("ASC",) if ascending else ()))
        rows = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return self._iterate(VersionedRecord(self._read_value(value), since, until) for value, since, until in rows)

    def _record(self, found: Sequence[Any] | None) -> VersionedRecord[Any] | None:
        return None if found is None else VersionedRecord(self._read_value(found[0]), found[1], found[2])


REMOTE: Mapping[str, type[RemoteStore]] = {
    "keyvalue": RemoteKeyValue,
    "window": RemoteWindow,
    "session": RemoteSession,
    "versioned": RemoteVersioned,
}


def remote_store(spec: StoreSpec, wire: Wire) -> Any:
    """The store of a definition."""
    return REMOTE[spec.kind](spec, wire)


def _stamp(timestamp: int | None) -> tuple[Argument, ...]:
    return () if timestamp is None else ("TS", timestamp)


def _rev(reverse: bool) -> tuple[Argument, ...]:
    return ("REV",) if reverse else ()
