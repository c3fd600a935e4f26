"""Stores as the HTTP API declares them: JSON to definitions, and the stores that a declaration adds.

    {"name": "counts", "kind": "window", "window_size_ms": 60000, "retention_ms": 86400000}

Keys and values are opaque bytes to a sidecar, so each of its stores has the serdes bytes/bytes.

Rules of this file: pure. A definition that differs from the declared one is a conflict, whichever field differs: a
silent change would leave rows that no reader can decode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from standfast.store import serde
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.specs import SPECS, TRAITS, StoreSpec, definition_changes

# Settings of every kind. Those of one kind that are `local` mean something only where the application's serdes are, so
# a sidecar's stores do not have them.
_COMMON = ("timestamped", "caching", "logging", "engine", "changelog")


class DeclaredStores(NamedTuple):
    """The result of a declaration: all stores from now on, and the names that are new."""

    specs: tuple[StoreSpec, ...]
    created: tuple[str, ...]


class Conflict(InvalidRequest):
    """A store is already declared with another definition, or cannot be declared while tasks are held."""


def spec_of(shape: Mapping[str, Any]) -> StoreSpec:
    """The definition of a JSON object whose fields have been checked for their types. Raises InvalidRequest."""
    name, kind = shape["name"], shape["kind"]
    own = [one for one in TRAITS[kind].settings if not one.local]
    unknown = sorted(shape.keys() - {"name", "kind", *_COMMON, *(one.name for one in own)})
    missing = [one.name for one in own if one.needed and one.name not in shape]
    if unknown or missing:
        said = f"a {kind} store has no {unknown[0]}" if unknown else f"a {kind} store needs {missing[0]}"
        raise InvalidRequest(f"store {name!r}: {said}")
    settings = {field: value for field, value in shape.items() if field not in ("name", "kind")}
    try:
        return SPECS[kind](name, serde.bytes, serde.bytes, **settings)
    except BadConfig as error:
        raise InvalidRequest(str(error)) from error


def shape_of(spec: StoreSpec) -> dict[str, Any]:
    """Inverse of spec_of."""
    shape: dict[str, Any] = {"name": spec.name, "kind": spec.kind}
    for field in (*_COMMON, *(one.name for one in spec.traits.settings if not one.local)):
        value = getattr(spec, field)
        shape[field] = dict(value) if isinstance(value, Mapping) else value
    return shape


def declare(present: Iterable[StoreSpec], shapes: Iterable[Mapping[str, Any]]) -> DeclaredStores:
    """Add declared stores to those present. Raises InvalidRequest or Conflict, and changes nothing then."""
    known = {spec.name: spec for spec in present}
    created: list[str] = []
    seen: set[str] = set()
    for spec in map(spec_of, shapes):
        if spec.name in seen:
            raise InvalidRequest(f"store {spec.name!r} is declared twice: declare it once")
        seen.add(spec.name)
        if spec.name not in known:
            known[spec.name] = spec
            created.append(spec.name)
            continue
        # Compared as JSON shapes, which hold every setting with its default: leaving a default out is no change.
        changes = definition_changes(shape_of(known[spec.name]), shape_of(spec))
        if changes:
            raise Conflict(
                f"store {spec.name!r} is declared with another definition ({'; '.join(changes)}): declare it as it "
                "was, or give the changed store a new name"
            )
    return DeclaredStores(tuple(known.values()), tuple(created))
