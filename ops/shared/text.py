"""Keys and values as people and programs type and read them.

    utf8    text that the store's serde understands: N123, 42, {"a":1}; bytes are shown as text, or as 0x... hex
    hex     the raw bytes, as 0x4e313233

Rules of this file: pure. Results are JSON values that a terminal may print: no control characters, no NaN, no bytes.
Input is checked, and bad input is InvalidRequest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from standfast.store import serde as serdes
from standfast.store.errors import InvalidRequest
from standfast.store.serde import Serde, decode, encode

KeyFormat = Literal["utf8", "hex"]
KEY_FORMATS: tuple[KeyFormat, ...] = ("utf8", "hex")


def hex_text(raw: bytes) -> str:
    """`0x` and the bytes in hex."""
    return "0x" + raw.hex()


def bytes_text(raw: bytes, key_format: KeyFormat = "utf8") -> str:
    """Printable UTF-8 as it is, anything else in hex."""
    if key_format == "utf8":
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return hex_text(raw)
        # Text that begins with 0x would be read back as hex.
        if text.isprintable() and not text.startswith("0x"):
            return text
    return hex_text(raw)


def parse_hex(text: str, what: str) -> bytes:
    """Inverse of hex_text; the `0x` is optional."""
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise InvalidRequest(f"{what} {text!r} is not hex: write it as 0x4e313233") from error


def parse_key_format(text: str) -> KeyFormat:
    """Check the name of a format."""
    for known in KEY_FORMATS:
        if text == known:
            return known
    raise InvalidRequest(f"key_format is {text!r}, use {' or '.join(KEY_FORMATS)}")


def key_to_raw(serde: Serde[Any] | None, text: str, key_format: KeyFormat, *, store: str) -> bytes:
    """The raw bytes of a key that a person typed. `serde` None: the application's own serde, so only hex works."""
    if key_format == "hex":
        return parse_hex(text, "key")
    if serde is None:
        raise InvalidRequest(
            f"store {store!r}: its keys use the application's own serde, which is unknown here: give the raw bytes "
            "with key_format hex"
        )
    return encode(serde, _typed(serde, text), store=store, part="key")


def prefix_to_raw(text: str, key_format: KeyFormat) -> bytes:
    """The raw bytes of a key prefix."""
    return parse_hex(text, "prefix") if key_format == "hex" else text.encode()


def key_from_raw(serde: Serde[Any] | None, raw: bytes, key_format: KeyFormat, *, store: str) -> Any:
    """A key as a JSON value."""
    if serde is None or key_format == "hex":
        return hex_text(raw)
    return plain(decode(serde, raw, store=store, part="key"))


def value_from_raw(serde: Serde[Any] | None, raw: bytes, *, store: str) -> Any:
    """A value as a JSON value; hex if its serde is unknown."""
    return hex_text(raw) if serde is None else plain(decode(serde, raw, store=store, part="value"))


def plain(value: Any) -> Any:
    """Any value as JSON can hold it: bytes as text, NaN by name, unknown types by their repr."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)  # JSON has no NaN and no infinity
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes_text(bytes(value))
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _key_name(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return repr(value)


def dumps(value: Any, *, indent: int | None = None, encoding: str | None = None) -> str:
    """JSON that is safe to print in an encoding: text outside of ASCII is escaped unless it is printable there."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    if text.replace("\n", "").isprintable() and _fits(text, encoding or "utf-8"):
        return text
    return json.dumps(value, ensure_ascii=True, allow_nan=False, indent=indent)


def shown(value: Any) -> str:
    """A value in a cell of a table: text without quotes if it is printable, else JSON."""
    if isinstance(value, str) and value.isprintable():
        return value
    return dumps(value)


def _fits(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _key_name(key: Any) -> str:
    named = plain(key)
    return named if isinstance(named, str) else json.dumps(named)


def _typed(serde: Serde[Any], text: str) -> Any:
    """A key that a person typed, as the type that the serde takes."""
    try:
        if serde.name == serdes.int64.name:
            return int(text)
        if serde.name == serdes.float64.name:
            return float(text)
    except ValueError as error:
        raise InvalidRequest(f"key {text!r} is not a number, but the store's keys are {serde.name}") from error
    if serde.name == serdes.bytes.name:
        return bytes.fromhex(text[2:]) if _is_hex(text) else text.encode()
    # A word that is no JSON counts as text, so that a person need not quote a plain string key for the shell.
    if serde.name in (serdes.json.name, serdes.json_sorted.name, serdes.msgpack.name):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _is_hex(text: str) -> bool:
    if not text.startswith("0x"):
        return False
    try:
        bytes.fromhex(text[2:])
    except ValueError:
        return False
    return True
