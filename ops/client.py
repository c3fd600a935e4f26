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
        self, host: str, port: int, *, info: RunInfo | None = None, timeout_s: float = TIMEOUT_DEFAULT_S
    ) -> None:
        self._host = host
        self._port = port
        self._info = info
        self._timeout_s = timeout_s

    @classmethod
    def of_state_path(cls, state_path: Path, *, timeout_s: float = TIMEOUT_DEFAULT_S) -> Client:
        """The instance that runs on `<state_dir>/<app>`. Raises Unavailable if none does."""
        info = read_run_file(state_path)
        return cls(info.host, info.port, info=info, timeout_s=timeout_s)

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

    def ask(self, path: str, parameters: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and document of a path, whatever the status."""
        query = {name: value for name, value in (parameters or {}).items() if value is not None}
        target = f"{path}?{urlencode(query)}" if query else path
        where = f"{self._host}:{self._port}"
        connection = HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request("GET", target)
            response = connection.getresponse()
            body = response.read(REPLY_BYTES_MAX)
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
            document = json.loads(body)
        except ValueError as error:
            raise Unavailable(f"{where} gave an answer that is not JSON ({error})") from error
        return response.status, document


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
