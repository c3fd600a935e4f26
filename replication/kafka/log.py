"""The Kafka log: topics, transactions and groups of a Kafka cluster behind the log port.

    KafkaLog ── admin    admin.py        ── reader   reader.py
             ── writer   writer.py       ── group    group.py, members in board.py
             ── care     nothing: brokers compact and delete by themselves
             ── prepare  Prepared: producers of many tasks connect at the same time

Rules of this file: it opens and closes parts and decides nothing. A reader reads committed records, so `end` is the
last stable offset. The brokers assign offsets, which have gaps (transaction markers, compaction). Not fork-safe: open
the log after forking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from standfast.replication.checks import check_text
from standfast.replication.kafka.address import KafkaAddress, parse_kafka_address
from standfast.replication.kafka.admin import KafkaAdmin
from standfast.replication.kafka.callbacks import Functions
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.group import KafkaGroup
from standfast.replication.kafka.members import MEMBERS_SUFFIX
from standfast.replication.kafka.members_topic import Board, notes_of
from standfast.replication.kafka.producer import ProducerClient
from standfast.replication.kafka.reader import KafkaReader
from standfast.replication.kafka.records import LEAST_TIMESTAMP_MS
from standfast.replication.kafka.writer import Fence, KafkaWriter
from standfast.replication.log import GroupCommit, Notes
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import Closed, StandfastError
from standfast.store.names import check_topic
from standfast.store.outside import new_id
from standfast.store.process import forks

THREADS_MAX = 16
Part = TypeVar("Part", KafkaReader, KafkaWriter, KafkaGroup)


class KafkaLog:
    """Log on Kafka. `address` is `kafka://host:port,...?setting=value`; leases go by `clock`; `functions` are those of
    `kafka=` (callbacks.py).

    Raises BadConfig for refused settings or a refused login, Unavailable if no broker answers within `timeout.ms`.
    """

    def __init__(
        self, address: str | KafkaAddress, *, clock: Clock | None = None, functions: Functions | None = None
    ) -> None:
        self._where = parse_kafka_address(address) if isinstance(address, str) else address
        self._clock = clock if clock is not None else SystemClock()
        self._mutex = threading.Lock()
        self._parts: set[Any] = set()
        self._boards: dict[str, Board] = {}
        self._metadata: dict[str, Any] = {}
        self._committing = threading.Lock()
        self._committers: dict[str, KafkaWriter] = {}  # by group
        self._closed = self._forked = False
        self._cluster = Cluster(self._where, functions)
        self._prepared = PreparedProducers(self._cluster)
        self._admin = KafkaAdmin(self._cluster, self._check_open)
        forks.dies_in_child(self)

    @property
    def address(self) -> str:
        """Address that opens this log again; it holds no secret."""
        return str(self._where)

    @property
    def least_timestamp_ms(self) -> int:
        """1: the client replaces a timestamp of 0 by the present time."""
        return LEAST_TIMESTAMP_MS

    @property
    def remote(self) -> bool:
        """True: writes wait for the brokers."""
        return True

    @property
    def admin(self) -> KafkaAdmin:
        """Admin of the topics; several threads may use it."""
        self._check_open()
        return self._admin

    def reader(self, *, narrow: bool = False) -> KafkaReader:
        """A reader without assignment. `narrow`: its client fetches less ahead, unless the address sets the amount.

        Measured: the client holds 400 bytes for a record of 116, so the default would take 250 MB in each reader.
        """
        self._check_open()
        return self._keep(KafkaReader(self._cluster, self._forget, narrow=narrow))

    def writer(self, transactional_id: str, *, group: str, owner: str, if_free: bool = False) -> KafkaWriter:
        """Open a writer and fence every older one of this id. See Log.writer; raises Held.

        The writer first claims the id on the group's members topic, then the broker fences; board.py explains why that
        is safe. Epochs grow within a group.
        """
        self._check_open()
        check_text("transactional id", transactional_id)
        check_text("owner", owner)
        board = self._board(group)
        epoch = board.claim(transactional_id, owner, if_free=if_free)
        writer = self._writer(Fence(transactional_id, epoch, owner, board), self._prepared.take(transactional_id))
        try:
            writer.open()
        except BaseException:
            writer.close()
            raise
        return writer

    def prepare(self, transactional_ids: Iterable[str]) -> None:
        """Connect producers of these ids, and for claims, all at once; drop unused ones of an earlier call."""
        self._check_open()
        with self._mutex:
            boards = [board for board in self._boards.values() if not board.connected]
            groups = [name for name in self._boards if name not in self._metadata]
        first: list[Callable[[], object]] = [
            *(board.connect for board in boards),
            *(partial(self._group_metadata, name) for name in groups),
        ]
        self._prepared.begin(transactional_ids, first)

    def producer(self) -> KafkaWriter:
        """A writer without fencing; its epoch is 0."""
        self._check_open()
        # A random transactional id, as for committers below: producers of several instances must not fence each other.
        return self._writer(Fence(f"standfast-producer-{new_id('writer', 32)}"))

    def group(self, name: str) -> KafkaGroup:
        """A group by name; it need not exist yet."""
        self._check_open()
        return self._keep(KafkaGroup(self._cluster, name, self._board(name), self._commit, self._forget))

    def notes_of(self, groups: Iterable[str]) -> dict[str, Notes | None]:
        """See Log. READ of the groups' members topics."""
        self._check_open()
        return notes_of(self._cluster, groups)

    def lock_holder(self) -> None:
        """None: the brokers write, and no client holds a lock."""

    def trouble(self) -> None:
        """None: this log has no file that could be checked from here."""

    def care(self, now_ms: int) -> None:
        """Brokers apply retention and compaction themselves."""
        self._check_open()

    def hasten(self) -> None:
        """From now on all calls together end within `timeout.ms`. Twice is fine: the first call counts."""
        self._cluster.hasten()

    def close(self) -> None:
        """Close the log and all its parts. Twice is fine."""
        if self._forked:
            return
        # Parts close without the mutex, because each of them calls `_forget`.
        with self._mutex:
            self._closed = True
            parts = [*self._parts, *self._boards.values()]
            self._boards = {}
        self._prepared.close()
        for part in parts:
            part.close()
        self._cluster.askers.close()

    def forked(self) -> None:
        """As in `forks.Owned`: its clients stay as they are, and have no destructor any more."""
        self._closed = self._forked = True
        self._mutex = threading.Lock()
        for part in self._parts:
            part.forked()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"log {self._cluster.where} was closed, or belongs to the parent process: open a new one")

    def _writer(self, fence: Fence, prepared: Any = None) -> KafkaWriter:
        return self._keep(KafkaWriter(self._cluster, fence, self._group_metadata, self._forget, prepared))

    def _commit(self, commit: GroupCommit) -> None:
        """Commit offsets through a transaction of their own.

        Its id has the same prefix as the ids of the group's tasks, so a prefixed ACL on those covers this one.
        """
        with self._committing:
            committer = self._committers.get(commit.group)
            if committer is None:
                committer = self._writer(Fence(f"{commit.group}-standfast-commits-{new_id('writer', 32)}"))
                self._committers[commit.group] = committer
            committer.transact({}, commit)

    def _group_metadata(self, group: str) -> Any:
        """Metadata that a transaction's offsets need: the group's name, as a consumer that never joined returns it."""
        with self._mutex:
            found = self._metadata.get(group)
        if found is None:
            consumer = self._cluster.consumer(group)
            found = self._cluster.run(f"looking at group {group!r}", lambda: consumer.consumer_group_metadata())
            self._cluster.release(consumer)
            with self._mutex:
                self._metadata[group] = found
        return found

    def _board(self, group: str) -> Board:
        check_text("group name", group)
        check_topic(group + MEMBERS_SUFFIX)
        with self._mutex:
            board = self._boards.get(group)
            if board is None:
                board = self._boards[group] = Board(self._cluster, self._admin, group, self._clock)
        return board

    def _keep(self, part: Part) -> Part:
        with self._mutex:
            self._parts.add(part)
        return part

    def _forget(self, part: object) -> None:
        with self._mutex:
            self._parts.discard(part)


