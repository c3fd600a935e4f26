"""The run directory of a sidecar: its lock, its sockets, its info file.

    <run_dir>/LOCK        flock of the process, with its pid inside
              resp.sock   the RESP server, mode 0600 (0660 for a group)
              INFO.json   {"schema": "standfast.serve/1", "protocol", "pid", "instance", "resp_socket", "http", ...}
                          mode 0600, with the token of the owner's tools; 0640 for a group, then the token is in TOKEN

The lock comes before the sockets: binding to the path of a running server's socket would silently take it over.

The directory belongs to its user alone. A file in it that neither this process nor a killed sidecar made is not
followed, changed or removed. The operator protects the folders above: a user with write access there can exchange it.

Rules of this file: files and the TCP socket; the RESP server makes the Unix socket.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from standfast.store.errors import BadConfig, Held, Unavailable
from standfast.store.files import write_atomically
from standfast.store.process import forks
from standfast.store.process.holders import held_by

SCHEMA = "standfast.serve/1"
INFO_NAME = "INFO.json"
TOKEN_NAME = "TOKEN"  # noqa: S105  a file
BACKLOG = 1_024
INFO_BYTES_MAX = 64 << 10
Identity: TypeAlias = tuple[int, int]
_HOLDER = re.compile(rb"pid [0-9]+\n")
_TOKEN = re.compile(rb"[A-Za-z0-9_-]{43}\n")  # the form of `Tokens.issue`


class RunDir:
    """A run directory, owned until closed. Raises Held, naming the owner; BadConfig if it, or a file under a name of
    ours, is foreign."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        _make_ours(self.path)
        self._lock = self._acquire()
        self._written: set[str] = set()
        self._socket: tuple[str, Identity] | None = None
        try:
            for name, is_ours in ((INFO_NAME, _is_info), (TOKEN_NAME, _is_token)):
                self._remove_left(name, is_ours)
        except BaseException:
            self.close()
            raise
        # Through the locked handle, not by a rename: a new file of this name would be another, unlocked one.
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"pid {os.getpid()}\n".encode(), 0)

    def _acquire(self) -> int:
        path = self.path / "LOCK"
        try:
            # O_NOFOLLOW: a planted link would have a file elsewhere emptied and written to.
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _not_ours(path, error.strerror or str(error)) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            text = os.pread(handle, 200, 0) if _is_plain(os.fstat(handle)) else b"no file of ours"
            if text and not _HOLDER.fullmatch(text):
                raise _not_ours(path, "it has other content")
        except BlockingIOError:
            holder, those = held_by(handle)
            os.close(handle)
            raise Held(
                f"run directory {self.path} is held by {holder}: stop {those}, or set another serve.run_dir"
            ) from None
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _remove_left(self, name: str, is_ours: Callable[[bytes], bool]) -> None:
        """Remove the file of a killed process: it would send clients to a dead address."""
        path = self.path / name
        try:
            # O_NONBLOCK: opening a FIFO of this name would wait for its other end.
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _not_ours(path, error.strerror or str(error)) from error
        try:  # by file descriptor: Python's file objects raise for a directory before it can be refused by name
            if not _is_plain(os.fstat(handle)) or not is_ours(os.read(handle, INFO_BYTES_MAX)):
                raise _not_ours(path, "it has other content")
        finally:
            os.close(handle)
        path.unlink()

    def write_info(self, info: dict[str, Any], token: str | None = None, group: str | None = None) -> None:
        """Publish the addresses to clients, and the token to the owner's own tools."""
        told = {"schema": SCHEMA, **info}
        # The group may read the info file, and the token has more rights than the group.
        if group is not None and token is not None:
            self._write(TOKEN_NAME, f"{token}\n", 0o600)
        elif token is not None:
            told["token"] = token
        self._write(INFO_NAME, json.dumps(told) + "\n", 0o600 if group is None else 0o640, group)

    def _write(self, name: str, text: str, mode: int, group: str | None = None) -> None:
        write_atomically(self.path / name, text, mode=mode, group=group)
        self._written.add(name)

    def made(self, name: str) -> None:
        """Note a socket that this process made under this name; `close` removes it."""
        self._socket = (name, identity(self.path / name))

    def close(self) -> None:
        """Remove info file and socket, then release the lock. Twice is fine."""
        if self._lock < 0:
            return
        # The lock goes last, so that no new sidecar's files are removed here.
        for name in self._written:
            (self.path / name).unlink(missing_ok=True)
        if self._socket is not None:
            name, made = self._socket
            remove_own(self.path / name, made)
        lock, self._lock = self._lock, -1
        os.ftruncate(lock, 0)
        fcntl.flock(lock, fcntl.LOCK_UN)  # a forked process may have the file open as well
        os.close(lock)


