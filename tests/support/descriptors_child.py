"""Opens a session, writes and closes it, with ever fewer file descriptors; prints the outcome for each number.

    python support/descriptors_child.py FOLDER        a JSON list of [descriptors left, step reached, error type,
    message]

Rules of this file: a process of its own, because the limit holds for the process.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import sys
from pathlib import Path

import standfast as sf

LEFT = (*range(0, 12, 2), *range(13, 32), 200)
TEXT = sf.serde.string


def attempt(folder: Path) -> str:
    """The step reached, "done" at best. Raises the session's error."""
    reached = "opening"
    try:
        owner = sf.Session(
            "app",
            log=f"sqlite:///{folder}/log",
            state_dir=folder / "state",
            stores=[sf.KeyValueStore("kv", TEXT, TEXT)],
            partitions=1,
            background=False,
        )
        with owner:
            reached = "assigning"
            owner.assign(active=[0])
            owner.wait_ready(5)
            reached = "writing"
            owner.task(0).store("kv").put("a", "1", 1)
            owner.task(0).commit()
            reached = "closing"
        return "done"
    except Exception as error:
        error.add_note(reached)
        raise


def main() -> None:
    logging.disable(logging.CRITICAL)
    root = Path(sys.argv[1])
    os.closerange(3, 4096)  # an inherited descriptor may have a high number, below which there would be room
    attempt(root / "first")  # modules and libraries that load once are loaded now
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found = []
    for left in LEFT:
        gc.collect()  # a descriptor that an attempt left open until then has a number below which there would be room
        highest = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + left, hard))
        try:
            found.append([left, attempt(root / str(left)), "", ""])
        except BaseException as error:
            found.append([left, getattr(error, "__notes__", [""])[-1], type(error).__name__, str(error)])
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
