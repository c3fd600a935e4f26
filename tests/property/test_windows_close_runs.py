"""Windows that close as time passes, over crashes and take-overs on the embedded log: each once, as in the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.closing import Shape
from support.closing_app import Plan
from support.closing_runs import Run

SHAPES = {
    "tumbling": Shape("tumbling", 4, 4, 1),
    "hopping": Shape("hopping", 5, 2, 0),
    "sliding": Shape("sliding", 3, 3, 1),
    "session": Shape("session", 3, 3, 1),
}
START_MS = 1_700_000_000_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "through", [pytest.param(False, id="direct", marks=pytest.mark.long), pytest.param(True, id="through")]
)
@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_each_window_is_given_once_over_crashes_and_take_overs(
    tmp_path: Path, kind: str, through: bool, seed: int
) -> None:
    ways = [(True, False), (False, True), (True, True)]
    marks, silence = ways[(seed + sorted(SHAPES).index(kind) + through) % 3]
    plan = Plan(SHAPES[kind], 2, through, marks, silence, late=True, engine="rocksdb", least_ms=START_MS)
    run = Run(plan, "app", f"sqlite:///{tmp_path}/log?synchronous=normal", tmp_path, seed)
    try:
        run.play(steps=25, crashes=0.25)
        assert run.lives > 0
        given = run.results()
        assert sorted(given) == sorted(run.given)
        assert len(given) > 1
        missed = sorted(number for one in run.model.windows for number in one.missed)
        assert sorted(run.late()) == missed
    finally:
        run.close()
