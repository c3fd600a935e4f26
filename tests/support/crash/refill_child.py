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

from standfast.store import serde
from standfast.store.specs import KeyValueStore
from support.crash.options import use
from support.crash.snapshot_child import session_of

STORES = [
    KeyValueStore("kv", serde.string, serde.string),
    KeyValueStore("other", serde.string, serde.string),
    KeyValueStore("plain", serde.string, serde.string, logging=False),
]


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    session = session_of(Path(settings["root"]), settings["directory"], stores=STORES)
    print("ready", flush=True)
    session.close()


if __name__ == "__main__":
    use()
    main()
