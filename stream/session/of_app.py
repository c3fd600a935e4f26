"""Features of App that a session does not have, each with the way to the same end.

    sf.Session(..., tracing=True)     Session: tracing is of an App: your loop makes its spans itself
    session.pause()                   Session has no pause: your loop chooses its records

Rules of this file: text, and the errors that carry it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NoReturn

from standfast.store.errors import BadConfig

_STEPS = "a session has no sources and steps, sf.App has: your loop reads the records, and commits their offsets"
OF_APP: Mapping[str, str] = {
    **dict.fromkeys(("source", "stream", "table", "sink", "topology"), _STEPS),
    **dict.fromkeys(("map_async", "map_values_async"), "your loop awaits its calls itself, before it commits"),
    **dict.fromkeys(
        ("pause", "resume"), "your loop chooses its records: pause the consumer's partitions, and go on polling"
    ),
    **dict.fromkeys(("run", "stop"), "your loop ends by itself, and session.close() comes last"),
    "tracing": "your loop makes its spans itself, as it processes the records",
    "on_error": "your loop catches its errors itself, and task.send(topic, ...) writes a dead letter with the commit",
    "workers": "run the program once for each core, each with a state_dir of its own",
    "commit_interval_ms": "your loop commits, by session.commit(offsets)",
    "restart": "your loop opens a failed task again, by session.reopen(partition)",
}
_READS = "a replica only reads rows, and processes no record"
OF_APPLICATION: Mapping[str, str] = {
    **dict.fromkeys(OF_APP, f"{_READS}: the application that it follows does"),
    **dict.fromkeys(("pause", "resume", "stop", "run"), f"{_READS}: it follows until replica.close()"),
    "snapshots": f"{_READS}: the application that it follows makes snapshots and checkpoints",
    "max_tasks": f"{_READS}: it holds a copy of every task",
    "http_port": "standfast.ops.http.OpsServer(replica, port=...) serves it, and so does `standfast replica --port`",
}


class NotHere(BadConfig, AttributeError):
    """There is no such method; an AttributeError as well, so that `hasattr` says so."""


class Elsewhere:
    """A class whose settings and methods do not include some of an App: their names are refused with the reason."""

    _elsewhere: ClassVar[Mapping[str, str]] = OF_APP

    if not TYPE_CHECKING:  # type checkers know every name, and would take any with this

        def __getattr__(self, name: str) -> NoReturn:
            if name in self._elsewhere:
                raise NotHere([f"{type(self).__name__} has no {name}: {self._elsewhere[name]}"])
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
