"""One byte of a task directory that is flipped between two lives, and its required consequences.

    block of a store with a changelog       that store is rebuilt; its neighbours keep rows and positions
    block of a store without a changelog    the task is refused until an operator accepts; its neighbours keep all
    write-ahead log, MANIFEST, CURRENT,     the directory is rebuilt; rows without a changelog are kept, or the task is
    the task's own record                   refused until an operator accepts

The byte may also have no consequence, if no read needs it. Then it is turned back, so that a later life does not meet
it, when its consequences are no longer known.

Rules of this file: the directory is at rest. It opens no database; the file itself names its store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from standfast.store.engine import DEFAULT_FAMILY

# Where a byte is flipped, and how often out of 20 times. Not our own marker: RocksDB does not check it.
KINDS = (("*.sst", 13), ("*.log", 4), ("MANIFEST-*", 2), ("CURRENT", 1))
FIRST_BLOCK_BYTES = 40
FAMILY_PROPERTY = b"name"  # its key `rocksdb.column.family.name`: the block keeps only the new suffix


@dataclass(frozen=True)
class Damage:
    """A flipped byte. `store` has its rows in the file; "" where the file is not one store's alone."""

    directory: str
    partition: int
    path: Path
    offset: int
    store: str
    was: int

    def __str__(self) -> str:
        return f"byte {self.offset} of {self.directory}/0_{self.partition}/{self.path.name} ({self.store or 'task'})"

    def turn_back(self) -> bool:
        """Undo it, if the file is still there with it."""
        if not self.path.exists():
            return False
        data = bytearray(self.path.read_bytes())
        if len(data) <= self.offset or data[self.offset] != self.was ^ 0xFF:
            return False
        data[self.offset] = self.was
        self.path.write_bytes(data)
        return True


def flip(random: Random, directory: str, task: Path, partition: int, stores: Iterable[str]) -> Damage | None:
    """Flip a byte of one file of a task; None if it has none."""
    patterns = [pattern for pattern, count in KINDS for _ in range(count)]
    random.shuffle(patterns)
    files = next((found for one in patterns if (found := not_empty(task.glob(one)))), [])
    if not files:
        return None
    path = random.choice(files)
    data = bytearray(path.read_bytes())
    first = path.suffix == ".sst" and random.random() < 0.4
    offset = random.randrange(min(FIRST_BLOCK_BYTES, len(data)) if first else len(data))
    store = store_of(bytes(data), stores) if path.suffix == ".sst" else ""
    damage = Damage(directory, partition, path, offset, store, data[offset])
    data[offset] ^= 0xFF
    path.write_bytes(data)
    return damage


def not_empty(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.stat().st_size)


def store_of(data: bytes, stores: Iterable[str]) -> str:
    """The store whose rows a file of sorted rows has; "" for the task's own record."""
    known = [DEFAULT_FAMILY, *stores]
    found = [name for name in known if FAMILY_PROPERTY + name.encode() in data]
    name = max(found, key=len, default="")
    return "" if name == DEFAULT_FAMILY else name


# -- consequences ------------------------------------------------------------------------------------------------------


def wrong_consequences(
    damage: Damage, known: Mapping[tuple[str, int], int], lines: Iterable[str], unlogged: Collection[str]
) -> list[str]:
    """Wrong reports of a life that met the damage: `known` are the positions before, `lines` its output.

    Rows are compared elsewhere; this checks the refused tasks, and the changelogs read again from their beginning.
    """
    problems = []
    may_refuse = bool(unlogged) if not damage.store else damage.store in unlogged
    for line in lines:
        word, *rest = line.split(" ", 2)
        # An unreadable directory does not show whether a store whose changelog is empty had rows.
        empty = "accept_empty_log" in line and not any(
            position and partition == damage.partition and f"-{store}-changelog-" in line
            for (store, partition), position in known.items()
        )
        asked = may_refuse or (empty and not damage.store)
        if word == "refused" and (int(rest[0]) != damage.partition or not asked):
            problems.append(f"{damage}: task {rest[0]} was refused: {rest[1]}")
        elif word == "restore":
            store, partition = rest[0], int(rest[1].split()[0])
            start, reason = int(rest[1].split()[1]), rest[1].split()[2]
            neighbour = partition != damage.partition or damage.store not in ("", store)
            if neighbour and start < known.get((store, partition), 0):
                problems.append(f"{damage}: its neighbour {store}-{partition} was read again from {start}, as {reason}")
    return problems
