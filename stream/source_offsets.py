"""Checks of a commit's source offsets against the state of a task. One rule for the library and the sidecar.

    shape        topic name, partition from 0, offset from 0 below 2**62: the range of every log
    the task's   its own partition, a topic of its group: the state of another task does not go with it
    never back   at or above the committed one: the state does not go back with the offset

Rules of this file: pure. Everything is checked before anything is written; one error names all problems.
"""

from __future__ import annotations

from collections.abc import Mapping

from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.errors import InvalidRequest
from standfast.store.names import check_topic, few

OFFSET_MAX = 2**62 - 1
PARTITION_MAX = 2**31 - 1
TOLD_MAX = 5  # problems in one message


def checked_shape(given: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
    """The offsets by partition. Raises InvalidRequest for a malformed source offset, whatever the task."""
    offsets: dict[TopicPartition, int] = {}
    problems = []
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f'source offsets must be a dict, as {{("flights", 0): 4712}}, not {given!r:.100}; nothing was committed'
        )
    for at, offset in given.items():
        problem = _shape_problem(at, offset)
        if problem is None:
            offsets[TopicPartition(*at)] = offset
        else:
            problems.append(problem)
    if problems:
        raise InvalidRequest(f"{_listed(problems)}; nothing was committed")
    return offsets


def checked_source_offsets(
    given: Mapping[tuple[str, int], int],
    task: TaskId,
    topics: frozenset[str] | None,
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The offsets that a commit of a task makes durable. Raises InvalidRequest.

    `topics` are the source topics of its group, None: any. `committed` are the offsets of its last commit.
    """
    problems, offsets = [], checked_shape(given)
    for at, offset in offsets.items():
        if topics is not None and at.topic not in topics:
            own = few(sorted(topics)) or "none"
            problems.append(
                f"topic {at.topic!r} is not a source of its group (which has: {own}): commit the offset with a task of "
                "the group that reads it"
            )
        elif at.partition != task.partition:
            problems.append(
                f"partition {at.partition} of {at.topic!r} does not belong to this task: commit its offset with the "
                "task of that partition"
            )
        elif offset < committed.get(at, 0):
            problems.append(
                f"the offset of {at} goes back from {committed[at]} to {offset}, but the state does not: go on from "
                "the source offsets, or reset the application"
            )
    if problems:
        raise InvalidRequest(f"task {task}: {_listed(problems)}; nothing was committed")
    return offsets


def _shape_problem(at: object, offset: object) -> str | None:
    if not isinstance(at, tuple) or len(at) != 2:
        return f"{at!r:.100} is not a source partition: give (topic, partition)"
    topic, partition = at
    try:
        check_topic(topic)
    except InvalidRequest as error:
        return str(error)
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= PARTITION_MAX:
        return f"partition {partition!r:.100} of {topic!r} is not valid: give a whole number from 0 to 2**31-1"
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= OFFSET_MAX:
        return (
            f"source offset of {topic}-{partition} is {offset!r:.100}: give the next offset to process, a whole number "
            "from 0 to 2**62-1"
        )
    return None


def _listed(problems: list[str]) -> str:
    more = f"; and {len(problems) - TOLD_MAX} more" if len(problems) > TOLD_MAX else ""
    return "; ".join(problems[:TOLD_MAX]) + more
