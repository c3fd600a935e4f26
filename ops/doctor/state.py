"""Whether the embedded log is as it was written, and what the next start will do with the rows of a state directory.

    positions of the tasks ──┐
                             ├──> plan (pure) ──> refused: error      set aside and read again: warning
    the log's bounds now ────┘

Rules of this file: it asks the log and judges; it changes nothing. A task that runs meanwhile is judged by what its
files said when they were opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.embedded.look import locked_now
from standfast.replication.log import Log, TopicInfo
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.topics.rules import Finding
from standfast.restore.plan import Plan, Refuse, Reinitialise, plan_changelog
from standfast.store.errors import Corruption, StandfastError
from standfast.store.task.cut import Position
from standfast.stream.session.opener import local_position, log_state


@dataclass(frozen=True, slots=True)
class Kept:
    """A store of a task in files: its changelog, how far that was applied, and whether there is a row."""

    task: TaskId
    path: Path
    store: str
    topic: str
    from_source: bool
    position: Position
    rows: bool


def log_findings(log: Log) -> list[Finding]:
    """Locks and damage of an embedded log; its whole file is read, every block of records and its checksum.

    None for Kafka.
    """
    if not isinstance(log, EmbeddedLog):
        return []
    locked = locked_now(log.path)
    found = [] if locked is None else [log_finding(log.path, locked)]
    return found + [_damage(log.path, what) for what in log.integrity_check()]


def log_finding(log: str, error: StandfastError) -> Finding:
    """What keeps an embedded log from being used: its lock, or damage that was met."""
    if isinstance(error, Corruption):
        return _damage(log, str(error))
    return Finding(
        "log-locked",
        "error",
        f"log {log}",
        f"cannot be written to: {error}",
        "commits of every application on this log wait for it, or are refused; nothing is lost meanwhile",
        "continue the process that has the lock, or end it: what it had not committed is rolled back",
    )


def _damage(log: str, what: str) -> Finding:
    return Finding(
        "log-damaged",
        "error",
        f"log {log}",
        f"is damaged: {what}",
        "what is damaged is never given out: tasks that must read it fail, others go on",
        "stop the application, set the file aside and restore a copy of it; check disk and memory of the machine",
    )


def state_findings(log: Log, app: str, kept: Iterable[Kept], now_ms: int) -> list[Finding]:
    """Stores that would be refused, or set aside, if the application started now. Raises Unavailable."""
    infos: dict[str, TopicInfo | None] = {}
    reader = log.reader()
    found = []
    try:
        for one in kept:
            info = infos.setdefault(one.topic, log.admin.describe_topic(one.topic))
            if info is None or one.task.partition >= info.partitions:
                continue  # a rule of topics says so
            at = TopicPartition(one.topic, one.task.partition)
            limit = None
            if one.from_source:
                committed = log.group(app).committed([at]).get(at)
                limit = committed.offset if committed is not None else 0
            written = reader.written_ends([at])[at]
            diverged = reader.epoch_ends({at: one.position.tag} if one.position.tag else {}).get(at)
            state = log_state(at, info, reader.bounds([at])[at], limit, written, diverged)
            finding = _finding(one, plan_changelog(local_position(one.position, rows=one.rows), state, now_ms=now_ms))
            found += [] if finding is None else [finding]
    finally:
        reader.close()
    return found


def _finding(one: Kept, plan: Plan) -> Finding | None:
    where = f"task {one.task} in {one.path}, store {one.store!r}"
    if isinstance(plan, Refuse):
        return Finding(
            plan.reason,
            "error",
            where,
            f"will not be opened: changelog {plan.where}: {plan.what}",
            "standfast removes no rows that the log cannot give back; the task stays closed until a person decides",
            plan.fix,
        )
    if isinstance(plan, Reinitialise):
        return Finding(
            plan.reason,
            "warning",
            where,
            f"will be set aside and read again: position {one.position.offset} does not fit changelog "
            f"{plan.topic_partition} any more",
            "reading takes as long as the changelog is, and rows that the log no longer holds are not in it",
            "start the application; or put the log back to what it was, if it should not have changed",
        )
    return None
