"""The scenario `standby`: what a standby applies, keeps, pauses, and when it starts over.

    limits; the commit tick; a bounded wait; invalid offsets; who stands by; begin after restore; position with its rows

Rules of this file: it plays `standfast.replication.standby` and `takeover`, and the tailer on a real log and a real
store; offsets are next to read, and a limit is exclusive. The numbers expected stand in the calls of `stage.step`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from standfast.ops.scenarios.stage import Stage
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.listeners import Listeners
from standfast.replication.log import Outgoing, Record, TopicInfo, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.standby import Standby, Step
from standfast.replication.tail.applier import ChangelogApplier
from standfast.replication.tail.tailer import Tailer
from standfast.replication.takeover import standby_wanted
from standfast.store import serde
from standfast.store.clock import ManualClock
from standfast.store.errors import StandfastError, StateLost
from standfast.store.rocks.engine import RocksShared
from standfast.store.specs import KeyValueStore
from standfast.store.task.task_stores import TaskStores

TASK = TaskId(0, 0)
CHANGELOG = TopicPartition("board-aircraft-changelog", 0)
SPEC = KeyValueStore("aircraft", serde.string, serde.string)


def play(stage: Stage) -> None:
    """Every part in turn."""
    _limit(stage)
    _limit_moves(stage)
    _unlimited(stage)
    _bounded(stage)
    _reinitialise(stage)
    _who_stands_by(stage)
    _on_a_real_log(stage)


def records(*offsets: int) -> list[Record]:
    """A batch of small records."""
    return [Record(offset, offset, b"k", b"v") for offset in offsets]


def did(step: Step) -> dict[str, Any]:
    """What a step says, without what it does not say."""
    seen: dict[str, Any] = {"applied": [record.offset for record in step.apply], "position": step.position}
    seen |= {"kept": step.kept} if step.kept else {}
    seen |= {"pause": True} if step.pause else {}
    seen |= {"seek": step.seek} if step.seek is not None else {}
    seen |= {"resume": True} if step.resume else {}
    return seen


def refused(action: Callable[[], object]) -> str:
    """The kind of the error that a call raises."""
    try:
        action()
    except StandfastError as error:
        return type(error).__name__
    return "nothing"


def told(action: Callable[[], object]) -> str:
    """The message of the error that a call raises."""
    try:
        action()
    except StandfastError as error:
        return str(error)
    return "nothing"


def _limit(stage: Stage) -> None:
    stage.part("Limit 5: what lies below is applied, the others are kept")
    standby = Standby(0, limit=5)
    seen = did(standby.update(records(0, 1, 2, 3, 4)))
    stage.step("records 0 to 4", seen, {"applied": [0, 1, 2, 3, 4], "position": 5}, "4 is the last below the limit")
    seen = did(standby.update(records(5, 6)))
    expected: dict[str, Any] = {"applied": [], "position": 5, "kept": 2, "pause": True}
    stage.step("records 5 and 6", seen, expected, "wholly beyond: the position stays, the partition is paused")
    standby.set_limit(6)
    seen = did(standby.on_commit_tick())
    stage.step("limit 6, commit tick", seen, {"applied": [5], "position": 6, "kept": 1}, "6 still waits: still paused")
    standby.set_limit(8)
    seen = did(standby.on_commit_tick())
    expected = {"applied": [6], "position": 7, "resume": True}
    stage.step("limit 8, commit tick", seen, expected, "drained: resumed")


def _limit_moves(stage: Stage) -> None:
    stage.part("A limit never moves back, and no committed offset is limit 0")
    standby = Standby(0, limit=0)
    expected: dict[str, Any] = {"applied": [], "position": 0, "kept": 2, "pause": True}
    stage.step("limit 0, records 0 and 1", did(standby.update(records(0, 1))), expected, "the group committed nothing")
    stage.step("limit 2", standby.set_limit(2).limit, 2, "applied with the next tick, not here")
    moved = standby.set_limit(1)
    seen = {"limit": moved.limit, "refused": moved.regressed}
    stage.step("limit 1", seen, {"limit": 2, "refused": True}, "counted, and the larger one stays")
    expected = {"applied": [0, 1], "position": 2, "resume": True}
    stage.step("commit tick", did(standby.on_commit_tick()), expected)


def _unlimited(stage: Stage) -> None:
    stage.part("A real changelog has no limit")
    standby = Standby(3)
    seen = did(standby.update(records(3, 4, 9), next_offset=12))
    stage.step("records 3, 4, 9, end 12", seen, {"applied": [3, 4, 9], "position": 12}, "over gaps and markers")
    seen = did(standby.update(records(9, 12)))
    stage.step("records 9 and 12", seen, {"applied": [12], "position": 13}, "9 was applied: a duplicate is left out")
    seen_error = refused(lambda: standby.update(records(15, 14)))
    stage.step("records 15, 14", seen_error, "InternalError", "offsets increase strictly; nothing is changed")
    stage.step("position", standby.position, 13)


def _bounded(stage: Stage) -> None:
    stage.part("What waits is bounded: three records, limit 2")
    standby = Standby(0, limit=2, keep_max_records=3)
    seen = did(standby.update(records(0, 1, 2, 3, 4, 5, 6)))
    expected: dict[str, Any] = {"applied": [0, 1], "position": 2, "kept": 3, "pause": True}
    stage.step("records 0 to 6", seen, expected, "2, 3, 4 are kept; 5 and 6 are let go, the log has them")
    standby.set_limit(10)
    seen = did(standby.on_commit_tick())
    expected = {"applied": [2, 3, 4], "position": 5, "seek": 5, "resume": True}
    stage.step("limit 10, commit tick", seen, expected, "back to the first that was let go")
    stage.step("records 5, 6", did(standby.update(records(5, 6))), {"applied": [5, 6], "position": 7})


def _reinitialise(stage: Stage) -> None:
    stage.part("An invalid offset: from scratch, with a reason")
    standby = Standby(10, limit=12)
    standby.update(records(10, 11, 12))
    lost = standby.reinitialise("truncated")
    seen = {"reason": lost.reason, "was_at": lost.position, "let_go": lost.dropped}
    stage.step("truncated", seen, {"reason": "truncated", "was_at": 12, "let_go": 1}, "12 was kept")
    stage.step("records 13", refused(lambda: standby.update(records(13))), "InternalError", "not while it is rebuilt")
    seen = did(standby.begin_again(0))
    stage.step("begin again at 0", seen, {"applied": [], "position": 0, "seek": 0, "resume": True}, "it was paused")
    seen = did(standby.update(records(0, 7, 11, 12)))
    expected = {"applied": [0, 7, 11], "position": 12, "kept": 1, "pause": True}
    stage.step("records 0, 7, 11, 12", seen, expected, "the limit is still 12")


def _who_stands_by(stage: Stage) -> None:
    stage.part("Two standby replicas of a task of instance a")
    for members, expected, why in (
        ("a", [], "alone: none is made"),
        ("ab", ["b"], "fewer than three instances: what fits"),
        ("abc", ["b", "c"], "both"),
        ("abcd", ["b", "c"], "the first others by id"),
    ):
        seen = [one for one in members if standby_wanted(one, members, "a", 2)]
        stage.step(f"instances {' '.join(members)}", seen, expected, why)


def _on_a_real_log(stage: Stage) -> None:
    stage.part("On a real log: ten records in the changelog, a standby of task 0_0")
    with tempfile.TemporaryDirectory(prefix="standfast-demo-") as name:
        folder, clock = Path(name), ManualClock(1_000)
        log = EmbeddedLog(folder / "log.sqlite", synchronous="normal", clock=clock)
        try:
            info = log.admin.create_topic(CHANGELOG.topic, 1, TopicPolicy(frozenset({"compact"})))
            _write(log, 10)
            _tail(stage, log, info, folder / "task", clock)
        finally:
            log.close()


def _write(log: EmbeddedLog, count: int) -> None:
    # Nine bytes: the value with its timestamp, as in the changelog of a timestamped store.
    value = (5).to_bytes(8, "big") + b"v"
    producer = log.producer()
    producer.append({CHANGELOG: [Outgoing(b"N%03d" % number, value, number) for number in range(count)]})
    producer.close()


def _tail(stage: Stage, log: EmbeddedLog, info: TopicInfo, folder: Path, clock: ManualClock) -> None:
    def opened() -> TaskStores:
        return TaskStores(folder, "board", str(TASK), [SPEC], RocksShared(8 << 20), now_ms=clock.wall_ms)

    def state() -> dict[str, int]:
        position = applier.position(CHANGELOG)
        rows = sum(1 for _ in stores.store("aircraft").all())
        return {"rows": rows, "position": -1 if position is None else position.offset}

    stores = opened()
    applier = ChangelogApplier(TASK, stores, {"aircraft": info}, clock)
    tailer = Tailer(log, log.group("board"), Listeners())
    try:
        tailer.add(applier)
        tailer.poll_once(clock.wall_ms())
        expected = {"rows": 0, "position": -1}
        stage.step("an active task here is still restored; poll", state(), expected, "not a single record before")
        tailer.allow(True)
        tailer.poll_once(clock.wall_ms())
        stage.step("all active tasks are restored; poll", state(), {"rows": 10, "position": 10}, "now it tails")
        stray = TopicPartition("other", 0)
        seen = told(lambda: applier.apply(stray, records(0), 1))
        expected_text = "task 0_0 was handed a record of other-0, which is not its own"
        stage.step("a record of other-0", seen, expected_text, "no standby tails it here")
        _write(log, 2)
        log.truncate(CHANGELOG, 12)
        lost = tailer.poll_once(clock.wall_ms()).failed[TASK]
        reason = lost.reason if isinstance(lost, StateLost) else str(lost)
        stage.step("the log lost what lies below 12; poll", reason, "truncated", "10 is no position any more")
        stage.step("rows and position", state(), {"rows": 10, "position": 10}, "nothing local was touched")
    finally:
        tailer.close()
        stores.close()
    stores = opened()
    applier = ChangelogApplier(TASK, stores, {"aircraft": info}, clock)
    stage.step("opened again", state(), {"rows": 10, "position": 10}, "the position is written with its rows")
    stores.close()
