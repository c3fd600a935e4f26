"""Fixtures: a running server of each kind of object storage, shared by the tests of a file.

Rules of this file: tests use prefixes of their own, and start a server that they stop.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _pytest.mark.structures import ParameterSet

from support.clients import given_tool
from support.groups import costly
from support.storages.served import KINDS, Served, serving


def _servers(*long: str) -> list[ParameterSet]:
    return [pytest.param(kind, marks=[pytest.mark.long] if kind in long else []) for kind in KINDS]


# fake-gcs-server takes Go two minutes to compile, so its tests are among the long ones.
SERVERS = _servers("gcs_server")


@pytest.fixture(scope="module", params=_servers("gcs_server", "azurite"))
@costly()
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server, as its tests before left it."""
    kind: str = request.param
    with serving(kind, given_tool(request, kind), tmp_path_factory.mktemp(kind)) as served:
        yield served


@pytest.fixture
def served(shared_server: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A server that runs, with its credentials in the environment."""
    for name, value in shared_server.right.items():
        monkeypatch.setenv(name, value)
    return shared_server
