"""The table of store types: definition -> the class that opens it.

    definition_spec    a kept definition -> the store as it was declared, where the declaration itself is not at hand

Rules of this file: one line per type; what else standfast knows of a type are its traits (`standfast.store.traits`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from standfast.store import serde as serdes
from standfast.store.errors import InvalidRequest
from standfast.store.rows import StoreRows
from standfast.store.specs import SPECS, KeyValueStore, SessionStore, StoreSpec, VersionedStore, WindowStore
from standfast.store.types.keyvalue import KeyValueState
from standfast.store.types.session import SessionState
from standfast.store.types.typed import TypedStore
from standfast.store.types.versioned import VersionedState
from standfast.store.types.window import WindowState

KINDS: dict[type[StoreSpec], Any] = {
    KeyValueStore: KeyValueState,
    WindowStore: WindowState,
    SessionStore: SessionState,
    VersionedStore: VersionedState,
}


def open_store(spec: StoreSpec, rows: StoreRows) -> TypedStore[Any, Any, Any]:
    """The store of a definition over its rows."""
    return KINDS[type(spec)](spec, rows)  # type: ignore[no-any-return]


def definition_spec(name: str, definition: Mapping[str, Any]) -> StoreSpec:
    """A store by what is kept beside its data (`StoreSpec.definition`); a serde of the application's own is bytes here.

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
