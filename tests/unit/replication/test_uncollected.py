"""The collector is off during a burst, and afterwards as it was before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from standfast.replication.uncollected import uncollected


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_nothing_is_collected_during_the_burst_and_again_after_it() -> None:
    gc.enable()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collector_comes_back_after_an_error() -> None:
    gc.enable()
    with pytest.raises(ValueError, match="damaged"), uncollected():
        raise ValueError("damaged")
    assert gc.isenabled()


def test_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with uncollected():
        assert not gc.isenabled()
    assert not gc.isenabled()