def identity(path: Path) -> Identity:
    """The file that a path names, by device and inode, so that a later file of the same name differs from it."""
    found = path.lstat()
    return found.st_dev, found.st_ino


def remove_own(path: Path, made: Identity) -> None:
    """Remove a file that this process made; another file that has its name by now stays."""
    try:
        if identity(path) == made:
            path.unlink()
    except FileNotFoundError:
        return


def _make_ours(path: Path) -> None:
    """Make the directory, or check that no other user can put files into it. Raises BadConfig."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        if not path.is_symlink() and path.exists():
            raise BadConfig([f"run directory {path} is not a directory: set another serve.run_dir"]) from error
        if not path.is_symlink():
            raise BadConfig([f"run directory {path} cannot be created: {error}: set another serve.run_dir"]) from error
        found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise BadConfig([f"run directory {path} is a symbolic link: set serve.run_dir to the directory itself"])
    if found.st_uid != os.geteuid():
        raise BadConfig(
            [
                f"run directory {path} belongs to user {found.st_uid}, not to this user ({os.geteuid()}): its owner "
                "can replace the sockets and the info file; set serve.run_dir to a directory below it, which standfast "
                "creates"
            ]
        )
    mode = stat.S_IMODE(found.st_mode)
    if not mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    # Kubernetes opens all folders of a volume to the volume's group each time it is mounted, so a folder that a sidecar
    # of this user made is closed again instead of refused.
    if _was_locked(path):
        path.chmod(0o700)
        return
    where = f"run directory {path}: other users can write to it (mode {mode:04o})"
    raise BadConfig([f"{where}: chmod 0700 {path}, or set another serve.run_dir"])


def _was_locked(path: Path) -> bool:
    """Whether a sidecar of this user has used the directory before."""
    try:
        return _is_plain((path / "LOCK").lstat())
    except FileNotFoundError:
        return False


def _is_plain(found: os.stat_result) -> bool:
    """Whether it is a regular file of this user with one name."""
    # A planted hard link could be another file of this user, which would be emptied or removed under this name.
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1


def _is_info(raw: bytes) -> bool:
    try:
        return str(json.loads(raw)["schema"]).startswith(SCHEMA.partition("/")[0] + "/")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _is_token(raw: bytes) -> bool:
    return _TOKEN.fullmatch(raw) is not None


def _not_ours(path: Path, why: str) -> BadConfig:
    return BadConfig(
        [f"{path} exists and is not a file of this sidecar ({why}): remove it, or set another serve.run_dir"]
    )


def listen_tcp(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises Held if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with forks.taking:
        made = socket.socket(family, socket.SOCK_STREAM)
        forks.close_in_child(made)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise Held(f"cannot listen on {host}:{port} ({error}): choose another port, 0 takes a free one") from error
    made.setblocking(False)
    return made


def read_info(run_dir: Path) -> dict[str, Any]:
    """The info file, with the token if this user may read it. Raises Unavailable if no sidecar runs there."""
    path = run_dir / INFO_NAME
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unavailable(
            f"no sidecar runs in {run_dir} (it has no {INFO_NAME}): start one with standfast serve"
        ) from None
    except PermissionError as error:
        raise Unavailable(f"this user may not read {path} ({error.strerror}): see serve.group") from error
    except ValueError as error:
        raise Unavailable(f"{path} is not readable ({error})") from error
    if not isinstance(info, dict) or info.get("schema") != SCHEMA:
        raise Unavailable(f"{path} is not the info file of a sidecar of this version")
    with suppress(OSError):  # there is no TOKEN file, or it is not for this user
        info.setdefault("token", (run_dir / TOKEN_NAME).read_text(encoding="ascii").strip())
    return info
