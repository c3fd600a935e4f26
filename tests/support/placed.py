"""A log that has the records of a placement, and no process that runs the application."""

from __future__ import annotations

from typing import Any

import standfast as sf
from standfast.replication.log import Log
from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import (
    Assignment,
    Copy,
    CopyState,
    PlacedMember,
    PlacementSettings,
    Round,
    View,
)
from standfast.replication.placement.place import place
from standfast.replication.placement.records import Report, report_record
from standfast.replication.placement.topic import PlacementTopic
from standfast.replication.takeover import MemberPlan, MemberTraits
from standfast.store.clock import SystemClock

PLACED = [TaskId(0, number) for number in range(4)]
PLACED_LEASE_MS = 3_600_000


class PlacedLog:
    """A log with the placement of an application, by its leader `a`, without any process that runs it."""

    def __init__(self, address: str, app: str) -> None:
        self.address = address
        self.log: Log = sf.open_log(address)
        self.topic = PlacementTopic(self.log, app, "a", SystemClock(), acceptable_lag=10_000)
        self._app = app

    def join(self, *names: str, program: str = "p") -> None:
        for name in names:
            plan = MemberPlan(managed=MemberTraits(2, {"rack": f"r-{name}"}, program))
            self.log.group(self._app).join(name, plan.to_json(), lease_ms=PLACED_LEASE_MS)

    def report(self, name: str, report: Report) -> None:
        record = report_record(name, report, SystemClock().wall_ms() - 300_000)
        self.log.producer().append({self.topic.source: [record]})

    def decide(self, *members: PlacedMember, **view: Any) -> Round:
        """A round of these members, published as its leader does."""
        found = place(View(members, tuple(PLACED), PlacementSettings(standby_replicas=1), **view))
        self.topic.claim()
        self.topic.publish(found.assignment, {one.id for one in members}, "p", why=found)
        return found

    def write_example(self) -> None:
        """`a` runs two tasks; `b` got one by a hand-over and is to get another one; `c` stopped and left rows."""
        t = PLACED
        self.join("a", "b")
        self.decide(PlacedMember("a"), PlacedMember("b"))
        standing = {t[0]: Copy(CopyState.STANDBY, 12), t[1]: Copy(CopyState.STANDBY, 3)}
        self.decide(
            PlacedMember("a", copies=dict.fromkeys(t, Copy(CopyState.RUNNING, 0))),
            PlacedMember("b", copies=standing),
            previous=Assignment(1, active=dict.fromkeys(t, "a"), standbys=dict.fromkeys(t, ("b",))),
        )
        self.report("a", Report(frozenset(t[2:]), lags={t[0]: 0, t[1]: 7}, generation=2))
        self.report("b", Report(frozenset(t[:1]), frozenset(t[1:2]), lags={t[2]: 41, t[3]: 0}, generation=1))
        self.report("c", Report(stored={t[0]: 900}, stopped=True))

    def close(self) -> None:
        self.topic.close()
        self.log.close()
