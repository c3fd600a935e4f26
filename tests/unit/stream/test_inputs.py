"""One input of a task: records are decoded by column, and each is next in its turn, with its own offset and failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import standfast as sf
from standfast.replication.columns import RecordColumns
from standfast.replication.log import Headers, Record
from standfast.stream.runtime.inputs import CHUNK, CHUNK_UNCHANGED, Input, RecordFailed
from standfast.stream.topology.nodes import SourceNode
from standfast.stream.topology.policy import ErrorPolicy
from standfast.stream.topology.sources import SourceSettings

BAD = b"\xff"  # no text
HEADERS = (("trace", b"1"),)
Shown = tuple[int, str | None, str | None, int, Headers]


def make(policy: str = "skip", invalid: str = "skip", serde: sf.serde.Serde[Any] = sf.serde.string) -> Input:
    settings = SourceSettings(key=serde, value=serde, on_error=policy, invalid_timestamp=invalid)  # type: ignore[arg-type]
    node = SourceNode("in-source", "in", settings)
    return Input(node, 0, 0, lambda record: None, lambda: 0, ErrorPolicy(policy))  # type: ignore[arg-type]


def passed(one: Input) -> tuple[list[Shown], list[tuple[int, str]]]:
    """All records in their turn, and offset and reason of those left out."""
    shown, left_out = [], []

    def leave_out(given: Input, raw: Record, error: Exception, reason: str) -> None:
        assert given is one
        left_out.append((raw.offset, reason))

    one.advance(leave_out)
    while one.head is not None:
        head, waiting = one.head, one.waiting
        assert (one.raw.offset, one.raw.headers) == (one.offset, head.headers)
        shown.append((one.offset, head.key, head.value, head.timestamp, head.headers))
        one.consumed = one.offset + 1
        one.advance(leave_out)
        assert one.waiting < waiting
    return shown, left_out


def columns_of(records: Sequence[Record]) -> RecordColumns:
    offsets, times, keys, values, headers = zip(*records, strict=True)
    return RecordColumns(offsets, times, keys, values, headers if any(headers) else None)


CELLS = st.one_of(st.none(), st.just(BAD), st.sampled_from([b"", b"a", b"bc"]))
ROWS = st.lists(st.tuples(st.sampled_from([-1, 0, 7]), CELLS, CELLS, st.sampled_from([(), HEADERS])), max_size=90)


@given(ROWS, st.integers(1, 80), st.booleans())
def test_each_record_is_next_in_its_turn_whatever_the_fetches(
    rows: list[tuple[int, bytes | None, bytes | None, Headers]], cut: int, as_columns: bool
) -> None:
    records = [Record(2 * number, *row) for number, row in enumerate(rows)]
    one = make()
    for first in range(0, len(records), cut):
        piece = records[first : first + cut]
        one.add(columns_of(piece) if as_columns else piece, piece[-1].offset + 1, at_end=True)
    assert one.waiting == len(records)
    reasons = {
        record.offset: "deserialize" if BAD in (record.key, record.value) else "invalid_timestamp"
        for record in records
        if BAD in (record.key, record.value) or record.timestamp < 0
    }
    expected = [
        (
            record.offset,
            None if record.key is None else record.key.decode(),
            None if record.value is None else record.value.decode(),
            record.timestamp,
            record.headers,
        )
        for record in records
        if record.offset not in reasons
    ]
    assert passed(one) == (expected, list(reasons.items()))
    assert one.waiting == 0 and one.consumed == (records[-1].offset + 1 if records else 0)


def test_failure_of_a_record_is_raised_when_it_is_next() -> None:
    one = make("fail")
    records = [Record(number, 0, b"k", BAD if number == 5 else b"v") for number in range(CHUNK)]
    one.add(columns_of(records), CHUNK, at_end=True)
    taken = []
    try:
        for _ in range(CHUNK):
            one.advance(lambda *given: None)
            taken.append(one.offset)
            one.consumed = one.offset + 1
    except RecordFailed as failure:
        assert "record of in-0 at offset 5" in str(failure)
    assert (taken, one.consumed, one.head) == ([0, 1, 2, 3, 4], 5, None)


def test_a_chunk_is_decoded_when_its_first_record_is_next() -> None:
    decoded: list[bytes] = []

    def note(raw: bytes) -> str:
        decoded.append(raw)
        return raw.decode()

    one = make()
    one._deserialize_value = note
    one.add(columns_of([Record(number, 0, b"k", b"%d" % number) for number in range(CHUNK + 3)]), CHUNK + 3, True)
    one.advance(lambda *given: None)
    assert len(decoded) == CHUNK, "a slow serde holds the task up for no more records than that"
    for _ in range(CHUNK):
        one.advance(lambda *given: None)
    assert (one.offset, len(decoded), one.waiting) == (CHUNK, CHUNK + 3, 3)


def test_bytes_come_in_larger_chunks_and_one_by_one_where_a_record_has_no_time() -> None:
    count, late = 2 * CHUNK_UNCHANGED + 3, CHUNK_UNCHANGED + 1
    records = [Record(number, -1 if number == late else number, b"k", BAD) for number in range(count)]
    one = make(serde=sf.serde.bytes)
    one.add(columns_of(records), count, True)
    one.advance(lambda *given: None)
    assert (len(one.records), one.waiting) == (CHUNK_UNCHANGED, count)
    one = make(serde=sf.serde.bytes)
    one.add(columns_of(records), count, True)
    shown, left_out = passed(one)
    assert shown == [(at, b"k", BAD, at, ()) for at in range(count) if at != late]  # type: ignore[comparison-overlap]
    assert (left_out, one.consumed) == ([(late, "invalid_timestamp")], count)
