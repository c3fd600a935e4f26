"""Steps of the schedule of `make test`: whole groups, quick tests of a file by twenty, the others one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from support.groups import QUICK, scopes_of


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
