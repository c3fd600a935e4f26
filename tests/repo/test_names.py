"""Names of classes: a public one stands once in the product, and large classes become fewer.

Rules of this file: it reads syntax trees; special methods and properties are no methods here.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable

import pytest
from repo.test_tidy import Source

pytestmark = pytest.mark.xdist_group("sources")  # one process reads the sources once

# Two classes each: names of the control API's documents, which clients are generated from; the asyncio variant of a
# session; a record of the log, as bytes, and one of a processor, decoded.
TWICE = {"Assignment", "Snapshot", "Source", "Task", "Session", "Record"}
METHODS_MAX = 25
LARGE_CLASSES = 15


def classes(sources: Iterable[Source]) -> list[tuple[str, ast.ClassDef]]:
    """Path and class of each class at the top of a module of the product."""
    product = [source for source in sources if source.room is not None]
    return [(source.path, one) for source in product for one in source.tree.body if isinstance(one, ast.ClassDef)]


def repeated(found: Iterable[tuple[str, ast.ClassDef]]) -> dict[str, list[str]]:
    """The paths of public names that several classes have."""
    paths = defaultdict(list)
    for path, one in found:
        if not one.name.startswith("_"):
            paths[one.name].append(path)
    return {name: where for name, where in paths.items() if len(where) > 1}


def methods(one: ast.ClassDef) -> int:
    """The number of its methods."""
    return sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("__")
        and not any(ast.unparse(mark).rpartition(".")[2] in ("property", "setter") for mark in node.decorator_list)
        for node in one.body
    )


def large(sources: Iterable[Source]) -> list[str]:
    """Path and name of each class with more than METHODS_MAX methods."""
    return [f"{path}: {one.name}" for path, one in classes(sources) if methods(one) > METHODS_MAX]


def test_public_class_name_stands_once(sources: list[Source]) -> None:
    found = repeated(classes(sources))
    assert found.keys() == TWICE, found


def test_large_classes_become_fewer(sources: list[Source]) -> None:
    assert len(classes(sources)) > 500
    found = large(sources)
    assert len(found) <= LARGE_CLASSES, found


def test_repeated_name_and_large_class_are_found() -> None:
    two = ast.parse(
        "class One:\n    def a(self): pass\n    @property\n    def b(self): pass\nclass One: pass\nclass _One: pass"
    )
    found = [("x.py", one) for one in two.body if isinstance(one, ast.ClassDef)]
    assert repeated(found) == {"One": ["x.py", "x.py"]}
    assert [methods(one) for _, one in found] == [1, 0, 0]
