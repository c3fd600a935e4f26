"""Where things are: the checkout, its tests, and programs that tests start as processes of their own.

Rules of this file: paths only.
"""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
EXAMPLES = ROOT / "examples"
BENCHMARKS = ROOT / "proof/benchmarks"
