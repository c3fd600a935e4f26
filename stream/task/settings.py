"""Settings of a session, typed and checked in one place.

Rules of this file: plain data; every problem is reported at once. `SessionOptions` lists the same names for callers
that forward them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict, get_args

from standfast.replication.kafka.callbacks import kafka_problems
from standfast.restore.gate import Policy as GatePolicy
from standfast.restore.replay.bulk_plan import COLD_RECORDS, WARM_RECORDS, BulkSettings
from standfast.restore.snapshot.policy import SnapshotPolicy
from standfast.store.arguments import INT64_MAX, flag_problems, is_whole, list_problems, name_problems, refuse
from standfast.store.buffer.rows import VALUE_MAX_BYTES
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import check_name
from standfast.store.specs import StoreSpec
from standfast.stream.http_port import LOOPBACK, HttpPort, http_problems
from standfast.stream.task.groups import TaskGroup, all_specs, group_problems, source_topic_problems

Guarantee = Literal["exactly_once", "at_least_once"]
Placement = Literal["static", "shared", "group", "managed"]

MEMORY_MIN_BYTES = 1 << 20
MEMORY_DEFAULT_BYTES = 256 << 20
CACHE_DEFAULT_BYTES = 10 << 20
CACHE_MIN_BYTES = 64 << 10
# Half of the time from a kill to the standby's first record is within a record of it (docs/internals/restore.md).
LEASE_DEFAULT_MS = 1_500
LEASE_MIN_MS = 100
MAX_STALL_DEFAULT_MS = 30_000
DISCOVERY_DEFAULT_MS = 60_000
RESTORE_WORKERS_MAX = 4
# Measured: 500,000 rows of 112 bytes in two workers fit; with half of it they took four files instead of two, and the
# compaction that follows more than three: 5.7 s instead of 3.5.
RESTORE_MEMORY_DEFAULT_BYTES = 512 << 20
RESTORE_MEMORY_MIN_BYTES = 16 << 20
TAGS_BYTES_MAX = 2_000  # a member's metadata has 4,096 bytes
WARM_LAG_RECORDS = 10_000  # Kafka Streams' acceptable.recovery.lag
_FLAGS = (
    "take_over",
    "accept_empty_log",
    "accept_missing_history",
    "accept_unreadable_rows",
    "accept_foreign_offsets",
    "replace",
)


class SessionOptions(TypedDict, total=False):
    """The keyword arguments of a session that have defaults; see SessionSettings."""

    guarantee: Guarantee
    standby_replicas: int
    partitions: int | None
    placement: Placement
    gate: GatePolicy
    memory_bytes: int
    cache_max_bytes: int
    value_max_bytes: int
    lease_ms: int
    max_stall_ms: int
    take_over: bool
    accept_empty_log: bool
    accept_missing_history: bool
    accept_unreadable_rows: bool
    accept_foreign_offsets: bool
    discovery_interval_ms: int | None
    restore_workers: int | None
    restore_memory_bytes: int
    bulk_restore_records: int
    disk_floor_bytes: int
    http_port: int | None
    http_host: str
    http_token_file: str | os.PathLike[str] | None
    http_tls: Mapping[str, Any] | None
    warmups_max: int
    acceptable_lag: int
    restart_grace_ms: int
    tags: Mapping[str, str]
    max_tasks: int | None
    replace: bool
    snapshots: SnapshotPolicy | None
    kafka: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Options of a session and of an application, each with its default.

    guarantee               "exactly_once" or "at_least_once"
    standby_replicas        number of standbys per task, where placement is shared or group
    partitions              number of tasks; None: one above the largest assigned, or the changelogs' partition count
    placement               "static": the caller assigns; "shared": live instances share all tasks out by take-over;
                            "group": the application's own consumer group decides the actives, standbys follow;
                            "managed": of an application: a leader among the instances spreads tasks and standbys evenly
    gate                    "all": nothing is processed before every active store is restored; "task": each on its own
    memory_bytes            bytes of block cache and write buffers of all stores together
    cache_max_bytes         bytes of the record caches of all tasks together; 0: every put is logged
    value_max_bytes         largest value a store accepts, in bytes
    lease_ms                milliseconds that a member may be silent before other members take its tasks; in a group of
                            more members than one for each 15 of them, a multiple of it
    max_stall_ms            milliseconds that the background work or the application's loop may make no progress before
                            the lease is not renewed any more: longer than one record, callback or commit ever takes
    take_over               whether a standby takes its task when the owner is gone
    accept_empty_log        an operator's consent to lose local rows beside an empty log
    accept_missing_history  an operator's consent to use a log without its head
    accept_unreadable_rows  an operator's consent to lose damaged rows of a store without a changelog; readable rows
                            stay
    accept_foreign_offsets  an operator's consent to go on from source offsets that another client of the group
                            committed, and not from those of the application's own record; not judged where the
                            application's own consumer is in the group
    discovery_interval_ms   milliseconds between an application's checks of its source topics for new partitions, which
                            get tasks, and their changelogs partitions, without a restart; None: never, and a changelog
                            with fewer partitions than its source is an error
    restore_workers         number of threads that build the files of a bulk restore; 0: batches only, in this
                            process; None: as many as there are cores, at most 4, and none with background=False
    restore_memory_bytes    bytes of rows that these threads may hold, all together
    bulk_restore_records    number of records from which on a cold store is restored in bulk; three times as many for
                            one that holds rows
    disk_floor_bytes        with fewer free bytes on the volume of `state_dir`, or of an embedded log, nothing new is
                            written: a put is DiskFull, an application pauses its sources, restores and standbys wait;
                            reads, deletes and commits go on. A leader gives the tasks of an instance whose `state_dir`
                            is below it to others. 0: the volumes are not watched
    http_port               number of a port that serves the ops page, status, rows, metrics and health, 0 for a free
                            one; needs the extra `serve`. Rows are for the user of this process, root, and holders of
                            a token. With workers the supervisor serves the whole instance. None: no HTTP server
    http_host               address of that port; beyond loopback everything but /livez, /readyz, /startupz and /metrics
                            needs a token, and without http_tls answers and token are readable on the way
    http_token_file         file of mode 0600 with a token of 16 to 256 characters on one line, which may read
                            everything here; it is read again within half a minute. None: no other user reads rows
    http_tls                files of TLS for that port, as a dict: certificate and key_file (PEM); key_password_file;
                            client_ca and client_names (such as ["DNS:prometheus"]) for mutual TLS. None: plain HTTP
    warmups_max             with managed placement, number of copies of tasks in the whole application that may be
                            prepared at a time for instances that get these tasks (Kafka: max.warmup.replicas)
    acceptable_lag          number of changelog records up to which a copy counts as caught up, so that its instance
                            gets the task (Kafka: acceptable.recovery.lag)
    restart_grace_ms        milliseconds for which an instance that left is expected back: tasks without a standby wait
                            for it; so do those of one whose disk takes no writes
    tags                    of this instance, such as {"rack": "a", "zone": "north"}: standbys are spread over their
                            values
    max_tasks               with managed placement, number of active tasks that this instance may run, in all of its
                            worker processes; standbys and warm-ups do not count. None: no bound
    replace                 of an application: whether this instance, at its start and once, takes the application over
                            from live instances of another program (other groups, topics or stores), which give up
                            their tasks and wait. False: it waits until they have stopped
    snapshots               where and when the instance stores snapshots of its tasks, and whether a task without local
                            state begins with one; needs the extra `snapshots`. None: changelogs alone
    kafka                   settings of the Kafka clients beside those of the log's address: text, numbers, and the
                            functions oauth_cb, error_cb and throttle_cb. With oauth_cb no other process can log in: a
                            thread renews the lease
    """

    guarantee: Guarantee = "exactly_once"
    standby_replicas: int = 0
    partitions: int | None = None
    placement: Placement = "static"
    gate: GatePolicy = "all"
    memory_bytes: int = MEMORY_DEFAULT_BYTES
    cache_max_bytes: int = CACHE_DEFAULT_BYTES
    value_max_bytes: int = VALUE_MAX_BYTES
    lease_ms: int = LEASE_DEFAULT_MS
    max_stall_ms: int = MAX_STALL_DEFAULT_MS
    take_over: bool = True
    accept_empty_log: bool = False
    accept_missing_history: bool = False
    accept_unreadable_rows: bool = False
    accept_foreign_offsets: bool = False
    discovery_interval_ms: int | None = DISCOVERY_DEFAULT_MS
    restore_workers: int | None = None
    restore_memory_bytes: int = RESTORE_MEMORY_DEFAULT_BYTES
    bulk_restore_records: int = COLD_RECORDS
    disk_floor_bytes: int = 0
    http_port: int | None = None
    http_host: str = LOOPBACK
    http_token_file: str | os.PathLike[str] | None = None
    http_tls: Mapping[str, Any] | None = None
    warmups_max: int = 2
    acceptable_lag: int = WARM_LAG_RECORDS
    restart_grace_ms: int = 30_000
    tags: Mapping[str, str] = field(default_factory=dict)
    max_tasks: int | None = None
    replace: bool = False
    snapshots: SnapshotPolicy | None = None
    kafka: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SessionSettings:
        """The settings of keyword arguments. Raises BadConfig for an unknown name."""
        known = [one.name for one in fields(cls)]
        refuse(name_problems(given, known))
        return cls(**given)

    def problems(self) -> list[str]:
        """The problems of the settings that are wrong for any application and stores."""
        flags = {name: getattr(self, name) for name in _FLAGS}
        problems = [*self._choice_problems(), *self._number_problems(), *flag_problems(**flags)]
        problems += kafka_problems(self.kafka)
        problems += _snapshot_problems(self.snapshots)
        return problems

    def bulk(self, *, threads: bool = True) -> BulkSettings:
        """The settings of bulk restores; without `threads` there are none but for explicit workers."""
        workers = self.restore_workers
        if workers is None:  # the cores that this process may use, which may be fewer than the machine's
            workers = _restore_workers() if threads else 0
        return BulkSettings(
            workers=workers,
            memory_bytes=self.restore_memory_bytes,
            cold_records=self.bulk_restore_records,
            warm_records=self.bulk_restore_records * WARM_RECORDS // COLD_RECORDS,
            disk_floor_bytes=self.disk_floor_bytes,
        )

    def http(self) -> HttpPort:
        """The HTTP server's port, bound. Raises BadConfig, Held."""
        return HttpPort(self.http_port, self.http_host, self.http_token_file, self.http_tls)

    def check(
        self, app: str, stores: Sequence[StoreSpec], groups: Mapping[int, TaskGroup] | None = None
    ) -> dict[int, TaskGroup]:
        """The groups of tasks: the given ones, or one of all stores (0 partitions: not known yet).

        Raises BadConfig with every problem.
        """
        problems = [*_name_problems(app), *self.problems(), *_lists_problems(stores, groups)]
        refuse(problems)  # first, because the checks below read the stores
        if groups is not None:
            problems += group_problems(groups)
            if stores or self.partitions is not None:
                problems.append("groups say stores and partitions themselves: leave `stores` and `partitions` out")
        elif self.placement == "managed":
            problems.append(
                'placement="managed" is for App, whose loop commits tasks before they move: use "shared" here'
            )
        elif self.placement == "shared" and self.partitions is None:
            problems.append('placement="shared" needs partitions: the number of tasks to share out')
        if self.replace and self.placement != "managed":
            problems.append("replace=True is for an App whose tasks a leader places: leave it out")
        if self.max_tasks is not None and self.placement != "managed":
            problems.append("max_tasks is for an App whose tasks a leader places: leave it out, and choose its tasks")
        if self.snapshots is not None and self.snapshots.checkpoint_every_ms and self.placement != "managed":
            problems.append("snapshots: checkpoint_every_ms is for an App whose tasks a leader places: leave it out")
        specs = tuple(stores) if groups is None else all_specs(groups)
        problems += twice_problems(specs) or source_topic_problems(specs, app)
        if problems:
            raise BadConfig(problems)
        return {0: TaskGroup(self.partitions or 0, specs)} if groups is None else dict(groups)

    def _choice_problems(self) -> list[str]:
        choices = (("guarantee", Guarantee), ("placement", Placement), ("gate", GatePolicy))
        return [
            f"{name} must be one of {', '.join(get_args(allowed))}, not {getattr(self, name)!r:.100}"
            for name, allowed in choices
            if getattr(self, name) not in get_args(allowed)
        ]

    def _number_problems(self) -> list[str]:
        numbers = (
            ("standby_replicas", self.standby_replicas, 0),
            ("memory_bytes", self.memory_bytes, MEMORY_MIN_BYTES),
            ("cache_max_bytes", self.cache_max_bytes, 0),
            ("value_max_bytes", self.value_max_bytes, 1),
            ("lease_ms", self.lease_ms, LEASE_MIN_MS),
            ("max_stall_ms", self.max_stall_ms, LEASE_MIN_MS),
            ("restore_workers", 0 if self.restore_workers is None else self.restore_workers, 0),
            ("restore_memory_bytes", self.restore_memory_bytes, RESTORE_MEMORY_MIN_BYTES),
            ("bulk_restore_records", self.bulk_restore_records, 1),
            ("disk_floor_bytes", self.disk_floor_bytes, 0),
            ("warmups_max", self.warmups_max, 1),
            ("acceptable_lag", self.acceptable_lag, 0),
            ("restart_grace_ms", self.restart_grace_ms, 0),
            ("max_tasks", 1 if self.max_tasks is None else self.max_tasks, 1),
            ("partitions", 1 if self.partitions is None else self.partitions, 1),
            ("discovery_interval_ms", 1 if self.discovery_interval_ms is None else self.discovery_interval_ms, 1),
        )
        return (
            [
                f"{name} must be a whole number of at least {least}, not {number!r:.100}"
                for name, number, least in numbers
                if not is_whole(number, least, INT64_MAX)
            ]
            + http_problems(self.http_port, self.http_host, self.http_token_file, self.http_tls)
            + _tag_problems(self.tags)
        )


