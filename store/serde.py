"""Serdes: how a user's keys and values become bytes and back. Public as `standfast.serde`.

    bytes     as they are (bytearray and memoryview are copied to bytes)
    string    UTF-8
    int64     8 bytes, big-endian, signed            Kafka's LongSerializer
    float64   8 bytes, big-endian IEEE 754           Kafka's DoubleSerializer
    json      UTF-8, no spaces, insertion order; refuses what JSON would give back as something else
    msgpack   bytes and str kept apart, only plain types
    pair(name, serialize, deserialize)               your own two functions

    json_sorted   as json, and equal keys have equal bytes: names sorted, 1.0 as 1. Not public: `serde.json` stands for
                  it in stores and topics between tasks whose form of keys is this one

A serde may depend on the topic of its bytes, as those of a schema registry do: each reader and writer takes
`serde.of_topic(topic, part)`. The topic of a store's bytes is its changelog.

Rules of this file: a serde is a name and two functions; bytes of a value always read back as that value. No serde
here executes its input. The functions raise plain errors, which the stores turn into `serde_error(...)`, so that a
call that succeeds costs nothing more. An error that is `beyond_record` is not the record's fault and keeps its class.
"""

from __future__ import annotations

import builtins
import json as _json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NoReturn, TypeAlias, TypeVar

import msgpack as _msgpack

from standfast.store.arguments import checked, checked_call
from standfast.store.errors import BadConfig, Corruption, InvalidRequest, StandfastError, Unavailable
from standfast.store.native_module import compiled

T = TypeVar("T")
Raw: TypeAlias = builtins.bytes  # `bytes` is a serde in this file
Part: TypeAlias = Literal["key", "value"]
Direction: TypeAlias = Literal["serialize", "deserialize"]

_INT64 = struct.Struct(">q")
_FLOAT64 = struct.Struct(">d")
_NO_BOOL = "it takes numbers, not bool"


@checked(InvalidRequest, exact=())
@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """A named pair of functions. A store's definition keeps the name, and the next start compares it.

    `bind`: the serde for the keys or values of one topic, where bytes depend on the topic. `keys`: the serde for keys,
    where these are checked more closely.
    """

    in_words: ClassVar[str] = "a serde such as standfast.serde.string"

    name: str
    serialize: Callable[[T], Raw]
    deserialize: Callable[[Raw], T]
    bind: Callable[[str, Part], Serde[T]] | None = None
    keys: Serde[T] | None = None

    def __repr__(self) -> str:
        return f"serde.{self.name}"

    def of_topic(self, topic: str, part: Part) -> Serde[T]:
        """The serde for the keys or the values of a topic."""
        return (self if self.bind is None else self.bind(topic, part)).of_part(part)

    def of_part(self, part: Part) -> Serde[T]:
        """The serde for keys or for values, of no topic yet."""
        return self.keys if part == "key" and self.keys is not None else self


@checked_call(InvalidRequest, exact=True)
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
        return serde.of_part(part).serialize(value)
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
    return QUICK_BYTES if is_plain(serialize) else serialize


def is_plain(serialize: Callable[[Any], Raw]) -> bool:
    """Whether a serde writes bytes as they are."""
    return serialize is _bytes_to_raw


def serde_error(serde: Serde[Any], store: str, part: Part, direction: Direction, error: Exception) -> StandfastError:
    """The error to raise for `error` of a serde: InvalidRequest for serialize, Corruption for deserialize.

    An error that is not the record's fault keeps its class.
    """
    what = f"store {store!r}: the {part} serde {sorted_keys(serde, False).name!r} cannot {direction}"
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
    if isinstance(value, Raw):
        return Raw.__bytes__(value)  # whatever its class makes of it
    if isinstance(value, (bytearray, memoryview)):
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
_SORTED_ENCODER = _json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False, ensure_ascii=False)
_JSON_DECODER = _json.JSONDecoder(parse_constant=_refuse_constant)
FAULT, WHOLE = 1, 2  # bits of a value's form
_MARK = b"\xef\xbb\xbf"
_HALF = re.compile("[\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def python_json_form(value: Any, key: bool) -> int:
    """FAULT if JSON does not give back an equal value, else 0, or WHOLE if a float in it is a whole number.

    A tuple comes back as a list: a fault in a key, which is compared. The value is one that the encoder took, or that
    the decoder made. The compiled module has the same function.
    """
    if isinstance(value, float):
        return FAULT if not math.isfinite(value) else WHOLE if value.is_integer() else 0
    found = 0
    if isinstance(value, dict):
        for name, inner in value.items():
            found |= python_json_form(inner, key) if isinstance(name, str) else FAULT
    elif isinstance(value, tuple) and key:
        return FAULT
    elif isinstance(value, (list, tuple)):
        for inner in value:
            found |= python_json_form(inner, key)
    return FAULT if found & FAULT else found


_module = compiled().module
json_form: Callable[[Any, bool], int] = python_json_form if _module is None else _module.json_form


def _json_writer(encoder: _json.JSONEncoder, key: bool) -> Callable[[Any], Raw]:
    encode = encoder.encode

    def to_raw(value: Any) -> Raw:
        text = ""
        try:
            text = encode(value)
            if value.__class__ is not str and (form := json_form(value, key)):
                if form == FAULT:
                    raise ValueError("JSON would not give back an equal value")
                if encoder is _SORTED_ENCODER:
                    text = encode(_with_whole_numbers(value))
            return text.encode()
        except UnicodeEncodeError:
            return _escaped(text)
        except (TypeError, ValueError) as error:
            raise _json_fault(value, key) or error from None

    return to_raw


def _escaped(text: str) -> Raw:
    """The bytes of JSON text with halves of surrogate pairs, which UTF-8 has no bytes for: each as its escape."""
    if _PAIR.search(text):
        raise ValueError(
            "a text has both halves of a surrogate pair as two characters, and JSON would give them back as one: "
            'write the character itself, as text.encode("utf-16", "surrogatepass").decode("utf-16") makes it'
        )
    return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text).encode()


