"""Commands that went: each says for one release what to use instead.

Rules of this file: plain data, and the refusal. CHANGELOG.md has the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from standfast.store.errors import InvalidRequest

# The words of a command, and what to use instead.
GONE: Mapping[tuple[str, ...], str] = {
    ("placement", "explain"): "`standfast placement --app NAME` has the reasons of a running application",
    ("simulate",): "`make simulate` in the source tree plays the same",
    ("topic", "alter"): (
        "`kafka-configs.sh --alter`, `kafka-topics.sh --alter`; on an embedded log `change_topic` and "
        "`add_partitions` of `standfast.open_log(address).admin`"
    ),
    **{
        ("bench", name): f"`make bench BENCHES={name}` in the source tree"
        for name in ("write", "read", "standby", "failover", "process", "scale", "handover")
    },
}


def check_gone(arguments: Sequence[str]) -> None:
    """Raises InvalidRequest for a command that went."""
    for words, instead in GONE.items():
        if tuple(arguments[: len(words)]) == words:
            raise InvalidRequest(f"`standfast {' '.join(words)}` is gone: {instead}")
