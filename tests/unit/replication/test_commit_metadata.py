"""The text attached to a source commit: golden bytes, limits, and foreign text.

Rules of this file: the golden text may gain fields with a new format number, never change.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.commit_metadata import METADATA_MAX_BYTES, CommitMetadata
from standfast.store.errors import Corruption, InvalidRequest

GOLDEN = CommitMetadata(
    epoch=3,
    stream_times={"flights/1": 5, "flights/0": 1_357_020_000_000},
    observed={"delays": 1_357_020_000_000},
    progress={"delays": 1_357_016_400_000},
)
GOLDEN_TEXT = (
    '{"standfast":1,"epoch":3,"stream_times":{"flights/0":1357020000000,"flights/1":5},'
    '"observed":{"delays":1357020000000},"progress":{"delays":1357016400000}}'
)
EMPTY_TEXT = '{"standfast":1,"epoch":0,"stream_times":{},"observed":{},"progress":{}}'
PARTS = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=20), st.integers(-1, 2**63 - 1), max_size=5)


def test_text_is_golden() -> None:
    assert GOLDEN.to_text() == GOLDEN_TEXT
    assert CommitMetadata.from_text(GOLDEN_TEXT) == GOLDEN
    assert CommitMetadata(0).to_text() == EMPTY_TEXT


@given(st.builds(CommitMetadata, st.integers(0, 2**31), PARTS, PARTS, PARTS))
def test_text_is_read_back(metadata: CommitMetadata) -> None:
    assert CommitMetadata.from_text(metadata.to_text()) == metadata


@pytest.mark.parametrize(
    "text", ["", "AgAAAYW3oAAAAAAA", "x", "{}", '{"other":1}', '{"standfas', "null", ' {"standfast":1}']
)
def test_text_that_is_not_ours_is_none(text: str) -> None:
    assert CommitMetadata.from_text(text) is None


@pytest.mark.parametrize("behind", ["\x02", '"}', "{}", " \n9"])
def test_bytes_behind_the_text_are_left_out(behind: str) -> None:
    metadata = CommitMetadata(3, {"flights/0": 7})
    assert CommitMetadata.from_text(metadata.to_text() + behind) == metadata


def test_newer_format_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="format 2"):
        CommitMetadata.from_text('{"standfast":2,"anything":[]}')


@pytest.mark.parametrize(
    "text",
    [
        '{"standfast":1',
        '{"standfast":',
        '{"standfast":1}',
        '{"standfast":0,"epoch":1}',
        '{"standfast":"1"}',
        GOLDEN_TEXT.replace('"epoch":3', '"epoch":"3"'),
        GOLDEN_TEXT.replace('"epoch":3', '"epoch":true'),
        GOLDEN_TEXT.replace(":5}", ":5.5}"),
        GOLDEN_TEXT.replace('{"delays":1357016400000}', "[]"),
        GOLDEN_TEXT[:-1],
    ],
)
def test_damaged_text_of_ours_is_an_error(text: str) -> None:
    with pytest.raises(Corruption, match="damaged"):
        CommitMetadata.from_text(text)


def filled(size_bytes: int) -> CommitMetadata:
    """Metadata of exactly this size: one name of the right length."""
    overhead = len(EMPTY_TEXT) + len('"":0')
    return CommitMetadata(0, observed={"s" * (size_bytes - overhead): 0})


@pytest.mark.parametrize("size", [METADATA_MAX_BYTES - 1, METADATA_MAX_BYTES])
def test_text_up_to_the_limit_is_written(size: int) -> None:
    assert len(filled(size).to_text().encode()) == size


def test_text_over_the_limit_says_what_takes_the_space() -> None:
    with pytest.raises(InvalidRequest, match=r"4097 bytes is over the limit of 4096: observed 4\d\d\d bytes \(1 ent"):
        filled(METADATA_MAX_BYTES + 1).to_text()


def test_size_is_counted_in_bytes_not_in_characters() -> None:
    with pytest.raises(InvalidRequest, match="over the limit"):
        CommitMetadata(0, stream_times={"é" * 2_040: 1}).to_text()
