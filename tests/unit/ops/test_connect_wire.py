"""The client's connection to a sidecar: a call that a signal handler breaks off, at each of its points."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from standfast.ops.client.connect_wire import Wire
from support.attacks.points import Alarm, counted, signalled


@pytest.fixture
def echoing(tmp_path: Path) -> Iterator[Path]:
    """A server that answers each command with its last word, on as many connections as come."""
    path = tmp_path / "socket"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        with suppress(OSError):  # the test ends
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with suppress(OSError), closing(connection), connection.makefile("rb") as lines:
            while count := lines.readline()[1:]:
                words = [lines.read(int(lines.readline()[1:]) + 2) for _ in range(int(count))]
                connection.sendall(b"$%d\r\n%b" % (len(words[-1]) - 2, words[-1]))

    accepting = threading.Thread(target=serve)
    accepting.start()
    yield path
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    accepting.join()


@pytest.mark.slow
def test_call_that_a_signal_breaks_off_leaves_no_reply_to_the_next_one(echoing: Path) -> None:
    with closing(Wire(echoing)) as wire:
        wire.call("GET", "first")
        points = counted(lambda: wire.call("GET", "usual"))
        broken = 0
        for point in range(1, points + 1):
            try:
                signalled(point, lambda point=point: wire.call("GET", f"broken{point}"))  # type: ignore[misc]
            except Alarm:
                broken += 1
            assert wire.call("GET", f"next{point}") == b"next%d" % point
        assert broken > points // 2
