"""The policy of an instance's snapshots: where, how often, how many stay.

Rules of this file: plain data, cheap to import; every problem is reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from standfast.restore.snapshot.address import parse_storage
from standfast.store.arguments import INT64_MAX, checked, is_whole
from standfast.store.errors import BadConfig

KEEP_DEFAULT = 3
GRACE_DEFAULT_MS = 6 * 3_600_000
GRACE_MIN_MS = 1_000
PAUSE_DEFAULT_MS = 10_000


@checked(BadConfig, exact=())
@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPolicy:
    """Snapshots of the tasks that an instance runs.

    to
        a folder, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://ACCOUNT/CONTAINER/PREFIX; credentials come from the
        environment. Every instance of the application gives the same
    every_ms
        milliseconds between two snapshots of a task; None: time makes none. The first one after an opening comes after
        a share of them that differs from task to task
    every_records
        records and source offsets by which a task moves on between two snapshots; None: they make none. The first one
        comes after a share of them, too
    keep
        number of snapshots of each task that stay, the newest
    keep_ms
        milliseconds for which older ones stay, too; None: age keeps none
    grace_ms
        milliseconds for which files of an unfinished upload stay, by the storage's time; an upload that takes longer
        than half of it begins again. The same for every instance and command
    bytes_per_s
        most bytes a second that uploads of this instance send on average, over all of its tasks; None: no limit. Too
        low a limit keeps a large upload from ending within half of grace_ms
    restore
        whether a task without local state begins with its newest snapshot
    checkpoint_every_ms
        milliseconds between two coordinated checkpoints of the whole application, with managed placement; None: only
        `standfast snapshot create --app` makes them. `keep` and `keep_ms` count complete ones, too
    checkpoint_pause_ms
        most milliseconds for which a checkpoint may hold the tasks of a group back; past them it is abandoned
    """

    to: str
    every_ms: int | None = None
    every_records: int | None = None
    keep: int = KEEP_DEFAULT
    keep_ms: int | None = None
    grace_ms: int = GRACE_DEFAULT_MS
    bytes_per_s: int | None = None
    restore: bool = True
    checkpoint_every_ms: int | None = None
    checkpoint_pause_ms: int = PAUSE_DEFAULT_MS

    def problems(self) -> list[str]:
        """Everything that is wrong with it."""
        problems: list[str] = []
        try:
            parse_storage(self.to)
        except BadConfig as error:
            problems += error.problems
        except (TypeError, AttributeError, ValueError):
            problems.append("snapshots: `to` must be a folder or an address, as text")
        for name, number, least in (
            ("every_ms", self.every_ms, 1),
            ("every_records", self.every_records, 1),
            ("keep", self.keep, 1),
            ("keep_ms", self.keep_ms, 0),
            ("grace_ms", self.grace_ms, GRACE_MIN_MS),
            ("bytes_per_s", self.bytes_per_s, 1),
            ("checkpoint_every_ms", self.checkpoint_every_ms, 1),
            ("checkpoint_pause_ms", self.checkpoint_pause_ms, 1),
        ):
            optional = name not in ("keep", "grace_ms", "checkpoint_pause_ms")
            if not (optional and number is None) and not is_whole(number, least, INT64_MAX):
                also = " or None" if optional else ""
                problems.append(
                    f"snapshots: {name} must be a whole number of at least {least}{also}, not {number!r:.100}"
                )
        if not isinstance(self.restore, bool):
            problems.append(f"snapshots: restore must be True or False, not {self.restore!r:.100}")
        return problems
