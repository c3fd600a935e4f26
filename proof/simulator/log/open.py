"""The address of a simulated log: `sim://NAME?style=kafka`, or `style=embedded`.

Rules of this file: a process-wide table of the world's logs by name; the world puts each log there before a process
opens it, and clears the table at its end.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from simulator.log.client import SimLogClient
from simulator.log.cluster import SimLog
from standfast.store.clock import Clock
from standfast.store.errors import BadConfig

SCHEME = "sim"
LOGS: dict[str, SimLog] = {}


def open_simulated(address: str, *, clock: Clock | None = None) -> SimLogClient:
    """The log at an address for one process, whose clock is `clock` (None: the world's). Raises BadConfig."""
    scheme, _, rest = address.partition("://")
    name, _, query = rest.partition("?")
    if scheme != SCHEME or name not in LOGS:
        raise BadConfig([f"log address {address!r}: write sim://NAME?style=kafka, with a name of {sorted(LOGS)}"])
    log = LOGS[name]
    options = dict(parse_qsl(query))
    if options.get("style", log.style) != log.style or options.keys() - {"style"}:
        raise BadConfig([f"log address {address!r}: the log has style {log.style}, and no other setting"])
    return SimLogClient(log, clock)
