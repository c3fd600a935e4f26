"""Public as `standfast.serde`: the built-in serdes, serdes of one's own, and those of a schema registry.

Rules of this file: it names and holds nothing. It loads no library: a serde of a schema registry does, when it is
declared.
"""

from standfast.store.schema.registry import Registry
from standfast.store.schema.serdes import avro, json_schema, protobuf
from standfast.store.serde import Serde, bytes, float64, int64, json, msgpack, pair, string

__all__ = [
    "Registry",
    "Serde",
    "avro",
    "bytes",
    "float64",
    "int64",
    "json",
    "json_schema",
    "msgpack",
    "pair",
    "protobuf",
    "string",
]
