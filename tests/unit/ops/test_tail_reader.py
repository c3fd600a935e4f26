"""The reader of the sidecar's worker, when the server that sent the request is gone.

Rules of this file: a real pipe without a process at its other end.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from standfast.ops.sidecar.worker.protocol import ReadRows, RowsPage, report_line
from standfast.ops.sidecar.worker.reader import RowsReader


def test_reader_ends_without_a_word_when_its_server_is_gone() -> None:
    theirs, ours = os.pipe()
    os.close(theirs)
    told = threading.Event()

    def tell(report: RowsPage) -> None:
        told.set()
        os.write(ours, report_line(report))

    routes: Any = None  # any answer will do, an error too
    reader = RowsReader(routes, tell)
    reader.ask(ReadRows(1, "/v1/stores/kv", ""))
    assert told.wait(30)
    reader.thread.join(30)
    assert not reader.thread.is_alive()  # an exception that leaves a thread fails the test, as a warning
    os.close(ours)
