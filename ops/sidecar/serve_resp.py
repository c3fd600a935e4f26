"""The RESP door within the sidecar's process: its socket's place and mode, its limits, its tokens.

Rules of this file: joins settings to the door, nothing more. Who is let in is settled here for both doors.
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import shutil
from pathlib import Path

from standfast.ops.config.types import Config
from standfast.ops.sidecar.engine.engine import Engine
from standfast.ops.sidecar.resp.connection import Authenticate, CallLimits
from standfast.ops.sidecar.resp.door import RespDoor, RespLimits
from standfast.ops.sidecar.resp.stores import Grant
from standfast.ops.sidecar.security.audit import Audit
from standfast.ops.sidecar.security.tokens import Role, Tokens
from standfast.store.errors import BadConfig


async def open_resp_door(engine: Engine, config: Config, tokens: Tokens, audit: Audit, run_dir: Path) -> RespDoor:
    """Listen in the run directory. Raises BadConfig, InvalidRequest."""
    limits = config.limits
    door = RespDoor(
        engine,
        asyncio.get_running_loop(),
        limits=RespLimits(
            connections=limits.connections,
            command_bytes=limits.command_max_bytes,
            output_bytes=limits.reply_max_bytes,
            outputs_bytes=limits.replies_max_bytes,
            unfinished_s=max(limits.command_timeout_ms // 1_000, 1),
            idle_s=limits.idle_timeout_ms // 1_000,
            calls=CallLimits(limits.batch_ops, limits.batch_max_bytes, limits.wait_max_ms),
        ),
        authenticate=authenticator(tokens, audit) if tokens.from_file else None,
        revision=lambda: tokens.revision,
        uids=uids_let_in(config),
    )
    group = config.serve.group
    path = run_dir / config.serve.socket
    await door.open(path, 0o600 if group is None else 0o660)
    if group is not None:
        try:
            shutil.chown(path, group=group)
            run_dir.chmod(0o710)
            shutil.chown(run_dir, group=group)
        except (LookupError, PermissionError) as error:
            await door.close()
            raise BadConfig([f"serve.group: {group!r}: {error}: name a group that this user is in"]) from error
    return door


def uids_let_in(config: Config) -> frozenset[int] | None:
    """Users who may connect to the socket; None: its mode alone says who, as it does for a group without a list."""
    if config.serve.group is not None and not config.serve.uids:
        return None
    return frozenset({os.getuid(), 0, *config.serve.uids})


def uids_of_group(group: str | None) -> frozenset[int]:
    """Users in a group that this machine's lists of users and groups know; a port on loopback has no mode."""
    try:
        found = grp.getgrnam(group) if group is not None else None
    except KeyError:
        found = None  # told when the socket is given to it
    if found is None:
        return frozenset()
    return frozenset(one.pw_uid for one in pwd.getpwall() if one.pw_gid == found.gr_gid or one.pw_name in found.gr_mem)


def authenticator(tokens: Tokens, audit: Audit) -> Authenticate:
    """Who is behind a password of AUTH: the token's actor, as the door knows it."""

    def find(password: bytes) -> Grant | None:
        actor = tokens.find(password)
        if actor is None:
            audit.refused("resp", "unknown", reason="NOAUTH")
            return None
        return Grant(actor.name, actor.role >= Role.WRITE, actor.stores)

    return find
