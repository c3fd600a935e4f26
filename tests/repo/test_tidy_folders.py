"""The repository checks itself, third part: the graph of its folders, and how large they are.

    ops/        "."    shared/  ...  sidecar/  cli/       the files at a folder's root are one node, each folder is one,
    sidecar/    "."    engine/  ...  control/  page/      and so on below it; an import is an arrow at one level only

Rules of this file: as in `test_tidy.py`: a check is a function from sources to problems, and is shown to bite on
planted ones. All imports count, also those inside functions and for type checkers, and strings that name a module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import pytest
from repo.test_tidy import ROOMS, Source, imports, named, our_path

pytestmark = pytest.mark.xdist_group("sources")  # one process parses the sources once

FOLDER_FILES_MAX = 25
ROOT = "."  # the files that lie in a folder itself
# One-line files that keep an import path which pages and users name; nothing of ours may import them.
ALIASES = {
    "ops/cli/__init__.py": "standfast.ops.command.command_line",
    "ops/cli/__main__.py": "standfast.ops.command.command_line",
    "ops/http/__init__.py": "standfast.ops.http.server",
    "restore/spark_data_source.py": "standfast.restore.spark_table.source",
}
# Where parts are put together: the files at this folder's root import the folders below it.
COMPOSITION = {"ops/sidecar"}

Graph = dict[str, dict[str, dict[str, str]]]  # level -> node -> node -> an import that makes the arrow


def folder_graph(sources: Iterable[Source]) -> Graph:
    """Arrows between folders, each at the level where the paths of both files part."""
    product = [source for source in sources if source.room is not None and source.path not in ALIASES]
    paths = frozenset(source.path for source in product)
    graph: Graph = {}
    for source in product:
        for line, module, name in (*imports(source), *named(source)):
            if not module.startswith("standfast."):
                continue
            target = our_path(module, name, paths)
            level, ours, theirs = _parting(source.path, target)
            if ours != theirs and target in paths:
                arrows = graph.setdefault(level, {}).setdefault(ours, {})
                arrows.setdefault(theirs, f"{source.path}:{line} imports {target}")
    return graph


def _parting(one: str, other: str) -> tuple[str, str, str]:
    """The folder that both files are in, and by which of its folders each goes on."""
    ours, theirs = one.split("/")[:-1], other.split("/")[:-1]
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    return "/".join(ours[:common]) or ROOT, (*ours, ROOT)[common], (*theirs, ROOT)[common]


def check_cycles(graph: Graph) -> Iterator[str]:
    """No folder is reached from itself, at any level."""
    for level, arrows in sorted(graph.items()):
        for node in sorted(arrows):
            way = _way_back(arrows, node)
            if way:
                yield f"{level}: folders import each other: {'; '.join(way)}"
                break


def _way_back(arrows: Mapping[str, Mapping[str, str]], start: str) -> list[str]:
    """The imports of a shortest way from a node to itself; empty if there is none."""
    ways: dict[str, list[str]] = {start: []}
    todo = [start]
    for node in todo:
        for target, reason in arrows.get(node, {}).items():
            if target == start:
                return [*ways[node], reason]
            if target not in ways:
                ways[target] = [*ways[node], reason]
                todo.append(target)
    return []


def check_roots(graph: Graph) -> Iterator[str]:
    """Files at a folder's root import none of the folders below it: these stand on the root's files."""
    for level, arrows in graph.items():
        if level != ROOT and level not in COMPOSITION:
            yield from (
                f"{level}: its root imports a folder below: {reason}" for reason in arrows.get(ROOT, {}).values()
            )


def check_folder_sizes(paths: Iterable[str]) -> Iterator[str]:
    counts = Counter(path.rpartition("/")[0] for path in paths if path.endswith(".py") and path.split("/")[0] in ROOMS)
    for folder, count in sorted(counts.items()):
        if count > FOLDER_FILES_MAX:
            yield f"{folder}: {count} Python files, {FOLDER_FILES_MAX} at most; group them by meaning"


def check_alias(source: Source, sources: Iterable[Source]) -> Iterator[str]:
    """An alias re-exports from its one home, and nothing of ours imports it."""
    home = ALIASES[source.path]
    modules = {module for _, module, _ in imports(source)}
    if modules != {home}:
        yield f"{source.path}: an alias imports {home} and nothing else, not {sorted(modules)}"
    name = "standfast." + source.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for other in sources:
        if other.room is not None:
            used = [line for line, module, _ in imports(other) if module == name]
            yield from (f"{other.path}:{line}: imports the alias {name}; import {home}" for line in used)


def test_folders_form_no_cycle_at_any_level(sources: list[Source]) -> None:
    problems = list(check_cycles(folder_graph(sources)))
    assert not problems, "\n" + "\n".join(problems)


def test_root_of_a_folder_imports_no_folder_below_it(sources: list[Source]) -> None:
    problems = list(check_roots(folder_graph(sources)))
    assert not problems, "\n" + "\n".join(problems)


def test_no_folder_holds_too_many_files(repo_files: list[str]) -> None:
    assert list(check_folder_sizes(repo_files)) == []


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_alias_stands_for_one_module(alias: str, sources: list[Source]) -> None:
    (source,) = [source for source in sources if source.path == alias]
    assert list(check_alias(source, sources)) == []


def planted(**texts: str) -> list[Source]:
    """`a__b="x"`: a file a/b.py that imports standfast.x."""
    return [
        Source(name.replace("__", "/") + ".py", "".join(f"import standfast.{module}\n" for module in text.split()))
        for name, text in texts.items()
    ]


CYCLES = {
    "two folders": planted(store__a__x="store.b.x", store__b__x="store.a.x"),
    "three folders": planted(ops__a__x="ops.b.x", ops__b__x="ops.c.y", ops__c__y="ops.a.z", ops__a__z=""),
    "through files that are acyclic": planted(ops__a__x="ops.b.x", ops__b__x="", ops__b__y="ops.a.y", ops__a__y=""),
    "a root and a folder": planted(store__x="store.a.x", store__a__x="store.y", store__y=""),
    "two levels down": planted(ops__s__a__x="ops.s.b.x", ops__s__b__x="ops.s.a.x"),
    "two rooms": planted(store__x="ops.x", ops__x="store.x"),
    "a name in a string": [*planted(ops__a__x="ops.b.x"), Source("ops/b/x.py", "import_module('standfast.ops.a.x')")],
    "a program to start": [*planted(ops__a__x="ops.b.x"), Source("ops/b/x.py", "PROGRAM = 'standfast.ops.a.x'")],
}


@pytest.mark.parametrize("case", CYCLES)
def test_cycle_of_folders_is_found(case: str) -> None:
    assert list(check_cycles(folder_graph(CYCLES[case])))


def test_arrow_counts_at_the_level_where_the_paths_part() -> None:
    graph = folder_graph(planted(ops__s__a__x="ops.s.b.y", ops__s__b__y="ops.t.z store.x", ops__t__z="", store__x=""))
    assert {level: {node: set(arrows) for node, arrows in nodes.items()} for level, nodes in graph.items()} == {
        "ops/s": {"a": {"b"}},
        "ops": {"s": {"t"}},
        ".": {"ops": {"store"}},
    }
    assert list(check_cycles(graph)) == []


def test_root_that_imports_a_folder_below_is_found() -> None:
    assert list(check_roots(folder_graph(planted(store__x="store.a.y", store__a__y=""))))
    assert list(check_roots(folder_graph(planted(store__x="", store__a__y="store.x")))) == []
    assert list(check_roots(folder_graph(planted(ops__sidecar__x="ops.sidecar.a.y", ops__sidecar__a__y="")))) == []


def test_folder_with_too_many_files_is_found() -> None:
    assert list(check_folder_sizes(f"store/a{number}.py" for number in range(FOLDER_FILES_MAX + 1)))
    assert list(check_folder_sizes(f"tests/a{number}.py" for number in range(FOLDER_FILES_MAX + 1))) == []


def test_alias_that_does_more_or_is_used_is_found() -> None:
    alias = "restore/spark_data_source.py"
    good = Source(alias, "from standfast.restore.spark_table.source import StandfastSource\n")
    assert list(check_alias(good, [good])) == []
    assert list(check_alias(Source(alias, good.text + "import json\n"), []))
    assert list(check_alias(good, planted(ops__a__b="restore.spark_data_source")))
