"""Scans of RocksDB that an exception of a signal handler breaks off, at each point at which one may come."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from support.interruption import Interrupted, broken_off, record

FAMILY = "aircraft"
MEMORY_BYTES = 32 << 20


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_kept_exception_of_a_signal_handler_keeps_no_lock_of_a_closed_directory(
    tmp_path: Path, *, reverse: bool
) -> None:
    shared = RocksShared(MEMORY_BYTES)
    engine = RocksEngine(tmp_path / "db", shared=shared)
    engine.create_family(FAMILY)
    engine.write({FAMILY: {b"%03d" % number: b"v" for number in range(40)}})

    def scanned() -> None:
        with engine.scan(FAMILY, reverse=reverse) as scan:
            assert len(list(scan)) == 40

    kept = []
    for point in record(scanned):
        with pytest.raises(Interrupted) as found:
            broken_off(point, 1, scanned)
        kept.append(found.value)
        engine.close()
        # Raises Held where a frame of a kept exception has the iterator.
        engine = RocksEngine(tmp_path / "db", shared=shared)
    engine.close()
    assert len(kept) > 20
