"""Metadata of a commit that one text cannot hold: format 2, in as many texts as it takes.

    {"standfast":2,"epoch":3,"id":"9f2c...","data":"...","next":"shop-counts-changelog"}  with each source offset
    {"standfast":2,"part":1,"id":"9f2c0a...","data":"...","next":"shop-names-changelog"}  with an offset of a changelog
    {"standfast":2,"part":2,"id":"9f2c0a...","data":"..."}                                the last text has no next

    data   a piece of: base64 of zlib of {"epoch":3,"stream_times":[names, numbers],"observed":...,"progress":...}
           with numbers as differences from the one before, and `commit` as in format 1
    id     digest of the whole data, so that pieces of two commits are never joined
    next   topic of the next piece, of the task's own partition

Names go with their numbers: a reader finds them whatever stores it declares, and in whatever order. All texts of a
commit are written with it. A head whose pieces are of another id is that of an earlier commit of the task: the later
one, which wrote them, had every number of the earlier one or a larger one.

Rules of this file: pure text in and out. Format 1 is written as long as it fits, so that older versions read it.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from standfast.replication.commit_metadata import (
    METADATA_MAX_BYTES,
    PARTS,
    CommitMetadata,
    compact,
    damaged,
    over_limit,
    size_of,
    whole,
)
from standfast.replication.log import Committed
from standfast.replication.offsets import TaskId, TopicPartition

FORMAT_2 = 2
# Kafka's client for Python commits a zero byte behind each text, and the broker counts that.
TEXT_MAX_BYTES = METADATA_MAX_BYTES - 1
# With each at its limit, half of what Kafka takes as one request of offsets by default (a megabyte).
TEXTS_MAX = 128
ID_BYTES = 8
LEVEL = 1  # of zlib: a third of the time of its default, for 4 % more bytes

_PART = '{"standfast":2,"part":'
_DECODER = json.JSONDecoder()


def texts_of(metadata: CommitMetadata, spare: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The text for each source offset, and those for changelogs, by topic; `spare` are the topics that may get one.

    Raises InvalidRequest if all of them together are too small.
    """
    text = metadata.format_1()
    if size_of(text) <= TEXT_MAX_BYTES:
        return text, {}
    data = _packed(metadata)
    digest = _digest(data)
    # Short names first: a name takes room in the text before.
    topics = sorted(spare, key=lambda topic: (len(topic), topic))[: TEXTS_MAX - 1]
    made: list[str] = []
    for number in range(len(topics) + 1):
        place = {"part": number} if number else {"epoch": metadata.epoch}
        fields: dict[str, Any] = {"standfast": FORMAT_2, **place, "id": digest}
        last = compact({**fields, "data": data})
        if len(last) <= TEXT_MAX_BYTES:
            head, *pieces = [*made, last]
            return head, dict(zip(topics, pieces, strict=False))
        if number == len(topics):
            break
        following = {"next": topics[number]}
        room = TEXT_MAX_BYTES - size_of(compact({**fields, "data": "", **following}))
        made.append(compact({**fields, "data": data[:room], **following}))
        data = data[room:]
    raise over_limit(metadata, size_of(text), len(topics) + 1)


def is_part(text: str) -> bool:
    """Whether a text is a piece beside a changelog's offset, which is no source offset then."""
    return text.startswith(_PART)


def source_offsets(committed: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, Committed]:
    """The offsets of a group without those of changelogs, which only have pieces of metadata beside them."""
    return {at: one for at, one in committed.items() if not is_part(one.metadata)}


def next_topic(text: str) -> str:
    """The topic of the piece after this text; "" if there is none."""
    if not text.startswith(f'{{"standfast":{FORMAT_2},'):
        return ""
    return str(_fields(text).get("next", ""))


def with_pieces(
    heads: Mapping[TopicPartition, Committed],
    ask: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Committed]],
) -> dict[TopicPartition, Committed]:
    """The committed offsets, and those of changelogs that have the pieces of their texts; `ask` reads such offsets.

    Heads without pieces, as nearly all are, cost no request; others as many as the longest has pieces.
    """
    found, asked = dict(heads), set(heads)
    new: Mapping[TopicPartition, Committed] = heads
    while (
        wanted := {
            TopicPartition(topic, at.partition) for at, one in new.items() if (topic := next_topic(one.metadata))
        }
        - asked
    ):
        asked |= wanted
        new = ask(wanted)
        found |= new
    return found


