"""The file that records which broker runs in a directory, and the end of that broker.

    <directory>/BROKER.json    {"schema": "standfast.broker-state/1", "pid", "started_ticks", "boot", "port", ...}

Rules of this file: the file is written once the process exists, and removed when it is gone. A file whose process is
gone, also if its id is another process's by now, counts as absent; that other process is never touched.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

from standfast.ops.shared.loopback import HOST
from standfast.ops.shared.process_id import ProcessId, is_alive, send, wait_gone
from standfast.replication.shapes import Shape, plain, read
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import InvalidRequest, Unavailable
from standfast.store.files import write_atomically

STATE_FILE = "BROKER.json"
STOP_MS_MAX = 30_000


class RunningBroker(Shape, frozen=True, tag_field="schema", tag="standfast.broker-state/1"):
    """A broker; `version` is Kafka's, `java` and `log` are paths."""

    pid: int
    started_ticks: int
    boot: str
    port: int
    version: str
    java: str
    log: str

    @property
    def address(self) -> str:
        """The address for clients, `host:port`."""
        return f"{HOST}:{self.port}"

    @property
    def process(self) -> ProcessId:
        """The identity of its process."""
        return ProcessId(self.pid, self.started_ticks, self.boot)


def running_broker(directory: Path) -> RunningBroker | None:
    """The broker that runs in a directory, or None. Raises InvalidRequest if the file cannot be read."""
    path = directory / STATE_FILE
    try:
        found = read(path.read_bytes(), RunningBroker)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise InvalidRequest(f"{path} is not readable ({error}): stop the broker by hand, then remove it") from error
    return found if is_alive(found.process) else None


def record_broker(directory: Path, broker: RunningBroker) -> None:
    """Write the file."""
    write_atomically(directory / STATE_FILE, json.dumps(plain(broker)) + "\n")


def end_broker(directory: Path, clock: Clock | None = None, *, at_once: bool = False) -> RunningBroker | None:
    """End the broker of a directory: in order, by SIGKILL after STOP_MS_MAX, or by SIGKILL `at_once`.

    Returns the broker that ran, or None. Raises Unavailable if even SIGKILL does not end it.
    """
    clock = clock or SystemClock()
    running = running_broker(directory)
    if running is not None:
        ended = False
        if not at_once:
            send(running.process, signal.SIGTERM)
            ended = wait_gone(running.process, clock, STOP_MS_MAX)
        if not ended:
            send(running.process, signal.SIGKILL)
            if not wait_gone(running.process, clock, STOP_MS_MAX):
                raise Unavailable(
                    f"broker pid {running.pid} does not end, not even by SIGKILL; its log is {running.log}"
                )
    (directory / STATE_FILE).unlink(missing_ok=True)
    return running
