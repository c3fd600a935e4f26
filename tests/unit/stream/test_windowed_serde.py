"""Keys of windowed results, byte for byte as Kafka Streams writes them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store import serde
from standfast.store.results import Windowed
from standfast.stream.dsl.windowed_serde import session_windowed, windowed
from standfast.stream.windows import TIME_MAX

TIMES = st.integers(0, TIME_MAX)


def test_time_windowed_key_is_key_and_start() -> None:
    made = windowed(serde.string, 10_000)
    raw = made.serialize(Windowed("A", 60_000, 70_000))
    assert raw.hex() == "41000000000000ea60"
    assert made.deserialize(raw) == Windowed("A", 60_000, 70_000)
    assert made.name == "windowed(string,10000)"


def test_session_windowed_key_is_key_end_and_start() -> None:
    made = session_windowed(serde.string)
    raw = made.serialize(Windowed("A", 10, 20))
    assert raw.hex() == "410000000000000014000000000000000a"
    assert made.deserialize(raw) == Windowed("A", 10, 20)
    assert made.name == "session_windowed(string)"


@given(st.binary(max_size=20), TIMES, st.integers(1, TIME_MAX))
def test_time_windowed_key_reads_back(key: bytes, start: int, size_ms: int) -> None:
    made = windowed(serde.bytes, size_ms)
    given_ = Windowed(key, start, min(start + size_ms, TIME_MAX))  # as Kafka Streams clips it
    assert made.deserialize(made.serialize(given_)) == given_


@given(st.binary(max_size=20), st.tuples(TIMES, TIMES).map(sorted))
def test_session_windowed_key_reads_back(key: bytes, times: list[int]) -> None:
    made = session_windowed(serde.bytes)
    assert made.deserialize(made.serialize(Windowed(key, *times))) == Windowed(key, *times)


def test_same_keys_have_the_same_serde() -> None:
    assert windowed(serde.string, 10) == windowed(serde.string, 10)
    assert windowed(serde.string, 10) != windowed(serde.string, 11)
    assert session_windowed(serde.string) == session_windowed(serde.string)


@pytest.mark.parametrize(
    "bad", ["A", ("A", 0, 10), Windowed("A", -1, 9), Windowed("A", 0, 11), Windowed("A", 10, 0), Windowed(7, 0, 10)]
)
def test_what_is_no_window_of_this_kind_is_refused(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        windowed(serde.string, 10).serialize(bad)


def test_session_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2\.\.1 is negative or ends before"):
        session_windowed(serde.string).serialize(Windowed("A", 2, 1))
