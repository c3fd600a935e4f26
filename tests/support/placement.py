"""Instances of one application with managed placement, driven by hand on one embedded log and one clock.

Rules of this file: the real parts. An instance that is not driven stands for a process that gets no processor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import standfast as sf
from support.apps import Running, create, text_of, write, written
from support.loops import keys
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
COUNT = sf.KeyValueStore("count", TEXT, INT)
TASKS = 6


def counts(app: sf.App) -> None:
    app.stream("in", key=TEXT, value=JSON).group_by_key().count("count").to("out")


class Cluster:
    """Instances of one application; `live` are those whose process runs."""

    def __init__(self, bench: Bench, make: Callable[[sf.App], object] = counts, **settings: Any) -> None:
        self.bench = bench
        self.live: dict[str, Running] = {}
        self.held: dict[str, Running] = {}  # by a record that keeps the interpreter: their lease processes go on
        self._make = make
        self._settings: dict[str, Any] = {  # of Running
            "stores": [COUNT],
            "alone": False,
            "commit_interval_ms": 200,
            **settings,
        }
        create(bench, TASKS, "in", "out")

    def start(self, name: str, **settings: Any) -> Running:
        one = Running(self.bench, self._make, name, settle=False, **{**self._settings, **settings})
        self.live[name] = one
        return one

    def stop(self, name: str) -> None:
        self.live.pop(name).close()

    def freeze(self, name: str) -> Running:
        """Stop to drive an instance, as a process that gets no processor."""
        return self.live.pop(name)

    def hold(self, name: str) -> None:
        """Keep the interpreter of an instance, until `let_go`."""
        self.held[name] = self.live.pop(name)

    def let_go(self, name: str) -> None:
        self.live[name] = self.held.pop(name)

    def renew(self, *instances: Running) -> None:
        """Renew leases, as the lease process of each does."""
        now_ms = self.bench.clock.monotonic_ms()
        for one in instances:
            session = one.session
            session._instance.membership.heartbeat(session._lease_group, session._keeper.busy(now_ms))

    def rounds(self, count: int = 30) -> None:
        for _ in range(count):
            self.bench.clock.advance(100)
            self.renew(*self.held.values())
            for one in list(self.live.values()):
                self.renew(one)
                one.session.poll_once()
                one.loop.poll_once()

    def active(self) -> dict[str, list[int]]:
        return self._by_role("active")

    def standby(self) -> dict[str, list[int]]:
        return self._by_role("standby")

    def leader(self) -> list[str]:
        return [name for name, one in self.live.items() if placement_of(one).leads]

    def fill(self, number: int, first: int = 0) -> None:
        for partition in range(TASKS):
            write(self.bench, "in", *keys(f"p{partition}-", number, first), partition=partition)

    def results(self) -> Counter[tuple[str | None, str | None]]:
        """How often each key and count was written to the output."""
        found = (one for partition in range(TASKS) for one in text_of(written(self.bench, "out", partition)))
        return Counter((key, value) for key, value, _ in found)

    def _by_role(self, role: str) -> dict[str, list[int]]:
        return {
            name: sorted(at.partition for at, task in one.session.all_tasks().items() if task.role == role)
            for name, one in self.live.items()
        }


def placement_of(one: Running) -> Any:
    managed = one.session._instance.managed
    assert managed is not None
    return managed


def spread(found: dict[str, list[int]]) -> list[int]:
    return sorted(len(tasks) for tasks in found.values())
