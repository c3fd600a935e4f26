"""The table of store types: definition -> the class that opens it, and the type that a caller gets for it.

    definition_spec    a kept definition -> the declaration, for code without the application's own
    gives_stores       task.store(counts) is a KeyValueState[str, int] for
                       counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64); task.store("counts") is Any

Rules of this file: one line and one overload per type; all other facts about a type are its traits
(`standfast.store.traits`). `gives_stores` marks the methods that return stores, so that the overloads stand here once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, cast, overload

from standfast.store import serde as serdes
from standfast.store.buffer.rows import StoreRows
from standfast.store.errors import InvalidRequest
from standfast.store.specs import SPECS, K, KeyValueStore, SessionStore, StoreSpec, V, VersionedStore, WindowStore
from standfast.store.types.keyvalue import KeyValueState
from standfast.store.types.session import SessionState
from standfast.store.types.typed import TypedStore
from standfast.store.types.versioned import VersionedState
from standfast.store.types.window import WindowState

P = ParamSpec("P")  # a method's parameters after the store, such as a partition

KINDS: dict[type[StoreSpec], Any] = {
    KeyValueStore: KeyValueState,
    WindowStore: WindowState,
    SessionStore: SessionState,
    VersionedStore: VersionedState,
}


def open_store(spec: StoreSpec, rows: StoreRows, topic: str | None = None) -> TypedStore[Any, Any, Any]:
    """The store of a definition over its rows; `topic` is its changelog, None where its serdes are those of bytes."""
    store: TypedStore[Any, Any, Any] = KINDS[type(spec)](spec, rows)
    store.bind(topic)
    return store


def definition_spec(name: str, definition: Mapping[str, Any]) -> StoreSpec:
    """The declaration of a kept definition (`StoreSpec.definition`); a serde of the application's own becomes bytes.

    Raises InvalidRequest for a definition that no store of this version has.
    """
    try:
        kind = SPECS[definition["kind"]]
        key, value = serdes.by_name(definition["key"]), serdes.by_name(definition["value"])
        settings = {
            setting: given
            for setting, given in definition.items()
            if setting not in ("kind", "key", "value", "engine", "logging")
        }
        return kind(name, key or serdes.bytes, value or serdes.bytes, **settings)
    except (KeyError, TypeError) as error:
        raise InvalidRequest(
            f"store {name!r}: its definition {dict(definition)!r} is of no store that this version of standfast knows"
        ) from error


class StoreOf(Protocol[P]):
    """A callable that returns a store by its definition, or by its name."""

    @overload
    def __call__(self, store: KeyValueStore[K, V], /, *more: P.args, **named: P.kwargs) -> KeyValueState[K, V]: ...
    @overload
    def __call__(self, store: WindowStore[K, V], /, *more: P.args, **named: P.kwargs) -> WindowState[K, V]: ...
    @overload
    def __call__(self, store: SessionStore[K, V], /, *more: P.args, **named: P.kwargs) -> SessionState[K, V]: ...
    @overload
    def __call__(self, store: VersionedStore[K, V], /, *more: P.args, **named: P.kwargs) -> VersionedState[K, V]: ...
    @overload
    def __call__(self, store: str, /, *more: P.args, **named: P.kwargs) -> Any: ...


class StoreMethod(Protocol[P]):
    """A method that becomes a `StoreOf` when it is bound."""

    def __get__(self, one: object, owner: type | None = None, /) -> StoreOf[P]: ...


def gives_stores(method: Callable[Concatenate[Any, str | StoreSpec, P], Any]) -> StoreMethod[P]:
    """Decorator of a method that takes a definition or a name first: returns it unchanged, with exact types."""
    return cast("StoreMethod[P]", method)
