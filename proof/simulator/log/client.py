"""The log port of one simulated process: every call passes through `Calls`, and then changes or reads the world's log.

    SimLogClient ── admin    admin.py        ── reader   reader.py
                 ── writer   writer.py       ── group    group.py

Rules of this file: nothing here is shared with another process but the `SimLog`. A call that meets an outage waits for
its end as long as the log's `timeout_ms`, then it is Unavailable and did nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from simulator.calls import Calls
from simulator.log.access import SHORT_MS, Access
from simulator.log.admin import SimAdmin
from simulator.log.cluster import Owner, SimLog
from simulator.log.group import SimGroup
from simulator.log.reader import SimReader
from simulator.log.writer import EmbeddedWriter, KafkaWriter, SimWriter, open_embedded, open_kafka
from standfast.replication.checks import check_text
from standfast.replication.embedded.topics import dirty_ratio
from standfast.replication.kafka.members import MEMBERS_SUFFIX
from standfast.replication.log import LockHolder, Notes
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError, Unavailable
from standfast.store.names import check_topic

Part = TypeVar("Part", bound=SimReader | SimWriter | SimGroup)


class SimLogClient:
    """See the header. `clock` is the process's own, `calls` its calls; None: those of the world's log."""

    def __init__(self, log: SimLog, clock: Clock | None = None, calls: Calls | None = None) -> None:
        self.log = log
        self._access = Access(log, clock, calls)
        self._parts: dict[int, Any] = {}
        self._admin = SimAdmin(self._access)

    # -- the port -----------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Address that opens this log again."""
        return f"sim://{self.log.name}?style={self.log.style}"

    @property
    def least_timestamp_ms(self) -> int:
        """As of the log that this one is like."""
        return 1 if self.log.kafka else 0

    @property
    def remote(self) -> bool:
        """As of the log that this one is like."""
        return self.log.kafka

    @property
    def admin(self) -> SimAdmin:
        """Admin of the topics."""
        self._access.check_open()
        return self._admin

    def reader(self, *, narrow: bool = False) -> SimReader:
        """A reader without assignment; it fetches nothing ahead, narrow or not."""
        self._access.check_open()
        return self._keep(SimReader(self._access, self._forget))

    def writer(self, transactional_id: str, *, group: str, owner: str, if_free: bool = False) -> SimWriter:
        """Open a writer and fence every older one of this id. See Log.writer; raises Held."""
        self._access.check_open()
        for what, text in (("transactional id", transactional_id), ("group name", group), ("owner", owner)):
            check_text(what, text)
        opened = open_kafka if self.log.kafka else open_embedded
        return self._keep(opened(self._access, self._forget, transactional_id, Owner(group, owner, 0), if_free))

    def prepare(self, transactional_ids: Iterable[str]) -> None:
        """Nothing to prepare."""
        self._access.check_open()

    def producer(self) -> SimWriter:
        """A writer without fencing; its epoch is 0."""
        self._access.check_open()
        name = f"standfast-producer-{self.log.next_number()}"
        if self.log.kafka:
            return self._keep(KafkaWriter(self._access, self._forget, name))
        return self._keep(EmbeddedWriter(self._access, self._forget, None, self._access.produced))

    def group(self, name: str) -> SimGroup:
        """A group by name; it need not exist yet."""
        self._access.check_open()
        check_text("group name", name)
        if self.log.kafka:
            check_topic(name + MEMBERS_SUFFIX)
        return self._keep(SimGroup(self._access, name, self._forget))

    def notes_of(self, groups: Iterable[str]) -> dict[str, Notes | None]:
        """See Log; every login may read them."""
        self._access.check_open()
        names, found = list(groups), self.log.groups
        return self._access.call(
            "log.notes_of", lambda: {name: dict(found[name].notes) if name in found else {} for name in names}
        )

    def lock_holder(self) -> LockHolder | None:
        """The outage of a log like the embedded one: a process, of unknown id, holds the lock."""
        outage = None if self.log.kafka else self.log.outage()
        if outage is None:
            return None
        held_ms = self.log.clock.monotonic_ms() - outage.since_ms
        return LockHolder(0, self.log.clock.wall_ms() - held_ms, held_ms) if held_ms >= SHORT_MS else None

    def trouble(self) -> StandfastError | None:
        """See Log."""
        self._access.check_open()
        holder = self.lock_holder()
        return None if holder is None else Unavailable(f"{self.log.where}: the lock is held by {holder}")

    def care(self, now_ms: int) -> int:
        """Retention and compaction of a log like the embedded one; returns the number of removed records."""
        self._access.check_open()
        return 0 if self.log.kafka else self._access.write("log.care", lambda: self._care(now_ms))

    def hasten(self) -> None:
        """See Log."""
        self._access.hasten()

    def close(self) -> None:
        """Close the log and all its parts. Twice is fine."""
        self._access.closed = True
        for part in list(self._parts.values()):
            part.close()

    def truncate(self, source: TopicPartition, before: int) -> None:
        """Remove records below an offset, as `delete_records`: beyond the port, for tests."""
        self._admin.delete_records({source: before})

    def _keep(self, part: Part) -> Part:
        self._parts[id(part)] = part
        return part

    def _forget(self, part: object) -> None:
        self._parts.pop(id(part), None)  # a dict keeps the order of openings

    def _care(self, now_ms: int) -> int:
        removed = 0
        for topic in self.log.topics.values():
            for one in topic.partitions:
                removed += one.retain(now_ms)
                if "compact" in topic.policy.cleanup:
                    dirty = one.end - one.clean
                    removed += one.compact(now_ms, dedupe=dirty >= dirty_ratio(topic.policy) * (dirty + one.kept))
        self.log.version += 1
        return removed
