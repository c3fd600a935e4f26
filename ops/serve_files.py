"""The run directory of a sidecar: its lock, its sockets, its info file.

    <run_dir>/LOCK        flock of the process, with its pid inside
              resp.sock   the RESP door, mode 0600 (0660 for a group)
              INFO.json   {"schema": "standfast.serve/1", "protocol", "pid", "instance", "resp_socket", "http", ...}
                          mode 0600, with the token of the owner's tools; 0640 for a group, then the token is in TOKEN

The lock comes before the sockets: binding to a path that a running server listens at would take it over without a word.

Rules of this file: files and the TCP socket; the Unix socket is the RESP door's.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from standfast.store.errors import Held, Unavailable
from standfast.store.state_dir import write_atomically

SCHEMA = "standfast.serve/1"
INFO_NAME = "INFO.json"
TOKEN_NAME = "TOKEN"  # noqa: S105  a file
BACKLOG = 1_024


class RunDir:
    """Owned until closed. Raises Held, naming the owner."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 200, 0).decode(errors="replace").strip() or "an unknown process"
            os.close(self._lock)
            raise Held(
                f"run directory {self.path} is held by {holder}: stop it, or set another serve.run_dir"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"pid {os.getpid()}\n".encode(), 0)

    def write_info(self, info: dict[str, Any], token: str | None = None, group: str | None = None) -> None:
        """Tell clients where everything is, and the owner's own tools their token."""
        told = {"schema": SCHEMA, **info}
        before = os.umask(0o077)
        try:
            (self.path / TOKEN_NAME).unlink(missing_ok=True)  # of one that was killed
            if group is not None and token is not None:
                write_atomically(self.path / TOKEN_NAME, f"{token}\n")
            elif token is not None:
                told["token"] = token
            write_atomically(self.path / INFO_NAME, json.dumps(told) + "\n")
        finally:
            os.umask(before)
        if group is not None:
            shutil.chown(self.path / INFO_NAME, group=group)
            (self.path / INFO_NAME).chmod(0o640)

    def close(self, *sockets: str) -> None:
        """Remove info file and sockets, then let go of the lock. Twice is fine."""
        if self._lock < 0:
            return
        for name in (INFO_NAME, TOKEN_NAME, *sockets):
            (self.path / name).unlink(missing_ok=True)
        os.ftruncate(self._lock, 0)
        os.close(self._lock)
        self._lock = -1


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises Held if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise Held(f"{host}:{port} cannot be served ({error}): choose another port, 0 takes a free one") from error
    made.setblocking(False)
    return made


def read_info(run_dir: Path) -> dict[str, Any]:
    """The info file, with the token if it is for us. Raises Unavailable if no sidecar runs there."""
    path = run_dir / INFO_NAME
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unavailable(f"no sidecar runs in {run_dir} (it has no {INFO_NAME}): start one, standfast serve") from None
    except PermissionError as error:
        raise Unavailable(f"{path} is not for this user ({error.strerror}): see serve.group") from error
    except ValueError as error:
        raise Unavailable(f"{path} is not readable ({error})") from error
    if not isinstance(info, dict) or info.get("schema") != SCHEMA:
        raise Unavailable(f"{path} is not the info file of a sidecar of this version")
    with suppress(OSError):  # there is none, or it is not for us
        info.setdefault("token", (run_dir / TOKEN_NAME).read_text(encoding="ascii").strip())
    return info
