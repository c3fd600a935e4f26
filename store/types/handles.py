"""Typed handles: a store that is asked for by its definition has the types of that definition.

    counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
    task.store(counts)        KeyValueState[str, int]
    task.store("counts")      Any

Rules of this file: types only, with one overload per type of store. `gives_stores` marks the methods that give stores,
so that the overloads stand here once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, cast, overload

from standfast.store.specs import K, KeyValueStore, SessionStore, StoreSpec, V, VersionedStore, WindowStore
from standfast.store.types.keyvalue import KeyValueState
from standfast.store.types.session import SessionState
from standfast.store.types.versioned import VersionedState
from standfast.store.types.window import WindowState

P = ParamSpec("P")  # what a method takes after the store, such as a partition


class StoreOf(Protocol[P]):
    """Gives a store by its definition, or by its name."""

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
    """A method that is a `StoreOf` once it is bound."""

    def __get__(self, one: object, owner: type | None = None, /) -> StoreOf[P]: ...


def gives_stores(method: Callable[Concatenate[Any, str | StoreSpec, P], Any]) -> StoreMethod[P]:
    """Decorator of a method that takes a definition or a name first: it is returned as it is, with exact types."""
    return cast("StoreMethod[P]", method)
