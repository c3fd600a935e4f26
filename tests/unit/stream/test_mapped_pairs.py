"""Key and value of a mapped record are a tuple of exactly two; anything else that has two parts is refused.

Rules of this file: each wrong result is tried with `map`, its asynchronous form, and as one of the results of
`flat_map`; results that a step passes on are in the output, the others are errors that name the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import standfast as sf
from standfast.stream.dsl.fluent import Stream


class Pair(NamedTuple):
    key: str
    value: int


def result(step: Callable[[Stream], Stream]) -> list[tuple[Any, Any]]:
    app = sf.App("app")
    step(app.stream("in")).to("out")
    with sf.testing.Driver(app) as driver:
        driver.pipe("in", "k", 1, 5)
        return [(record.key, record.value) for record in driver.read("out")]


def flat(given: Any) -> list[tuple[Any, Any]]:
    return result(lambda stream: stream.flat_map(lambda key, value: given, name="pairs"))


def mapping(given: Any) -> dict[str, Callable[[Stream], Stream]]:
    async def asked(key: Any, value: Any) -> Any:
        return given

    return {
        "map": lambda stream: stream.map(lambda key, value: given, name="cards"),
        "map_async": lambda stream: stream.map_async(asked, name="cards"),
        "flat_map": lambda stream: stream.flat_map(lambda key, value: [given], name="cards"),
    }


def test_tuple_of_two_is_key_and_value() -> None:
    for given in (("k", 1), Pair("k", 1)):
        assert [result(step) for step in mapping(given).values()] == [[("k", 1)]] * 3


def test_anything_else_with_two_parts_is_refused_with_the_step_and_the_type() -> None:
    wrong: dict[str, Any] = {
        "a dict": {"card": "c", "amount": 1},
        "a str": "ab",
        "a bytes": b"ab",
        "a set": {"a", "b"},
        "a list of 2": ["k", 1],
        "a tuple of 3": ("k", 1, 2),
        "a tuple of 1": ("k",),
        "a NoneType": None,
        "a int": 7,
    }
    taken = []
    for said, given in wrong.items():
        for name, step in mapping(given).items():
            try:
                taken.append(f"{name} of {said}: {result(step)}")
            except sf.InvalidRequest as error:
                told = str(error)
                whole = "step 'cards'" in told and said in told and "tuple" in told
                way = "map_values" in told or name == "flat_map"
                taken += [] if whole and way and ("tuple(...)" in told) == (said == "a list of 2") else [told]
    assert taken == []


def test_flat_map_takes_any_iterable_of_tuples() -> None:
    pairs = [("a", 1), ("b", 2)]
    for given in (pairs, tuple(pairs), iter(pairs), dict(pairs).items(), (pair for pair in pairs)):
        assert flat(given) == pairs
    assert flat([]) == []


def test_flat_map_refuses_what_has_no_list_of_tuples() -> None:
    for given, way in (
        ({"a": 1}, "items()"),
        ("ab", "[]"),
        (b"ab", "[]"),
        (None, "[]"),
        (7, "[]"),
        (("k", 1), "in a list, also if it is the only one"),
    ):
        with pytest.raises(sf.InvalidRequest, match="step 'pairs'") as refused:
            flat(given)
        assert way in str(refused.value)


def test_wrong_result_falls_under_on_error() -> None:
    app = sf.App("app")
    app.stream("in").map(lambda key, value: value, name="cards", on_error="skip").to("out")
    with sf.testing.Driver(app) as driver:
        driver.pipe("in", "k", {"card": "c", "amount": 1}, 5)
        assert (driver.read("out"), driver.dropped) == ([], 1)
