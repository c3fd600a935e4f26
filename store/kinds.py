"""The table of store types: definition -> the class that opens it.

Rules of this file: one line per type; nothing else in standfast lists them.
"""

from __future__ import annotations

from typing import Any

from standfast.store.keyvalue import KeyValueState
from standfast.store.rows import StoreRows
from standfast.store.session import SessionState
from standfast.store.specs import KeyValueStore, SessionStore, StoreSpec, VersionedStore, WindowStore
from standfast.store.typed import TypedStore
from standfast.store.versioned import VersionedState
from standfast.store.window import WindowState

KINDS: dict[type[StoreSpec], Any] = {
    KeyValueStore: KeyValueState,
    WindowStore: WindowState,
    SessionStore: SessionState,
    VersionedStore: VersionedState,
}


def open_store(spec: StoreSpec, rows: StoreRows) -> TypedStore[Any, Any, Any]:
    """The store of a definition over its rows."""
    return KINDS[type(spec)](spec, rows)  # type: ignore[no-any-return]
