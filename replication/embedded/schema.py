"""Tables of the embedded log, and the migration of files of an older format.

    format 1    no checksums, no epochs; the table of the records is `records`
    format 2    sums of blocks, seals of the rows that describe the log, epochs of each partition

Rules of this file: statements and the order in which they run, within one transaction of db.py. Format 2 renamed the
table of the records: a process of an older version that still has the file open then fails at its next call, instead
of writing records without checksums or removing some without their blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from standfast.replication.embedded.sums import check_seal, seal

SCHEMA_VERSION = 2

# A record's row id is its partition's id shifted by 40 bits plus its offset (see rows.py). AUTOINCREMENT: no partition
# gets the id of a deleted one, whose records may still wait for their purge.
SCHEMA = """
CREATE TABLE topics (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, topic_id TEXT NOT NULL, partitions INTEGER NOT NULL,
    policy TEXT NOT NULL, seal INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic INTEGER NOT NULL, number INTEGER NOT NULL,
    begin_offset INTEGER NOT NULL DEFAULT 0, end_offset INTEGER NOT NULL DEFAULT 0,
    keyed INTEGER NOT NULL, has_headers INTEGER NOT NULL DEFAULT 0, widest_bytes INTEGER NOT NULL DEFAULT 0,
    clean_offset INTEGER NOT NULL DEFAULT 0, swept_offset INTEGER NOT NULL DEFAULT 0, kept INTEGER NOT NULL DEFAULT 0,
    appended_ms INTEGER NOT NULL DEFAULT 0, aged_ms INTEGER NOT NULL DEFAULT 0,
    summed_offset INTEGER NOT NULL DEFAULT 0, tag TEXT NOT NULL DEFAULT '', seal INTEGER NOT NULL DEFAULT 0,
    UNIQUE (topic, number)) STRICT;
CREATE TABLE log_records (
    id INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL, key BLOB, value BLOB, headers BLOB) STRICT;
CREATE TABLE sums (
    partition INTEGER NOT NULL, end_offset INTEGER NOT NULL, begin_offset INTEGER NOT NULL, records INTEGER NOT NULL,
    keys_sum INTEGER NOT NULL, values_sum INTEGER NOT NULL, headers_sum INTEGER NOT NULL, times_sum INTEGER NOT NULL,
    gaps_sum INTEGER NOT NULL, PRIMARY KEY (partition, end_offset)) STRICT, WITHOUT ROWID;
CREATE TABLE epochs (
    partition INTEGER NOT NULL, begin_offset INTEGER NOT NULL, tag TEXT NOT NULL,
    PRIMARY KEY (partition, begin_offset)) STRICT, WITHOUT ROWID;
CREATE TABLE ages (
    partition INTEGER NOT NULL, end_offset INTEGER NOT NULL, appended_ms INTEGER NOT NULL,
    PRIMARY KEY (partition, end_offset)) STRICT, WITHOUT ROWID;
CREATE TABLE doomed (partition INTEGER PRIMARY KEY) STRICT;
CREATE TABLE writers (
    transactional_id TEXT PRIMARY KEY, group_name TEXT NOT NULL, owner TEXT NOT NULL, epoch INTEGER NOT NULL,
    boot_id TEXT NOT NULL, seal INTEGER NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;
CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE members (
    group_name TEXT NOT NULL, member_id TEXT NOT NULL, metadata TEXT NOT NULL, boot_id TEXT NOT NULL,
    lease_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, PRIMARY KEY (group_name, member_id)) STRICT, WITHOUT ROWID;
CREATE TABLE committed (
    group_name TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, position INTEGER NOT NULL,
    metadata TEXT NOT NULL, seal INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (group_name, topic, partition)) STRICT, WITHOUT ROWID;
"""

# The columns under a row's seal, the key first.
SEALED = {
    "topics": ("id", "name", "topic_id", "partitions", "policy"),
    "partitions": (
        *("id", "topic", "number", "begin_offset", "end_offset", "keyed", "has_headers", "widest_bytes"),
        *("clean_offset", "swept_offset", "kept", "appended_ms", "aged_ms", "summed_offset", "tag"),
    ),
    "writers": ("transactional_id", "group_name", "owner", "epoch", "boot_id"),
    "committed": ("group_name", "topic", "partition", "position", "metadata"),
}
_KEYS = {"topics": 1, "partitions": 1, "writers": 1, "committed": 3}
_SMALL = (*SEALED, "epochs", "ages", "doomed", "groups", "members")  # the tables that do not grow with the records

_TO_2 = (
    "ALTER TABLE records RENAME TO log_records",
    *(
        f"ALTER TABLE {table} ADD COLUMN seal INTEGER NOT NULL DEFAULT 0"
        for table in ("topics", "writers", "committed")
    ),
    "ALTER TABLE partitions ADD COLUMN summed_offset INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE partitions ADD COLUMN tag TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE partitions ADD COLUMN seal INTEGER NOT NULL DEFAULT 0",
    *(
        statement
        for statement in SCHEMA.split(";\n")
        if statement.startswith(("CREATE TABLE sums", "CREATE TABLE epochs"))
    ),
    "UPDATE partitions SET summed_offset = end_offset",  # records of format 1 have no checksum and stay readable
)

Run = Callable[..., Any]


def create(run: Run) -> None:
    """Create the tables of an empty file."""
    for statement in SCHEMA.split(";\n"):
        run(statement)


def migrate(run: Run, version: int) -> None:
    """Bring the tables of an older format to this one."""
    if version < 2:
        for statement in _TO_2:
            run(statement)
        for table, columns in SEALED.items():
            keys = columns[: _KEYS[table]]
            where = " AND ".join(f"{key} = ?" for key in keys)
            for row in run(f"SELECT {', '.join(columns)} FROM {table}").fetchall():  # noqa: S608  names of this file
                run(f"UPDATE {table} SET seal = ? WHERE {where}", (seal(*row), *row[: len(keys)]))  # noqa: S608


def check_described(run: Run, path: str) -> Iterator[str]:
    """Damage of the tables that describe the log, in sentences; raises Corruption for a row whose seal does not match.

    These tables are small enough to check at each opening. A damaged index hides rows from searches, and a topic that
    no search finds would be created again, empty.
    """
    notes = run("SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'notes'").fetchone() or ()
    for table in (*_SMALL, *notes):
        for (text,) in run(f"PRAGMA integrity_check({table})").fetchall():
            if text != "ok":
                yield f"table {table}: {text}"
    for table, columns in SEALED.items():
        for row in run(f"SELECT {', '.join(columns)}, seal FROM {table}").fetchall():  # noqa: S608  names of this file
            check_seal(f"log {path}, {table} {row[: _KEYS[table]]}", row[-1], *row[:-1])