def read_texts(heads: Iterable[str], part_in: Callable[[str], str], whole_epoch: int = -1) -> list[CommitMetadata]:
    """The metadata of texts that came with source offsets; `part_in` gives the text of a changelog's offset, or "".

    `whole_epoch`: the epoch of the task's own record, if it has every number of that epoch; it stands in for pieces
    that are gone. Raises as `CommitMetadata.from_text`, and Corruption where a piece is gone.
    """
    found, earlier = [], ""
    for head in dict.fromkeys(heads):
        if not head.startswith(f'{{"standfast":{FORMAT_2},'):
            if (metadata := CommitMetadata.from_text(head)) is not None:
                found.append(metadata)
            continue
        joined = _joined(head, part_in, whole_epoch)
        if joined is not None:
            found.append(joined)
        elif _fields(head)["epoch"] > whole_epoch:
            earlier = head
    if earlier and not found:
        raise damaged(earlier, ValueError("its pieces are of other commits, and no head of these is there"))
    return found


def group_metadata(
    task: TaskId,
    sources: Mapping[TopicPartition, Committed],
    offsets: Mapping[TopicPartition, Committed],
    whole_epoch: int = -1,
) -> list[CommitMetadata]:
    """The metadata of a task's source offsets; `offsets` have the pieces, too. `whole_epoch`, errors: `read_texts`."""

    def part_in(topic: str) -> str:
        return offsets.get(TopicPartition(topic, task.partition), Committed(0)).metadata

    return read_texts((one.metadata for one in sources.values()), part_in, whole_epoch)


def _joined(head: str, part_in: Callable[[str], str], whole_epoch: int) -> CommitMetadata | None:
    """The metadata of a head and its pieces; None if a later commit has written these, or the task's record has all."""
    fields = _fields(head)
    try:
        epoch, digest, pieces = whole(fields["epoch"]), fields["id"], [fields["data"]]
        while "next" in fields:
            text = part_in(fields["next"])
            if not is_part(text):
                if epoch <= whole_epoch:
                    return None
                raise ValueError(f"{fields['next']} has no piece of it: it was deleted, or another client committed")
            fields = _fields(text)
            if fields["id"] != digest or fields["part"] != len(pieces):
                return None
            pieces.append(fields["data"])
        data = "".join(pieces)
        if _digest(data) != digest:
            raise ValueError("its digest differs")
        return _unpacked(data)
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise damaged(head, error) from error


def _packed(metadata: CommitMetadata) -> str:
    content: dict[str, Any] = {"epoch": metadata.epoch}
    for part in PARTS:
        entries = sorted(getattr(metadata, part).items())
        numbers = [number for _, number in entries]
        differences = [now - before for before, now in zip([0, *numbers], numbers, strict=False)]
        content[part] = [[name for name, _ in entries], differences]
    if metadata.commit >= 0:
        content["commit"] = metadata.commit
    return b64encode(zlib.compress(compact(content).encode(), LEVEL)).decode()


def _unpacked(data: str) -> CommitMetadata:
    content = json.loads(zlib.decompress(b64decode(data, validate=True)))
    stream_times, observed, progress = (_with_names(*content[part]) for part in PARTS)
    return CommitMetadata(whole(content["epoch"]), stream_times, observed, progress, whole(content.get("commit", -1)))


def _with_names(names: Sequence[str], differences: Iterable[Any]) -> dict[str, int]:
    return dict(zip(names, accumulate(map(whole, differences)), strict=True))


def _digest(data: str) -> str:
    return blake2b(data.encode(), digest_size=ID_BYTES).hexdigest()


def _fields(text: str) -> dict[str, Any]:
    try:
        # Kafka's client does not always end the text: bytes of its memory may follow.
        fields, _ = _DECODER.raw_decode(text)
    except ValueError as error:
        raise damaged(text, error) from error
    return dict(fields)
