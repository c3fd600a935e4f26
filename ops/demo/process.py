"""The worker processes of the demo, seen from the process that starts them.

    start ──> status() (the last one that it reported) ──> kill() or stop()

Rules of this file: each is a `ChildProcess`, with a file for its output. A worker that ends on its own is an error
that carries the end of that file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from standfast.ops.demo.board import BoardSettings
from standfast.ops.demo.worker import state_dir
from standfast.replication.placement.model import MoveKind
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError, Unavailable
from standfast.store.process.child import ChildProcess, json_line, json_object

STOP_MS_MAX = 15_000
POLL_MS = 10


@dataclass(frozen=True, slots=True)
class Status:
    """The last report of a worker; times are monotonic milliseconds, -1 where it has not happened.

    `processed` flights here; `times` by task are those of `Tally`; `status` is the status document of its session, {}
    before the first.
    """

    at_ms: int = -1
    processed: int = 0
    times: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    metrics: str = ""
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def standby_records(self) -> int:
        """Changes that its standbys replayed."""
        return int(self.counter("standby", "records"))

    @property
    def generation(self) -> int:
        """The generation of the placement, as this process has read it."""
        return int((self.status.get("placement") or {}).get("generation", 0))

    def taken_over(self, since: int) -> str:
        """The first task that a later generation took from an instance that was gone; "" if there is none."""
        moves = (self.status.get("placement") or {}).get("moves", ())
        return next(
            (one["task"] for one in moves if one["move"] == MoveKind.TAKE_OVER and one["generation"] > since), ""
        )

    def tasks(self, role: str) -> frozenset[str]:
        """Tasks that run here ("active"), or that it stands by for ("standby")."""
        found = (task for task in self.status.get("tasks", ()) if task["state"] in ("running", "standby"))
        return frozenset(task["task"] for task in found if task["role"] == role)

    def stores(self, number: str, role: str = "") -> int:
        """A number of its stores, added up over all tasks, or over those of a role."""
        tasks = [task for task in self.status.get("tasks", ()) if role in ("", task["role"])]
        return sum(store[number] for task in tasks for store in task["stores"])

    def counter(self, name: str, part: str) -> Any:
        """A counter of the session: one value of it, or its "records" added up."""
        found = self.status["counters"][name] if self.status else []
        return found.get(part, 0) if isinstance(found, Mapping) else sum(one[part] for one in found)


class Worker:
    """One worker process. A `held` one gets ready and joins the others only at `release`."""

    def __init__(
        self,
        folder: Path,
        name: str,
        log: str,
        settings: BoardSettings,
        clock: Clock,
        port: int = 0,
        *,
        held: bool = False,
    ) -> None:
        self.name = name
        self.last = Status()  # the newest one read, also of a process that has ended
        self._clock = clock
        self._open = json_line({"log": log, "port": port, "settings": asdict(settings)})
        self._words = folder / f"worker-{name}.log"
        self._child = ChildProcess(
            "standfast.ops.demo.worker",
            [str(state_dir(folder, name))],
            parse=json_object,
            clock=clock,
            # A file of its own: the worker's stdout carries the reports.
            stderr=self._words.open("w+b"),
        )
        self.pid = self._child.pid
        if not held:
            self.release()

    def release(self) -> None:
        """Let a held process go on."""
        self._child.order(self._open)

    def status(self) -> Status:
        """The newest status. Raises Unavailable with the end of its output if the process has ended."""
        self._take(self._child.poll())
        if self._child.ended is not None:
            raise self._failed("ended on its own with")
        return self.last

    def kill(self) -> int:
        """Send SIGKILL; returns the monotonic time just before, in milliseconds, once the process is gone."""
        # Before the signal: all durations of the take-over count from it.
        at_ms = self._clock.monotonic_ms()
        self._take(self._child.kill())
        return at_ms

    def stop(self) -> None:
        """End the process cleanly. Raises Unavailable if it does not, or takes too long and is killed."""
        self._take(self._child.stop(json_line({"do": "stop"}), STOP_MS_MAX))
        if self._child.ended is None or self._child.ended.code != 0:
            raise self._failed("stopped with")

    def abandon(self) -> None:
        """Make sure that the process is gone, cleanly if possible; never raises for how it ended."""
        try:
            self._child.stop(json_line({"do": "stop"}), STOP_MS_MAX)
        except StandfastError:
            self._child.kill()

    def _take(self, answers: Iterable[Mapping[str, Any]]) -> None:
        for answer in answers:
            self.last = Status(**answer)

    def _failed(self, how: str) -> Unavailable:
        ended = self._child.ended
        words = "(it wrote nothing)" if ended is None else ended.words or "(it wrote nothing)"
        return Unavailable(
            f"worker {self.name.upper()} (pid {self.pid}) {how} {ended}; the end of {self._words}:\n{words}"
        )
