"""Losses that an operator has accepted, recorded beside the state that was built with them.

    <state_dir>/<app>/ACCEPTED, a line each
    {"format": "standfast.accepted/1", "at_ms": 1700000000000, "task": "0_3", "store": "counts",
     "changelog": "shop-counts-changelog-3", "begin": 505, "end": 2000, "loss": "records below offset 505 were ...",
     "topic_id": "5f0c..."}

Rules of this file: a loss is recorded before it happens, and an error of the record prevents it. A loss that is there
already, of the same store with the same begin of the same topic, is not recorded again. Lines are appended, since the
worker processes of an instance share the file. A line that cannot be read is skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.applier import ChangelogApplier
from standfast.restore.plan import FromBeginning, Plan, ReinitialisePlan
from standfast.store import files
from standfast.store.file_errors import told
from standfast.store.log import as_event, logger

ACCEPTED_FILE = "ACCEPTED"
FORMAT = "standfast.accepted/1"
BYTES_MAX = 4 << 20


class Accepted(NamedTuple):
    """One loss: `begin` and `end` are the offsets that the log had, `loss` its words; `at_ms` the wall time.

    `topic_id` is "" in the records of earlier versions. Without a store it is a source partition with the task's own
    offset and the one that another client committed.
    """

    task: str
    store: str
    changelog: str
    begin: int
    end: int
    loss: str
    at_ms: int = 0
    topic_id: str = ""

    @property
    def place(self) -> tuple[str, str, str, str, int]:
        """The removed part: a loss is one however often, and for whatever reasons, a restore meets it."""
        return self.task, self.store, self.changelog, self.topic_id, self.begin


def note_accepted(
    state_path: Path, applier: ChangelogApplier, plans: Mapping[TopicPartition, Plan], now_ms: int
) -> None:
    """Record the losses that the plans of a task have by an operator's consent. Raises Unavailable if it cannot."""
    task = str(applier.task)
    found = [
        Accepted(
            task, applier.store_of[at], str(at), plan.position, plan.end, plan.accepted, now_ms, applier.topic_id(at)
        )
        for at, plan in plans.items()
        if isinstance(plan, FromBeginning | ReinitialisePlan) and plan.accepted
    ]
    if not found:
        return
    known = {one.place for one in read_accepted(state_path)}
    # A topic that was recreated loses its records again, and its log begins at 0 as the last one did.
    new = [one for one in found if known.isdisjoint((one.place, one._replace(topic_id="").place))]
    for one in new:
        logger.warning(
            "task %s: store %s, accepted: %s",
            task,
            one.store,
            one.loss,
            extra=as_event("loss_accepted", task=task, stores=[one.store]),
        )
    if new:
        _append(state_path / ACCEPTED_FILE, [{"format": FORMAT, **one._asdict()} for one in new])


def note_loss(state_path: Path, loss: Accepted) -> None:
    """Record one loss that an operator has accepted, unless this very one is known. Raises Unavailable if it cannot."""
    if any(one._replace(at_ms=loss.at_ms) == loss for one in read_accepted(state_path)):
        return
    logger.warning("task %s, accepted: %s", loss.task, loss.loss, extra=as_event("loss_accepted", task=loss.task))
    _append(state_path / ACCEPTED_FILE, [{"format": FORMAT, **loss._asdict()}])


def _append(path: Path, records: list[dict[str, object]]) -> None:
    lines = "".join(json.dumps(one) + "\n" for one in records)
    with told("recording an accepted loss", path):
        handle = files.open_handle(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with os.fdopen(handle, "ab") as file:
            size = os.fstat(handle).st_size
            # A crash in the middle of a line must not take the next one with it.
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            file.write(("\n" if torn else "").encode() + lines.encode())
            file.flush()
            files.sync(handle, path)
        files.sync_folder(path.parent)  # else a new file may go with a loss of power


def read_accepted(state_path: Path) -> list[Accepted]:
    """The recorded losses of `<state_dir>/<app>`, the oldest first."""
    path = state_path / ACCEPTED_FILE
    with told("reading accepted losses", path):
        if not path.exists():
            return []
        lines = path.read_bytes()[:BYTES_MAX].splitlines()
    found = []
    for line in lines:
        try:
            fields = json.loads(line)
            if fields["format"] == FORMAT:
                found.append(Accepted(**{name: fields[name] for name in Accepted._fields if name in fields}))
        except (ValueError, KeyError, TypeError, RecursionError):  # of another version, or damaged: only for people
            continue
    return found
