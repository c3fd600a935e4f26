"""Metadata in several texts: format 1 as long as it fits, every number back, and two commits never joined."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.log import Committed
from standfast.replication.metadata_parts import (
    TEXT_MAX_BYTES,
    is_part,
    read_texts,
    source_offsets,
    texts_of,
    with_pieces,
)
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import Corruption, InvalidRequest

LARGEST = 2**63 - 1
NUMBERS = st.integers(-1, LARGEST)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
PARTS = st.dictionaries(NAMES, NUMBERS, max_size=40)


def large(aggregations: int, seed: int = 0, *, names: str = "totals-{}") -> CommitMetadata:
    """The metadata of so many windowed aggregations with numbers that no compression helps."""
    rng = random.Random(seed)
    stores = [names.format(number) for number in range(aggregations)]
    progress = {f"{kind}:{store}": rng.randrange(LARGEST) for store in stores for kind in ("time", "close", "closed")}
    return CommitMetadata(7, {"flights/0": 5}, {store: rng.randrange(LARGEST) for store in stores}, progress)


def topics(count: int) -> list[str]:
    return [f"app-totals-{number}-changelog" for number in range(count)]


def read(head: str, pieces: Mapping[str, str]) -> list[CommitMetadata]:
    return read_texts([head], lambda topic: pieces.get(topic, ""))


@given(st.builds(CommitMetadata, st.integers(0, 2**31), PARTS, PARTS, PARTS, st.integers(-1, 9)))
def test_every_number_comes_back(metadata: CommitMetadata) -> None:
    head, pieces = texts_of(metadata, topics(3))
    assert read(head, pieces) == [metadata]
    if len(metadata.format_1().encode()) <= TEXT_MAX_BYTES:
        assert (head, pieces) == (metadata.format_1(), {})


@pytest.mark.parametrize("aggregations", [40, 200, 1_000])
def test_many_aggregations_fit_with_their_largest_numbers(aggregations: int) -> None:
    metadata = large(aggregations)
    head, pieces = texts_of(metadata, topics(aggregations))
    assert all(len(text.encode()) <= TEXT_MAX_BYTES for text in (head, *pieces.values()))
    assert read(head + "\x02", {topic: text + '"}' for topic, text in pieces.items()}) == [metadata]
    assert len(pieces) <= aggregations // 50


def test_one_text_of_the_new_format_is_used_before_any_changelog() -> None:
    metadata = large(40)
    assert len(metadata.format_1()) > TEXT_MAX_BYTES
    head, pieces = texts_of(metadata, [])
    assert pieces == {}
    assert read(head, {}) == [metadata]


def test_metadata_without_room_says_what_takes_the_space_and_what_helps() -> None:
    with pytest.raises(InvalidRequest, match=r"progress \d+ bytes \(3000 entries\).*give stores a changelog"):
        texts_of(large(1_000), topics(3))


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_piece_that_is_gone_is_an_error(lost: int) -> None:
    head, pieces = texts_of(large(200), topics(200))
    assert len(pieces) == 3
    left = {topic: text for number, (topic, text) in enumerate(pieces.items()) if number != lost}
    with pytest.raises(Corruption, match="was deleted, or another client committed"):
        read(head, left)


@pytest.mark.parametrize("at", range(30, 4_000, 250))
def test_a_changed_byte_is_an_error_and_never_another_number(at: int) -> None:
    head, pieces = texts_of(large(60), topics(60))
    changed = head[:at] + ("0" if head[at] != "0" else "1") + head[at + 1 :]
    with pytest.raises(Corruption, match="damaged"):
        read(changed, pieces)


def test_the_own_record_of_the_epoch_stands_in_for_a_piece_that_is_gone() -> None:
    head, _ = texts_of(large(200), topics(200))
    assert read_texts([head], lambda topic: "", 7) == []
    with pytest.raises(Corruption):
        read_texts([head], lambda topic: "", 6)


def test_a_head_of_an_earlier_commit_gives_way_to_the_later_one() -> None:
    earlier, later = large(200, 1), large(200, 2)
    old, _ = texts_of(earlier, topics(200))
    new, pieces = texts_of(later, topics(200))
    assert read_texts([old, new], lambda topic: pieces.get(topic, "")) == [later]
    small = CommitMetadata(7, {"flights/0": 9})
    assert read_texts([old, small.to_text()], lambda topic: pieces.get(topic, "")) == [small]
    with pytest.raises(Corruption, match="of other commits"):
        read(old, pieces)


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="format 3, this version reads up to 2"):
        read('{"standfast":3,"anything":[]}', {})


@pytest.mark.parametrize("text", ['{"standfast":2}', '{"standfast":2,"id":"x"}', '{"standfast":2,"id":1,"data":"x"}'])
def test_a_head_that_lacks_a_part_is_an_error(text: str) -> None:
    with pytest.raises((Corruption, InvalidRequest)):
        read(text, {})


def test_pieces_are_asked_for_once_each_and_are_no_source_offsets() -> None:
    metadata = large(200)
    head, pieces = texts_of(metadata, topics(200))
    committed = {TopicPartition(topic, 3): Committed(5, text) for topic, text in pieces.items()}
    asked: list[TopicPartition] = []

    def ask(wanted: object) -> dict[TopicPartition, Committed]:
        asked.extend(wanted)  # type: ignore[call-overload]
        return {at: committed[at] for at in wanted if at in committed}  # type: ignore[attr-defined]

    heads = {TopicPartition("flights", 3): Committed(9, head), TopicPartition("other", 3): Committed(1, "")}
    found = with_pieces(heads, ask)
    assert found == heads | committed
    assert sorted(asked) == sorted(committed)
    assert source_offsets(found) == heads
    assert not is_part(head)
    assert with_pieces({TopicPartition("flights", 3): Committed(9, "")}, ask) == {
        TopicPartition("flights", 3): Committed(9, "")
    }


YESTERDAY = (
    '{"standfast":1,"epoch":3,"stream_times":{"flights/0":1357020000000,"flights/1":5},'
    '"observed":{"delays":1357020000000},"progress":{"delays":1357016400000}}'
)


def test_yesterdays_text_is_read_and_written_back_as_it_was() -> None:
    (metadata,) = read(YESTERDAY, {})
    assert texts_of(metadata, topics(3)) == (YESTERDAY, {})


def test_a_reader_of_format_1_passes_over_a_field_that_it_does_not_know() -> None:
    """So do the versions before numbers of commits, whose reader was this one."""
    (known,) = read(YESTERDAY, {})
    assert read(YESTERDAY[:-1] + ',"later":7}', {}) == [known]
    (counted,) = read(YESTERDAY[:-1] + ',"commit":7}', {})
    assert (counted.commit, counted.progress) == (7, known.progress)
