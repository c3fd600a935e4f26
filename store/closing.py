"""The base class of objects that a `with` block closes at its end.

Rules of this file: it imports nothing of ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Base of classes whose `close` may be called twice: a `with` block calls it, however the block ends."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release the resources of this object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
