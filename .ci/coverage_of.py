"""Branch coverage by room, and of each pure module that has less than all of them need together: `make coverage`.

    .coverage ──> coverage's own JSON ──> rooms, pure modules ──> a table; exit code 1 below `--least` percent

Rules of this file: reads what a run under coverage left; which modules are pure is said in tests/repo/test_tidy.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from repo.test_tidy import PURE, ROOMS  # noqa: E402

PURE_LEAST = 95.0
SHOWN_MAX = 10


def measured() -> dict[str, Mapping[str, Any]]:
    """The summary of each file, by its path from the root."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", file.name], cwd=ROOT, check=True)
        files = json.loads(Path(file.name).read_text("utf-8"))["files"]
    return {str(Path(name)): found["summary"] for name, found in files.items()}


def percent(summaries: Iterable[Mapping[str, Any]]) -> float:
    """Lines and branches that ran, of all."""
    found = list(summaries)
    ran = sum(one["covered_lines"] + one["covered_branches"] for one in found)
    whole = sum(one["num_statements"] + one["num_branches"] for one in found)
    return 100.0 * ran / whole if whole else 100.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Say how much of the product the last run under coverage reached.")
    parser.add_argument("--least", type=float, default=PURE_LEAST, help="percent of the pure modules")
    least = parser.parse_args().least
    files = measured()
    lacking = sorted(PURE - files.keys())
    if lacking:
        raise SystemExit(f"no test of the run imported {', '.join(lacking)}")
    for room in ROOMS:
        print(f"{room + '/':<16}{percent(one for name, one in files.items() if name.startswith(f'{room}/')):6.1f} %")
    pure = percent(files[name] for name in PURE)
    print(f"{'pure modules':<16}{pure:6.1f} %  (at least {least:g})")
    worst = sorted((percent([files[name]]), name) for name in PURE)
    for share, name in worst[:SHOWN_MAX]:
        if share < least:
            print(f"  {name:<48}{share:6.1f} %")
    return 1 if pure < least else 0


if __name__ == "__main__":
    raise SystemExit(main())
