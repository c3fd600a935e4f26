"""The text attached to a source commit, so that the log has the commit record too: epoch, stream times, emit progress.

    {"standfast":1,"epoch":3,"stream_times":{"flights/0":1357020000000},"observed":{"delays":1357020000000},"progress":{"delays":1357016400000}}

    standfast     format of this text; never renumber
    epoch         fencing epoch of the writer that committed
    stream_times  partition key -> largest timestamp processed, milliseconds
    observed      store -> observed stream time, milliseconds
    progress      name -> number, such as the last window emitted on close
    commit        number of the epoch's commit that the task's directory has by then; only where rows are in no log

    Compact JSON in this order, inner names sorted, UTF-8, at most 4,096 bytes (Kafka's offset.metadata.max.bytes).

Rules of this file: pure text in and out. Text of other programs (empty, Kafka Streams' base64) gives None, because
another program may have used the group before; text of ours that is newer or damaged is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.task.commit_record import CommitRecord

FORMAT, NEWEST = 1, 2  # format 2: metadata_parts.py
METADATA_MAX_BYTES = 4_096

_OURS = '{"standfast":'
PARTS = ("stream_times", "observed", "progress")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The metadata committed with the source offsets. Times in milliseconds."""

    epoch: int
    stream_times: Mapping[str, int] = field(default_factory=dict)
    observed: Mapping[str, int] = field(default_factory=dict)
    progress: Mapping[str, int] = field(default_factory=dict)
    commit: int = -1

    @classmethod
    def of(cls, record: CommitRecord) -> CommitMetadata:
        """The metadata with which a task commits the source offsets of its record."""
        observed = {store: times.observed_ms for store, times in record.stores.items() if times.observed_ms >= 0}
        return cls(record.epoch, record.stream_times, observed, record.progress, record.commit)

    def to_text(self) -> str:
        """The text of format 1. Raises InvalidRequest over 4,096 bytes, naming the parts that take the space."""
        text = self.format_1()
        if size_of(text) > METADATA_MAX_BYTES:
            raise over_limit(self, size_of(text), 1)
        return text

    def format_1(self) -> str:
        """The text of format 1, of any size."""
        # Sorted, so that equal metadata is equal text. Versions without numbers of commits pass over the last field.
        parts = {name: dict(sorted(getattr(self, name).items())) for name in PARTS}
        number = {"commit": self.commit} if self.commit >= 0 else {}
        return compact({"standfast": FORMAT, "epoch": self.epoch, **parts, **number})

    @classmethod
    def from_text(cls, text: str) -> CommitMetadata | None:
        """Inverse of format_1; None for text of other programs. Bytes after the JSON are ignored.

        Raises InvalidRequest for a newer format, Corruption for text of ours that is damaged.
        """
        if not is_ours(text):
            return None
        try:
            # Kafka's client does not always end the text: bytes of its memory may follow.
            content, _ = _DECODER.raw_decode(text)
        except ValueError as error:
            raise damaged(text, error) from error
        version = content["standfast"]
        # Before the other parts, which a newer format may have changed.
        if isinstance(version, int) and version > FORMAT:
            raise InvalidRequest(
                f"commit metadata has format {version}, this version reads up to {NEWEST}: a newer standfast committed "
                "for this group; run that version, or a newer one"
            )
        try:
            if version != FORMAT:
                raise ValueError(f"format {version!r}")
            stream_times, observed, progress = (_times(content[name]) for name in PARTS)
            commit = whole(content.get("commit", -1))
            return cls(whole(content["epoch"]), stream_times, observed, progress, commit)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(text, error) from error


def is_ours(text: str) -> bool:
    """Whether this is the metadata of a commit of ours, of whatever format."""
    return text.startswith(_OURS)


def over_limit(metadata: CommitMetadata, size: int, texts: int) -> InvalidRequest:
    """The error of metadata of so many bytes that does not fit `texts` texts."""
    parts = {name: getattr(metadata, name) for name in PARTS}
    sizes = sorted(((size_of(compact(part)), name, len(part)) for name, part in parts.items()), reverse=True)
    shares = ", ".join(f"{name} {bytes_} bytes ({count} entries)" for bytes_, name, count in sizes)
    limit = f"the limit of {METADATA_MAX_BYTES}"
    if texts > 1:
        limit = f"{limit} of each of {texts} texts, packed"
    return InvalidRequest(
        f"commit metadata of {size} bytes is over {limit}: {shares}; use shorter store and topic names, or fewer "
        "stores and source partitions per task, or give stores a changelog, each of which has room for 4,096 bytes more"
    )


def compact(content: Mapping[str, Any]) -> str:
    """JSON without spaces."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)


def size_of(text: str) -> int:
    """The size of a text as the log counts it."""
    return len(text.encode())  # Kafka's limit counts bytes, not characters


def whole(value: Any) -> int:
    """A number of a text. Raises ValueError for another value."""
    if not isinstance(value, int) or isinstance(value, bool):  # JSON's true would pass as 1
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _times(part: Any) -> dict[str, int]:
    return {name: whole(value) for name, value in part.items()}


def damaged(text: str, error: Exception) -> Corruption:
    """The error of a damaged text of ours."""
    return Corruption(
        f"commit metadata is damaged ({error}): {text[:200]!r}; commit the group's offsets again from a known position"
    )
