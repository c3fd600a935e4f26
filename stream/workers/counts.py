"""The number of worker processes, and the share of the instance's settings that each of them gets.

    workers="auto"     as many as there are cores that this process may use
    memory_bytes, cache_max_bytes, restore_memory_bytes, restore_workers, and bytes_per_s of its snapshots
                       of the instance, divided among its workers

Rules of this file: pure but for `cores`. Every problem is named at once.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Literal, TypeAlias

from standfast.store.arguments import is_whole, refuse
from standfast.stream.task.settings import (
    CACHE_DEFAULT_BYTES,
    MEMORY_MIN_BYTES,
    RESTORE_MEMORY_MIN_BYTES,
    RESTORE_WORKERS_MAX,
    SessionOptions,
    SessionSettings,
)

AUTO = "auto"
Workers: TypeAlias = int | Literal["auto"]


def cores() -> int:
    """The number of cores that this process may use, which may be fewer than the machine's."""
    return len(os.sched_getaffinity(0))


def workers_problems(given: object) -> list[str]:
    """Problems of a number of workers that are wrong on any machine."""
    if given == AUTO or is_whole(given, 1):
        return []
    return [f'workers must be a whole number from 1, or "auto": one for each core, not {given!r:.100}']


def worker_count(given: Workers, cores: int, options: SessionOptions) -> int:
    """The number of worker processes; 1: this process is the only one. Raises BadConfig with every problem."""
    refuse(workers_problems(given))
    count = given if isinstance(given, int) else cores
    if count == 1:
        return 1
    settings = SessionSettings.of(options)
    problems = []
    if count > cores:
        problems.append(
            f"workers={count}, but this process may use {cores} {'core' if cores == 1 else 'cores'}: give {cores} or "
            'fewer, or "auto"'
        )
    if settings.placement == "static":
        problems.append(
            f'placement="static" cannot go with workers={count}: the caller names the tasks of one process; leave it '
            "out, and a supervisor gives the tasks to the workers"
        )
    for name, least in (("memory_bytes", MEMORY_MIN_BYTES), ("restore_memory_bytes", RESTORE_MEMORY_MIN_BYTES)):
        whole = getattr(settings, name)
        if whole // count < least:
            problems.append(
                f"{name}={whole} is divided among {count} workers, and each needs {least}: give {least * count} or "
                "more, or fewer workers"
            )
    refuse(problems)
    return count


def worker_options(options: SessionOptions, workers: int) -> SessionOptions:
    """The settings of one worker's session: its share, and no decision about tasks, which are the supervisor's."""
    settings = SessionSettings.of(options)
    restores = settings.restore_workers
    share: SessionOptions = {
        **options,
        "placement": "shared",  # a failed task is never taken back from a live instance
        "take_over": False,
        "memory_bytes": settings.memory_bytes // workers,
        "cache_max_bytes": _share(options.get("cache_max_bytes", CACHE_DEFAULT_BYTES), workers),
        "restore_memory_bytes": settings.restore_memory_bytes // workers,
        # Workers restore side by side: together they get no more processes than one process would.
        "restore_workers": _share(restores, workers)
        if restores is not None
        else max(min(settings.bulk().workers, RESTORE_WORKERS_MAX) // workers, min(settings.bulk().workers, 1)),
    }
    policy = settings.snapshots
    if policy is not None:
        rate = None if policy.bytes_per_s is None else _share(policy.bytes_per_s, workers)
        share["snapshots"] = replace(policy, bytes_per_s=rate, checkpoint_every_ms=None)
    share.pop("http_port", None)
    share.pop("http_host", None)
    share.pop("http_token_file", None)
    share.pop("http_tls", None)
    share.pop("replace", None)
    share.pop("max_tasks", None)  # the leader's and the supervisor's: a session that follows orders refuses it
    return share


def _share(number: int, workers: int) -> int:
    """A share that is not 0 unless the whole is: 0 turns a setting off."""
    return max(number // workers, min(number, 1))
