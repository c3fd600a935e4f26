"""Limits of topics: sizes of Kafka's batches, pieces that fit, and what a refusal teaches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.kafka.records import Columns, Unsent
from standfast.replication.offsets import TopicPartition
from standfast.replication.record_limits import (
    BATCH_HEAD_BYTES,
    BESIDE_MOST_BYTES,
    CLIENT_BATCH_BYTES,
    TopicLimits,
    alone_bytes,
    most_bytes,
    pieces,
)
from standfast.store.value_timestamp import TIMESTAMP

TOPIC, AT = "out", TopicPartition("out", 0)
parts = st.one_of(st.none(), st.binary(max_size=300))
header = st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5)))


def columns(*sizes: int) -> Columns:
    return Columns(
        tuple(b"%d" % n for n, _ in enumerate(sizes)), tuple(b"x" * size for size in sizes), (1,) * len(sizes)
    )


@given(parts, parts, st.lists(header, max_size=3))
def test_a_record_takes_no_more_alone_than_in_a_batch_of_several(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    alone, beside = alone_bytes(key, value, headers), len(key or b"") + len(value or b"")
    assert beside < alone <= BATCH_HEAD_BYTES + most_bytes(key, value, headers)
    assert headers or alone <= beside + BESIDE_MOST_BYTES


@given(st.lists(st.integers(1, 500)), st.integers(1, 2_000))
def test_pieces_have_all_records_in_order_and_fit_unless_one_is_too_large_by_itself(
    sizes: list[int], most: int
) -> None:
    found = list(pieces(sizes, most))
    assert [at for first, end in found for at in range(first, end)] == list(range(len(sizes)))
    for first, end in found:
        assert end - first == 1 or BATCH_HEAD_BYTES + sum(sizes[first:end]) <= most
    for first, end in found[:-1]:  # none could have had one more
        assert BATCH_HEAD_BYTES + sum(sizes[first : end + 1]) > most


def test_topic_that_takes_the_clients_batches_has_no_pieces() -> None:
    limits = TopicLimits()
    limits.note(TOPIC, CLIENT_BATCH_BYTES)
    assert limits.batch_bytes(TOPIC) is None
    limits.note(TOPIC, CLIENT_BATCH_BYTES - 1)
    assert limits.batch_bytes(TOPIC) == CLIENT_BATCH_BYTES - 1


def test_batches_that_are_refused_get_half_as_large_each_time_until_the_log_says_its_limit() -> None:
    limits = TopicLimits()
    for refused, after in ((900_000, 450_000), (450_000, 225_000), (1_000, 500)):
        limits.narrow(TOPIC, refused)
        assert limits.batch_bytes(TOPIC) == after
    limits.note(TOPIC, 5_000)
    assert limits.batch_bytes(TOPIC) == 5_000


def test_record_is_measured_to_the_byte_and_looked_at_only_above_the_least_limit() -> None:
    limits = TopicLimits()
    limits.note("wide", 1_000_000)
    limits.note(TOPIC, 1_000)
    most = 1_000 - alone_bytes(b"k", b"", ()) - 1  # the length before a value of so many bytes takes one byte more
    fits, beyond = b"x" * (most - 1), b"x" * (most + 1)
    assert alone_bytes(b"k", fits, ()) <= 1_000 < alone_bytes(b"k", beyond, ())
    assert limits.problem(TOPIC, b"k", fits, ()) is None
    assert "above the topic's limit of 1000 bytes" in (limits.problem(TOPIC, b"k", beyond, ()) or "")
    assert limits.problem("wide", b"k", beyond, ()) is None and limits.problem("other", b"k", beyond, ()) is None
    assert limits.least <= 1_000 - BESIDE_MOST_BYTES < len(beyond)


def test_client_that_compresses_refuses_only_the_very_record_that_was_refused() -> None:
    limits = TopicLimits(compresses=True)
    limits.note(TOPIC, 1_000)
    large = b"x" * 5_000
    assert limits.problem(TOPIC, b"k", large, ()) is None  # it may compress to less
    limits.refuse(TOPIC, b"k", large, ())
    assert limits.problem(TOPIC, b"k", large, ()) is not None
    assert limits.problem(TOPIC, b"k", large + b"x", ()) is None and limits.problem(TOPIC, b"kx", large[1:], ()) is None


def test_what_was_looked_up_before_does_not_replace_what_was_learned_since() -> None:
    limits = TopicLimits()
    limits.note(TOPIC, 500)
    limits.begin({TOPIC: 9_000, "other": 700, "any": None})
    assert [limits.record_bytes(name) for name in (TOPIC, "other", "any")] == [500, 700, None]
    assert limits.unasked([TOPIC, "any", "any", "new"]) == ["any", "new"]


@pytest.mark.parametrize("key", [b"k", None])
def test_value_that_is_cut_to_the_room_fits(key: bytes | None) -> None:
    limits = TopicLimits()
    limits.note(TOPIC, 1_000)
    headers = (("name", b"x" * 100),)
    room = limits.room(TOPIC, key, headers)
    assert limits.problem(TOPIC, key, b"x" * room, headers) is None and room > 800
    limits.refuse(TOPIC, key, b"x" * room, headers)  # lowered since, and by how much is not known
    assert limits.room(TOPIC, key, headers) < 500


def test_pieces_of_a_write_are_cut_again_and_end_with_the_last_acknowledgement() -> None:
    limits = TopicLimits()
    unsent = Unsent({AT: columns(*(300,) * 5), TopicPartition("none", 0): columns()}, limits)
    assert [len(one) for one in unsent.round().values()] == [5]
    limits.note(TOPIC, 1_000)
    unsent.cut()
    ends = []
    while unsent:
        (piece,) = unsent.round().values()
        ends.append(len(piece))
        unsent.acknowledged(AT, sum(ends))
    assert (ends, unsent.ends) == ([2, 2, 1], {AT: 5})


def test_rows_of_a_store_are_cut_and_measured_without_the_timestamps_before_them() -> None:
    rows = Columns((b"a", b"b"), (TIMESTAMP.pack(5) + b"1", TIMESTAMP.pack(6) + b"22"), None)
    assert rows.record(1) == (b"b", b"22", ())
    assert rows.piece(1, 2) == Columns((b"b",), (TIMESTAMP.pack(6) + b"22",), None)
