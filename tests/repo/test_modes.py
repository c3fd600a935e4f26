"""Every feature has a test in every hosting mode: the table of the docs, and a row with the test for each of its cells.

    docs/reference/hosting.md   features x modes: yes or no      for readers
    tests/repo/modes.md         each cell: answer, lane, test    complete, and the same answers

Rules of this file: pytest itself collects each test in its lane; that it asserts is read from its source.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE, TABLE = "docs/reference/hosting.md", "tests/repo/modes.md"
LANES = {"test": "not long", "slow": "long and not crash", "crash": "crash"}  # the expressions of the Makefile
HEADS = {
    "`App`": "app",
    "`App`, workers": "workers",
    "`standfast run`": "run",
    "external consumer": "external",
    "`Session`": "session",
    "`aio.Session`": "aio",
    "sidecar": "sidecar",
    "replica": "replica",
}
FEATURES = (
    *("health", "metrics", "page", "look-up", "snapshots", "checkpoints", "gate", "stop and pause", "own sources"),
    *("async steps", "dead letters", "tracing", "max_tasks", "fork"),
)
RAISES = re.compile(r"pytest\.raises\([^)]*match=", re.DOTALL)


class Cell(NamedTuple):
    """One row of the table of tests."""

    feature: str
    mode: str
    answer: str
    lane: str
    test: str

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def function(self) -> str:
        return self.test.partition("::")[2].partition("[")[0]


def rows_of(text: str) -> Iterator[list[str]]:
    """Cells of each row of the tables, heads included."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def answers_of(page: str) -> dict[tuple[str, str], str]:
    """(feature, mode) -> yes or no, as the page says."""
    heads, *rows = rows_of(page.split("<!-- modes -->")[1].split("<!-- /modes -->")[0])
    modes = [HEADS[head] for head in heads[1:]]
    return {(row[0], mode): answer for row in rows for mode, answer in zip(modes, row[1:], strict=True)}


def problems_of(page: str, cells: list[Cell]) -> Iterator[str]:
    """Each cell that is missing, there twice, or another one than the page's."""
    shown, seen = answers_of(page), set[tuple[str, str]]()
    wanted = {(feature, mode) for feature in FEATURES for mode in HEADS.values()}
    yield from (f"{PAGE}: no cell for {at}" for at in sorted(wanted - shown.keys()))
    for cell in cells:
        at = cell.feature, cell.mode
        if at in seen or at not in wanted:
            yield f"{TABLE}: {at} is there twice, or is no cell"
        seen.add(at)
        if cell.answer.partition(":")[0] != shown.get(at):
            yield f"{TABLE}: {at} is {cell.answer!r}, and {PAGE} says {shown.get(at)!r}"
        if not re.fullmatch(r"yes|no: \S.+", cell.answer) or cell.lane not in LANES:
            yield f"{TABLE}: {at}: answer {cell.answer!r} or lane {cell.lane!r} is none"
    yield from (f"{TABLE}: no row for {at}" for at in sorted(wanted - seen))


def functions_of(source: str) -> dict[str, tuple[ast.FunctionDef, str]]:
    """Each function of a file by its name, with its text."""
    lines = source.splitlines()
    functions = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)]
    return {one.name: (one, "\n".join(lines[one.lineno - 1 : one.end_lineno])) for one in functions}


def without_assertion(cell: Cell, functions: Mapping[str, tuple[ast.FunctionDef, str]]) -> str | None:
    """Why a test proves nothing: it is absent, asserts nothing, or no reason of a refusal."""
    if cell.function not in functions:
        return "there is no such function"
    found, text = functions[cell.function]
    if cell.answer != "yes":
        return None if RAISES.search(text) else "it asserts no reason: pytest.raises(..., match=...)"
    asserts = any(isinstance(one, ast.Assert) for one in ast.walk(found))
    return None if asserts or RAISES.search(text) else "it asserts nothing"


@pytest.fixture(scope="module")
def cells(repo_root: Path) -> list[Cell]:
    rows = list(rows_of((repo_root / TABLE).read_text(encoding="utf-8")))[1:]
    return [Cell(feature, mode, answer, lane, test.strip("`")) for feature, mode, answer, lane, test in rows]


@pytest.fixture(scope="module")
def page(repo_root: Path) -> str:
    return (repo_root / PAGE).read_text(encoding="utf-8")


def test_every_feature_has_an_answer_and_a_test_in_every_mode(page: str, cells: list[Cell]) -> None:
    assert list(problems_of(page, cells)) == []


def test_each_test_of_the_table_asserts_and_those_of_refusals_the_reason(repo_root: Path, cells: list[Cell]) -> None:
    files = {name: functions_of((repo_root / name).read_text(encoding="utf-8")) for name in {one.file for one in cells}}
    found = [(cell.test, why) for cell in cells if (why := without_assertion(cell, files[cell.file])) is not None]
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("lane", LANES)
def test_each_test_of_the_table_is_collected_in_its_lane(lane: str, repo_root: Path, cells: list[Cell]) -> None:
    wanted = {cell.test for cell in cells if cell.lane == lane}
    if not wanted:
        return
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", LANES[lane], *sorted(wanted)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, cwd=repo_root, env=environment, capture_output=True, text=True, timeout=110)
    collected = {line for line in done.stdout.splitlines() if "::" in line}
    assert wanted == collected, f"{sorted(wanted - collected)}\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}"


def test_a_cell_that_is_missing_wrong_or_proved_by_nothing_is_found(page: str, cells: list[Cell]) -> None:
    first, *others = cells
    assert [*problems_of(page, others)] == [f"{TABLE}: no row for {(first.feature, first.mode)}"]
    assert any("is there twice" in one for one in problems_of(page, [first, *cells]))
    denied = first._replace(answer="no: some reason")
    assert any("says 'yes'" in one for one in problems_of(page, [denied, *others]))
    assert any("no cell for" in one for one in problems_of(page.replace("| fork |", "| forks |"), cells))
    named = first._replace(test="tests/x.py::test_x", answer="yes")
    for source, why in (
        ("def test_y(): assert 1", "there is no such function"),
        ("def test_x(): pass", "it asserts nothing"),
        ("def test_x(): assert 1", None),
    ):
        assert without_assertion(named, functions_of(source)) == why
    refused = named._replace(answer="no: some reason")
    assert without_assertion(refused, functions_of("def test_x(): assert 1")) is not None
    raising = "def test_x():\n    with pytest.raises(ValueError, match='some'):\n        f()\n"
    assert without_assertion(refused, functions_of(raising)) is None
