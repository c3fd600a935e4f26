"""Fixtures: certificates made by the program `openssl` (Debian: apt-get install openssl), for tests of TLS.

Rules of this file: keys live in a temporary folder for one run; nothing here is used beyond loopback.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from support.missing import missing


class Pair(NamedTuple):
    """A certificate and its key, PEM."""

    certificate: Path
    key: Path


Issue = Callable[..., Pair]


@pytest.fixture(scope="session")
def issue(tmp_path_factory: pytest.TempPathFactory) -> Issue:
    """`issue("a", "DNS:a,IP:127.0.0.1")`: a self-signed certificate; with `by` one signed by that pair."""
    program = shutil.which("openssl")
    if program is None:
        missing("these tests need the program openssl: apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")

    def run(*arguments: str | Path) -> None:
        subprocess.run([program, *arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL)

    def make(name: str, san: str = "", *, by: Pair | None = None, password: str = "") -> Pair:
        pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
        key: list[str | Path] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", pair.key]
        lock = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        more = ["-addext", f"subjectAltName={san}"] if san else []
        signed: list[str | Path] = ["-CA", by.certificate, "-CAkey", by.key] if by else []
        out: list[str | Path] = ["-days", "2", "-out", pair.certificate]
        run("req", "-x509", *key, *lock, "-subj", f"/CN={name}", *more, *signed, *out)
        return pair

    return make
