"""Client connection settings of an HTTP server: address, TLS, credentials.

    endpoint_at("https://127.0.0.1:8443", TlsFiles(ca=Path("ca.pem"), server_name="sidecar.example")) -> Endpoint

Rules of this file: the standard library only; it makes connections and sends nothing. The certificate is always
checked: against the authorities given, else against the machine's own.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from standfast.ops.shared.secret_file import secret_bytes
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import printable

TOKEN_BYTES_MAX = 16_384
_NO_PASSWORD = b""  # without a password OpenSSL would ask for one on the terminal
_UNSPECIFIED = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  a server on all addresses is on loopback too


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """`ca`: authorities that may have signed the server's certificate, PEM. `certificate`, `key`: the client's, for a
    server that asks for one. `server_name`: the name that the server's certificate must have; default: the host of the
    address.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    @property
    def given(self) -> bool:
        """Whether anything is set."""
        return self != TlsFiles()

    def context(self) -> ssl.SSLContext:
        """The TLS context of connections. Raises BadConfig if the files cannot be used."""
        if self.key is not None and self.certificate is None:
            raise BadConfig([f"{self.key}: a key without its certificate: give both"])
        try:
            made = ssl.create_default_context(cafile=self.ca)
            made.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate is not None:
                made.load_cert_chain(self.certificate, self.key, _NO_PASSWORD)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
            files = ", ".join(printable(path) for path in (self.ca, self.certificate, self.key) if path is not None)
            raise BadConfig([f"TLS files cannot be used ({reason}): {files}"]) from error
        return made


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address and its TLS context (None: plain HTTP)."""

    host: str
    port: int
    context: ssl.SSLContext | None = None
    server_name: str | None = None

    @property
    def where(self) -> str:
        """`host:port`, for messages."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connection(self, timeout_s: float) -> HTTPConnection:
        """A connection, opened by its first request."""
        # http.client takes no proxy from the environment, which would see tokens and keys.
        if self.context is None:
            return HTTPConnection(self.host, self.port, timeout=timeout_s)
        return _Named(self.host, self.port, timeout_s, self.context, self.server_name or self.host)

    def failed(self, error: Exception) -> str:
        """A connection error with the likely causes, for people."""
        if isinstance(error, ssl.SSLError):
            return f"{error}: does the certificate have this name, do we trust its authority, and is ours accepted?"
        if self.context is None:
            return f"{error}: is the instance running, and does it speak http, not https?"
        return f"{error}: is the instance running, does it speak https, and does it accept our certificate?"


class _Named(HTTPSConnection):
    """A connection whose certificate must have the given name, whatever the host of the address."""

    def __init__(self, host: str, port: int, timeout_s: float, context: ssl.SSLContext, name: str) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._chosen = (context, name)

    def connect(self) -> None:
        context, name = self._chosen
        # http.client expects the certificate to name the host it connects to, which on loopback is an address.
        raw = socket.create_connection((self.host, self.port), self.timeout)
        try:
            self.sock = context.wrap_socket(raw, server_hostname=name)
        except BaseException:
            raw.close()
            raise


def endpoint_at(address: str, tls: TlsFiles | None = None) -> Endpoint:
    """The server at `http://host:port` or `https://host:port`. Raises InvalidRequest, BadConfig."""
    tls = tls or TlsFiles()
    split = urlsplit(address)
    try:
        port = split.port
    except ValueError:
        port = None
    if split.scheme not in ("http", "https") or split.hostname is None or port is None:
        raise InvalidRequest(f"address {address!r} is not usable: write http://host:port or https://host:port")
    host = _UNSPECIFIED.get(split.hostname, split.hostname)
    if split.scheme == "https":
        return Endpoint(host, port, tls.context(), tls.server_name)
    # Files for TLS on a plain address: the caller believes in an encryption that is not there.
    if tls.given:
        raise InvalidRequest(f"{address} is plain http, which has no certificates: write https, or leave them out")
    return Endpoint(host, port)


def token_of(path: Path) -> str:
    """The token in a file that other users cannot read. Raises BadConfig, which does not repeat the token."""
    raw = secret_bytes(path, TOKEN_BYTES_MAX)
    text = raw.strip()  # editors end a file with a line break
    # The token goes into a header, which a control character could end.
    if not text or len(text) > TOKEN_BYTES_MAX or not text.isascii() or not text.decode().isprintable():
        raise BadConfig([f"{printable(path)}: holds no token: the file must hold one line of text"])
    return text.decode()
