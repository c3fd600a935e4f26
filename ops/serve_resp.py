"""The RESP door of the sidecar's process.

Rules of this file: a seam: joins the engine, limits and tokens to the door.
"""

from __future__ import annotations

import socket

from standfast.ops.audit import Audit
from standfast.ops.config_types import Config
from standfast.ops.engine import Engine
from standfast.ops.tokens import Tokens


class RespDoor:
    connections = 0

    async def close(self) -> None: ...


async def open_resp_door(
    engine: Engine, config: Config, tokens: Tokens, audit: Audit, listening: socket.socket
) -> RespDoor:
    return RespDoor()
