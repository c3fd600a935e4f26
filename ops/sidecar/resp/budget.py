"""The bytes that all clients of the RESP server together make it hold, within one bound.

    requests of open MULTIs ┐
    commands of which a part came ├─ three quarters of the bound at most, then new ones are refused
    requests that wait for their turn ┘
    replies that were not read        the rest of the bound: beyond, the client with most is cut off

Rules of this file: numbers only. Python's own share counts: a request of few bytes takes a few hundred.
"""

from __future__ import annotations

from collections.abc import Sequence

REQUEST_BYTES = 176  # a request's list, its entry in a queue, and their parts of freed blocks
ARGUMENT_BYTES = 56
REPLIES_LEAST = 8  # an eighth of the bound is for replies in any case


def request_bytes(args: Sequence[bytes]) -> int:
    """The memory of one request."""
    return sum(map(len, args)) + ARGUMENT_BYTES * len(args) + REQUEST_BYTES


class Budget:
    """The bytes that are held now. `queues`: of MULTIs; `halves`: of commands that came in part; `backlog`: of requests
    that wait; `replies`: since unread ones were counted, and those.
    """

    __slots__ = ("backlog", "halves", "most", "queues", "replies")

    def __init__(self, most: int) -> None:
        self.most = most
        self.queues = self.halves = self.backlog = self.replies = 0

    @property
    def asked(self) -> int:
        """Bytes of requests of all kinds."""
        return self.queues + self.halves + self.backlog

    def takes(self, more: int) -> bool:
        """Whether requests may take `more` bytes."""
        return self.asked + more <= self.most - self.most // 4

    @property
    def tight(self) -> bool:
        """Whether requests take more than half of the bound: then each is read only when it can be answered."""
        return self.asked > self.most // 2

    @property
    def room(self) -> int:
        """The bytes that unread replies may take."""
        return max(self.most - self.asked, self.most // REPLIES_LEAST)
