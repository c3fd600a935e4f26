"""What the players of applications share: an application on the test driver, and what its processors noted.

Rules of this file: a player assigns `driver`; the one before it is closed.
"""

from __future__ import annotations

from typing import Any

from standfast.ops.scenarios.script import Player
from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver


class Driven(Player):
    """One application after the other. Commands answer what was noted since the last answer."""

    driver: Driver | None = None

    def open(self, app: App, now_ms: int = 0, *, partitions: int = 1) -> Driver:
        """Run an application in place of the one before it."""
        self.end()
        self.noted: list[Any] = []
        self.driver = Driver(app, now_ms, partitions=partitions)
        return self.driver

    def take(self) -> Any:
        """What was noted since the last look."""
        found = self.noted.copy()
        self.noted.clear()
        return found

    def advance(self, duration_ms: str) -> Any:
        """The wall clock moves on."""
        self.running.advance_wall_clock(int(duration_ms))
        return self.take()

    def restart(self) -> Any:
        """Commit, and go on with new processors on the same state."""
        self.running.restart()
        return self.take()

    def dropped(self) -> int:
        """How many records were dropped."""
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
