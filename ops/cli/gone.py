"""Commands that went: each says for one release what to use instead.

Rules of this file: plain data, and the refusal. CHANGELOG.md has the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from standfast.store.errors import InvalidRequest

# The words of a command, and what to use instead.
GONE: Mapping[tuple[str, ...], str] = {
    ("placement", "explain"): "`standfast placement --app NAME --log ADDRESS` has the reasons of a running application",
    ("simulate",): "`make simulate` in the source tree plays the same",
    ("bench", "write"): "`make bench BENCHES=write` in the source tree",
    ("bench", "read"): "`make bench BENCHES=read` in the source tree",
    ("bench", "standby"): "`make bench BENCHES=standby` in the source tree",
    ("bench", "failover"): "`make bench BENCHES=failover` in the source tree",
    ("bench", "process"): "`make bench BENCHES=process` in the source tree",
    ("bench", "scale"): "`make bench BENCHES=scale` in the source tree",
    ("bench", "handover"): "`make bench BENCHES=handover` in the source tree",
}


def check_gone(arguments: Sequence[str]) -> None:
    """Raises InvalidRequest for a command that went."""
    for words, instead in GONE.items():
        if tuple(arguments[: len(words)]) == words:
            raise InvalidRequest(f"`standfast {' '.join(words)}` is gone: {instead}")
