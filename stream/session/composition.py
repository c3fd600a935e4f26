"""Makes the instance of a session from its parts.

    settings, log, group, state directory ──> restorer, tailer, gate ──> readiness ─┐
                                              opener, writers, membership ──────────┴──> Instance

Rules of this file: it wires and decides nothing; the session owns the parts and closes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from standfast.replication.listeners import Listeners
from standfast.replication.log import Group, Log, LogReader
from standfast.replication.placement.topic import PlacementTopic
from standfast.replication.progress import LeaseProgress
from standfast.replication.tail.tailer import Tailer
from standfast.restore.gate import Gate
from standfast.restore.replay.restorer import Restorer
from standfast.store.clock import Clock
from standfast.store.disk import DiskGuard
from standfast.store.process.threads import Threads
from standfast.store.task.state_dir import StateDir
from standfast.stream.session.instance import Instance
from standfast.stream.session.membership import Membership
from standfast.stream.session.writers import Writers
from standfast.stream.snapshot_counts import Downloads
from standfast.stream.task.closing import Closings
from standfast.stream.task.groups import TaskGroup
from standfast.stream.task.opener import TaskOpener
from standfast.stream.task.readiness import Readiness
from standfast.stream.task.settings import SessionSettings
from standfast.stream.task.statistics import SessionCounters
from standfast.stream.tasks.life import Lives


def without_caches(groups: dict[int, TaskGroup]) -> None:
    """Have every put logged, whatever the stores' own definitions say."""
    for number, group in groups.items():
        groups[number] = replace(group, specs=tuple(replace(spec, caching=False) for spec in group.specs))


def make_instance(
    app: str,
    log: Log,
    group: Group,
    state: StateDir,
    groups: dict[int, TaskGroup],
    settings: SessionSettings,
    disk: DiskGuard,
    membership: Membership,
    *,
    follow: bool,
    foreign: bool,
    reader: Callable[[str], LogReader],
    wake: Callable[[], None] | None,
    clock: Clock,
    listeners: Listeners,
    counters: SessionCounters,
    progress: LeaseProgress,
    downloads: Downloads,
    threads: Threads,
    buffer_bytes: Callable[[], int],
    learn_partitions: Callable[[], None],
) -> Instance:
    """The instance, without tasks. `follow`: changelogs grow with their sources; `foreign`: they are another's."""
    if not settings.cache_max_bytes:
        without_caches(groups)
    opener = TaskOpener(
        app,
        log,
        group,
        state,
        groups,
        settings,
        clock=clock,
        listener=listeners,
        buffer_bytes=buffer_bytes,
        disk=disk,
        foreign=foreign,
        progress=progress,
        snapshot_counts=counters.snapshots,
        downloads=downloads,
        threads=threads,
    )
    # Where partitions are not known yet, changelogs are created when tasks are opened.
    if all(one.partitions for one in groups.values()):
        opener.ensure_topics(follow=follow)
    readiness = Readiness(
        Restorer(log, listeners, reader("restore"), settings.bulk(threads=not threads.stepped), wake, clock),
        Tailer(log, group, listeners, reader("standby"), clock),
        Gate(settings.gate),
        group,
        state,
        disk,
        clock=clock,
        counters=counters,
        progress=progress,
        closings=Closings(threads),
        lives=Lives(),
    )
    return Instance(
        opener,
        Writers(log, group, app, state.instance_id, threads),
        membership,
        readiness,
        settings,
        clock=clock,
        counters=counters,
        learn_partitions=learn_partitions,
        placement_topic=_placement_topic(log, app, state.instance_id, settings, clock),
    )


def _placement_topic(
    log: Log, app: str, instance: str, settings: SessionSettings, clock: Clock
) -> PlacementTopic | None:
    if settings.placement != "managed":
        return None
    return PlacementTopic(log, app, instance, clock, acceptable_lag=settings.acceptable_lag)
