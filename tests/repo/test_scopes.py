"""Steps of the schedule of `make test`: whole groups, quick tests of a file by twenty, the others one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.groups import QUICK, scopes_of

ROOT = Path(__file__).resolve().parents[2]


class Item:
    """A collected test, as far as the schedule looks at it."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid = nodeid
        self._marks = {one.name: one.mark for one in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marks.get(name)


def test_quick_tests_of_a_file_share_steps_and_slow_ones_have_their_own() -> None:
    slow, grouped = pytest.mark.slow, pytest.mark.xdist_group("sources")
    items: list[Any] = [Item(f"a.py::test[{number}]") for number in range(2 * QUICK + 5)]
    items[3:3] = [Item(f"a.py::slow[{number}]", slow) for number in range(3)]
    items += [Item("b.py::test"), Item("b.py::slow", slow), Item("c.py::test", grouped), Item("d.py::test", grouped)]
    items += [Item("e.py::test", pytest.mark.kafka(2), slow), Item("f.py::test", pytest.mark.kafka(2))]
    found = scopes_of(items)
    assert Counter(found.values()) == {
        "a.py 0": QUICK, "a.py 1": QUICK, "a.py 2": 5, "b.py 0": 1, "sources": 2, "kafka-2": 2
    }  # fmt: skip
    assert [one.nodeid for one in items if one.nodeid not in found] == [
        *(f"a.py::slow[{number}]" for number in range(3)),
        "b.py::slow",
    ]


TESTS = """
import os, pathlib, pytest

@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_by_itself(number): pass

@pytest.mark.xdist_group("shared")
@pytest.mark.parametrize("number", range(9))
def test_of_a_group(number):
    with open(pathlib.Path(__file__).parent / "ran", "a") as file:
        file.write(f"{number} ")
    if number == 4:
        os._exit(3)
"""


@pytest.mark.slow
def test_process_that_a_test_ends_costs_that_test_alone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = "-m pytest -q --numprocesses 2 --dist loadgroup -p support.needs -p support.groups -p no:cacheprovider"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    ran = subprocess.run(
        [sys.executable, *command.split(), "-c", os.devnull, "--rootdir", tmp_path, tmp_path],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert "1 failed, 38 passed" in ran.stdout, ran.stdout + ran.stderr
    assert (tmp_path / "ran").read_text() == "0 1 2 3 4 5 6 7 8 "
