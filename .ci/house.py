"""Counts of the code's structure, from the code itself: `make house`.

    git ls-files ──> lines, folders, functions, imports, comments ──> one line a figure

Rules of this file: standard library only; it reads the checkout and judges nothing: `tests/repo` does that.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import quantiles

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from repo.test_names import METHODS_MAX, large  # noqa: E402
from repo.test_tidy import ROOMS, Source  # noqa: E402
from repo.test_tidy_folders import check_cycles, folder_graph  # noqa: E402

from support.prose import code_lines, comments_of  # noqa: E402

KEYED = re.compile(r"(?:dict|set|list|deque|frozenset|Mapping|Collection|Sequence)\[TaskId\b")


def sources() -> list[Source]:
    """Every Python file of the checkout that git knows."""
    listing = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listing.splitlines() if not name.startswith(".typing/")]
    return [Source(name, (ROOT / name).read_text(encoding="utf-8")) for name in names if (ROOT / name).is_file()]


def lines_of(text: str) -> int:
    return text.count("\n")


def docstring_lines(source: Source) -> int:
    owners = [
        node
        for node in source.nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    strings = [node.body[0] for node in owners if ast.get_docstring(node, clean=False) is not None]
    return sum((string.end_lineno or string.lineno) - string.lineno + 1 for string in strings)


def function_sizes(source: Source) -> list[int]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in source.nodes if isinstance(node, kinds)]


def keyed_by_task(source: Source) -> int:
    """Attributes that hold something for several tasks: each is a place where a part of a task's life stands."""
    fields = [one for one in source.nodes if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Attribute)]
    return sum(KEYED.search(ast.unparse(one.annotation)) is not None for one in fields)


def figures() -> dict[str, object]:
    """Each figure by what it is of."""
    every = sources()
    product = [source for source in every if source.room is not None]
    tests = [source for source in every if source.path.startswith("tests/")]
    folders = Counter(source.path.rpartition("/")[0] for source in product)
    longest = max(product, key=lambda source: lines_of(source.text))
    functions = [size for source in product for size in function_sizes(source)]
    fullest, files = folders.most_common(1)[0]
    whole = sum(lines_of(source.text) for source in product)
    comments = sum(1 for source in product for _ in comments_of(source.text))
    code = sum(code_lines(source.text) for source in product)
    headers = sum("Rules of this file" in (ast.get_docstring(source.tree) or "") for source in product)
    modules = sum(not source.path.endswith("__init__.py") for source in product)
    cycles = list(check_cycles(folder_graph(every)))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    named = [node.name for source in tests for node in source.nodes if isinstance(node, kinds)]
    return {
        "lines of product": whole,
        **{f"  {room}/": sum(lines_of(source.text) for source in product if source.room == room) for room in ROOMS},
        "lines of tests": sum(lines_of(source.text) for source in tests),
        "test functions": sum(name.startswith("test_") for name in named),
        "files of product": f"{len(product)} in {len(folders)} folders",
        "fullest folder": f"{fullest}, {files} files",
        "longest file": f"{longest.path}, {lines_of(longest.text)} lines",
        "classes": f"{len(large(product))} with more than {METHODS_MAX} methods",
        "keyed by task": f"{sum(map(keyed_by_task, product))} attributes",
        "functions": f"{len(functions)}, p50 {int(quantiles(functions, n=100)[49])} lines, "
        f"p95 {int(quantiles(functions, n=100)[94])}, longest {max(functions)}",
        "modules with a header": f"{headers} of {modules}",
        "lines of code": code,
        "lines of comments": f"{comments}, {comments * 100 / code:.1f} % of the code",
        "lines of docstrings": f"{(docs := sum(map(docstring_lines, product)))}, {docs * 100 / whole:.1f} %",
        "cycles between folders": len(cycles),
        "lines of README": lines_of((ROOT / "README.md").read_text(encoding="utf-8")),
    }


def main() -> None:
    found = figures()
    width = max(map(len, found))
    for name, figure in found.items():
        print(f"{name:<{width}}  {figure:,}" if isinstance(figure, int) else f"{name:<{width}}  {figure}")


if __name__ == "__main__":
    main()
