"""The info file of a running instance: the address of its HTTP server, for clients on the same machine.

    <state_dir>/<app>/RUN.json    {"schema": "standfast.run/1", "pid": ..., "host": ..., "port": ..., ...}
    <state_dir>/<app>/RUN.token   mode 0600: a token of this process, for tools of its user; a sidecar has its own place

Rules of this file: written atomically after the server listens, removed when it closes. A file whose process is gone is
stale (the process was killed) and is read as absent, with the reason. The owner of a state directory may be a process
without an HTTP server, such as an application that opened none: then the directory's lock names it.
"""

from __future__ import annotations

import json
from pathlib import Path

from standfast.replication.shapes import Shape, plain, read
from standfast.store.errors import InvalidRequest, Unavailable
from standfast.store.files import write_atomically
from standfast.store.task.state_dir import kept_instance, noted_pid, owner_pid, pid_alive

RUN_FILE = "RUN.json"
TOKEN_FILE = "RUN.token"  # noqa: S105  a file


class RunInfo(Shape, frozen=True, tag_field="schema", tag="standfast.run/1"):
    """A running instance; `started_ms` is wall time, `run_dir` a sidecar's run directory, "" for other instances."""

    app: str
    instance: str
    pid: int
    host: str
    port: int
    started_ms: int
    version: str
    scheme: str = "http"
    run_dir: str = ""

    @property
    def address(self) -> str:
        """`http://host:port`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def write_run_file(state_path: Path, info: RunInfo, token: str | None = None) -> None:
    """Publish this instance to clients; `state_path` is `<state_dir>/<app>`. `token`: for tools of this user."""
    if token is not None:
        write_atomically(state_path / TOKEN_FILE, f"{token}\n", mode=0o600)
    write_atomically(state_path / RUN_FILE, json.dumps(plain(info)) + "\n")


def remove_run_file(state_path: Path, info: RunInfo) -> None:
    """Remove the file if it still describes this instance."""
    try:
        if _parse(state_path / RUN_FILE) == info:
            (state_path / RUN_FILE).unlink()
            (state_path / TOKEN_FILE).unlink(missing_ok=True)
    except FileNotFoundError:
        return


def run_token(state_path: Path) -> str | None:
    """The token of the running instance; None if it left none, or this user may not read it."""
    try:
        return (state_path / TOKEN_FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def read_run_file(state_path: Path) -> RunInfo:
    """The instance on this state directory. Raises Unavailable if none runs there, or one without an HTTP server."""
    owner = owner_without_server(state_path)
    if owner is not None:
        raise Unavailable(
            f"process {owner} runs on {state_path} without an HTTP server: give its App or Session http_port=, or open "
            "standfast.ops.http.OpsServer(session) there; without it standfast status and tasks read its files, as "
            "other commands do with --offline"
        )
    try:
        info = _parse(state_path / RUN_FILE)
    except FileNotFoundError:
        raise Unavailable(f"no process runs on {state_path}: {_end(state_path)}") from None
    if not pid_alive(info.pid):
        raise Unavailable(f"no process runs on {state_path}: {_end(state_path, info.pid)}")
    return info


def _end(state_path: Path, pid: int | None = None) -> str:
    """How the last process ended, and the ways on; `pid`: of an info file, which a process removes as it closes."""
    pid = noted_pid(state_path) if pid is None else pid
    kept = kept_instance(state_path)
    ended = (
        f"process {pid} of instance {kept} ended without closing it, as if killed"
        if pid is not None
        else f"instance {kept} has closed it"
        if kept
        else "no instance was ever started there"
    )
    return f"{ended}; start one with its HTTP server open, or read the files with --offline {state_path}"


def owner_without_server(state_path: Path) -> int | None:
    """The live owner of the state directory that has no HTTP server; None if it has one, or no process runs."""
    try:
        if pid_alive(_parse(state_path / RUN_FILE).pid):
            return None
    except FileNotFoundError:
        pass
    return owner_pid(state_path)


def _parse(path: Path) -> RunInfo:
    raw = path.read_bytes()
    try:
        return read(raw, RunInfo)
    except ValueError as error:
        raise InvalidRequest(f"{path} is not readable ({error}): remove it, the instance writes it again") from error
