"""How long a changelog keeps its deletes, against the age of a position: the judge of opened and of running copies.

Rules of this file: pure. Times in milliseconds, -1 = for ever.
"""

from __future__ import annotations

from collections.abc import Collection

# A position older than this share of delete.retention.ms may have missed deletes.
TOMBSTONE_AGE_MAX_PERCENT = 90


def are_expired(age_ms: int, cleanup: Collection[str], kept_ms: int) -> bool:
    """Whether tombstones behind a position of this age may be gone from a changelog that keeps them for `kept_ms`."""
    return "compact" in cleanup and kept_ms >= 0 and age_ms * 100 > kept_ms * TOMBSTONE_AGE_MAX_PERCENT
