"""The table of notes in the embedded log: made by the first note, sealed, and no matter to older versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from standfast.replication.embedded.log import EmbeddedLog
from standfast.store.errors import Corruption


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    made = EmbeddedLog(tmp_path / "log.sqlite")
    yield made
    made.close()


def tables(log: EmbeddedLog) -> tuple[int, set[str]]:
    """The format number, and the tables."""
    with closing(sqlite3.connect(log.path)) as other:
        found = other.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return other.execute("PRAGMA user_version").fetchone()[0], {name for (name,) in found}


def test_the_first_note_makes_the_table_and_the_format_number_stays(log: EmbeddedLog) -> None:
    group = log.group("g")
    before = tables(log)
    assert (group.notes(), log.notes_of(["g"])) == ({}, {"g": {}})
    group.note({})
    assert tables(log) == before  # a log without notes is as an older version left it
    group.note({("claim", "t"): "text"})
    assert tables(log) == (2, before[1] | {"notes"})


def test_a_log_that_is_open_elsewhere_finds_the_new_table(log: EmbeddedLog) -> None:
    with closing(EmbeddedLog(log.path)) as other:
        group = other.group("g")
        assert group.notes() == {}
        log.group("g").note({("claim", "t"): "text"})
        assert group.notes()["claim", "t"].text == "text"
        other.admin.describe_topic("none")


def test_a_note_that_another_program_changed_is_damage(log: EmbeddedLog) -> None:
    log.group("g").note({("claim", "t"): "text"})
    assert log.integrity_check() == []
    with closing(sqlite3.connect(log.path)) as other, other:
        other.execute("UPDATE notes SET text = 'other'")
    with pytest.raises(Corruption, match=r"note claim 't'"):
        log.group("g").notes()
