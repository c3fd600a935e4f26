"""One timed run of a bench, in a process of its own: so its memory is its own and it leaves nothing warm.

    python -m bench.child '{"step": "write", "folder": ..., ...}'   ->   a JSON document as its answer

    reads.py    fill, log, bare: changelogs, and what a restore stands beside
    rows.py     write, produce, transact, read: one task, one process
    standby.py  standby, cold                       process.py  source, count, idle, calls
    scale.py    pace, scale, turns                  failover.py an application, until it is killed

Rules of this file: a table. `restore` is the product's.
"""

from __future__ import annotations

import json
import sys

from bench.failover import FAILOVER, live
from bench.process import PROCESS_STEPS
from bench.reads import READS_STEPS
from bench.rows import ROWS_STEPS
from bench.scale import SCALE_STEPS
from bench.standby import STANDBY_STEPS
from bench.step import Step
from standfast.ops.bench import step as restores
from standfast.store.process.child import json_line
from standfast.store.process.parent import Parent

STEPS = restores.STEPS | READS_STEPS | ROWS_STEPS | PROCESS_STEPS | SCALE_STEPS | STANDBY_STEPS


def main(arguments: list[str]) -> int:
    """Run one step; the answer is its measured figures."""
    parent, step = Parent(), Step(**json.loads(arguments[0]))
    if step.step == FAILOVER:
        live(step, lambda **answer: parent.tell(json_line(answer)))
    else:
        parent.tell(json_line(STEPS[step.step](step)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
