"""Mutation sampling: small random faults in the pure modules, and whether the tests of each find them. `make mutate`.

    PURE ──> a module ──> an operator, an occurrence ──> the fault, in a copy of the checkout ──> tests that import it
                                                                           └── found, or survived (printed as a diff)

Rules of this file: the checkout is never changed; the copy's packages win by PYTHONPATH, through `.typing`, whose links
lead to the copy's own rooms. The seed is printed. A person judges the faults that survive: one that changes nothing (an
equal bound, a message) cannot be found.
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from repo.test_tidy import PURE  # noqa: E402

WHERE = ("tests/unit", "tests/property", "tests/scenarios")
TIMEOUT_S = 120.0
TRIES_MAX = 200
OCCURRENCES_MAX = 40
# Annotations are never evaluated here, so that operators on their `|` change nothing.
LEFT_OUT = ("BitOr", "NumberReplacer_", "Decorator")


class Fault(NamedTuple):
    """One change of one module."""

    path: str
    operator: str
    before: str
    after: str

    @property
    def diff(self) -> str:
        before, after = self.before.splitlines(), self.after.splitlines()
        return "\n".join(difflib.unified_diff(before, after, self.path, self.path, n=1, lineterm=""))


def copy_of(checkout: Path, folder: Path) -> Path:
    """A copy of all that git knows of."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=checkout, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listing.split("\0")):
        source, target = checkout / name, folder / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return folder


def tests_of(module: str, root: Path) -> list[str]:
    """Files of tests that import a module by its name."""
    dotted = "standfast." + module.removesuffix(".py").replace("/", ".")
    package, _, name = dotted.rpartition(".")
    words = (f"from {dotted} import", f"import {dotted}", f"from {package} import {name}")
    files = sorted(file for where in WHERE for file in (root / where).rglob("test_*.py"))
    return [str(file.relative_to(root)) for file in files if any(word in file.read_text("utf-8") for word in words)]


def draw(chance: random.Random, modules: list[str], operators: list[str], root: Path) -> Fault:
    """A fault that changes a module. Raises RuntimeError if none is found."""
    for _ in range(TRIES_MAX):
        path, operator = chance.choice(modules), chance.choice(operators)
        before = (root / path).read_text(encoding="utf-8")
        try:
            after = mutate_code(before, get_operator(operator)(), chance.randrange(OCCURRENCES_MAX))
        except TypeError:  # an operator that wants arguments
            continue
        if after is not None and after != before:
            return Fault(path, operator, before, after)
    raise RuntimeError(f"no operator changed any of {len(modules)} modules in {TRIES_MAX} tries")


def is_found(fault: Fault, tests: list[str], root: Path) -> bool:
    """Whether a test fails, or does not end in time."""
    file = root / fault.path
    file.write_text(fault.after, encoding="utf-8")
    paths = os.pathsep.join((str(root / ".typing"), str(root / "tests")))
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    try:
        run = subprocess.run(
            command,
            cwd=root,
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(fault.before, encoding="utf-8")
    return run.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw faults in the pure modules and run their tests.")
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--least", type=float, default=0.0, help="exit 1 if a smaller share of them is found")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    operators = [name for name in operator_names() if not any(part in name for part in LEFT_OUT)]
    print(f"==> mutate: seed {args.seed}, {args.samples} faults")
    with tempfile.TemporaryDirectory() as folder:
        root = copy_of(ROOT, Path(folder))
        tests = {module: tests_of(module, root) for module in sorted(PURE)}
        modules = [module for module, files in tests.items() if files]
        print(f"{len(modules)} of {len(tests)} pure modules have tests that import them")
        for module in modules:
            whole = Fault(module, "", text := (root / module).read_text(encoding="utf-8"), text)
            if module == modules[0] and is_found(whole, tests[module], root):
                raise SystemExit(f"tests of {module} fail without any fault: {tests[module]}")
        survived = []
        for number in range(1, args.samples + 1):
            fault = draw(chance, modules, operators, root)
            found = is_found(fault, tests[fault.path], root)
            print(f"{number}: {'found' if found else 'SURVIVED'}  {fault.path}  {fault.operator}", flush=True)
            if not found:
                survived.append(fault)
                print(fault.diff, flush=True)
    share = (args.samples - len(survived)) / max(args.samples, 1)
    print(f"{share:.0%} of {args.samples} faults found; seed {args.seed}")
    return 1 if share < args.least else 0


if __name__ == "__main__":
    raise SystemExit(main())
