"""The write buffer of a task: the compiled one where the module can be used, else the one in Python.

Rules of this file: the one place that chooses. All else names the port (buffer.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from standfast.store.buffer.buffer import SLOTS, Buffer, Check, Writer
from standfast.store.buffer.write_buffer import WriteBuffer
from standfast.store.native_module import compiled


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
