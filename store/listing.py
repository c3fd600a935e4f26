"""Names within an error: ten at most, since a cluster may have thousands of topics, and a state thousands of tasks.

    few(["a", "b"])          "a, b"
    few(thirteen names)      the first ten, and "... and 3 more"

Rules of this file: pure. The order is the caller's, so a list from a set is sorted before.
"""

from __future__ import annotations

from collections.abc import Iterable

NAMES_MAX = 10


def few(names: Iterable[object], separator: str = ", ") -> str:
    """The first of these names, or sentences, and the number of the others; "" for none."""
    given = [str(name) for name in names]
    more = f" and {len(given) - NAMES_MAX} more" if len(given) > NAMES_MAX else ""
    return separator.join(given[:NAMES_MAX]) + more
