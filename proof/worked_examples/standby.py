"""The players of the scenario `standby`; offsets are next to read, and a limit is exclusive.

`Follower`, a standby of `standfast.replication.standby`, and `takeover`:

    new position=0 limit=5 keep_max_records=3      a new standby; every argument but position is optional
    update 0 1 7:big next=9                        a batch; `7:big` has a value of 100 bytes, the others of one
    tick | limit 9 | reinitialise truncated | begin_again 0 | close | position
    instances a b c                                instances that keep one of the two standbys of a task of `a`

`TailedLog`, the tail of a real log into a real store: ten records in the changelog of task 0_0:

    allow | poll                  all active tasks are restored | one pass of the tailer
    write 2 | truncate 12         two more records | the log loses the records below 12
    stray                         the task gets a record of a topic that is not its own
    reopen | rows                 the store is closed and opened again | its rows, and the position that it holds

Rules of this file: it names offsets and drives the parts by hand.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.listeners import Listeners
from standfast.replication.log import Outgoing, Record, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.standby import LimitSet, Reinitialise, Standby, StandbyStep
from standfast.replication.tail.applier import ChangelogApplier
from standfast.replication.tail.tailer import Tailer
from standfast.replication.takeover import standby_wanted
from standfast.store import serde
from standfast.store.clock import ManualClock
from standfast.store.errors import StandfastError, StateLost
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import KeyValueStore
from standfast.store.task.task_stores import TaskStores
from worked_examples.script import Player


class Follower(Player):
    """One standby after the other."""

    def __init__(self) -> None:
        self.new(position=0)

    def new(self, **settings: int) -> str:
        """Begin with a new standby."""
        self.standby = Standby(**settings)
        return f"{self.standby.state.value} position={self.standby.position} limit={self.standby.limit}"

    def update(self, *records: str, next: int | None = None) -> StandbyStep:
        """Give a batch."""
        return self.standby.update([_record(word) for word in records], next)

    def tick(self) -> StandbyStep:
        """Give the commit tick."""
        return self.standby.on_commit_tick()

    def limit(self, limit: str) -> LimitSet:
        """Set a new limit."""
        return self.standby.set_limit(int(limit))

    def reinitialise(self, reason: str) -> Reinitialise:
        """Reinitialise from the beginning, for a reason."""
        return self.standby.reinitialise(reason)

    def begin_again(self, position: str) -> StandbyStep:
        """Begin again after lost state was deleted."""
        return self.standby.begin_again(int(position))

    def close(self) -> str:
        """End the standby."""
        self.standby.close()
        return "closed"

    def position(self) -> int:
        """The next offset to read."""
        return self.standby.position

    def instances(self, *members: str) -> list[str]:
        """Instances that keep one of the two standbys of a task of instance a."""
        return [one for one in members if standby_wanted(one, members, "a", 2)]

    def value(self, answer: Any) -> Any:
        """An answer without its empty parts."""
        match answer:
            case LimitSet():
                return {"limit": answer.limit, "refused": True} if answer.regressed else answer.limit
            case Reinitialise():
                return {"reason": answer.reason, "was_at": answer.position, "let_go": answer.dropped}
            case StandbyStep():
                seen = {"applied": [record.offset for record in answer.apply], "position": answer.position}
                said = {"kept": answer.kept or None, "pause": answer.pause or None}
                said |= {"seek": answer.seek, "resume": answer.resume or None}
                return seen | {word: one for word, one in said.items() if one is not None}
        return super().value(answer)


def _record(word: str) -> Record:
    offset, _, size = word.partition(":")
    return Record(int(offset), 1_000 + int(offset), b"k", b"v" * (100 if size == "big" else 1))


TASK = TaskId(0, 0)
CHANGELOG = TopicPartition("board-aircraft-changelog", 0)
SPEC = KeyValueStore("aircraft", serde.string, serde.string)
# Nine bytes: the value with its timestamp, as in the changelog of a timestamped store.
VALUE = (5).to_bytes(8, "big") + b"v"


class TailedLog(Player):
    """A log, and a standby of one task."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._folder = Path(self._held.enter_context(tempfile.TemporaryDirectory(prefix="standfast-demo-")))
        self._clock = ManualClock(1_000)
        self._log = EmbeddedLog(self._folder / "log.sqlite", synchronous="normal", clock=self._clock)
        self._held.callback(self._log.close)
        self._topic = self._log.admin.create_topic(CHANGELOG.topic, 1, TopicPolicy(frozenset({"compact"})))
        self.write("10")
        self._tailer = Tailer(self._log, self._log.group("board"), Listeners())
        self._held.callback(self._tailer.close)
        self._open()
        self._tailer.add(self._applier)

    def _open(self) -> None:
        shared = RocksShared(8 << 20)
        self._stores = TaskStores(self._folder / "task", "board", str(TASK), [SPEC], shared, now_ms=self._clock.wall_ms)
        self._applier = ChangelogApplier(TASK, self._stores, {"aircraft": self._topic}, self._clock)

    def write(self, count: str) -> None:
        """Write records to the changelog."""
        producer = self._log.producer()
        producer.append({CHANGELOG: [Outgoing(b"N%03d" % number, VALUE, number) for number in range(int(count))]})
        producer.close()

    def truncate(self, offset: str) -> None:
        """Truncate the log below an offset."""
        self._log.truncate(CHANGELOG, int(offset))

    def allow(self) -> None:
        """Report that all active tasks here are restored."""
        self._tailer.allow(True)

    def poll(self) -> Any:
        """Run one pass of the tailer; the reason for which the task failed, if it did."""
        lost = self._tailer.poll_once(self._clock.wall_ms()).failed.get(TASK)
        return lost.reason if isinstance(lost, StateLost) else lost and str(lost)

    def stray(self) -> str | None:
        """The error message for a record of a topic that the task does not tail."""
        try:
            self._applier.apply(TopicPartition("other", 0), [Record(0, 0, b"k", b"v")], 1)
        except StandfastError as error:
            return str(error)
        return None

    def reopen(self) -> None:
        """Close the store and open it again."""
        self._stores.close()
        self._open()

    def rows(self) -> dict[str, int]:
        """Number of rows in the store, and its position; -1 for none."""
        position = self._applier.position(CHANGELOG)
        rows = sum(1 for _ in self._stores.store("aircraft").all())
        return {"rows": rows, "position": -1 if position is None else position.offset}

    def end(self) -> None:
        """Close store, tailer and log."""
        self._stores.close()
        self._held.close()
