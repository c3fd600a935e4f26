"""Serdes: golden bytes, round trips, and errors that name store, part and direction."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store import serde
from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.native_module import compiled
from standfast.store.serde import Serde

BUILT_IN = [serde.bytes, serde.string, serde.int64, serde.float64, serde.json, serde.msgpack]

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
finite = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
documents = st.recursive(finite, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
messages = st.recursive(
    scalars | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(-100, 100) | st.binary(), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("chosen", "value", "raw"),
    [
        (serde.bytes, b"\x00\xff", "00ff"),
        (serde.string, "JFK é", "4a464b20c3a9"),
        (serde.string, "", ""),
        (serde.int64, 0, "0000000000000000"),
        (serde.int64, 1, "0000000000000001"),
        (serde.int64, -1, "ffffffffffffffff"),
        (serde.int64, 2**63 - 1, "7fffffffffffffff"),
        (serde.float64, 1.5, "3ff8000000000000"),
        (serde.float64, -0.0, "8000000000000000"),
        (serde.float64, math.inf, "7ff0000000000000"),
        (serde.json, {"b": 1, "a": [None, True, "é"]}, b'{"b":1,"a":[null,true,"\xc3\xa9"]}'.hex()),
        (serde.msgpack, {"a": b"\x01", "b": "c"}, "82a161c40101a162a163"),
    ],
)
def test_bytes_of_the_built_in_serdes_are_fixed(chosen: Serde[Any], value: Any, raw: str) -> None:
    assert chosen.serialize(value).hex() == raw
    assert chosen.deserialize(bytes.fromhex(raw)) == value


@given(st.binary())
def test_bytes_come_back(value: bytes) -> None:
    assert serde.bytes.deserialize(serde.bytes.serialize(value)) == value


@given(st.text())
def test_string_comes_back(value: str) -> None:
    assert serde.string.deserialize(serde.string.serialize(value)) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_int64_comes_back(value: int) -> None:
    assert serde.int64.deserialize(serde.int64.serialize(value)) == value


@given(st.floats(allow_nan=False))
def test_float64_comes_back(value: float) -> None:
    assert serde.float64.deserialize(serde.float64.serialize(value)) == value


@given(documents)
def test_json_comes_back(value: Any) -> None:
    assert serde.json.deserialize(serde.json.serialize(value)) == value


@given(messages)
def test_msgpack_comes_back(value: Any) -> None:
    assert serde.msgpack.deserialize(serde.msgpack.serialize(value)) == value


@pytest.mark.parametrize("given_bytes", [bytearray(b"ab"), memoryview(b"ab"), memoryview(b"axb")[::2]])
def test_buffers_are_copied_to_bytes(given_bytes: Any) -> None:
    raw = serde.bytes.serialize(given_bytes)
    assert type(raw) is bytes
    assert raw == b"ab"


def test_bytes_are_passed_on_without_a_copy() -> None:
    value = bytes(100)
    assert serde.bytes.serialize(value) is value
    assert serde.bytes.deserialize(value) is value


@pytest.mark.parametrize(
    ("chosen", "value"),
    [
        (serde.bytes, "text"),
        (serde.bytes, [1, 2]),
        (serde.bytes, 5),
        (serde.string, b"bytes"),
        (serde.string, "\ud800"),
        (serde.string, 1),
        (serde.int64, 2**63),
        (serde.int64, 1.0),
        (serde.int64, True),
        (serde.float64, "1"),
        (serde.float64, False),
        (serde.json, math.nan),
        (serde.json, b"bytes"),
        (serde.json, {1, 2}),
        (serde.msgpack, (1, 2)),
        (serde.msgpack, 2**64),
        (serde.msgpack, object()),
    ],
)
def test_a_value_that_would_not_come_back_is_an_invalid_request(chosen: Serde[Any], value: Any) -> None:
    with pytest.raises(InvalidRequest, match=rf"'delays'.*value serde '{chosen.name}' cannot serialize"):
        serde.encode(chosen, value, store="delays", part="value")


@pytest.mark.parametrize(
    ("chosen", "raw"),
    [
        (serde.string, b"\xff"),
        (serde.int64, b"\x00" * 7),
        (serde.int64, b"\x00" * 9),
        (serde.float64, b""),
        (serde.json, b"{"),
        (serde.json, b"NaN"),
        (serde.json, b"1 2"),
        (serde.json, b"\xff"),
        (serde.json, '{"a":1}'.encode("utf-16")),
        (serde.msgpack, b""),
        (serde.msgpack, b"\x01\x02"),
        (serde.msgpack, b"\xc1"),
    ],
)
def test_bytes_that_cannot_be_read_are_corruption(chosen: Serde[Any], raw: bytes) -> None:
    with pytest.raises(Corruption, match=rf"'delays'.*key serde '{chosen.name}' cannot deserialize"):
        serde.decode(chosen, raw, store="delays", part="key")


NOT_GIVEN_BACK: list[tuple[Any, str]] = [
    ({404: 1}, r"has the name 404 of type int.*str\(\.\.\.\).*serde.msgpack"),
    ({"a": [0, {None: 1}]}, r"at \['a'\]\[1\] has the name None"),
    ({(1, 2): 3}, "of type tuple"),
    ({True: 3, "b": 1}, "of type bool"),
    (OrderedDict({1.5: 3}), "of type float"),
    ({"a": [math.inf]}, r"the number inf at \['a'\]\[0\]"),
    (math.nan, "the number nan is not JSON"),
    ("\ud83d\ude00", "both halves of a surrogate pair"),
    ({"\ud83d\ude00": 1}, "both halves of a surrogate pair"),
]


def test_json_refuses_what_it_would_give_back_as_something_else() -> None:
    for value, why in NOT_GIVEN_BACK:
        for chosen in (serde.json, serde.json.of_part("key"), serde.json_sorted):
            with pytest.raises(InvalidRequest, match=why):
                serde.encode(chosen, value, store="counts", part="value")
    for value in ((1, 2), {"a": (1, 2)}, [{"a": [(1, 2)]}]):
        with pytest.raises(InvalidRequest, match=r"a tuple.* comes back from JSON as a list"):
            serde.encode(serde.json, value, store="counts", part="key")
    assert serde.json.serialize({"a": (1, 2)}) == b'{"a":[1,2]}'  # of a value, as documented
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InvalidRequest, match="Circular"):
        serde.encode(serde.json, circle, store="counts", part="value")


def test_json_reads_marks_and_halves_and_refuses_numbers_without_an_end() -> None:
    assert serde.json.deserialize(b'\xef\xbb\xbf{"a":1}') == {"a": 1}
    for half in ("a\ud83d", "\ude00\ud83d", "\\\ud800"):
        raw = serde.json.serialize({half: half})
        assert raw.isascii() and serde.json.deserialize(raw) == {half: half}
    for raw in (b"1e999", b'{"a":[1,-1e999]}'):
        with pytest.raises(Corruption, match="such as 1e999"):
            serde.decode(serde.json, raw, store="counts", part="value")


def test_equal_keys_have_equal_sorted_bytes() -> None:
    cases: list[tuple[Any, Any, str]] = [
        ({"b": 1.0, "a": {"d": -0.0, "c": [2.0]}}, {"a": {"c": [2], "d": 0}, "b": 1}, '{"a":{"c":[2],"d":0},"b":1}'),
        (1.0, 1, "1"),
        (1e20, 10**20, "1" + "0" * 20),
        ({"é": 0.5, "e": True}, {"e": True, "é": 0.5}, '{"e":true,"é":0.5}'),
        ("a b", "a b", '"a b"'),
        (OrderedDict({"b": 1, "a": 2}), {"a": 2, "b": 1}, '{"a":2,"b":1}'),
    ]
    for one, other, text in cases:
        assert serde.json_sorted.serialize(one) == serde.json_sorted.serialize(other) == text.encode(), one
        assert serde.json_sorted.deserialize(text.encode()) == one


def test_the_compiled_look_answers_as_the_python_one() -> None:
    module = compiled().module
    assert module is not None

    class Text(str):
        pass

    class Number(float):
        pass

    rng = random.Random(1)
    leaves = [None, True, 1, 1.0, 1.5, math.inf, math.nan, "a", "", Text("b"), Number(2.0), 10**30]
    names = ["a", "b", Text("c"), *["d"] * 8, 1, None]

    def made(depth: int) -> Any:
        kind = rng.randrange(6) if depth else 0
        if kind == 1:
            return [made(depth - 1) for _ in range(rng.randrange(4))]
        if kind == 2:
            return tuple(made(depth - 1) for _ in range(rng.randrange(4)))
        if kind > 2:
            return (dict, OrderedDict)[kind == 5]({rng.choice(names): made(depth - 1) for _ in range(rng.randrange(4))})
        return rng.choice(leaves)

    for _ in range(3_000):
        value, key = made(4), rng.random() < 0.5
        assert module.json_form(value, key) == serde.python_json_form(value, key), (value, key)
    with pytest.raises(TypeError):
        module.json_form(1)


def test_encode_and_decode_pass_good_values_through() -> None:
    assert serde.encode(serde.int64, 7, store="s", part="key") == b"\x00" * 7 + b"\x07"
    assert serde.decode(serde.int64, b"\x00" * 7 + b"\x07", store="s", part="key") == 7


@pytest.mark.parametrize("chosen", BUILT_IN)
def test_built_in_serdes_are_found_by_name(chosen: Serde[Any]) -> None:
    assert serde.by_name(chosen.name) is chosen
    assert getattr(serde, chosen.name) is chosen
    assert repr(chosen) == f"serde.{chosen.name}"


def test_an_unknown_name_finds_no_serde() -> None:
    assert serde.by_name("pickle") is None


def test_a_pair_of_functions_is_a_serde() -> None:
    upper = serde.pair("upper", lambda value: value.upper().encode(), lambda raw: raw.decode().lower())
    assert upper.deserialize(upper.serialize("jfk")) == "jfk"
    assert upper.name == "upper"
    assert serde.by_name("upper") is None


@pytest.mark.parametrize("name", ["", "json", "bytes", None])
def test_a_pair_needs_a_name_of_its_own(name: Any) -> None:
    with pytest.raises(InvalidRequest, match="cannot be named"):
        serde.pair(name, str.encode, bytes.decode)


def test_a_pair_needs_two_functions() -> None:
    with pytest.raises(InvalidRequest, match="deserialize must be a function"):
        serde.pair("mine", str.encode, None)  # type: ignore[arg-type]


def test_a_pair_that_does_not_return_bytes_is_refused_on_write() -> None:
    wrong: Serde[str] = serde.pair("wrong", lambda value: value, lambda raw: "")  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidRequest, match="returned str, not bytes"):
        serde.encode(wrong, "text", store="s", part="value")


def test_a_serde_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        serde.json.name = "other"  # type: ignore[misc]
