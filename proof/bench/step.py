"""The steps of the benches beyond restores: the product's, with the fields that their measures need.

Rules of this file: data, and how a process is started with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from standfast.ops.bench import step as restores
from standfast.ops.bench.step import APP

SOURCE = f"{APP}-source"
BATCH = 1_000  # records of one commit


@dataclass(frozen=True)
class Step(restores.BenchStep):
    """One step of a bench; `workers` are also the processes of an application."""

    batch: int = BATCH
    order: str = "near"  # of the versions of a key in a changelog, or "far"
    guarantee: str = "exactly_once"
    turns: int = 0  # of a loop, as the work for one record
    lease_ms: int | None = None  # None: as an application has it
