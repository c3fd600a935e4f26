"""The stores of one connection: found by name in the task that it is bound to, as far as its token allows.

    c.reads[name]      a store to read                ┐ found once a run of requests, then one look into a dict;
    c.writes[name]     a store to write               ┘ the name None means the default store of the connection
    deletes(name)      as writes, with a full disk too
    scan(name)         not while its task commits; found each time

Rules of this file: no request and no reply. `forget` comes before each run, and whenever the task, the token or the
default store may be another: between two runs a task may commit, close or lose its uncommitted writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from standfast.ops.shared.error_codes import BAD_NAME, BAD_REQUEST, NOPERM, Refused
from standfast.ops.sidecar.engine.engine import TaskEngine
from standfast.ops.sidecar.engine.task import Binding, EngineTask
from standfast.ops.sidecar.resp.arguments import name as checked_name
from standfast.store import serde as serdes
from standfast.store.types.key_ranges import number_order


class CommandRights(Protocol):
    """The part of a command that its rights go by; see `connection.py`."""

    name: str
    kind: str
    store: str


class Grant(NamedTuple):
    """Permissions of an authenticated connection; `stores` None means every store."""

    name: str
    write: bool = True
    stores: frozenset[str] | None = None


EVERYTHING = Grant("owner")


class FoundStores(dict["bytes | None", Any]):
    """Stores by the name that a request gives; `find` looks one up that is not here yet."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[bytes | None], Any]) -> None:
        self._find = find

    def __missing__(self, name: bytes | None) -> Any:
        store = self[name] = self._find(name)
        return store


class ConnectionStores:
    """See the head of this file. `grant` None: the connection has not authenticated.

    `touched`: names of the stores that a MULTI used, and whether it wrote them; None outside of one.
    """

    __slots__ = ("_binding", "_engine", "grant", "reads", "touched", "writes")

    def __init__(self, engine: TaskEngine, binding: Binding, grant: Grant | None) -> None:
        self._engine = engine
        self._binding = binding
        self.grant = grant
        self.reads = FoundStores(lambda name: self._of(engine.task(binding), name, write=False))
        self.writes = FoundStores(lambda name: self._of(engine.write(binding), name, write=True))
        self.touched: set[tuple[str, bool]] | None = None

    def forget(self) -> None:
        """Forget all stores: the next request looks its own up again."""
        self.reads.clear()
        self.writes.clear()

    def deletes(self, name: bytes | None) -> Any:
        """The store to delete from, also with a full disk."""
        if name not in self.writes:
            self.writes[name] = self._of(self._engine.write(self._binding, adds=False), name, write=True)
        return self.writes[name]

    def scan(self, name: bytes | None) -> Any:
        """The store to scan; MustWait while its task commits."""
        return self._of(self._engine.scan(self._binding), name, write=False)

    def check(self, store: str, *, write: bool) -> None:
        """Raise Refused NOPERM for a store that the token behind the connection does not allow."""
        grant = self.grant
        if grant is None:
            return
        if (write and not grant.write) or (grant.stores is not None and store not in grant.stores):
            what = "write" if write else "read"
            raise Refused(NOPERM, f"the token of {grant.name!r} may not {what} store {store!r}")

    def check_queued(self, command: CommandRights, args: list[bytes]) -> None:
        """Raise Refused NOPERM for a command of a MULTI for which the token has no right."""
        writes = command.kind == "write"
        if command.store == "task" and writes and (len(args) > 1 or command.name != "SF.TIME"):  # which then only reads
            self.check_may_write()
        store = checked_name(args[1]) if command.store == "named" else self._binding.store
        if command.store in ("named", "own") and store is not None:
            self.check(store, write=writes)

    def close(self) -> None:
        """Let go of all stores; nothing is looked up again."""
        self.forget()
        # Those until now hold a function of this object, which would keep it for the collector.
        self.reads = self.writes = FoundStores(_closed)

    def check_may_write(self) -> None:
        """Raise Refused NOPERM for a token that only reads, before a command over the whole task."""
        if self.grant is not None and not self.grant.write:
            raise Refused(NOPERM, f"the token of {self.grant.name!r} may not write")

    def _of(self, held: EngineTask, name: bytes | None, *, write: bool) -> Any:
        store_name = self._binding.store if name is None else checked_name(name)
        if store_name is None:
            raise Refused(
                BAD_NAME,
                "no default store: name one as user of the connection (AUTH store token, redis://store@...), or "
                "use the SF. commands, which name theirs",
            )
        self.check(store_name, write=write)
        if self.touched is not None:
            self.touched.add((store_name, write))
        store = held.task.stores.store(store_name)
        # Checked before it is kept: of several GETs that came together on a window store, only the first was refused
        # so.
        return of_kind(store, "keyvalue") if name is None else store


def _closed(name: bytes | None) -> Any:
    raise Refused(BAD_REQUEST, "the connection is closed")


def of_kind(store: Any, kind: str) -> Any:
    """The store, if it is of that kind. Raises Refused."""
    if store.spec.kind != kind:
        raise Refused(BAD_REQUEST, f"store {store.name!r} is a {store.spec.kind} store: use the commands of that kind")
    return store


def ordered(store: Any, given: Mapping[bytes, list[bytes]]) -> Any:
    """The store, with ranges of keys in the order of the numbers that the option BY names. Raises Refused."""
    if b"BY" not in given:
        return store
    serde = serdes.by_name(given[b"BY"][0].decode("ascii", "replace"))
    if serde is None or number_order(serde) is None:
        raise Refused(BAD_REQUEST, "BY takes int64 or float64: leave it out for the order of the keys' bytes")
    return store.ranged_by(serde)
