"""The part of the write buffer that a commit takes, the bytes that the part counts, and two parts as one.

    part     rows, changes and outputs of the commit under way          see buffer.py for their form
    merged   a part whose commit changed nothing, under the next one

Rules of this file: pure. A part knows no buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sortedcontainers import SortedList

from standfast.store.value_timestamp import TIMESTAMP_BYTES, Change, RowChanges, changes_bytes

# CPython's approximate cost of the dictionary entries and object headers of one buffered row and of one change.
ROW_OVERHEAD_BYTES = 100
CHANGE_OVERHEAD_BYTES = 100
ENTRY_BYTES = ROW_OVERHEAD_BYTES + CHANGE_OVERHEAD_BYTES
ENTRY_OVERHEAD_BYTES = ENTRY_BYTES + TIMESTAMP_BYTES


Rows: TypeAlias = dict[str, dict[bytes, bytes | None]]


class CommitPart:
    """The rows, changes and outputs that one commit took from the buffer; no write enters them any more."""

    __slots__ = ("changes", "delete_times", "indexes", "output_bytes", "outputs", "refused", "rows", "size_bytes")

    def __init__(
        self, rows: Rows, changes: dict[str, dict[Any, Any]], delete_times: dict[str, dict[bytes, int]]
    ) -> None:
        self.rows, self.changes, self.delete_times = rows, changes, delete_times
        self.indexes: dict[str, SortedList[bytes]] = {}
        self.outputs: dict[Any, list[Any]] = {}
        self.output_bytes = self.size_bytes = 0
        self.refused = False  # its commit changed nothing, and the next one takes it again

    def logged(self) -> dict[str, Sequence[Change]]:
        """Changes by store, in the order in which their keys were first written."""
        return logged(self.changes, self.delete_times)


def logged(changes: Mapping[str, Mapping[Any, Any]], delete_times: Mapping[str, Any]) -> dict[str, Sequence[Change]]:
    """Changes by store, in the order in which their keys were first written."""
    return {
        store: RowChanges(changed, delete_times[store]) if store in delete_times else list(changed.values())
        for store, changed in changes.items()
    }


def merged(older: CommitPart, newer: CommitPart) -> CommitPart:
    """Both parts as one: the newer row of a key counts, in the order of first writes."""
    both = CommitPart({}, {}, {})
    for part in (older, newer):
        for family, rows in part.rows.items():
            both.rows.setdefault(family, {}).update(rows)
        for target, records in part.outputs.items():
            both.outputs.setdefault(target, []).extend(records)
        both.output_bytes += part.output_bytes
    for store in older.changes | newer.changes:
        parts = [part for part in (older, newer) if store in part.changes]
        homes = {
            next((name for name, rows in part.rows.items() if part.changes[store] is rows), None) for part in parts
        }
        home = homes.pop()
        if not homes and home is not None:  # the rows of one family are the changes of both parts
            both.changes[store] = both.rows[home]
            both.delete_times[store] = {at: time for part in parts for at, time in part.delete_times[store].items()}
            continue
        # The changes of rows in two families, or of a store whose changes are no rows.
        found = [
            listed(part.changes[store], part.delete_times[store]) if store in part.delete_times else part.changes[store]
            for part in parts
        ]
        each = any(isinstance(slot, int) for changes in found for slot in changes)
        both.changes[store] = (
            dict(enumerate(change for changes in found for change in changes.values()))
            if each
            else {slot: change for changes in found for slot, change in changes.items()}
        )
    both.size_bytes = both.output_bytes + content_bytes(both)
    return both


def content_bytes(part: CommitPart) -> int:
    """The bytes that rows and changes count."""
    changed = logged(part.changes, part.delete_times).values()
    rows = [row for rows in part.rows.values() for row in rows.items()]
    size = sum(ROW_OVERHEAD_BYTES + len(key) + len(row or b"") for key, row in rows)
    return size + sum(CHANGE_OVERHEAD_BYTES * len(changes) + changes_bytes(changes) for changes in changed)


def listed(rows: Mapping[bytes, bytes | None], delete_times: Mapping[bytes, int]) -> dict[bytes, Change]:
    """Changes by key of a store whose rows are its changes."""
    return {change[0]: change for change in RowChanges(rows, delete_times)}
