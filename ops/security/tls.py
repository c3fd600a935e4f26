"""TLS of the HTTP server: 1.2 and later, mutual if asked for with an allow-list of names, new files without a restart.

    handshake ──> context of today's files (swapped whole at reload) ──> certificate of the client
                  ──> guarded(protocol): its SAN must be on the list, else the connection ends before a request is read

Rules of this file: sockets' contexts and names; knows no route. New files are tried in a context of their own first: if
they cannot be used, the old ones stay.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from standfast.store.errors import BadConfig
from standfast.store.log import as_event, logger
from standfast.store.names import few, printable

PASSWORD_BYTES_MAX = 4_096
# OpenSSL would ask on the terminal for the password of a key that has one.
_NO_PASSWORD = b""


class ServerTls:
    """The contexts of one server. Raises BadConfig if the files cannot be used."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        key_password: Path | None = None,
        client_ca: Path | None = None,
        client_names: Sequence[str] = (),
    ) -> None:
        self._files = (certificate, key, key_password, client_ca)
        self._names = frozenset(_plain(name) for name in client_names)
        self._mutual = client_ca is not None
        self._current = self._load()
        # The listening context is never replaced; its callback gives each handshake the current one.
        self.context = self._load()
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """Use the present files for connections to come. Raises BadConfig; then the old ones stay."""
        # Loaded before it is swapped: files that cannot be used leave the old context.
        self._current = self._load()

    def refusal(self, certificate: Mapping[str, Any] | None) -> str | None:
        """The reason to refuse the holder of this certificate (as `getpeercert` gives it), or None."""
        if not self._mutual:
            return None
        if not certificate:
            return "no certificate"
        names = {_plain(f"{kind}:{name}") for kind, name in certificate.get("subjectAltName", ())}
        if names & self._names:
            return None
        return f"none of the certificate's names is in http.client_names: {few(sorted(names)) or 'it has no SAN'}"

    def _choose(self, connection: Any, name: str | None, outer: ssl.SSLContext) -> None:
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        certificate, key, password_file, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        try:
            password = _NO_PASSWORD if password_file is None else _password(password_file)
            context.load_cert_chain(certificate, key, password)
            if client_ca is not None:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
            files = ", ".join(printable(path) for path in self._files if path is not None)
            raise BadConfig([f"TLS files cannot be used ({reason}): {files}"]) from error
        return context


def guarded(protocol: type[Any], tls: ServerTls) -> type[Any]:
    """An HTTP protocol class that drops clients whose certificate has no name on the list, before it reads."""

    class Guarded(protocol):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            refusal = tls.refusal(transport.get_extra_info("peercert"))
            if refusal is None:
                super().connection_made(transport)
                return
            # Names come from the client's certificate: cut, and without control characters for a terminal.
            logger.warning(
                "http: a client was refused: %s",
                refusal[:200].encode("ascii", "replace").decode(),
                extra=as_event("http_client_refused"),
            )
            self._let_in = False
            transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            # The base class saw no `connection_made` for this connection, so it must see nothing else of it.
            if getattr(self, "_let_in", True):
                super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if getattr(self, "_let_in", True):
                super().data_received(data)

        def eof_received(self) -> Any:
            return super().eof_received() if getattr(self, "_let_in", True) else None

    return Guarded


def _password(path: Path) -> bytes:
    raw = path.read_bytes()
    if len(raw) > PASSWORD_BYTES_MAX:
        raise ValueError("the password file is too large")
    return raw.rstrip(b"\r\n")


def _plain(name: str) -> str:
    """Normalise a name: `IP Address:10.0.0.1` of OpenSSL and `IP:10.0.0.1` are the same; host names have no case."""
    kind, _, rest = name.partition(":")
    kind = "IP" if kind == "IP Address" else kind
    return f"{kind}:{rest.lower() if kind == 'DNS' else rest}"
