"""Busy members of the embedded log's groups: the numbers that each published at its last renewal.

    busy    group, member -> the numbers of `replication/leases.py`, as JSON; no row of an idle member

The first busy member makes the table. Older versions pass over it, so it changes no format number.

Rules of this file: statements within one transaction of db.py.
"""

from __future__ import annotations

import json

from standfast.replication.embedded.db import Transaction
from standfast.replication.embedded.sums import check_seal, seal
from standfast.replication.leases import IDLE, Busy

_TABLE = """
CREATE TABLE IF NOT EXISTS busy (
    group_name TEXT NOT NULL, member_id TEXT NOT NULL, numbers TEXT NOT NULL, seal INTEGER NOT NULL,
    PRIMARY KEY (group_name, member_id)) STRICT, WITHOUT ROWID
"""


def find_busy(run: Transaction, group: str) -> dict[str, Busy]:
    """The busy members of a group; some may not be live any more. Raises Corruption if a row's seal does not match."""
    if not _is_there(run):
        return {}
    columns = "group_name, member_id, numbers, seal"
    rows = run.execute(f"SELECT {columns} FROM busy WHERE group_name = ? ORDER BY member_id", (group,)).fetchall()  # noqa: S608
    for row in rows:
        check_seal(f"group {group!r}, busy member {row[1]!r}", row[-1], *row[:-1])
    return {name: Busy.of(json.loads(numbers)) for _, name, numbers, _ in rows}


def store_busy(run: Transaction, group: str, member: str, busy: Busy = IDLE) -> None:
    """Write how busy a member is, or remove its row if it is idle, or no member any more."""
    if numbers := busy.numbers:
        run.execute(_TABLE)
        row = (group, member, json.dumps(numbers))
        run.execute(
            "INSERT OR REPLACE INTO busy (group_name, member_id, numbers, seal) VALUES (?, ?, ?, ?)", (*row, seal(*row))
        )
    elif _is_there(run):
        run.execute("DELETE FROM busy WHERE group_name = ? AND member_id = ?", (group, member))


def forget_busy(run: Transaction, group: str) -> None:
    """Remove the rows of members that are gone."""
    if _is_there(run):
        live = "SELECT member_id FROM members WHERE group_name = ?1"
        run.execute(f"DELETE FROM busy WHERE group_name = ?1 AND member_id NOT IN ({live})", (group,))  # noqa: S608


def _is_there(run: Transaction) -> bool:
    found = run.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'busy'").fetchone()
    return found is not None
