"""Notes of groups: facts that an application keeps in the log, beside its members.

    notes    group, kind, name -> text, with the wall-clock time of writing

The first note makes the table: a log that has none stays as an older version left it, and can be opened where nothing
can be written. Older versions pass over the table, so it changes no format number.

Rules of this file: statements within one transaction of db.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from standfast.replication.embedded.db import Transaction
from standfast.replication.embedded.sums import check_seal, seal
from standfast.replication.log import Note, Notes

_TABLE = """
CREATE TABLE IF NOT EXISTS notes (
    group_name TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL, at_ms INTEGER NOT NULL,
    seal INTEGER NOT NULL, PRIMARY KEY (group_name, kind, name)) STRICT, WITHOUT ROWID
"""


def find_notes(run: Transaction, group: str) -> Notes:
    """The notes of a group. Raises Corruption if a row's seal does not match."""
    if run.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'notes'").fetchone() is None:
        return {}
    rows = run.execute(
        "SELECT group_name, kind, name, text, at_ms, seal FROM notes WHERE group_name = ? ORDER BY kind, name", (group,)
    ).fetchall()
    for row in rows:
        check_seal(f"group {group!r}, note {row[1]} {row[2]!r}", row[-1], *row[:-1])
    return {(kind, name): Note(text, at_ms) for _, kind, name, text, at_ms, _ in rows}


def store_notes(run: Transaction, group: str, notes: Mapping[tuple[str, str], str | None], now_ms: int) -> None:
    """Write notes; None removes one."""
    run.execute(_TABLE)
    for (kind, name), text in notes.items():
        if text is None:
            run.execute("DELETE FROM notes WHERE group_name = ? AND kind = ? AND name = ?", (group, kind, name))
            continue
        columns = (group, kind, name, text, now_ms)
        run.execute(
            "INSERT OR REPLACE INTO notes (group_name, kind, name, text, at_ms, seal) VALUES (?, ?, ?, ?, ?, ?)",
            (*columns, seal(*columns)),
        )
