"""The application in a worker process: its part of the settings, its loop, and its calls of stop(), pause(), resume().

Rules of this file: it decides nothing; a program without workers does not import it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from standfast.replication.progress import LeaseProgress
from standfast.store.task.state_dir import StateDir
from standfast.stream.task.settings import LEASE_DEFAULT_MS, SessionSettings
from standfast.stream.topology.assembly import Assembled
from standfast.stream.workers.counts import worker_options
from standfast.stream.workers.session import WorkerSession

if TYPE_CHECKING:
    from standfast.stream.app.app import App


class AppWorker:
    """The application, as its worker process needs it."""

    def __init__(self, app: App) -> None:
        self.name = app.name
        self.clock = app.clock
        self.lease_ms = app.settings.get("lease_ms", LEASE_DEFAULT_MS)
        self.assemble = app.assemble
        self.loop = app.make_loop
        self.wishes = app.as_worker()
        self._app = app

    @property
    def rests(self) -> bool:
        """Whether this process is to process nothing: its supervisor, or a call here, has said so."""
        return self._app.rests

    def pause(self, on: bool) -> None:
        """Follow the supervisor."""
        self._app.paused = on

    def facts(self) -> dict[str, str]:
        """The settings that must be those of the supervisor."""
        log, state_dir = self._app.places()
        guarantee = SessionSettings.of(self._app.settings).guarantee
        return {"log": log, "state_dir": str(Path(state_dir).absolute()), "guarantee": guarantee}

    def session(
        self, assembled: Assembled, state_dir: StateDir, progress: LeaseProgress, workers: int
    ) -> WorkerSession:
        """The session of this process, with its share of the instance's settings."""
        app = self._app
        session = WorkerSession(
            app.name,
            log=app.places()[0],
            state_dir=state_dir,
            progress=progress,
            groups=assembled.groups,
            clock=app.clock,
            listeners=app.session_listeners,
            **worker_options(app.settings, workers),
        )
        session.counters.dropped = app.drops.counts
        return session
