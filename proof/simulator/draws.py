"""Random numbers by question: a further question in one place changes no answer in another place.

Draws(seed).number("log.append", "instance 2", 17) ──> 0.1934...     the same in every process and run
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """Answers of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def bits(self, *question: str | int) -> int:
        """64 random bits for a question; the same question has the same answer."""
        text = "\0".join(map(str, (self.seed, *question)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    def number(self, *question: str | int) -> float:
        """A number in [0, 1)."""
        return (self.bits(*question) >> 11) / (1 << 53)

    def below(self, limit: int, *question: str | int) -> int:
        """A whole number from 0 to `limit` - 1."""
        return self.bits(*question) % limit

    def choice(self, items: Sequence[T], *question: str | int) -> T:
        """One of the items."""
        return items[self.below(len(items), *question)]
