"""Names within an error are ten at most."""

from __future__ import annotations

from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.placement.start_wait import StartWait
from standfast.restore.foreign_offsets import Foreign, ForeignOffsets
from standfast.store.clock import SystemClock
from standfast.store.names import few


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["a"], "a"),
        (range(10), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (range(13), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 3 more"),
    ],
)
def test_names_beyond_the_tenth_are_counted(names: list[object], expected: str) -> None:
    assert few(names) == expected


def test_sentences_have_the_separator_of_the_caller() -> None:
    assert few(["a is late", "b is late"], "; ") == "a is late; b is late"


def test_error_about_an_unknown_topic_or_an_unassigned_partition_names_ten_of_many(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log.db")
    for number in range(12):
        log.admin.create_topic(f"t{number:02}", 1, TopicPolicy())
    reader = log.reader()
    with pytest.raises(sf.UnknownStore, match=r"The log has: t00, t01, .*t09 and 2 more$"):
        reader.bounds([TopicPartition("nothing-like-it", 0)])
    reader.assign({TopicPartition(f"t{number:02}", 0): 0 for number in range(12)})
    with pytest.raises(sf.InvalidRequest, match=r"t00-0, .*, t09-0 and 2 more$"):
        reader.seek(TopicPartition("t", 0), 0)
    log.close()


def test_refusal_of_offsets_of_many_topics_names_ten(tmp_path: Path) -> None:
    judge = ForeignOffsets("app", tmp_path, "sqlite:log.db", SystemClock(), accept=False)
    found = [Foreign(TopicPartition(f"t{number:02}", 0), 5, 9) for number in range(12)]
    with pytest.raises(sf.StateLost) as refused:
        judge.judge(TaskId(0, 0), found)
    assert str(refused.value).count("t09-0") == 2 and "t10-0" not in str(refused.value)
    assert str(refused.value).count("and 2 more") == 2


def test_wait_for_many_instances_names_ten() -> None:
    wait = StartWait("app", 30_000)
    held = {TaskId(0, number): f"i{number:02}" for number in range(12)}
    wait.look(held, frozenset(), {}, now_ms=0, wall_ms=0)
    assert "wait for i00, i01, " in wait.text and "i09 and 2 more, which stopped" in wait.text
