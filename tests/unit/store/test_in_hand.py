"""The record in hand: words in a mapped file that another process reads when theirs has ended."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.store.process.in_hand import (
    DECODING,
    DESERIALIZE,
    INPUT,
    OFFSET,
    STEP,
    HeldRecord,
    InHand,
    last_words,
    left_behind,
)

DIES = """
import ctypes, os, sys
from pathlib import Path
from standfast.store.process.in_hand import INPUT, OFFSET, STEP, InHand
hand = InHand(Path(sys.argv[1]))
number = hand.add("0_3", "lines", 3, 1, ["work"])
hand.words[OFFSET], hand.words[STEP], hand.words[INPUT] = 17, 1, number
if sys.argv[2] == "segv":
    ctypes.string_at(0)
if sys.argv[2] == "close":
    hand.close()
os._exit(0)
"""


def died(folder: Path, how: str) -> None:
    subprocess.run([sys.executable, "-c", DIES, str(folder), how], check=False, timeout=60)


@pytest.mark.slow
def test_words_of_a_process_that_crashed_have_its_record_its_step_and_its_stack(tmp_path: Path) -> None:
    died(tmp_path / "hands", "segv")
    (left,) = left_behind(tmp_path / "hands")
    assert left.record == HeldRecord("0_3", "lines", 3, 17, 18, "work", True)
    assert left.fatal == 11 and left.same_boot
    assert "in string_at" in left.stack
    assert list(left_behind(tmp_path / "hands")) == [], "they are read once"


@pytest.mark.slow
def test_process_that_ends_without_a_signal_leaves_a_record_and_no_stack(tmp_path: Path) -> None:
    died(tmp_path / "hands", "exit")
    (left,) = left_behind(tmp_path / "hands")
    assert left.record is not None
    assert (left.fatal, left.stack) == (0, "")


@pytest.mark.slow
def test_process_that_ends_well_leaves_nothing(tmp_path: Path) -> None:
    died(tmp_path / "hands", "close")
    assert list((tmp_path / "hands").iterdir()) == []


def test_record_that_is_decoded_with_others_is_not_sure(tmp_path: Path) -> None:
    hand = InHand(tmp_path)
    number = hand.add("0_0", "lines", 0, 1, [])
    assert hand.held() is None
    hand.words[OFFSET], hand.words[STEP], hand.words[INPUT] = 4, DECODING, -number
    assert hand.held() == HeldRecord("0_0", "lines", 0, 4, 5, DESERIALIZE, False)
    hand.close()


def test_record_whose_stall_is_noted_counts_no_second_time(tmp_path: Path) -> None:
    hand = InHand(tmp_path)
    hand.words[OFFSET], hand.words[INPUT] = 4, hand.add("0_0", "lines", 0, 1, [])
    record = hand.held()
    assert record is not None
    hand.noted(record)
    assert hand.held() is None
    hand.words[OFFSET] = 5
    assert hand.held() is not None
    hand.close()


def test_without_room_the_words_are_of_this_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    hand = InHand(tmp_path / "hands")
    hand.words[INPUT] = hand.add("0_0", "lines", 0, 1, [])
    hand.close()
    assert "a record that ends this process will be named nowhere" in caplog.text
    assert list((tmp_path / "hands").iterdir()) == []


def test_file_that_is_no_words_says_nothing_and_goes(tmp_path: Path) -> None:
    (tmp_path / "12").write_bytes(b"rubbish")
    (tmp_path / "12.stack").write_bytes(b"")
    assert last_words(tmp_path, 12) is None
    assert list(tmp_path.iterdir()) == []
