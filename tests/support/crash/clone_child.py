"""A process to be killed while it restores an application under another name.

    stdout    done ROWS      the restore is complete

Rules of this file: started by path with its settings as JSON; it remembers nothing between lives.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

from standfast.replication.tail.open_log import open_log
from standfast.restore.snapshot import clone
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.opening import open_storage
from standfast.store.clock import SystemClock
from support.crash.options import use
from support.crash.snapshot_child import APP


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    root = Path(settings["root"])
    clone.BATCH_RECORDS = settings["batch"]
    storage = open_storage(str(root / "snaps"), APP)
    newest = listed(storage).whole[0].snapshot
    with closing(open_log(settings["log"])) as log:
        done = clone.clone_app(
            storage,
            [newest],
            name=settings["name"],
            log=log,
            state_dir=root / settings["directory"],
            clock=SystemClock(),
        )
    print(f"done {sum(one.rows for one in done.tasks)}", flush=True)


if __name__ == "__main__":
    use()
    main()
