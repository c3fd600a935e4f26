"""One process of the demo: it runs the board until SIGTERM, and ends with the process that started it.

    python -m standfast.ops.demo.worker '{"process": "a", "log": ..., "state_dir": ..., "settings": {...}}'

Rules of this file: an ordinary application process. It does not know which process will be killed, or when.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from standfast.ops.demo.board import BoardSettings, build_app
from standfast.store.clock import Clock
from standfast.store.process.child import ChildProcess, json_object
from standfast.store.process.parent import Parent


def start(folder: Path, process: str, log: str, settings: BoardSettings, clock: Clock) -> ChildProcess[Any]:
    """Start a process with a state directory of its own; its output goes to a file of the folder."""
    state = str(state_dir(folder, process))
    given = {"process": process, "log": log, "state_dir": state, "settings": asdict(settings)}
    words = (folder / f"worker-{process}.log").open("w+b")
    program, arguments = "standfast.ops.demo.worker", [json.dumps(given)]
    return ChildProcess(program, arguments, parse=json_object, clock=clock, stderr=words)


def state_dir(folder: Path, process: str) -> Path:
    """State directory of one process of the demo."""
    return folder / f"state-{process}"


def main(arguments: list[str]) -> int:
    """Run until it is stopped; an error ends the process with its traceback on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    Parent()  # from here on this process ends with its parent
    given = json.loads(arguments[0])
    settings = BoardSettings(**given.pop("settings"))
    build_app(settings, **given).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
