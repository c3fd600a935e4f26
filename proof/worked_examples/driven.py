"""The common part of the players of applications: an application on the test driver, and the notes of its processors.

Rules of this file: a player assigns `driver`; the one before it is closed.
"""

from __future__ import annotations

from typing import Any

from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver
from worked_examples.script import Player


class Driven(Player):
    """One application after the other. Commands answer with the notes since the last answer."""

    driver: Driver | None = None

    def open(self, app: App, now_ms: int = 0, *, partitions: int = 1) -> Driver:
        """Run an application in place of the one before it."""
        self.end()
        self.noted: list[Any] = []
        self.driver = Driver(app, now_ms, partitions=partitions)
        return self.driver

    def take(self) -> Any:
        """The notes since the last look."""
        found = self.noted.copy()
        self.noted.clear()
        return found

    def advance(self, duration_ms: str) -> Any:
        """Move the wall clock on."""
        self.running.advance_wall_clock(int(duration_ms))
        return self.take()

    def restart(self) -> Any:
        """Commit, and go on with new processors on the same state."""
        self.running.restart()
        return self.take()

    def dropped(self) -> int:
        """Number of dropped records."""
        return self.running.dropped

    @property
    def running(self) -> Driver:
        """The application that runs."""
        assert self.driver is not None, "no application was opened"
        return self.driver

    def end(self) -> None:
        """Close the application."""
        if self.driver is not None:
            self.driver.close()
            self.driver = None
