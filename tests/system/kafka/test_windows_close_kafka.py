"""Windows that close as time passes, over crashes and take-overs on a real broker: each once, as in the oracle."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from support.closing import Shape
from support.closing_app import Plan
from support.closing_runs import Run

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "through", "marks", "silence"),
    [
        (Shape("tumbling", 4, 4, 1), True, True, False),
        (Shape("hopping", 5, 2, 0), False, True, True),
        (Shape("sliding", 3, 3, 1), False, False, True),
        (Shape("session", 3, 3, 1), True, True, True),
    ],
    ids=lambda value: value.kind if isinstance(value, Shape) else str(value),
)
def test_each_window_is_given_once_over_crashes_and_take_overs(
    tmp_path: Path, kafka_address: str, shape: Shape, through: bool, marks: bool, silence: bool
) -> None:
    app = f"app-{uuid.uuid4().hex[:8]}"
    # Times of the present, because the broker deletes from a windowed changelog by the records' own time.
    least_ms = int(time.time() * 1_000) // 1_000 * 1_000
    plan = Plan(shape, 2, through, marks, silence, late=True, engine="rocksdb", least_ms=least_ms, prefix=f"{app}-t-")
    run = Run(plan, app, f"kafka://{kafka_address}", tmp_path, seed=1)
    try:
        run.play(steps=14, crashes=0.25)
        assert run.lives > 0
        assert sorted(run.results()) == sorted(run.given)
        assert run.given
        assert sorted(run.late()) == sorted(number for one in run.model.windows for number in one.missed)
    finally:
        run.close()
