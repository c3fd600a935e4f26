"""Checks of arguments that every log refuses in the same words, before any call reaches it.

Rules of this file: pure; each function raises InvalidRequest that says what, where and the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from standfast.replication.log import Committed, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InvalidRequest
from standfast.store.timestamps import TIMESTAMP_MAX_MS, timestamp_problem

METADATA_BYTES_MAX = 4_096  # Kafka's offset.metadata.max.bytes by default
LEASE_MS_MAX = 24 * 3_600_000
PARTITIONS_MAX = 10_000
CLEANUPS = frozenset({"compact", "delete"})
_BYTES_TYPES = frozenset({bytes, bytearray, memoryview, type(None)})


def check_text(what: str, text: str) -> None:
    """Refuse all but a text of 1 to `METADATA_BYTES_MAX` characters that UTF-8 can encode."""
    if not isinstance(text, str) or not text or len(text) > METADATA_BYTES_MAX or not _encodes(text):
        raise InvalidRequest(f"{what} {text!r} is not usable: give 1 to {METADATA_BYTES_MAX} characters")


def check_join(member_id: str, metadata: str, lease_ms: int) -> None:
    """Refuse an invalid member id, invalid metadata, or a lease that is not 1 ms to one day."""
    check_text("member id", member_id)
    _check_metadata("member metadata", metadata)
    if not isinstance(lease_ms, int) or not 1 <= lease_ms <= LEASE_MS_MAX:
        raise InvalidRequest(f"lease of {lease_ms!r} ms for member {member_id!r}: use 1 to {LEASE_MS_MAX}")


def check_commit(group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
    """Refuse an offset or metadata that no log can commit."""
    check_text("group name", group)
    for source, (offset, metadata) in offsets.items():
        if not isinstance(offset, int) or not 0 <= offset < 1 << 62:
            raise InvalidRequest(
                f"group {group!r}, {TopicPartition(*source)}: {offset!r} is not an offset, use 0 or more"
            )
        _check_metadata(f"group {group!r}, {TopicPartition(*source)}: metadata", metadata)


def check_partitions(topic: str, partitions: int) -> None:
    """Refuse a number of partitions that no topic can have."""
    if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidRequest(f"topic {topic!r} cannot have {partitions!r} partitions: use 1 to {PARTITIONS_MAX}")


def check_policy(topic: str, policy: TopicPolicy) -> None:
    """Refuse a policy without meaning; each log checks `extra` itself."""
    if not policy.cleanup or not policy.cleanup <= CLEANUPS:
        raise InvalidRequest(f"topic {topic!r}: cleanup is {sorted(policy.cleanup)}, use compact, delete or both")
    for setting, least in (("retention_ms", -1), ("delete_retention_ms", -1), ("min_compaction_lag_ms", 0)):
        value = getattr(policy, setting)
        if not isinstance(value, int) or value < least:
            raise InvalidRequest(f"topic {topic!r}: {setting} is {value!r}, use milliseconds, {least} or more")


def check_bytes(source: TopicPartition, what: str, column: Sequence[Any]) -> bool:
    """Refuse a column ("key" or "value") with cells other than bytes or None; returns whether any is array or view."""
    # The set of types first, in C: batches are large and nearly always sound, so only a bad one is walked through.
    types = set(map(type, column))
    for index, cell in enumerate(() if types <= _BYTES_TYPES else column):
        if not isinstance(cell, bytes | bytearray | memoryview | None):
            raise InvalidRequest(
                f"{source}: record {index} of the batch has a {what} of type {type(cell).__name__}, "
                "give bytes or None (serialise it first)"
            )
    return bytearray in types or memoryview in types


def check_timestamps(source: TopicPartition, timestamps: Sequence[Any], least_ms: int) -> None:
    """Refuse a batch with an invalid timestamp, or one below the log's least."""
    if set(map(type, timestamps)) == {int} and min(timestamps) >= least_ms and max(timestamps) <= TIMESTAMP_MAX_MS:
        return
    for index, timestamp in enumerate(timestamps):
        problem = timestamp_problem(timestamp, least_ms)
        if problem is not None:
            raise InvalidRequest(f"{source}: record {index} of the batch: {problem}")


def _check_metadata(what: str, metadata: str) -> None:
    if not isinstance(metadata, str) or not _encodes(metadata):
        raise InvalidRequest(f"{what} is {type(metadata).__name__} {metadata!r:.40}, give text")
    size = len(metadata.encode())
    if size > METADATA_BYTES_MAX:
        raise InvalidRequest(f"{what} has {size} bytes, the limit is {METADATA_BYTES_MAX}: shorten it")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate is a str, too
        return False
    return True
