"""Serdes: how a user's keys and values become bytes and back. Public as `standfast.serde`.

    bytes     as they are (bytearray and memoryview are copied to bytes)
    string    UTF-8
    int64     8 bytes, big-endian, signed            Kafka's LongSerializer
    float64   8 bytes, big-endian IEEE 754           Kafka's DoubleSerializer
    json      UTF-8, no spaces, insertion order, no NaN or Infinity
    msgpack   bytes and str kept apart, only plain types
    pair(name, serialize, deserialize)               your own two functions

A serde may depend on the topic of its bytes, as those of a schema registry do: each reader and writer takes
`serde.of_topic(topic, part)`. The topic of a store's bytes is its changelog.

Rules of this file: a serde is a name and two functions; bytes of a value always read back as that value. No serde
here executes its input. The functions raise plain errors, which the stores turn into `serde_error(...)`, so that a
call that succeeds costs nothing more. An error that is `beyond_record` is not the record's fault and keeps its class.
"""

from __future__ import annotations

import builtins
import json as _json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypeVar

import msgpack as _msgpack

from standfast.store.errors import BadConfig, Corruption, InvalidRequest, StandfastError, Unavailable

T = TypeVar("T")
Raw: TypeAlias = builtins.bytes  # `bytes` is a serde in this file
Part: TypeAlias = Literal["key", "value"]
Direction: TypeAlias = Literal["serialize", "deserialize"]

_INT64 = struct.Struct(">q")
_FLOAT64 = struct.Struct(">d")
_NO_BOOL = "it takes numbers, not bool"


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """A named pair of functions. A store's definition keeps the name, and the next start compares it.

    `bind`: the serde for the keys or values of one topic, where bytes depend on the topic.
    """

    name: str
    serialize: Callable[[T], Raw]
    deserialize: Callable[[Raw], T]
    bind: Callable[[str, Part], Serde[T]] | None = None

    def __repr__(self) -> str:
        return f"serde.{self.name}"

    def of_topic(self, topic: str, part: Part) -> Serde[T]:
        """The serde for the keys or the values of a topic: itself, unless its bytes depend on the topic."""
        return self if self.bind is None else self.bind(topic, part)


def pair(name: str, serialize: Callable[[T], Raw], deserialize: Callable[[Raw], T]) -> Serde[T]:
    """A serde of your own. Raises InvalidRequest for the name of a built-in one or a function that is not callable.

    Any error of its functions is the record's fault, but for `Unavailable`: a service that they ask did not answer, so
    that no record is left out for it.
    """
    if not isinstance(name, str) or not name or name in _BUILT_IN:
        raise InvalidRequest(
            f"a serde cannot be named {name!r}: choose a name that is not one of {', '.join(_BUILT_IN)}"
        )
    for role, function in (("serialize", serialize), ("deserialize", deserialize)):
        if not callable(function):
            raise InvalidRequest(f"serde {name!r}: {role} must be a function, not {type(function).__name__}")

    def checked(value: T) -> Raw:
        raw = serialize(value)
        # A bytearray or a subclass would reach the engine, which takes bytes only, long after this call.
        if type(raw) is not Raw:
            raise TypeError(f"its function returned {type(raw).__name__}, not bytes")
        return raw

    return Serde(name, checked, deserialize)


def by_name(name: str) -> Serde[Any] | None:
    """The built-in serde of that name, or None."""
    return _BUILT_IN.get(name)


def serde_problems(**serdes: object) -> list[str]:
    """One problem for each argument that is no serde."""
    return [
        f"{name} must be a serde such as standfast.serde.string, not {given!r:.100}"
        for name, given in serdes.items()
        if not isinstance(given, Serde)
    ]


def encode(serde: Serde[T], value: T, *, store: str, part: Part) -> Raw:
    """Bytes of a key or value. Raises InvalidRequest that names store, part and direction."""
    try:
        return serde.serialize(value)
    except Exception as error:
        raise serde_error(serde, store, part, "serialize", error) from error


def decode(serde: Serde[T], raw: Raw, *, store: str, part: Part) -> T:
    """The key or value of these bytes. Raises Corruption that names store, part and direction."""
    try:
        return serde.deserialize(raw)
    except Exception as error:
        raise serde_error(serde, store, part, "deserialize", error) from error


def quick(serialize: Callable[[Any], Raw]) -> Callable[[Any], Raw]:
    """A function that returns the same bytes as a serde's `serialize`, or raises where that may do either.

    Measured: a call of this one for bytes costs 30 ns, one of `_bytes_to_raw` 90.
    """
    return QUICK_BYTES if serialize is _bytes_to_raw else serialize


