"""The write buffer of a task: the compiled one where the module can be used, else the one in Python."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from standfast.store.buffer import SLOTS, Buffer, Check, Writer
from standfast.store.native.library import compiled
from standfast.store.write_buffer import WriteBuffer


def buffer_type() -> type[Buffer]:
    """The class of buffers here."""
    module = compiled().module
    return WriteBuffer if module is None else compiled_buffer(module)


@cache
def compiled_buffer(module: Any) -> type[Buffer]:
    """The class of compiled buffers."""

    class CompiledBuffer(module.Buffer, Buffer):  # type: ignore[misc]
        """The compiled buffer."""

        __slots__ = SLOTS

        def writer(self, store: str, check: Check) -> Writer:
            """See Buffer."""
            return cast("Writer", module.Writer(self, store, check))

        encoder = staticmethod(module.encoder)
        putter = staticmethod(module.putter)

    return CompiledBuffer
