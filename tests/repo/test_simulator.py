"""The simulator stays small: what judges the product must be easier to understand than the product."""

from __future__ import annotations

from pathlib import Path

from support.prose import code_lines

SIMULATOR = Path(__file__).parents[2] / "proof/simulator"
# Planted bugs, workloads, scripts of lives, the command and its table are no part of world, checkers and shrinking.
APART = {
    "planted.py",
    "programs.py",
    "own_consumer.py",
    "instance.py",
    "client.py",
    "coverage.py",
    "lives.py",
    "__main__.py",
}
MOST = 4_000


def test_world_checkers_and_shrinking_stay_under_four_thousand_lines_of_code() -> None:
    files = {path.name: path for path in SIMULATOR.rglob("*.py")}
    assert files.keys() >= APART
    counted = [path for path in SIMULATOR.rglob("*.py") if path.parent != SIMULATOR or path.name not in APART]
    assert sum(code_lines(path.read_text(encoding="utf-8")) for path in counted) < MOST