def _with_whole_numbers(value: Any) -> Any:
    """The value with each float that is a whole number as an int: equal numbers get equal text."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {name: _with_whole_numbers(inner) for name, inner in value.items()}
    return [_with_whole_numbers(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _json_fault(value: Any, key: bool, where: str = "") -> Exception | None:
    """Why JSON does not carry a value, with the way out; None for another reason, which the encoder says."""
    at = f" at {where}" if where else ""
    if isinstance(value, float) and not math.isfinite(value):
        return ValueError(f"the number {value!r}{at} is not JSON: write None or a text in its place")
    if isinstance(value, tuple) and key:
        return TypeError(
            f"a tuple{at} comes back from JSON as a list, and would be another key: write list(...), or declare the "
            "key with a serde of your own"
        )
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                return TypeError(
                    f"a dict{at} has the name {name!r:.100} of type {type(name).__name__}, and JSON has only texts as "
                    "names: write str(...) of it, or declare serde.msgpack"
                )
        inner = [(f"{where}[{name!r:.100}]", one) for name, one in value.items()]
    elif isinstance(value, (list, tuple)):
        inner = [(f"{where}[{number}]", one) for number, one in enumerate(value)]
    else:
        return None
    try:
        return next((found for place, one in inner if (found := _json_fault(one, key, place))), None)
    except RecursionError:  # a circle, of which the encoder speaks
        return None


def _raw_to_json(raw: Raw) -> Any:
    try:
        value = _JSON_DECODER.decode(raw.decode())
    except ValueError:
        if raw[:3] != _MARK:
            raise
        value = _JSON_DECODER.decode(raw[3:].decode())
    if value.__class__ is not str and json_form(value, False) & FAULT:
        raise ValueError("a number in it, such as 1e999, is larger than any that can be held")
    return value


def _msgpack_to_raw(value: Any) -> Raw:
    # strict_types: a tuple or a subclass would be packed as its base and come back as another type.
    raw = _msgpack.packb(value, use_bin_type=True, strict_types=True)
    assert raw is not None
    return raw


def _raw_to_msgpack(raw: Raw) -> Any:
    return _msgpack.unpackb(raw, raw=False, strict_map_key=False)  # integer keys can be written, so they must be read


def sorted_keys(serde: Serde[Any], on: bool) -> Serde[Any]:
    """The serde of keys in their sorted form, or in the declared one; any other serde but `json` as it is."""
    return json_sorted if on and serde is json else json if serde is json_sorted and not on else serde


# For callers that decode many values at once: what this reads it returns, so that they need not call it.
UNCHANGED: Callable[[Any], Any] = _same

QUICK_BYTES: Callable[[Any], Raw] = Raw.__bytes__

bytes: Serde[Raw] = Serde("bytes", _bytes_to_raw, _same)
string: Serde[str] = Serde("string", str.encode, Raw.decode)
int64: Serde[int] = Serde("int64", _int64_to_raw, _raw_to_int64)
float64: Serde[float] = Serde("float64", _float64_to_raw, _raw_to_float64)
_json_keys: Serde[Any] = Serde("json", _json_writer(_JSON_ENCODER, True), _raw_to_json)
json: Serde[Any] = Serde("json", _json_writer(_JSON_ENCODER, False), _raw_to_json, keys=_json_keys)
json_sorted: Serde[Any] = Serde("json_sorted", _json_writer(_SORTED_ENCODER, True), _raw_to_json)
msgpack: Serde[Any] = Serde("msgpack", _msgpack_to_raw, _raw_to_msgpack)

_BUILT_IN: dict[str, Serde[Any]] = {
    serde.name: serde for serde in (bytes, string, int64, float64, json, json_sorted, msgpack)
}
