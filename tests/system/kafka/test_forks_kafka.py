"""A process that forks beside clients of Kafka: as `unit/stream/test_forks.py`, whose program it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.forking import answer, program

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.long
@pytest.mark.parametrize("how", ["exit", "with"])
def test_all_that_a_child_inherited_is_closed_in_it_and_its_end_changes_nothing(
    tmp_path: Path, kafka_address: str, how: str
) -> None:
    with program("dead", tmp_path, f"kafka://{kafka_address}", how) as parent:
        found = answer(parent)
    assert set(found["calls"].values()) == {"Closed"}, found["calls"]
    assert found["code"] == 0
    assert found["seconds"] < 20  # no destructor waits for a thread of the parent
    assert found["rows"] == {"before": "1", "after": "2"}
