"""Names of snapshots, and the keys under which a storage keeps their parts.

    <address>/<app>/tasks/0_3/0000000012-00000000000000004711.json    manifest of snapshot 0_3/12-4711
                    files/<sha256>                                      a file of one or more snapshots
                    intents/<id>.json                                   an upload under way: files that it relies on
                    prunes/<id>.json                                    a prune under way: files that it removes
                    probes/<id>                                         whether the storage keeps the first object
                    checkpoints/0000000007/...                          a coordinated checkpoint: see checkpoints.py

A snapshot is named by its task, the epoch of the task's writer and its position: the sum of the next offsets of its
changelogs and sources, which grows with every commit of a task. Numbers have leading zeros in keys alone, so that a
listing is in order.

Rules of this file: pure. The application's name is part of the storage's address, so applications that share an
address share nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from standfast.store.errors import InvalidRequest

TASKS, FILES, INTENTS, PRUNES, PROBES = "tasks", "files", "intents", "prunes", "probes"
CHECKPOINTS = "checkpoints"
_KEY = re.compile(r"tasks/([0-9]{1,9}_[0-9]{1,9})/([0-9]{10})-([0-9]{20})\.json")
_NAME = re.compile(r"([0-9]{1,9}_[0-9]{1,9})/([0-9]{1,10})-([0-9]{1,20})")
LATEST = "latest"  # in place of a name: the newest of each task
_PLACE = re.compile(rf"(?P<storage>.+)/(?P<name>[0-9]{{1,9}}_[0-9]{{1,9}}/[0-9]{{1,10}}-[0-9]{{1,20}}|{LATEST})")
_FILE = re.compile(r"files/([0-9a-f]{64})")


class SnapshotName(NamedTuple):
    """A snapshot; `key` is that of its manifest. Names sort by task, then by age."""

    task: str
    epoch: int
    position: int

    @property
    def key(self) -> str:
        """The key of the manifest."""
        return f"{TASKS}/{self.task}/{self.epoch:010}-{self.position:020}.json"

    @property
    def order(self) -> tuple[int, int]:
        """The place among the snapshots of the same task; the highest is the newest."""
        return self.epoch, self.position

    def __str__(self) -> str:
        return f"{self.task}/{self.epoch}-{self.position}"


def position_of(offsets: Iterable[int], sources: Iterable[int]) -> int:
    """The position in a name: of the next offsets of all changelogs, and those of all sources."""
    return sum(offsets) + sum(sources)


def name_of_key(key: str) -> SnapshotName | None:
    """The snapshot whose manifest has this key; None for any other key."""
    found = _KEY.fullmatch(key)
    return None if found is None else SnapshotName(found[1], int(found[2]), int(found[3]))


def parse_name(text: str) -> SnapshotName:
    """The snapshot of a name such as "0_3/12-4711". Raises InvalidRequest."""
    found = _NAME.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"{text!r:.100} is not the name of a snapshot: use TASK/EPOCH-POSITION, such as 0_3/12-4711"
        )
    return SnapshotName(found[1], int(found[2]), int(found[3]))


def file_key(sha256: str) -> str:
    """The key of a file by its content."""
    return f"{FILES}/{sha256}"


def sha_of_key(key: str) -> str | None:
    """The sha256 in the key of a file; None for any other key."""
    found = _FILE.fullmatch(key)
    return None if found is None else found[1]


def split_address(text: str) -> tuple[str, str] | None:
    """Storage and name of `ADDRESS/NAME`, where the name may stand before a query; None for another address."""
    path, mark, query = text.partition("?")
    found = _PLACE.fullmatch(path)
    return None if found is None else (f"{found['storage']}{mark}{query}", found["name"])


def join_address(storage: str, name: str) -> str:
    """Inverse of `split_address`."""
    path, mark, query = storage.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{query}"