def serde_error(serde: Serde[Any], store: str, part: Part, direction: Direction, error: Exception) -> StandfastError:
    """The error to raise for `error` of a serde: InvalidRequest for serialize, Corruption for deserialize.

    An error that is not the record's fault keeps its class.
    """
    what = f"store {store!r}: the {part} serde {serde.name!r} cannot {direction}"
    beyond = beyond_record(error, what)
    if beyond is not None:
        return beyond
    cause = f"{type(error).__name__}: {error}"
    if direction == "serialize":
        return InvalidRequest(
            f"{what} this {part} ({cause}): give a {part} that it takes, or declare the store with another serde"
        )
    unread = Corruption(
        f"{what} a stored {part} ({cause}): the store was written with another serde, or its bytes are damaged"
    )
    unread.of_serde = True  # the engine's checksums find damaged blocks before the serde sees them
    return unread


def beyond_record(error: Exception, what: str) -> StandfastError | None:
    """The error to raise for `error` of a serde that is not the record's fault; else None. `what` failed."""
    if not isinstance(error, StandfastError) or not error.beyond_record:
        return None
    found: StandfastError
    if isinstance(error, Unavailable):
        found = Unavailable(f"{what}: {error}")
        found.service = "the service of a serde" if error.service == Unavailable.service else error.service
    elif isinstance(error, BadConfig):
        found = BadConfig([f"{what}: {problem}" for problem in error.problems])
    else:
        return error
    found.beyond_record = True
    return found


def _bytes_to_raw(value: Raw | bytearray | memoryview) -> Raw:
    if type(value) is Raw:
        return value
    if isinstance(value, (Raw, bytearray, memoryview)):
        return Raw(value)
    raise TypeError(f"it takes bytes, not {type(value).__name__}")


def _same(raw: Raw) -> Raw:
    return raw


def _int64_to_raw(value: int) -> Raw:
    if value.__class__ is bool:  # it would come back as a number
        raise TypeError(_NO_BOOL)
    return _INT64.pack(value)


def _raw_to_int64(raw: Raw) -> int:
    return _INT64.unpack(raw)[0]  # type: ignore[no-any-return]


def _float64_to_raw(value: float) -> Raw:
    if value.__class__ is bool:
        raise TypeError(_NO_BOOL)
    return _FLOAT64.pack(value)


def _raw_to_float64(raw: Raw) -> float:
    number: float = _FLOAT64.unpack(raw)[0]
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


# No NaN: other languages' JSON parsers refuse it, and it would not compare equal to itself when read back.
_JSON_ENCODER = _json.JSONEncoder(separators=(",", ":"), sort_keys=False, allow_nan=False, ensure_ascii=False)
_JSON_DECODER = _json.JSONDecoder(parse_constant=_refuse_constant)


def _json_to_raw(value: Any) -> Raw:
    return _JSON_ENCODER.encode(value).encode()


def _raw_to_json(raw: Raw) -> Any:
    return _JSON_DECODER.decode(raw.decode())


def _msgpack_to_raw(value: Any) -> Raw:
    # strict_types: a tuple or a subclass would be packed as its base and come back as another type.
    raw = _msgpack.packb(value, use_bin_type=True, strict_types=True)
    assert raw is not None
    return raw


def _raw_to_msgpack(raw: Raw) -> Any:
    return _msgpack.unpackb(raw, raw=False, strict_map_key=False)  # integer keys can be written, so they must be read


# For callers that decode many values at once: what this reads it returns, so that they need not call it.
UNCHANGED: Callable[[Any], Any] = _same

QUICK_BYTES: Callable[[Any], Raw] = Raw.__bytes__

bytes: Serde[Raw] = Serde("bytes", _bytes_to_raw, _same)
string: Serde[str] = Serde("string", str.encode, Raw.decode)
int64: Serde[int] = Serde("int64", _int64_to_raw, _raw_to_int64)
float64: Serde[float] = Serde("float64", _float64_to_raw, _raw_to_float64)
json: Serde[Any] = Serde("json", _json_to_raw, _raw_to_json)
msgpack: Serde[Any] = Serde("msgpack", _msgpack_to_raw, _raw_to_msgpack)

_BUILT_IN: dict[str, Serde[Any]] = {serde.name: serde for serde in (bytes, string, int64, float64, json, msgpack)}
