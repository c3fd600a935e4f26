"""A client of a running instance's HTTP API.

Rules of this file: it finds the server by an info file or an address, sends one request, returns the JSON. An error of
the instance is raised here as the same class, so that exit codes are the same on both sides. No proxy is ever used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from standfast.ops.client.endpoint import Endpoint, TlsFiles, endpoint_at
from standfast.ops.shared.error_codes import NotFound
from standfast.ops.shared.run_file import RunInfo, read_run_file, run_token
from standfast.ops.shared.serve_files import read_info
from standfast.store import errors
from standfast.store.errors import (
    BadConfig,
    CommitUnknown,
    DiskFull,
    Fenced,
    InternalError,
    InvalidRequest,
    NotReady,
    StandfastError,
    StateLost,
    Unavailable,
)

INSTANCE_HEADER = "Standfast-Instance"
TIMEOUT_DEFAULT_S = 10.0
REPLY_BYTES_MAX = 256 << 20


class Client:
    """One instance. `instance` is the id from its info file, None if an address was given."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        instance: str | None = None,
        timeout_s: float = TIMEOUT_DEFAULT_S,
        token: str | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._instance = instance
        self._timeout_s = timeout_s
        self._token = token

    @classmethod
    def of_state_path(
        cls,
        state_path: Path,
        *,
        timeout_s: float = TIMEOUT_DEFAULT_S,
        token: str | None = None,
        tls: TlsFiles | None = None,
    ) -> Client:
        """The instance that runs on `<state_dir>/<app>`. Raises Unavailable if none does."""
        info = read_run_file(state_path)
        found = token if token is not None else _own_token(info, state_path)
        return cls(endpoint_at(info.address, tls), instance=info.instance, timeout_s=timeout_s, token=found)

    @classmethod
    def of_run_dir(
        cls,
        run_dir: Path,
        *,
        timeout_s: float = TIMEOUT_DEFAULT_S,
        token: str | None = None,
        tls: TlsFiles | None = None,
    ) -> Client:
        """The sidecar of a run directory, whose info file has the token of its owner's tools. Raises Unavailable."""
        info = read_info(run_dir)
        found = token if token is not None else info.get("token")
        return cls(endpoint_at(info["http"], tls), instance=info["instance"], timeout_s=timeout_s, token=found)

    @classmethod
    def of_address(
        cls,
        address: str,
        *,
        timeout_s: float = TIMEOUT_DEFAULT_S,
        token: str | None = None,
        tls: TlsFiles | None = None,
    ) -> Client:
        """The instance at `http://host:port` or `https://host:port`."""
        return cls(endpoint_at(address, tls), timeout_s=timeout_s, token=token)

    def get(self, path: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The document of a path. Raises the error of the answer, or Unavailable."""
        status, document = self.ask(path, parameters)
        if status == 200:
            return document
        raise error_in(status, document)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change something at a sidecar; the document of its answer. Raises as `get`."""
        status, document = self._exchange("POST", path, json.dumps(body))
        if status == 200:
            return document
        raise error_in(status, document)

    def ask(self, path: str, parameters: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and document of a path, whatever the status."""
        query = {name: value for name, value in (parameters or {}).items() if value is not None}
        return self._exchange("GET", f"{path}?{urlencode(query)}" if query else path)

    def _exchange(self, method: str, target: str, body: str | None = None) -> tuple[int, dict[str, Any]]:
        where = self._endpoint.where
        headers = {"Accept": "application/json"}  # health is text unless JSON is named
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._endpoint.connection(self._timeout_s)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            answer = response.read(REPLY_BYTES_MAX)  # another program on this port may send without end
        except TimeoutError as error:  # before OSError, whose subclass it is: the instance is there and slow
            raise Unavailable(
                f"{where} did not answer within {self._timeout_s} s: try again, or raise --timeout"
            ) from error
        except (OSError, HTTPException) as error:
            raise Unavailable(f"{where} cannot be reached: {self._endpoint.failed(error)}") from error
        finally:
            connection.close()
        # After a kill, another program or instance may have taken the port that an old info file names.
        answered = response.getheader(INSTANCE_HEADER)
        if answered is None or (self._instance is not None and answered != self._instance):
            raise Unavailable(f"{where} answers, but not as the expected instance: its info file is out of date")
        try:
            document = json.loads(answer)
        except ValueError as error:
            raise Unavailable(f"{where} gave an answer that is not JSON ({error})") from error
        return response.status, document


def _own_token(info: RunInfo, state_path: Path) -> str | None:
    """The token that an instance leaves for users that may read it: a sidecar with tokens in its run directory."""
    if not info.run_dir:
        return run_token(state_path)
    try:
        shape = read_info(Path(info.run_dir))
    except (OSError, Unavailable):
        return None
    # Only from the same process: the run directory may hold the file of another sidecar by now.
    return shape.get("token") if shape.get("pid") == info.pid else None


def store_path(store: str, verb: str) -> str:
    """The path that reads a store."""
    return f"/v1/stores/{quote(store, safe='')}/{verb}"


def error_in(status: int, document: Mapping[str, Any]) -> StandfastError:
    """The library's error for an error document of the HTTP API."""
    name, message = str(document.get("error", "")), str(document.get("message", document))
    # A path that the server does not know is a wrong request (another version), not an absent row.
    if name == "NotFound" and "no such path" not in message:
        return NotFound(message)
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, StandfastError):
        if issubclass(kind, BadConfig):
            return BadConfig([message])
        return StateLost(message) if issubclass(kind, StateLost) else kind(message)
    by_reason = {"DISK_FULL": DiskFull, "COMMIT_UNKNOWN": CommitUnknown}.get(str(document.get("reason")))
    if by_reason is not None:
        return by_reason(message)
    if document.get("reason") in ("FENCED", "STALE_EPOCH"):
        return Fenced(message)
    if name in ("NotAssigned", "NotActive") or document.get("reason") in ("RESTORING", "NOT_ACTIVE", "DRAINING"):
        return NotReady(message)
    return InvalidRequest(message) if 400 <= status < 500 else InternalError(message)
