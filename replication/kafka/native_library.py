"""The compiled clients of Kafka: whether they can be used here, and why not.

    native()        the compiled module with librdkafka found, or the reason against it
    refused_by      the reason in a log's own settings
    module_for      the choice for all clients of a log

The module uses the librdkafka that the confluent_kafka package has loaded, by its path in the process's own memory map,
wherever it came from: there is never a second copy. `store/native_module.py` finds the module itself.

Rules of this file: it opens no client. A reason is a sentence without a full stop, for `standfast doctor` and
`standfast --version`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from standfast.replication.kafka.callbacks import ERROR
from standfast.store.native_module import Native, compiled

MAPS = Path("/proc/self/maps")
LIBRARY = "librdkafka"


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
def _with_client(module: Any) -> Native:
    import_module("confluent_kafka")  # loads librdkafka
    return with_library(module, loaded())


def module_for(functions: frozenset[str]) -> Any:
    """The module for the clients of a log that was given these functions; None: confluent_kafka's clients serve it."""
    return None if refused_by(functions) else native().module


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
