"""A storage of snapshots in a world: objects in a dictionary, behind the product's own Storage.

    put_new, prove, check_reads, download      the product's own
    create, read, head, list, delete, ranges   here: one call each

A storage that does not answer is asked again until the patience ends, as by the library that the product uses.
Rules of this file: an object is there as a whole or not at all, and its time is the world's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from obstore import Bytes

from simulator.calls import Calls
from standfast.restore.snapshot.address import Address
from standfast.restore.snapshot.planning import StoredObject
from standfast.restore.snapshot.storage import PATIENCE_S, PIECE_BYTES, Storage
from standfast.store.errors import Corruption, Unavailable

T = TypeVar("T")


class SimBucket:
    """The objects of all applications, and the condition of the storage. `now_ms` is the storage's clock."""

    def __init__(self, calls: Calls, now_ms: Callable[[], int]) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}  # content and time of writing, by PREFIX/APP/KEY
        self.away = False  # it does not answer
        self.damages_reads = False  # such as a proxy before it
        self._calls = calls
        self._now_ms = now_ms

    def lose(self, key: str) -> None:
        """Remove an object by another hand than the application's."""
        del self.objects[key]

    def damage(self, key: str, at: int) -> None:
        """Flip a bit of the byte at this place of an object."""
        content, written_ms = self.objects[key]
        self.objects[key] = flipped(content, at), written_ms

    def put(self, key: str, content: bytes) -> None:
        """Put an object as a whole."""
        self.objects[key] = content, self._now_ms()

    def create(self, key: str, content: bytes) -> bool:
        """Put an object that must be new; False if its key is taken."""
        new = content, self._now_ms()
        return self.objects.setdefault(key, new) is new

    def content(self, key: str) -> bytes | None:
        """The bytes that a reader gets."""
        found = self.objects.get(key)
        if found is None or not self.damages_reads:
            return None if found is None else found[0]
        return flipped(found[0], 0)

    def ask(self, name: str, where: str, patience_s: int, effect: Callable[[], T]) -> T:
        """A request, which is repeated until the storage answers or the patience ends."""
        if self.away:
            self._calls.wait(patience_s * 1_000, lambda: not self.away)

        def request() -> T:
            if self.away:
                raise Unavailable(f"{name}: the storage of snapshots {where} does not answer (simulated)")
            return effect()

        return self._calls.run(name, request)


class SimStorage(Storage):
    """One application's part of a bucket."""

    def __init__(self, bucket: SimBucket, address: Address, app: str, *, patience_s: int = PATIENCE_S) -> None:
        self.app = app
        self.where = f"{address.text.rstrip('/')}/{app}"
        self.patience_s = patience_s
        self._bucket = bucket
        self._prefix = self.where.removeprefix("sim://").partition("/")[2] + "/"
        self._proved = False

    def put_file(self, key: str, path: Path, *, pace: Callable[[int], None] | None = None) -> None:
        """As of Storage."""
        content = path.read_bytes()
        if pace is not None:
            for begin in range(0, len(content), PIECE_BYTES):
                pace(len(content[begin : begin + PIECE_BYTES]))
        self._ask("storage.put", lambda: self._bucket.put(self._full(key), content))

    def read(self, key: str) -> bytes | None:
        """As of Storage."""
        return self._ask("storage.read", lambda: self._bucket.content(self._full(key)))

    def head(self, key: str) -> StoredObject | None:
        """As of Storage."""
        return self._ask("storage.head", lambda: self._stored(self._full(key)))

    def list(self, prefix: str) -> list[StoredObject]:
        """As of Storage."""
        below = self._full(prefix.rstrip("/") + "/" if prefix else "")
        keys = [key for key in self._bucket.objects if key.startswith(below)]
        return self._ask("storage.list", lambda: [one for key in sorted(keys) if (one := self._stored(key))])

    def delete(self, key: str) -> None:
        """As of Storage."""
        self._ask("storage.delete", lambda: self._bucket.objects.pop(self._full(key), None))

    def read_range(self, key: str, begin: int, length: int) -> Bytes:
        """As of Storage."""
        content = self._ask("storage.read", lambda: self._bucket.content(self._full(key)))
        if content is None:
            raise Corruption(f"{key} of {self.where} is missing, though a manifest names it")
        if len(content) < begin + length:
            raise Corruption(f"{key} of {self.where} has only {len(content)} bytes")
        return Bytes(content[begin : begin + length])

    def _create(self, key: str, content: bytes) -> bool:
        return self._ask("storage.create", lambda: self._bucket.create(self._full(key), content))

    def _full(self, key: str) -> str:
        return self._prefix + key

    def _stored(self, full: str) -> StoredObject | None:
        found = self._bucket.objects.get(full)
        return None if found is None else StoredObject(full.removeprefix(self._prefix), len(found[0]), found[1])

    def _ask(self, name: str, effect: Callable[[], T]) -> T:
        return self._bucket.ask(name, self.where, self.patience_s, effect)


def opener(buckets: Mapping[str, SimBucket]) -> Callable[[Address, str, int | None], Storage]:
    """What the product calls to open a storage: `sim://NAME/PREFIX` is in the bucket of this name."""

    def open_storage(address: Address, app: str, patience_s: int | None) -> Storage:
        bucket = buckets[address.text.removeprefix("sim://").partition("/")[0]]
        return SimStorage(bucket, address, app, patience_s=PATIENCE_S if patience_s is None else patience_s)

    return open_storage


def flipped(content: bytes, at: int) -> bytes:
    """The bytes with one bit flipped; empty ones stay."""
    return content[:at] + bytes(byte ^ 1 for byte in content[at : at + 1]) + content[at + 1 :]
