"""The certificates that Python trusts, as a Java key store.

A fetched Java has its own list of authorities, without those that the machine's owner added (a company's proxy); Python
knows them. The format is JKS version 2, all numbers big-endian:

    FEEDFEED | 2 | count | per certificate: 2 | alias | created ms (8 bytes) | "X.509" | length | DER | SHA-1
    the SHA-1 is of: password in UTF-16BE | "Mighty Aphrodite" | all bytes before it

Rules of this file: it makes bytes; public certificates only, so the password protects nothing and is the customary one.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from collections.abc import Sequence

PASSWORD = "changeit"  # noqa: S105  of a store without secrets
TRUSTED_CERTIFICATE = 2
EXTRA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")


def trusted_certificates() -> list[bytes]:
    """DER of every authority that Python trusts here, including those named in the environment; may be []."""
    context = ssl.create_default_context()
    for name in EXTRA_VARIABLES:
        if path := os.environ.get(name):
            try:
                context.load_verify_locations(path)
            except (OSError, ssl.SSLError):
                continue  # Python's clients cannot use this path either, and report it better
    return context.get_ca_certs(binary_form=True)


def key_store(certificates: Sequence[bytes]) -> bytes:
    """The key store with these certificates."""
    parts = [struct.pack(">III", 0xFEEDFEED, 2, len(certificates))]
    for number, der in enumerate(certificates):
        parts += [struct.pack(">I", TRUSTED_CERTIFICATE), _text(f"authority-{number}"), struct.pack(">Q", 0)]
        parts += [_text("X.509"), struct.pack(">I", len(der)), der]
    content = b"".join(parts)
    # JKS's checksum against changes; Java refuses a store without it once a password is given.
    salted = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + content
    return content + hashlib.sha1(salted, usedforsecurity=False).digest()


def _text(text: str) -> bytes:
    raw = text.encode("ascii")
    return struct.pack(">H", len(raw)) + raw
