"""The RESP server within the sidecar's process: place and mode of its socket, its limits, its tokens.

Rules of this file: joins settings and server, nothing more. Who may connect is decided here for both servers.
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import shutil
from pathlib import Path

from standfast.ops.config.types import Config
from standfast.ops.security.audit import Audit
from standfast.ops.security.tokens import Role, Tokens
from standfast.ops.sidecar.engine.engine import TaskEngine
from standfast.ops.sidecar.resp.connection import Authenticate, CallLimits
from standfast.ops.sidecar.resp.server import RespLimits, RespServer
from standfast.ops.sidecar.resp.stores import Grant
from standfast.store.errors import BadConfig


async def open_resp_server(
    engine: TaskEngine, config: Config, tokens: Tokens, audit: Audit, run_dir: Path
) -> RespServer:
    """Listen in the run directory. Raises BadConfig, InvalidRequest."""
    limits = config.limits
    server = RespServer(
        engine,
        asyncio.get_running_loop(),
        limits=RespLimits(
            connections=limits.connections,
            command_bytes=limits.command_max_bytes,
            output_bytes=limits.reply_max_bytes,
            outputs_bytes=limits.replies_max_bytes,
            # The sweep that enforces it runs once a second.
            unfinished_s=max(limits.command_timeout_ms // 1_000, 1),
            idle_s=limits.idle_timeout_ms // 1_000,
            calls=CallLimits(limits.batch_ops, limits.batch_max_bytes, limits.wait_max_ms),
        ),
        # Without tokens the socket's mode and the peer's uid are the whole authentication.
        authenticate=authenticator(tokens, audit) if tokens.from_file else None,
        # A removed token ends on open connections too.
        revision=lambda: tokens.revision,
        uids=uids_let_in(config),
    )
    group = config.serve.group
    path = run_dir / config.serve.socket
    # The mode is set at the bind: a socket that is closed later could be opened in between.
    await server.open(path, 0o600 if group is None else 0o660)
    if group is not None:
        try:
            shutil.chown(path, group=group)
            # A group member needs to pass through the directory, and not to list it.
            run_dir.chmod(0o710)
            shutil.chown(run_dir, group=group)
        except (LookupError, PermissionError) as error:
            await server.close()
            raise BadConfig([f"serve.group: {group!r}: {error}: name a group that this user is in"]) from error
    return server


def uids_let_in(config: Config) -> frozenset[int] | None:
    """Users who may connect to the socket; None: its mode alone decides, as it does for a group without a list."""
    if config.serve.group is not None and not config.serve.uids:
        return None
    return frozenset({os.getuid(), 0, *config.serve.uids})


def uids_of_group(group: str | None) -> frozenset[int]:
    """Uids of a group's members that this machine knows, for the loopback port, which has no mode."""
    try:
        found = grp.getgrnam(group) if group is not None else None
    except KeyError:
        found = None  # reported when the socket is given to the group
    if found is None:
        return frozenset()
    # Members by primary group are not in `gr_mem`.
    return frozenset(one.pw_uid for one in pwd.getpwall() if one.pw_gid == found.gr_gid or one.pw_name in found.gr_mem)


def authenticator(tokens: Tokens, audit: Audit) -> Authenticate:
    """The function that finds the grant of an AUTH password: the token's actor, as the RESP server knows it."""

    def find(password: bytes) -> Grant | None:
        actor = tokens.find(password)
        if actor is None:
            # The password itself is never logged, and an unknown one has no name.
            audit.refused("resp", "unknown", reason="NOAUTH")
            return None
        return Grant(actor.name, actor.role >= Role.WRITE, actor.stores)

    return find
