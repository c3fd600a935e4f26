"""Runs the few failed tests of a lane once more, each by itself: `make test || .ci/again.py test [pytest option ...]`.

    MOST or fewer failed      they run again, one at a time; the lane passes if all of them pass now. Each is named as
                              unstable, at once and in the last lines of the whole run
    more, or none by name     the lane has failed: many failures are no accident, and a broken start names no test

A run of an hour starts hundreds of processes, brokers and browsers, several tests at a time on two cores, and a test
may miss its bound there. An unstable test is a defect all the same, of the test or of the code, which its name in the
last lines asks to look at. `make test` and `make test-slow` themselves repeat nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MOST = 2
ROOT = Path(__file__).resolve().parent.parent
LAST_FAILED = ".pytest_cache/v/cache/lastfailed"


def failed_tests(root: Path) -> list[str]:
    """Ids of the tests that failed in the last run there."""
    try:
        return sorted(json.loads((root / LAST_FAILED).read_text("utf-8")))
    except FileNotFoundError:
        return []


def again(lane: str, root: Path, report: Path | None = None, options: Sequence[str] = ()) -> int:
    """The exit code of the failed tests of a lane, run once more; `report` gets a line for each that passes now."""
    failed = failed_tests(root)
    if not 0 < len(failed) <= MOST:
        print(
            f"==> again: {len(failed)} failed tests of `make {lane}`, 1 to {MOST} run again: it has failed", flush=True
        )
        return 1
    print(f"==> again: {len(failed)} failed, each runs once more by itself: {', '.join(failed)}", flush=True)
    given = " ".join(("--last-failed", *options))
    code = subprocess.run(["make", lane, "JOBS=1", f"ARGS={given}"], cwd=root, check=False).returncode
    if not code and report is not None:
        with report.open("a", encoding="utf-8") as file:
            file.write("".join(f"unstable in {lane}: {name} failed once, passed by itself\n" for name in failed))
    return code


if __name__ == "__main__":
    named = os.environ.get("STANDFAST_CI_UNSTABLE")
    sys.exit(again(sys.argv[1], ROOT, Path(named) if named else None, sys.argv[2:]))
