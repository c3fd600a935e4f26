"""A process to be killed while it opens a task of which one store is damaged, and begins that store with a snapshot.

    stdout    ready    the task runs

Rules of this file: started by path with its settings as JSON; it remembers nothing between lives.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

from standfast.restore.snapshot.policy import SnapshotPolicy
from standfast.store import serde
from standfast.store.specs import KeyValueStore
from standfast.stream.session.session import Session

APP = "crash"
STORES = [
    KeyValueStore("kv", serde.string, serde.string),
    KeyValueStore("other", serde.string, serde.string),
    KeyValueStore("plain", serde.string, serde.string, logging=False),
]


def session_of(root: Path, directory: str) -> Session:
    """A session that runs task 0."""
    session = Session(
        APP,
        log=f"sqlite:///{root}/log",
        state_dir=root / directory,
        stores=STORES,
        partitions=1,
        background=False,
        take_over=False,
        snapshots=SnapshotPolicy(to=str(root / "snaps")),
    )
    session.assign(active=[0])
    session.wait_ready(60)
    return session


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    session = session_of(Path(settings["root"]), settings["directory"])
    print("ready", flush=True)
    session.close()


if __name__ == "__main__":
    main()
