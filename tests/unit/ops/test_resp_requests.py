"""Requests of the Redis protocol: any bytes in any chunks, bounded memory, the same result however they are cut."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.ops.sidecar.resp.requests import BadRequest, RequestReader
from support.resp import pack

# Values that look like the headers the guard looks for, beside ordinary ones.
TRICKY = st.sampled_from(
    [b"*99999999\r\n", b"$999999999\r\n", b"*12345", b"*123456", b"~1000000\r\n", b"\r\n*", b"$", b""]
)
ARGUMENT = st.one_of(st.binary(max_size=40), TRICKY, st.integers(0, 10**9).map(lambda n: b"*%d\r\n" % n))
REQUEST = st.lists(ARGUMENT, min_size=1, max_size=6)
PIECES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [b"*", b"$", b"\r\n", b"*2\r\n", b"$3\r\nGET\r\n", b"*-1\r\n", b"$-1\r\n", b"*100000\r\n", b"%1\r\n"]
    ),
    st.sampled_from(
        [b"*1\r\n$4\r\nPING\r\n", b">3\r\n", b"~9999999\r\n", b"+OK\r\n", b":5\r\n", b"_\r\n", b",1.5\r\n"]
    ),
    st.integers(-5, 10**12).flatmap(lambda n: st.sampled_from([b"*%d\r\n" % n, b"$%d\r\n" % n, b"|%d\r\n" % n])),
)


def read(chunks: list[bytes], command_bytes: int = 4096) -> tuple[list[list[bytes]], bool]:
    """Requests of these chunks, and whether they ended in an error."""
    reader = RequestReader(command_bytes)
    found: list[list[bytes]] = []
    for chunk in chunks:
        try:
            found += reader.feed(chunk)
        except BadRequest:
            return found, True
    return found, False


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(at)]


def by_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@given(st.lists(REQUEST, max_size=8), st.lists(st.integers(0, 1000), max_size=12))
def test_requests_are_read_however_they_are_cut(requests: list[list[bytes]], places: list[int]) -> None:
    data = b"".join(pack(*request) for request in requests)
    assert read([data]) == (requests, False)
    assert read(cut(data, places)) == (requests, False)
    assert read(by_bytes(data)) == (requests, False)


@given(st.lists(PIECES, max_size=12), st.lists(st.integers(0, 1000), max_size=6))
def test_any_bytes_give_requests_or_one_error_however_they_are_cut(pieces: list[bytes], places: list[int]) -> None:
    data = b"".join(pieces)
    found, failed = read(by_bytes(data))
    chunked, chunked_failed = read(cut(data, places))
    assert chunked_failed == failed
    assert chunked == found[: len(chunked)]  # requests in one chunk with the bad bytes are not returned
    assert all(type(argument) is bytes for request in found for argument in request)


@pytest.mark.parametrize("kind", [b"*", b"~", b">", b"|"])
@pytest.mark.parametrize("step", [1, 3, 100])
def test_header_of_many_elements_is_refused_before_room_is_made(kind: bytes, step: int) -> None:
    data = kind + b"99999999\r\n$1\r\n"
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match=r"a header says 999999|is an array of bulk strings"):
            reader = RequestReader()
            for at in range(0, len(data), step):
                reader.feed(data[at : at + step])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data", [b"*1\r\n*99999999\r\n", b"*2\r\n$1\r\na\r\n*99999999\r\n", b"*1\r\n$999999999\r\n", b"$9999999999\r\n"]
)
def test_header_within_a_request_is_refused_too(data: bytes) -> None:
    for chunks in ([data], by_bytes(data)):
        assert read(chunks) == ([], True)


def test_value_that_looks_like_a_header_is_only_a_value() -> None:
    value = b"*99999999\r\n$999999999\r\n" * 50
    data = pack(b"SET", b"k", value)
    assert read([data]) == ([[b"SET", b"k", value]], False)
    assert read(by_bytes(data)) == ([[b"SET", b"k", value]], False)


def test_command_that_never_ends_is_refused_at_its_bound() -> None:
    reader = RequestReader(command_bytes=10_000)
    reader.feed(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n")
    with pytest.raises(BadRequest, match="10000 bytes"):
        reader.feed(b"$9999999\r\n")
    reader = RequestReader(command_bytes=10_000)
    fed = 0
    reader.feed(b"*99\r\n")
    with pytest.raises(BadRequest, match="10000 bytes"):
        while True:
            reader.feed(b"$1000\r\n" + b"x" * 1000 + b"\r\n")
            fed += 1000
    assert fed == 10_000


NESTED = [
    *(b"*99999\r\n" * 1_000, b"*99\r\n" * 2_000, b"*9\r\n" * 3_000, b"*2\r\n$0\r\n\r\n" * 2_000),
    *(b"*99\r\n$0\r\n\r\n" * 1_000, b"*1\r\n>99\r\n" * 1_000, b"%9\r\n" * 3_000, b"~9\r\n" * 3_000),
]


@pytest.mark.parametrize("data", NESTED)
@pytest.mark.parametrize("before", [b"", b"*1\r\n$4\r\nPING\r\n"])
def test_arrays_within_arrays_are_refused_and_make_little_room(data: bytes, before: bytes) -> None:
    for chunks in ([before + data], by_bytes(before + data), [before, data], [before + data[:20], data[20:]]):
        tracemalloc.start()
        try:
            found, failed = read(chunks, 16 << 20)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert failed
        assert found in ([], [[b"PING"]])
        assert peak < 4 << 20, peak


def test_header_of_many_elements_takes_no_room_until_they_come() -> None:
    readers = [RequestReader() for _ in range(100)]
    tracemalloc.start()
    try:
        for reader in readers:
            assert reader.feed(b"*99999\r\n$4\r\nMGET\r\n") == []
        assert tracemalloc.get_traced_memory()[0] < 200 << 10
    finally:
        tracemalloc.stop()
    assert readers[0].partial


def test_commands_of_every_length_are_read_whole_cut_and_among_others() -> None:
    requests = [[b"MSET", *(b"%d" % key for key in range(width))] for width in (0, 8, 9, 98, 99, 100, 998, 9_999)]
    requests += [[b"SET", b"k", b"\r\n*3\r\n" * 4_000], [b"SET", b"k", b"x" * 70_000], *[[b"GET", b"k"]] * 3_000]
    data = b"".join(pack(*request) for request in requests * 2)
    for step in (len(data), 262_144, 65_536, 16_385, 1_000, 7):
        chunks = [data[at : at + step] for at in range(0, len(data), step)]
        assert read(chunks, 16 << 20) == (requests * 2, False), step


def test_endless_line_is_refused_at_its_bound() -> None:
    reader = RequestReader(command_bytes=10_000)
    with pytest.raises(BadRequest):
        for _ in range(20):
            reader.feed(b"*" + b"1" * 3 + b"+" * 1000)


NO_REQUESTS = [
    *(b"PING\r\n", b"*1\r\n:5\r\n", b"*-1\r\n", b"+PING\r\n", b"*1\r\n$-1\r\n", b"\r\n", b"*1\r\n_\r\n"),
    *(b"%1\r\n$1\r\na\r\n$1\r\nb\r\n", b"*1\r\n*1\r\n$1\r\na\r\n", b"-ERR x\r\n", b"#t\r\n", b"*01\r\n"),
]


@pytest.mark.parametrize("data", NO_REQUESTS)
def test_what_is_no_array_of_bulk_strings_is_refused(data: bytes) -> None:
    assert read([data])[1]


def test_partial_says_whether_half_a_command_waits() -> None:
    whole = pack(b"GET", b"k")
    reader = RequestReader()
    assert not reader.partial
    reader.feed(whole)
    assert not reader.partial
    for at in range(1, len(whole)):
        reader = RequestReader()
        reader.feed(whole + whole[:at])
        assert reader.partial, at
        reader.feed(whole[at:])
        assert not reader.partial
