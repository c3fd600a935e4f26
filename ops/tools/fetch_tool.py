"""Runs a client that fetches packages or jars (pip, uv, Maven, Ivy), and reports its failures.

Rules of this file: one command, a time limit, its last lines in the error. It knows no address: every client goes where
the machine's own settings send it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from standfast.store.errors import Unavailable

FETCH_S_MAX = 900.0
TAIL_LINES = 12
# A user's settings for installing into an environment would refuse, or redirect, an installation into a folder.
PIP_ENVIRONMENT = {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}


@dataclass(frozen=True, slots=True)
class Package:
    """One Python package at one version; `sha256` has the digests of all accepted archives."""

    name: str
    version: str
    sha256: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """Its line in a requirements file."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{digest}" for digest in self.sha256)])


def run_tool(
    what: str, command: Sequence[str | Path], *, cwd: Path, environment: Mapping[str, str] | None = None
) -> None:
    """Run a client; `what` names the work in errors. Raises Unavailable with its last lines if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,  # a client that asks for a password must fail, not wait for an answer
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=FETCH_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what} failed: {error}") from error
    if done.returncode != 0:
        lines = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
        told = "\n".join(f"    {line}" for line in lines[-TAIL_LINES:]) or "    (it wrote nothing)"
        raise Unavailable(f"{what} failed: {command[0]} ended with exit code {done.returncode}:\n{told}")


def install_package(package: Package, folder: Path) -> Path:
    """Unpack a Python package, without its dependencies, to a new folder `site` in `folder`, and return that.

    The interpreter's own environment is not touched. Raises Unavailable.
    """
    target, requirements = folder / "site", folder / "requirements.txt"
    # By a file, because the command line takes no digests.
    requirements.write_text(package.requirement + "\n", encoding="utf-8")
    command = [*_pip_or_uv(), "--no-deps", "--require-hashes", "-r", str(requirements), "--target", str(target)]
    run_tool(f"installing {package.name} {package.version}", command, cwd=folder, environment=PIP_ENVIRONMENT)
    return target


def _pip_or_uv() -> list[str]:
    """The command that installs Python packages: this interpreter's pip, else uv. Raises Unavailable."""
    # Environments made by uv have no pip.
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode == 0:
        return [*pip, "--disable-pip-version-check", "--no-input", "--quiet", "install"]
    beside = Path(sys.executable).with_name("uv")
    uv = which("uv") or (str(beside) if beside.is_file() else None)
    if uv is None:
        raise Unavailable(f"{sys.executable} has no pip, and there is no uv: install one of them")
    return [uv, "pip", "install", "--quiet", "--python", sys.executable]
