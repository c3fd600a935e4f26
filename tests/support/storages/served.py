"""What tests of snapshots use of each server of object storage: S3's, Azure's and Google's.

    with serving("azurite", tool, folder) as served:
        served.address("prefix")          the storage, as a policy of snapshots names it
        served.right, served.wrong        the environment with its credentials, and with others
        with served.outage(): ...         the server is stopped, and starts again with its objects

Rules of this file: a kind is named by the fixture of its program (support/clients.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import buckets
from support.fetched import Tool
from support.storages import azure, gcs

KINDS = ("s3_server", "azurite", "gcs_server")
WRONG = "wrong-and-secret"


@dataclass(frozen=True)
class Served:
    """A running server; `none` is the address of a bucket that is not there, `secrets` what no output may show."""

    kind: str
    port: int
    address: Callable[..., str]
    start: Callable[[], None]
    stop: Callable[[], None]
    right: Mapping[str, str]
    wrong: Mapping[str, str]
    none: str
    secrets: tuple[str, ...]

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Stop the server for a while."""
        self.stop()
        try:
            yield
        finally:
            self.start()


@contextmanager
def serving(kind: str, tool: Tool, folder: Path) -> Iterator[Served]:
    """Serve a bucket."""
    with {"s3_server": _s3, "azurite": _azure, "gcs_server": _gcs}[kind](tool, folder) as served:
        yield served


@contextmanager
def _s3(tool: Tool, folder: Path) -> Iterator[Served]:
    with buckets.buckets(tool, folder / "served") as server:
        right = buckets.CREDENTIALS
        yield Served(
            "s3_server",
            server.port,
            server.address,
            server.start,
            server.stop,
            right,
            {**right, "AWS_SECRET_ACCESS_KEY": WRONG},
            server.address("x").replace("s3://bucket", "s3://none"),
            (WRONG, right["AWS_SECRET_ACCESS_KEY"], "AWS4-HMAC"),
        )


@contextmanager
def _azure(tool: Tool, folder: Path) -> Iterator[Served]:
    with azure.blobs(tool, folder / "served") as server:
        right, wrong = azure.CREDENTIALS, azure.OTHER_CREDENTIALS
        keys = (right["AZURE_STORAGE_ACCOUNT_KEY"], wrong["AZURE_STORAGE_ACCOUNT_KEY"])
        none = server.address("x", bucket="none")
        yield Served(
            "azurite", server.port, server.address, server.start, server.stop, right, wrong, none, (*keys, "SharedKey")
        )


@contextmanager
def _gcs(tool: Tool, folder: Path) -> Iterator[Served]:
    with gcs.gcs_buckets(tool, folder / "served") as server:
        right, wrong = (
            {"GOOGLE_SERVICE_ACCOUNT": str(server.account(folder / f"known-{known}.json", known=known))}
            for known in (True, False)
        )
        none = server.address("x", bucket="none")
        yield Served(
            "gcs_server",
            server.port,
            server.address,
            server.start,
            server.stop,
            right,
            wrong,
            none,
            ("PRIVATE KEY", "Bearer"),
        )
