"""The engine port: ordered bytes in named families, written atomically.

    Engine
      family "aircraft"          key -> value, ordered by unsigned bytes
      family "delays@3600000"    one family per segment of a window or session store
      family "default"           the task's own record (the cut)

Rules of this file: no outside library, no store types. Two engines implement the port,
`standfast.store.rocks.engine.RocksEngine` and `standfast.store.memory.MemoryEngine`, and both pass
`tests/contract/test_engine_contract.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeAlias

WRITE_STOPPED = "is-write-stopped"  # RocksDB waits for compaction before it takes more
DEFAULT_FAMILY = "default"

Row: TypeAlias = tuple[bytes, bytes]
Rows: TypeAlias = Mapping[bytes, bytes | None]  # None deletes


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Half-open key range [start, end) of one family, to be deleted."""

    family: str
    start: bytes
    end: bytes


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Sizes that an engine reports, in bytes and counts; -1 where it does not know."""

    sst_bytes: int = 0
    memtable_bytes: int = 0
    keys_estimate: int = 0
    pending_compaction_bytes: int = 0
    families: int = 0
    properties: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def total(cls, parts: Iterable[EngineStatistics]) -> EngineStatistics:
        """The sums over the families of a store."""
        found = list(parts)
        return cls(
            sum(one.sst_bytes for one in found),
            sum(one.memtable_bytes for one in found),
            sum(one.keys_estimate for one in found),
            sum(one.pending_compaction_bytes for one in found),
            len(found),
            {WRITE_STOPPED: max((one.properties.get(WRITE_STOPPED, 0) for one in found), default=0)},
        )


class RowScan(Protocol):
    """A consistent scan: it reads the family as of the moment when the scan began.

    Iterates rows in key order (or reverse). A damaged block raises Corruption; a scan never ends short.
    Closing it twice is fine; next() after close, or after the engine was closed, raises Closed.
    """

    def __iter__(self) -> Iterator[Row]: ...

    def __next__(self) -> Row: ...

    def close(self) -> None: ...

    def __enter__(self) -> RowScan: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Prepared(Protocol):
    """Rows of an engine that are ready to be written; see `Engine.prepare`."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of rows by family."""
        ...

    def write(self, rows: Mapping[str, Rows]) -> None:
        """Write them together with these rows, once, as `Engine.write` does."""
        ...


class Engine(Protocol):
    """One task's database. Several threads may read; only the owner writes."""

    @property
    def durable(self) -> bool:
        """Whether rows survive the process."""
        ...

    def families(self) -> frozenset[str]:
        """Names of the families that exist, `default` included."""
        ...

    def create_family(self, family: str) -> None:
        """Create an empty family; an existing one stays as it is."""
        ...

    def drop_family(self, family: str) -> None:
        """Remove a family with all its rows and free its space; an absent family is no error."""
        ...

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value, or None. Raises UnknownStore for an absent family."""
        ...

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of `keys`."""
        ...

    def scan(
        self, family: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> RowScan:
        """Rows with start <= key < end in key order, None meaning open; empty if start >= end."""
        ...

    def write(self, rows: Mapping[str, Rows], ranges: Sequence[KeyRange] = ()) -> None:
        """Apply range deletions, then rows, over all families as one atomic step (kill -9 safe where durable).

        Raises UnknownStore for an absent family, and then changes nothing.
        """
        ...

    def prepare(self, rows: Mapping[str, Rows]) -> Prepared | None:
        """The part of `write` that changes nothing, to be done ahead, by any thread; None if there is no such part."""
        ...

    def approximate_rows(self, family: str) -> int:
        """Estimated number of rows of a family."""
        ...

    def restoring(self, on: bool) -> None:
        """Say whether a restore runs, which writes rows and reads none: compaction then begins later, within bounds."""
        ...

    def ingest(self, family: str, files: Sequence[Path]) -> None:
        """Ingest sorted files (`standfast.store.rocks.sst.write_sorted`) as rows, over the rows that exist.

        A later file wins over an earlier one. The files are moved, and belong to the engine from then on. A volatile
        engine raises InvalidRequest. Raises UnknownStore for an absent family. An ingest is one step of one family; no
        row of another family is written with it.
        """
        ...

    def flush(self, family: str | None = None) -> None:
        """Move memtables (of one family, or of all) to files: a reopen then has no log to replay.

        Rows that were written before survive a loss of power from then on.
        """
        ...

    def compact(self, family: str) -> None:
        """Bring a family's files into normal shape."""
        ...

    def checkpoint(self, directory: Path) -> None:
        """Write an openable copy of the database to `directory`, which must not exist. Durable engines only."""
        ...

    def statistics(self, family: str | None = None) -> EngineStatistics:
        """Sizes of one family, or of all."""
        ...

    def stalled_ms(self) -> int:
        """Milliseconds since the opening for which the engine held writes back."""
        ...

    def families_of(self, file: str) -> frozenset[str]:
        """The families with rows in a file, by the name that an error about damage has; none of an unknown file."""
        ...

    def close(self) -> None:
        """Stop background work and release the directory. Closing twice is fine."""
        ...
