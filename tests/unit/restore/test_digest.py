"""The digest of logical rows: golden values, equality with Spark's own algorithm, and independence of order.

Rules of this file: XXH64 stands here once more, from its published description, so that the library and Spark's way of
chaining columns are both checked against a third implementation.
"""

from __future__ import annotations

from struct import pack, unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.restore.digest import Digest, digest_rows, row_hash
from standfast.store.errors import InvalidRequest

P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
M = 2**64 - 1


def rotated(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & M


def mixed(value: int) -> int:
    value = (value ^ value >> 33) * P2 & M
    value = (value ^ value >> 29) * P3 & M
    return value ^ value >> 32


def lane(accumulator: int, word: int) -> int:
    return rotated((accumulator + word * P2) & M, 31) * P1 & M


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 as its specification describes it (Spark: XXH64.hashUnsafeBytes)."""
    at = 0
    value = (seed + P5) & M
    if len(data) >= 32:
        lanes = [(seed + P1 + P2) & M, (seed + P2) & M, seed, (seed - P1) & M]
        while at <= len(data) - 32:
            lanes = [lane(one, word) for one, word in zip(lanes, unpack_from("<4Q", data, at), strict=True)]
            at += 32
        value = sum(rotated(one, by) for one, by in zip(lanes, (1, 7, 12, 18), strict=True)) & M
        for one in lanes:
            value = ((value ^ lane(0, one)) * P1 + P4) & M
    value = (value + len(data)) & M
    while at <= len(data) - 8:
        value = (rotated(value ^ lane(0, unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & M
        at += 8
    if at <= len(data) - 4:
        value = (rotated(value ^ unpack_from("<I", data, at)[0] * P1 & M, 23) * P2 + P3) & M
        at += 4
    for byte in data[at:]:
        value = rotated(value ^ byte * P5 & M, 11) * P1 & M
    return mixed(value)


def spark_hash_long(value: int, seed: int) -> int:
    """XXH64.hashLong of Spark, which xxhash64 uses for a bigint column."""
    hashed = (seed + P5 + 8) & M
    hashed = (rotated(hashed ^ rotated((value & M) * P2 & M, 31) * P1 & M, 27) * P1 + P4) & M
    return mixed(hashed)


def spark_row_hash(key: bytes, timestamp: int, value: bytes) -> int:
    return xxh64(value, spark_hash_long(timestamp, xxh64(key, 42)))


BYTES = st.binary(max_size=100)
LONGS = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(st.tuples(BYTES, LONGS, BYTES), max_size=20)


def test_the_written_out_algorithm_gives_the_value_in_sparks_documentation() -> None:
    """`SELECT xxhash64('Spark', array(123), 2)` is 5602566077635097486; an int is hashed as its 4 bytes."""
    chained = xxh64(pack("<i", 2), xxh64(pack("<i", 123), xxh64(b"Spark", 42)))
    assert chained == 5602566077635097486


@pytest.mark.parametrize(
    ("row", "hashed"),
    [
        ((b"", 0, b""), 0x63EACF1903A53161),
        ((b"N123", 1_357_020_000_000, b"JFK"), 0xAFD915D607DF5C61),
        ((b"N123", -1, b"JFK"), 0x55A78DB3471C0A22),
        ((b"k" * 40, 2**63 - 1, b"v" * 100), 0xB79E45E48A1A5BBF),
    ],
)
def test_row_hash_is_golden(row: tuple[bytes, int, bytes], hashed: int) -> None:
    assert row_hash(*row) == hashed


@given(BYTES, LONGS, BYTES)
def test_row_hash_equals_sparks_algorithm(key: bytes, timestamp: int, value: bytes) -> None:
    assert row_hash(key, timestamp, value) == spark_row_hash(key, timestamp, value)


@given(LONGS, st.integers(0, M))
def test_hash_of_a_long_is_the_hash_of_its_eight_little_endian_bytes(value: int, seed: int) -> None:
    assert spark_hash_long(value, seed) == xxh64(pack("<q", value), seed)


@given(ROWS)
def test_digest_is_count_xor_and_sum_of_low_halves(rows: list[tuple[bytes, int, bytes]]) -> None:
    hashes = [spark_row_hash(*row) for row in rows]
    xor = 0
    for one in hashes:
        xor ^= one
    assert digest_rows(rows) == Digest(len(rows), xor, sum(one & 0xFFFF_FFFF for one in hashes))


@given(ROWS, st.integers(0, 20), st.randoms(use_true_random=False))
def test_digest_does_not_depend_on_order_and_parts_add_up(
    rows: list[tuple[bytes, int, bytes]], cut: int, random
) -> None:
    whole = digest_rows(rows)
    assert digest_rows(rows[:cut]) + digest_rows(rows[cut:]) == whole
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert digest_rows(iter(shuffled)) == whole


@pytest.mark.parametrize("other", [(b"k", 5, b"w"), (b"k", 6, b"v"), (b"l", 5, b"v"), (b"", 5, b"kv")])
def test_digest_sees_a_change_in_each_part_of_a_row(other: tuple[bytes, int, bytes]) -> None:
    assert digest_rows([(b"k", 5, b"v")]) != digest_rows([other])


def test_digest_sees_a_row_twice() -> None:
    assert digest_rows([(b"k", 5, b"v")] * 3) != digest_rows([(b"k", 5, b"v")])


def test_text_form_is_golden_and_read_back() -> None:
    digest = Digest(3, 0x1F << 56, 42)
    assert digest.hex() == "3-1f00000000000000-2a"
    assert Digest.from_hex(digest.hex()) == digest
    assert Digest().hex() == "0-0000000000000000-0"


@given(ROWS)
def test_text_form_of_any_digest_is_read_back(rows: list[tuple[bytes, int, bytes]]) -> None:
    digest = digest_rows(rows)
    assert Digest.from_hex(digest.hex()) == digest


@pytest.mark.parametrize("text", ["", "3", "3-1f-2a", "x-0000000000000000-0", "0-0000000000000000-0 "])
def test_text_that_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="digest"):
        Digest.from_hex(text)
