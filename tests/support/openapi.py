"""Schemas of an OpenAPI document with references resolved."""

from __future__ import annotations

from typing import Any


def inlined(schema: Any, document: dict[str, Any]) -> Any:
    """A schema, or a part of one, with each `$ref` replaced by the component that it names."""
    if isinstance(schema, list):
        return [inlined(one, document) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return inlined(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    return {name: inlined(one, document) for name, one in schema.items()}
