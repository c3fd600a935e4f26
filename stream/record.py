"""The record that a processor receives.

Rules of this file: plain data, no behaviour.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from standfast.replication.log import Headers


class Record(NamedTuple):
    """Key and value decoded; `timestamp` in milliseconds.

    `old_value` is the key's previous value, where the record is an update of a table or of an aggregation; None
    elsewhere, and for a key that did not exist.
    """

    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()
    old_value: Any = None
