"""The product and proof/: nothing of proof is in the package, or can be imported by it.

Rules of this file: as in `test_tidy.py`: checks read sources; one process looks for the modules as a user's would.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from repo.test_tidy import Source, imports

from support.prose import code_lines

pytestmark = pytest.mark.xdist_group("sources")  # one process parses the sources once

SHOWN = ("ops/demo/", "ops/bench/")  # proof that a user runs
SHOWN_LINES_MAX = 1_400
# Files that may start or fetch programs of others, besides proof and tests: parts of `standfast broker`, those that run
# Spark, and those that only ask whether a broker listens.
PROGRAMS = {
    "ops/cli/arguments.py": {"kafka_probe"},
    "ops/cli/log/broker.py": {"broker", "broker_state", "kafka_probe"},
    "ops/cli/spark_arguments.py": {"jars", "spark_java"},
    "ops/demo/place.py": {"broker", "kafka_probe"},
    "ops/demo/spark.py": {"java", "spark_java"},
    "ops/sidecar/serve.py": {"kafka_probe"},
}


@pytest.fixture(scope="module")
def sources(repo_root: Path, repo_files: list[str]) -> list[Source]:
    return [Source(name, (repo_root / name).read_text(encoding="utf-8")) for name in repo_files if name.endswith(".py")]


def modules_of(sources: Iterable[Source]) -> set[str]:
    """Names of proof's modules, where its folders are on the path."""
    paths = [source.path.removesuffix(".py").removesuffix("/__init__") for source in sources]
    found = [path.removeprefix("proof/").removeprefix("benchmarks/") for path in paths if path.startswith("proof/")]
    return {name.replace("/", ".") for name in found}


def tops(modules: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def check_no_proof(source: Source, proof: set[str]) -> Iterator[str]:
    """Product that imports a module of proof, or names it as a program to start."""
    for line, module, _ in imports(source):
        if module.partition(".")[0] in tops(proof) | {"proof"}:
            yield f"{source.path}:{line}: imports {module} of proof/"
    for node in source.nodes:
        if isinstance(node, ast.Constant) and node.value in proof and "." in str(node.value):
            yield f"{source.path}:{node.lineno}: names {node.value} of proof/"


def test_product_imports_nothing_of_proof(sources: list[Source]) -> None:
    proof = modules_of(sources)
    assert {"bench.child", "simulator.run", "worked_examples", "compare", "resp"} <= proof
    product = [source for source in sources if source.room is not None]
    assert [problem for source in product for problem in check_no_proof(source, proof)] == []


@pytest.mark.parametrize(
    "text", ["import bench.child", "from simulator import run", "def f():\n    import proof", "x = 'bench.child'"]
)
def test_import_of_proof_is_found(text: str) -> None:
    assert list(check_no_proof(Source("ops/a.py", text), {"bench.child", "simulator"}))


def test_modules_of_proof_are_found_only_where_its_folder_is_on_the_path(sources: list[Source], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom importlib.util import find_spec\nprint(*(name for name in sys.argv[1:] if find_spec(name)))"
    )
    command = [sys.executable, "-P", "-c", code, *sorted(tops(modules_of(sources)))]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split() == []


def test_demo_and_bench_of_the_product_are_small(sources: list[Source]) -> None:
    shown = sum(code_lines(source.text) for source in sources if source.path.startswith(SHOWN))
    assert shown <= SHOWN_LINES_MAX, (
        "only what a user of `standfast demo` or `standfast bench` sees; proof/ has the rest"
    )


def test_programs_of_others_serve_the_broker_spark_and_proof_only(sources: list[Source]) -> None:
    found: dict[str, set[str]] = {}
    for source in sources:
        if source.room is not None and not source.path.startswith("ops/tools/"):
            for _, module, _ in imports(source):
                if module.startswith("standfast.ops.tools."):
                    found.setdefault(source.path, set()).add(module.rpartition(".")[2])
    assert found == PROGRAMS
