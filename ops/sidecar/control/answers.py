"""Documents that the control API answers with, from the state of the control plane.

Rules of this file: reads only. A call that may ask the log (stores, status, lags, locate) is made in any thread but the
control thread, whose rounds must not wait for it; the rest on the event loop. One model, several renderings: the status
document is the one that page and command line print. Programs may rely on the names; fields are added, never renamed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from standfast.ops.observe.health import HealthFacts
from standfast.ops.observe.metrics_servers import VerifyNumbers
from standfast.ops.shared.control_stores import shape_of
from standfast.ops.shared.error_codes import NOT_ASSIGNED, Refused, message_of
from standfast.ops.sidecar.control.plane import ControlPlane
from standfast.ops.sidecar.engine.task_table import TableMoment
from standfast.replication.offsets import TaskId
from standfast.replication.takeover import MemberPlan
from standfast.restore.verify.verify import committed_views, verify_task
from standfast.store.base.version import __version__
from standfast.store.errors import StandfastError, UnknownStore
from standfast.store.names import few
from standfast.store.specs import TRAITS
from standfast.stream.task.task import Task

Json = dict[str, Any]
PROTOCOL = 1
_VERDICT = (
    "store",
    "verdict",
    "reason",
    "explanation",
    "position",
    "end",
    "records",
    "matched",
    "missing",
    "extra",
    "different",
    "stale",
    "indeterminate",
    "skipped",
)
FEATURES = (*TRAITS, "exactly_once", "standby", "events", "schedule")


class Answers:
    """The documents of one control plane."""

    def __init__(self, plane: ControlPlane, instance: str, resp_socket: str) -> None:
        self._plane = plane
        self.verified = VerifyNumbers()
        self._instance = instance
        self._resp_socket = resp_socket

    def hello(self) -> Json:
        """Protocol, features and limits that a client must know before it calls."""
        limits, config = self._plane.config.limits, self._plane.config
        return {
            "schema": "standfast.hello/1",
            "protocol": PROTOCOL,
            "version": __version__,
            "app": config.app.name,
            "instance": self._instance,
            "guarantee": config.app.guarantee,
            "resp_socket": self._resp_socket,
            "features": list(FEATURES),
            "limits": {
                "command_bytes": limits.command_max_bytes,
                "batch_ops": limits.batch_ops,
                "batch_bytes": limits.batch_max_bytes,
                "key_bytes": limits.key_max_bytes,
                "value_bytes": config.store.value_max_bytes,
                "body_bytes": limits.http_body_max_bytes,
                "wait_ms": limits.wait_max_ms,
            },
        }

    def stores(self, outcomes: Mapping[str, str]) -> Json:
        """Declared stores with their changelogs; `outcomes` of a declaration by name."""
        plane = self._plane
        stores = []
        for spec in plane.specs:
            if outcomes and spec.name not in outcomes:
                continue
            topic = spec.changelog_of(str(plane.config.app.name)) if spec.logging else None
            info = None
            if topic is not None and plane.session.is_open:
                info = plane.session.session.log.admin.describe_topic(topic)
            shape = shape_of(spec) | {"topic": topic, "topic_id": None if info is None else info.topic_id}
            stores.append(shape | ({"outcome": outcomes[spec.name]} if outcomes else {}))
        return {"schema": "standfast.stores/1", "partitions": plane.partitions, "stores": stores}

    def assignment(self) -> Json:
        """Assigned tasks, each with its state. `source_offsets`: where to read on, null until the task is ready."""
        plane = self._plane
        wanted, table = plane.wanted, plane.table.now
        pending = {one.partition: one for one in plane.pending}
        tasks = []
        for partition in sorted(wanted.tasks):
            active = partition in wanted.active
            one, task = pending.get(partition), table.open.get(partition)
            tasks.append(
                {
                    "partition": partition,
                    "role": "active" if active else "standby",
                    # Without the cause, which a state such as `failed: ...` has after the colon: programs compare the
                    # word.
                    "state": table.states.get(partition, "opening").partition(":")[0],
                    "epoch": 0 if task is None else task.epoch,
                    "source_offsets": None if task is None else self._offsets(partition, task),
                    "position": None if one is None else one.position,
                    "end": None if one is None else one.end,
                    "remaining": 0 if one is None else one.remaining,
                }
            )
        return {
            "schema": "standfast.assignment/1",
            "generation": wanted.generation,
            "lease_ms": plane.lease.lease_ms,
            "tasks": tasks,
            "fenced": {str(partition): why for partition, why in sorted(table.fenced.items())},
        }

    def ready(self) -> Json:
        """The restore gate: tasks that are missing, and where to read on once none is. `idle`: the lease is over, and
        `fenced`: these tasks were taken over by another instance, so that waiting helps no more."""
        plane = self._plane
        pending = plane.pending
        shut = plane.wanted.active - plane.table.now.open.keys()
        # A commit whose connection is gone may still move the offsets, so `ready` waits for its end.
        settling = any(map(plane.engine.settling, plane.wanted.active))
        assignment, idle = self.assignment(), plane.idle()
        return {
            "schema": "standfast.ready/1",
            "ready": not shut and not settling and not plane.draining and not idle and not assignment["fenced"],
            "idle": idle,
            "fenced": assignment["fenced"],
            "pending": [asdict(one) for one in pending],
            "generation": assignment["generation"],
            "tasks": assignment["tasks"],
        }

    def status(self) -> Json:
        """The whole tree."""
        plane = self._plane
        document = plane.session.status()
        table = plane.table.now
        document["ready"] = plane.ready
        document["missing"] = [*table.missing, *_taken_over(table)]
        document["log_error"] = plane.log_trouble or document["log_error"]
        document["sidecar"] = {
            "pid": os.getpid(),
            "generation": plane.wanted.generation,
            "lease_ms": plane.lease.lease_ms,
            "lease_ended": plane.lease.ended,
            "idle": plane.idle(),
            "draining": plane.draining,
            "resp_socket": self._resp_socket,
        }
        return document

    def lags(self) -> Json:
        """Position, end and lag of each store of each task."""
        tasks = self.status()["tasks"]
        rows = [
            {"partition": task["partition"], "role": task["role"], "state": task["state"], "store": store["store"]}
            | {name: store[name] for name in ("position", "end", "lag")}
            for task in tasks
            for store in task["stores"]
        ]
        return {"schema": "standfast.lags/1", "app": self._plane.config.app.name, "lags": rows}

    def locate(self, partition: int | None) -> Json:
        """Members of the application's group, each with its tasks."""
        found = []
        if self._plane.session.is_open:
            for member in self._plane.session.session.look_at_group().members:
                found += _held_by(member.member_id, MemberPlan.from_json(member.metadata))
        rows = [row for row in found if partition is None or row["partition"] == partition]
        return {"schema": "standfast.locate/1", "app": self._plane.config.app.name, "tasks": rows}

    def verification(self, store: str | None, partition: int | None) -> Callable[[], Json]:
        """A function that compares active stores with their changelogs; it reads for long: call it in another
        thread."""
        plane = self._plane
        if store is not None and store not in {spec.name for spec in plane.specs}:
            known = few(spec.name for spec in plane.specs) or "none"
            raise UnknownStore(f"no store {store!r}: there are {known}")
        session, now_ms = plane.session.session, plane.clock.wall_ms()
        jobs = []
        for number, task in sorted(plane.table.now.open.items()):
            if partition is None or number == partition:
                views = {name: view for name, view in committed_views(task.stores).items() if store in (None, name)}
                jobs.append((TaskId(0, number), views, dict(task.stores.cut.positions)))
        if not jobs:
            raise Refused(NOT_ASSIGNED, "nothing to verify: no active task of that partition is ready here")

        def run() -> Json:
            verdicts = [
                {"task": str(task_id)} | {name: getattr(found, name) for name in _VERDICT}
                for task_id, views, positions in jobs
                for found in verify_task(task_id, views, positions, session.log, session.app, now_ms=now_ms)
            ]
            self.verified.count(verdicts, plane.clock.wall_ms())
            return {"schema": "standfast.verify/1", "verdicts": verdicts}

        return run

    def facts(self, *, loop_age_ms: int) -> HealthFacts:
        """The facts of the last round that health is judged by: takes no lock, asks neither log nor disk."""
        plane = self._plane
        table, config = plane.table.now, plane.config
        workers = plane.session.workers
        return HealthFacts(
            loop_age_ms=loop_age_ms,
            # From the control thread's last look; if that waits for the log now, this age shows it.
            control_age_ms=plane.clock.monotonic_ms() - plane.heard_ms,
            # Against the control thread's own last look: while that hangs, the worker must not seem dead as well.
            worker_age_ms=max((plane.heard_ms - worker.heard_ms for worker in workers), default=None),
            fatal="" if plane.fatal is None else message_of(plane.fatal),
            draining=plane.draining,
            idle=plane.idle(),
            # A task that failed counts once, as failed.
            pending=[one for one in plane.pending if one.partition not in table.failed],
            failed=[f"task 0_{partition}: {error}" for partition, error in table.failed.items()],
            taken_over=_taken_over(table),
            # As of the control thread's last look: a stale mount would hang the probe.
            disk_free_bytes=plane.disk.free_bytes,
            disk_full=plane.disk.room.text or plane.disk.full,
            disk_floor_bytes=config.state.disk_floor_bytes,
            standbys_behind=[line for worker in workers for line in _behind(worker.status)],
            log_error=next((worker.error for worker in workers if worker.error), ""),
            log_trouble=plane.log_trouble,
        )

    def _offsets(self, partition: int, task: Task) -> list[Json] | None:
        """Source offsets to read on from, for named and committed sources; null: from the beginning.

        None for a task that was closed a moment ago, which the next round notices, and while a commit runs whose
        connection is gone: from the offsets before it, its records would be counted twice.
        """
        if self._plane.engine.settling(partition):
            return None
        try:
            committed = task.source_offsets()
        except StandfastError:
            return None
        found: dict[tuple[str, int], int | None] = dict.fromkeys(self._plane.wanted.sources.get(partition, ()))
        found.update({(topic, number): offset for (topic, number), offset in committed.items()})
        return [{"topic": topic, "partition": number, "offset": at} for (topic, number), at in sorted(found.items())]


def _held_by(member: str, plan: MemberPlan) -> list[Json]:
    return [
        {"partition": task.partition, "role": role, "member": member}
        for role, tasks in (("active", plan.active), ("standby", plan.standby))
        for task in sorted(tasks)
    ]


def _taken_over(table: TableMoment) -> list[str]:
    return [f"task 0_{partition}: {why}" for partition, why in sorted(table.fenced.items())]


def _behind(status: Mapping[str, Any] | None) -> list[str]:
    if status is None:
        return []
    return [
        f"{task['task']}: store {store['store']}: {store['lag']} records"
        for task in status["tasks"]
        if task["state"] == "standby"
        for store in task["stores"]
        if store["lag"] > 0
    ]