class PreparedProducers:
    """Producers that connect before their writers are opened: those of many tasks at the same time. For any thread.

        begin(ids) ──> a thread each: create, connect ──> take(id), which waits for it ──> the writer initialises it
                                                      └── not taken: dropped by the next `begin`, or by `close`

    Measured, while a connection took 50 ms: opening 16 tasks in turn takes 0.7 s if their producers were created
    before, 1.5 s if not. On a busy machine a connection takes 100 ms, and one after the other they were a third of a
    take-over. Connecting fences no one. A producer that could not connect is none: its writer says why.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._mutex = threading.Lock()
        self._waiting: dict[str, Future[ProducerClient | None]] = {}
        self._closed = False

    def begin(self, names: Iterable[str], others: Sequence[Callable[[], object]] = ()) -> None:
        """Connect producers of these transactional ids, and do these other things, in threads.

        An error of one of those is left to the call that needs it.
        """
        wanted = list(dict.fromkeys(names))
        with self._mutex:
            unused = {name: one for name, one in self._waiting.items() if name not in wanted}
            new = [name for name in wanted if name not in self._waiting]
            if not self._closed and (new or others):
                threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="standfast-connect")
                for one in others:
                    threads.submit(one)
                self._waiting |= {name: threads.submit(self._connected, name) for name in new}
                threads.shutdown(wait=False)
            for name in unused:
                del self._waiting[name]
        self._drop(unused.values())

    def take(self, name: str) -> ProducerClient | None:
        """The connected producer of an id, which is the caller's from now on; None if there is none."""
        with self._mutex:
            found = self._waiting.pop(name, None)
        return None if found is None else found.result()

    def close(self) -> None:
        """Drop all producers that no writer took."""
        with self._mutex:
            self._closed = True
            unused, self._waiting = self._waiting, {}
        self._drop(unused.values())

    def _connected(self, name: str) -> ProducerClient | None:
        try:
            return self._cluster.connected(self._cluster.transactional(name))
        except StandfastError:
            return None

    def _drop(self, unused: Iterable[Future[ProducerClient | None]]) -> None:
        for one in unused:
            one.add_done_callback(lambda done: self._cluster.release(done.result()))
