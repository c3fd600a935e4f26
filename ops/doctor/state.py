"""Checks of the embedded log's checksums, and of how the next start will treat the rows of a state directory.

    positions of the tasks ──┐
                             ├──> plan (pure) ──> refused: error      set aside and read again: warning
    the log's bounds now ────┘

Rules of this file: it asks the log and judges; it changes nothing. A task that runs meanwhile is judged by its files at
the moment they were opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.embedded.look import locked_now
from standfast.replication.log import Log, TopicInfo, TopicSurvey
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.topics.rules import Changelog, Finding
from standfast.restore.log_states import log_state, removed_heads
from standfast.restore.plan import TIME_AHEAD, Plan, Refuse, ReinitialisePlan, local_position, plan_changelog
from standfast.store.clock import Clock
from standfast.store.errors import Corruption, StandfastError
from standfast.store.task.commit_record import Position
from standfast.store.timestamps import duration_text

PARTITIONS_MAX = 5  # that a finding lists
OPEN_MS, LOOK_MS = 2_000, 100  # a transaction that lasts no longer is a commit of a live owner


@dataclass(frozen=True, slots=True)
class StoreOnDisk:
    """A store of a task in files: its changelog, the applied position, and whether it has a row."""

    task: TaskId
    path: Path
    store: str
    topic: str
    from_source: bool
    position: Position
    rows: bool


def log_findings(log: Log) -> list[Finding]:
    """Locks and damage of an embedded log; reads its whole file, every block of records and its checksum.

    Empty for Kafka.
    """
    if not isinstance(log, EmbeddedLog):
        return []
    locked = locked_now(log.path)
    found = [] if locked is None else [log_finding(log.path, locked)]
    return found + [_damage(log.path, what) for what in log.integrity_check()]


def log_finding(log: str, error: StandfastError) -> Finding:
    """The finding about an error that keeps an embedded log from being used: its lock, or damage."""
    if isinstance(error, Corruption):
        return _damage(log, str(error))
    return Finding(
        "log-locked",
        "error",
        f"log {log}",
        f"cannot be written to: {error}",
        "commits of every application on this log wait for the lock, or are refused; nothing is lost meanwhile",
        "continue the process that has the lock, or end it: its uncommitted writes are rolled back",
    )


def _damage(log: str, what: str) -> Finding:
    return Finding(
        "log-damaged",
        "error",
        f"log {log}",
        f"is damaged: {what}",
        "the log never returns damaged data: tasks that must read it fail, others go on",
        "stop the application, set the file aside and restore a copy of it; check disk and memory of the machine",
    )


def state_findings(log: Log, app: str, kept: Iterable[StoreOnDisk], now_ms: int) -> list[Finding]:
    """Stores that a start now would refuse or set aside. Raises Unavailable."""
    infos: dict[str, TopicInfo | None] = {}
    reader = log.reader()
    found = []
    try:
        for one in kept:
            info = infos.setdefault(one.topic, log.admin.describe_topic(one.topic))
            if info is None or one.task.partition >= info.partitions:
                continue  # already a finding by a rule of topics
            at = TopicPartition(one.topic, one.task.partition)
            limit = None
            # A source topic is a changelog up to the group's committed offset only.
            if one.from_source:
                committed = log.group(app).committed([at]).get(at)
                limit = committed.offset if committed is not None else 0
            # The end above open transactions too: a position below it is not ahead of the log.
            written = reader.written_ends([at])[at]
            diverged = reader.epoch_ends({at: one.position.tag} if one.position.tag else {}).get(at)
            state = log_state(at, info, reader.bounds([at])[at], limit, written, diverged)
            finding = _finding(one, plan_changelog(local_position(one.position, rows=one.rows), state, now_ms=now_ms))
            found += [] if finding is None else [finding]
    finally:
        reader.close()
    return found


def head_findings(log: Log, changelogs: Iterable[Changelog], topics: Mapping[str, TopicSurvey | None]) -> list[Finding]:
    """Changelogs that are only compacted and lost records at their head. Raises Unavailable."""
    found = []
    with closing(log.reader()) as reader:
        for need in changelogs:
            topic = topics.get(need.topic)
            if topic is None:
                continue
            every = {TopicPartition(need.topic, number): topic.info for number in range(topic.info.partitions)}
            heads = {at.partition: begin for at, begin in removed_heads(every, reader).items()}
            if heads:
                found.append(_headless(need, heads))
    return found


def open_findings(
    log: Log, changelogs: Iterable[Changelog], topics: Mapping[str, TopicSurvey | None], clock: Clock
) -> list[Finding]:
    """Changelogs with a transaction that stays open, which hides rows. Raises Unavailable."""
    # Not of source topics: the transactions of their producers may last.
    needs = {need.topic: need for need in changelogs if not need.from_source}
    there = {name: topic.info.partitions for name, topic in topics.items() if topic is not None and name in needs}
    partitions = [TopicPartition(name, number) for name, count in there.items() for number in range(count)]
    if not partitions:
        return []
    hidden: dict[TopicPartition, tuple[int, int]] = {}
    with closing(log.reader()) as reader:
        written = reader.written_ends(partitions)
        deadline_ms = clock.monotonic_ms() + OPEN_MS
        while True:
            # A commit of a live owner ends meanwhile, which moves the end of readers beyond the ends above.
            ends = reader.bounds(hidden or partitions)
            hidden = {at: (one.end, written[at]) for at, one in ends.items() if one.end < written[at]}
            if not hidden or clock.monotonic_ms() >= deadline_ms:
                break
            clock.sleep_ms(LOOK_MS)
    found: dict[str, list[str]] = {}
    for at, (end, upto) in sorted(hidden.items()):
        found.setdefault(at.topic, []).append(f"partition {at.partition}: offsets {end} to {upto - 1}")
    return [_open(need, found[need.topic]) for need in needs.values() if need.topic in found]


def _open(need: Changelog, hidden: Sequence[str]) -> Finding:
    more = f"; and {len(hidden) - PARTITIONS_MAX} more" if len(hidden) > PARTITIONS_MAX else ""
    return Finding(
        "transaction-open",
        "error",
        need.where,
        f"holds a transaction that did not end within {duration_text(OPEN_MS)} "
        f"({'; '.join(hidden[:PARTITIONS_MAX])}{more})",
        "no reader gets the records from there on, those of later commits neither: standbys stay behind them, and a "
        "task is not opened by an instance that lacks their rows",
        "look again, since a commit of a running instance may take so long, and a transaction of another client ends "
        "within its transaction.timeout.ms; if it stays, the brokers lost its end (KAFKA-20734): stop the application, "
        "find the transaction (kafka-transactions.sh find-hanging), end it (abort), and verify the stores",
    )


def _headless(need: Changelog, heads: Mapping[int, int]) -> Finding:
    first = ", ".join(f"partition {number} at {begin}" for number, begin in list(heads.items())[:PARTITIONS_MAX])
    more = f" and {len(heads) - PARTITIONS_MAX} more" if len(heads) > PARTITIONS_MAX else ""
    what = f"begins above offset 0 although it is only compacted ({first}{more})"
    if need.from_source:
        return Finding(
            "head-removed",
            "warning",
            need.where,
            what,
            "compaction removes no head, so a person or program removed records; a table that is built without local "
            "state has only the keys that were written since",
            "write the missing keys to the topic again, if the table needs them",
        )
    return Finding(
        "head-removed",
        "warning",
        need.where,
        what,
        "compaction removes no head, so a person or program removed records; a store that is built from the rest would "
        "be incomplete, so an instance without local state or a snapshot is refused",
        "keep the state directories, and make snapshots; a restore under another name (standfast snapshot restore "
        "--as NAME) makes changelogs that are whole again",
    )


def _finding(one: StoreOnDisk, plan: Plan) -> Finding | None:
    # Only these two plans take rows away from a reader; a resume or a restore from the beginning is ordinary.
    where = f"task {one.task} in {one.path}, store {one.store!r}"
    if isinstance(plan, Refuse):
        return Finding(
            plan.reason,
            "error",
            where,
            f"will not be opened: changelog {plan.where}: {plan.what}",
            "standfast removes no rows that the log cannot give back; the task stays closed until the operator decides",
            plan.fix,
        )
    if plan.reason == TIME_AHEAD:
        return Finding(
            plan.reason,
            "warning",
            where,
            f"will be set aside and read again: position {one.position.offset} of changelog {plan.topic_partition} was "
            "written by a clock that stood ahead of this machine's, so its age is unknown",
            "rows whose deletes compaction has removed since would come back, so the restore reads the whole changelog",
            "compare this machine's clock with others before the start: if it is behind, set it, and the store stays",
        )
    if isinstance(plan, ReinitialisePlan):
        return Finding(
            plan.reason,
            "warning",
            where,
            f"will be set aside and read again: position {one.position.offset} does not fit changelog "
            f"{plan.topic_partition} any more",
            "the restore reads the whole changelog, and rows that the log no longer holds are not in it",
            "start the application; or bring the former log back, if it should not have changed",
        )
    return None
