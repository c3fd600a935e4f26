"""Talking to a running instance over its HTTP door.

Rules of this file: finds the door by the info file or an address, sends one GET, gives the JSON back. An error of the
instance is raised here as the same class, so that exit codes are the same on both sides. No proxy is ever used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from standfast.ops.run_file import RunInfo, read_run_file
from standfast.store import errors
from standfast.store.errors import (
    BadConfig,
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


class NotFound(StandfastError):
    """The instance has no such row: an answer, not a failure."""


class Client:
    """One instance. `info` is what its info file said, None if an address was given."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        info: RunInfo | None = None,
        timeout_s: float = TIMEOUT_DEFAULT_S,
        token: str | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._info = info
        self._timeout_s = timeout_s
        self._token = token

    @classmethod
    def of_state_path(cls, state_path: Path, *, timeout_s: float = TIMEOUT_DEFAULT_S) -> Client:
        """The instance that runs on `<state_dir>/<app>`. Raises Unavailable if none does."""
        info = read_run_file(state_path)
        return cls(info.host, info.port, info=info, timeout_s=timeout_s, token=_own_token(state_path, info))

    @classmethod
    def of_address(cls, address: str, *, timeout_s: float = TIMEOUT_DEFAULT_S) -> Client:
        """The instance at `http://host:port`."""
        split = urlsplit(address)
        try:
            port = split.port
        except ValueError:
            port = None
        if split.scheme != "http" or split.hostname is None or port is None:
            raise InvalidRequest(f"address {address!r} is not usable: write http://host:port")
        return cls(split.hostname, port, timeout_s=timeout_s)

    def get(self, path: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The document of a path. Raises the error that the instance answered with, or Unavailable."""
        status, document = self.ask(path, parameters)
        if status == 200:
            return document
        raise error_in(status, document)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The document that a sidecar answers a change with. Raises as `get`."""
        status, document = self._exchange("POST", path, json.dumps(body))
        if status == 200:
            return document
        raise error_in(status, document)

    def ask(self, path: str, parameters: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and document of a path, whatever the status."""
        query = {name: value for name, value in (parameters or {}).items() if value is not None}
        return self._exchange("GET", f"{path}?{urlencode(query)}" if query else path)

    def _exchange(self, method: str, target: str, body: str | None = None) -> tuple[int, dict[str, Any]]:
        where = f"{self._host}:{self._port}"
        headers = {"Accept": "application/json"}  # probes get text
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            answer = response.read(REPLY_BYTES_MAX)
        except TimeoutError as error:
            raise Unavailable(
                f"{where} did not answer within {self._timeout_s} s: try again, or raise --timeout"
            ) from error
        except (OSError, HTTPException) as error:
            raise Unavailable(f"{where} cannot be reached ({error}): is the instance running?") from error
        finally:
            connection.close()
        answered = response.getheader(INSTANCE_HEADER)
        if answered is None or (self._info is not None and answered != self._info.instance):
            raise Unavailable(f"{where} answers, but it is not the instance looked for: its info file is out of date")
        try:
            document = json.loads(answer)
        except ValueError as error:
            raise Unavailable(f"{where} gave an answer that is not JSON ({error})") from error
        return response.status, document


def _own_token(state_path: Path, info: RunInfo) -> str | None:
    """The token that a sidecar with tokens gives to whoever may read its run folder, where that is in its place."""
    try:
        shape = json.loads((state_path / "run" / "INFO.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    mine = isinstance(shape, dict) and shape.get("pid") == info.pid
    return shape.get("token") if mine else None


def store_path(store: str, verb: str) -> str:
    """Path of a read of a store."""
    return f"/v1/stores/{quote(store, safe='')}/{verb}"


def error_in(status: int, document: Mapping[str, Any]) -> StandfastError:
    """The error that a document of an HTTP door tells of."""
    name, message = str(document.get("error", "")), str(document.get("message", document))
    if name == "NotFound" and "no such path" not in message:
        return NotFound(message)
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, StandfastError):
        if issubclass(kind, BadConfig):
            return BadConfig([message])
        return StateLost(message) if issubclass(kind, StateLost) else kind(message)
    if document.get("reason") in ("FENCED", "STALE_EPOCH"):
        return Fenced(message)
    if name in ("NotAssigned", "NotActive") or document.get("reason") in ("RESTORING", "NOT_ACTIVE", "DRAINING"):
        return NotReady(message)
    return InvalidRequest(message) if 400 <= status < 500 else InternalError(message)