def _snapshot_problems(policy: object) -> list[str]:
    if isinstance(policy, SnapshotPolicy):
        return policy.problems()
    form = 'standfast.SnapshotPolicy(to="/backup")'
    return [] if policy is None else [f"snapshots must be None or {form}, not {policy!r:.100}"]


def _restore_workers() -> int:
    """A worker for each core; more threads than a few gain nothing, since one thread ingests their files."""
    return min(len(os.sched_getaffinity(0)), RESTORE_WORKERS_MAX)


def _tag_problems(tags: object) -> list[str]:
    """Problems of an instance's tags: each member publishes them in the metadata of its group."""
    texts = isinstance(tags, Mapping) and all(isinstance(one, str) for pair in tags.items() for one in pair)
    if not isinstance(tags, Mapping) or not texts:
        return [f'tags must be a dict of texts such as {{"rack": "a"}}, not {tags!r:.100}']
    size = len(json.dumps(dict(tags)))
    return [f"tags take {size} bytes, the limit is {TAGS_BYTES_MAX}: shorten them"] if size > TAGS_BYTES_MAX else []


def _lists_problems(stores: object, groups: object) -> list[str]:
    problems = list_problems("stores", stores, StoreSpec, "[standfast.KeyValueStore(...)]")
    if groups is not None and not (
        isinstance(groups, Mapping) and all(isinstance(one, TaskGroup) for one in groups.values())
    ):
        problems.append(f"groups must be a dict of numbers and TaskGroup, not {groups!r:.100}")
    return problems


def _name_problems(app: str) -> list[str]:
    try:
        check_name("application", app)
    except InvalidRequest as error:
        return [str(error)]
    return []


def twice_problems(stores: Sequence[StoreSpec]) -> list[str]:
    """One problem for each name that several stores have."""
    names = [getattr(spec, "name", None) for spec in stores]
    return [
        f"store {name!r} is declared {names.count(name)} times"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
