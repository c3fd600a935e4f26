"""A server of the ops page in a process of its own, to be killed: `python support/page_child.py PORT EPOCH`.

Rules of this file: one task, whose epoch is the argument; it prints its line once it listens.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn
from starlette.applications import Starlette

from standfast.ops.page.feed import NOTHING
from standfast.ops.page.page import OpsPage


def main() -> None:
    """Run until killed."""
    port, epoch = int(sys.argv[1]), int(sys.argv[2])
    task: dict[str, Any] = {
        "task": "0_0",
        "partition": 0,
        "role": "active",
        "state": "running",
        "epoch": epoch,
        "error": "",
        "buffer_bytes": 0,
        "sources": {},
        "stream_times": {},
        "stores": (),
    }
    page = OpsPage(lambda: {**NOTHING, "ready": True, "tasks": [task]})
    listener = socket.create_server(("127.0.0.1", port))
    print(listener.getsockname()[1], flush=True)
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=list(page.routes)), log_level="critical"))
    server.run([listener])


if __name__ == "__main__":
    main()
