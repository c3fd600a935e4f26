"""The mark of an application that is being restored under a new name: topic `<app>-standfast-restoring`.

    mark ──> changelogs, rows, source offsets ──> mark says "whole" ──> local state ──> mark deleted

While it is there the application must not start: its changelogs hold a part of its state, and look like all of it.

Rules of this file: the name of the topic, the content of the mark, and the check at a start.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from standfast.replication.log import Log, LogAdmin, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.shapes import Count, Shape, dump, read
from standfast.replication.topics.app_topics import RESTORING
from standfast.replication.topics.settings import OWN_TIMESTAMPS
from standfast.store.errors import Corruption, InvalidRequest, Unavailable, UnknownStore

POLICY = TopicPolicy(extra=OWN_TIMESTAMPS)
FETCH_MS, PATIENCE = 1_000, 30
KEY = b"restoring"


class RestoredPosition(Shape, frozen=True):
    """The position of a store's new changelog after its rows. `marker` as in a task's record.

    `replayed`: it is before the rows, which the local state gets from the log, since those of its files differ.
    """

    topic_id: str
    offset: Count
    marker: bool
    replayed: bool = False


class Restoring(Shape, frozen=True, tag_field="format", tag="standfast.restoring/1"):
    """The restore: `parts` are the ids of the snapshots by task. With `whole` the log has all, `positions` by task."""

    app: str
    parts: Mapping[str, str]
    whole: bool = False
    positions: Mapping[str, Mapping[str, RestoredPosition]] = {}


def mark_of(app: str) -> TopicPartition:
    """The partition that holds the mark."""
    return TopicPartition(app + RESTORING, 0)


def refuse_restoring(admin: LogAdmin, app: str) -> None:
    """Raise InvalidRequest while the application is being restored, or after that was broken off."""
    # By the list of names: describing a topic that a login may not see would refuse every start of that login.
    if mark_of(app).topic in admin.topic_names():
        raise InvalidRequest(
            f"application {app!r} is being restored under this name and is not whole "
            f"(topic {mark_of(app).topic}): wait for that restore, or run the same `standfast snapshot restore --as "
            f"{app}` again, which completes it; `standfast reset` of {app!r} gives it up"
        )


def as_record(mark: Restoring, now_ms: int) -> Outgoing:
    """The record of a mark."""
    return Outgoing(KEY, dump(mark), now_ms)


def is_written(log: Log, app: str) -> bool:
    """Whether a run has written its mark, also one whose transaction readers do not see yet."""
    where = mark_of(app)
    with closing(log.reader()) as reader:
        return reader.written_ends([where])[where] > reader.bounds([where])[where].begin


def read_mark(log: Log, app: str) -> Restoring | None:
    """The last mark of a restore under way; None if its first one is not written, or no restore is under way.

    Of two runs with other snapshots that begin at once the first one's mark counts. Raises Corruption for another
    content.
    """
    where = mark_of(app)
    marks: list[bytes | None] = []
    reader = log.reader()
    try:
        begin, end = reader.bounds([where])[where]
        position, idle = begin, 0
        reader.assign({where: begin})
        while position < end:
            fetched = reader.fetch(100, FETCH_MS)
            for batch in fetched:
                position = batch.next_offset
                marks += [record.value for record in batch.records]
            idle = 0 if fetched else idle + 1
            if idle > PATIENCE:
                raise Unavailable(f"{where} gives no record below its end {end}: check the log")
    except UnknownStore:
        return None  # also of a restore that ends at this moment
    finally:
        reader.close()
    try:
        if not marks:
            return None
        first, last = (read(one or b"", Restoring) for one in (marks[0], marks[-1]))
        return last if (last.app, last.parts) == (first.app, first.parts) else first
    except ValueError as error:
        raise Corruption(
            f"{where} holds no mark of a restore ({error}): find out which program wrote to it, then delete the topic"
        ) from error
