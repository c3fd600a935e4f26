"""The compiled reader: whether it can be used here, and why not.

    compiled()      the module alone, whose fold needs no librdkafka, or the reason against it; looked up once
    native()        the module with librdkafka found, or the reason against it
    refused_by      the reason in a log's own settings

The module uses the librdkafka that the confluent_kafka package has loaded, by its path in the process's own memory map,
wherever it came from: there is never a second copy. Without the module everything works, in Python and slower.

Rules of this file: it opens no client. A reason is a sentence without a full stop, for `standfast doctor` and
`standfast --version`.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from standfast.replication.kafka.callbacks import ERROR
from standfast.store import serde
from standfast.store.outside import environment

SWITCH = "STANDFAST_NATIVE"
MODULE = "standfast.replication.kafka._native"
MAPS = Path("/proc/self/maps")
LIBRARY = "librdkafka"


class Native(NamedTuple):
    """`module` is None if the compiled reader cannot be used, and `reason` says why; else `version` of librdkafka."""

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
    found = Native(None, reason=f"{SWITCH}=0 is set") if environment().get(SWITCH) == "0" else _module()
    serde.quicken(found.module)
    return found


def native() -> Native:
    """The compiled module on the librdkafka of the installed client, or the reason against it; loads that client."""
    found = compiled()
    return found if found.module is None else _with_client(found.module)


def refused_by(functions: frozenset[str]) -> str:
    """The reason in the functions that a log was given; "" if there is none."""
    # `error_cb` is called between two batches; the others would be called in threads that Python does not know.
    others = sorted(functions - {ERROR})
    return f"kafka={{{others[0]!r}: ...}} is a function of Python, which only its own client calls" if others else ""


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


@cache
def _with_client(module: Any) -> Native:
    import_module("confluent_kafka")  # loads librdkafka
    return with_library(module, loaded())


def loaded() -> list[str]:
    """Paths of each librdkafka that this process has loaded."""
    names = {line.split(maxsplit=5)[5].strip() for line in MAPS.read_text().splitlines() if LIBRARY in line}
    return sorted(name for name in names if Path(name).name.startswith(LIBRARY))


def with_library(module: Any, paths: list[str]) -> Native:
    """The module on one of these libraries."""
    if len(paths) != 1:
        what = f"several copies of it: {', '.join(paths)}" if paths else "none of its own"
        return Native(None, reason=f"the client of Kafka has {what}, where one shared {LIBRARY} is expected")
    try:
        return Native(module, version=module.load(paths[0]))
    except OSError as error:
        return Native(None, reason=str(error))
