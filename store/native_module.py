"""The compiled module of standfast: whether it can be used here, and why not.

    compiled()      the module, or the reason against it; looked up once

Without the module everything works, in Python and slower.

Rules of this file: it knows no librdkafka, which the clients need beside it (replication/kafka/native_library.py).
A reason is a sentence without a full stop, for `standfast doctor` and `standfast --version`.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from standfast.store.outside import environment

SWITCH = "STANDFAST_NATIVE"
MODULE = "standfast.store._native"


class Native(NamedTuple):
    """`module` is None if the compiled module cannot be used, and `reason` says why; else `version` of librdkafka."""

    module: Any
    version: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """One line about the path in use."""
        if self.module is None:
            return f"Python, since {self.reason}"
        return f"compiled, on librdkafka {self.version}"


def compiled() -> Native:
    """The compiled module, without a look for librdkafka, or the reason against it."""
    return Native(None, reason=f"{SWITCH}=0 is set") if environment().get(SWITCH) == "0" else _module()


@cache
def _module() -> Native:
    if sys.platform != "linux":
        return Native(None, reason=f"the compiled reader is for Linux, and this is {sys.platform}")
    if sys.implementation.name != "cpython" or "t" in sys.abiflags:
        return Native(None, reason="the compiled reader needs CPython with its interpreter lock")
    try:
        return Native(import_module(MODULE))
    except ImportError as error:
        return Native(None, reason=f"the compiled reader is not installed ({error}): install gcc, then standfast again")
