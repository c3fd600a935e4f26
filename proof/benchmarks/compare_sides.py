"""The systems of the comparison: their programs, and the commands that start their sides.

    standfast              this checkout
    kafka-streams          Kafka Streams 4.3 at its defaults
      -tuned-reads         threads = partitions; restore consumer: 20,000 records a poll, fetches of 16 MiB a partition
                           and 100 MiB in all, a receive buffer of 4 MiB
      -tuned-writes        threads = partitions; RocksDB: 4 write buffers of 64 MiB, two background threads
      -tuned               both
    kafka-streams-4.4      the same four for Kafka Streams 4.4
    quix                   Quix Streams at its defaults, in an environment of its own

The settings of one version share an application: its source, its changelog and its state directories, which each of
them reads and none changes but by probes.

Rules of this file: every download is pinned by its hash and goes to the cache folder, once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import which
from typing import Any

from standfast.ops.tools.cache import Say, cache_dir, fetching, put_in_place
from standfast.ops.tools.jars import JarSet, ensure_jars, parse_jar_set
from standfast.ops.tools.java import MAJOR_MIN, ensure_java

HERE = Path(__file__).resolve().parent
JAR_SETS = HERE.parents[1] / "tests/support/programs/java"  # the set that the tests beside Kafka Streams use, too
# The versions of Kafka Streams and their sets of jars.
STREAMS = {"kafka-streams": "streams", "kafka-streams-4.4": "streams-4.4"}
# Suffix of a system's name: what is tuned. No one setting is the best in every scenario, so there are three.
SETTINGS: dict[str, tuple[str, ...]] = {
    "": (),
    "-tuned-reads": ("reads",),
    "-tuned-writes": ("writes",),
    "-tuned": ("reads", "writes"),
}
SYSTEMS = ("standfast", *(streams + suffix for streams in STREAMS for suffix in SETTINGS), "quix")
JVM = ("-Xmx1g",)
# The same on every side, so that they decide nothing: the commit interval, and how soon a death is noticed.
SHARED = {"commit_ms": 1_000, "detect_ms": 6_000}


class Sides:
    """The programs and libraries of the chosen systems, fetched."""

    def __init__(self, systems: list[str], say: Say) -> None:
        self._java: dict[str, list[str]] = {}
        self._quix = ""
        self.versions: dict[str, str] = {}
        for system in sorted({family_of(system) for system in systems} & STREAMS.keys()):
            java, jars = ensure_java(say), jar_set(STREAMS[system])
            path = [str(compiled(say, STREAMS[system])), *map(str, sorted(ensure_jars(jars, java, say).iterdir()))]
            self._java[system] = [str(java.path), *JVM, "-cp", os.pathsep.join(path), "BenchApp"]
            self.versions |= {system: jars.version, "java": str(java.major)}
        if "quix" in systems:
            python = ensure_environment("quix", say)
            self._quix = str(python)
            self.versions["quixstreams"] = version_of(python, "quixstreams")

    def command(self, system: str, plan: dict[str, Any]) -> list[str]:
        """The command that starts a side."""
        family = family_of(system)
        tuned = SETTINGS[system.removeprefix(family)] if family in STREAMS else ()
        unset = {"window_ms": 0, "retention_ms": 0, "standbys": 0, "snapshots": ""}
        text = json.dumps(unset | SHARED | plan | {"tuned": tuned})
        if system == "standfast":
            return [sys.executable, "-P", str(HERE / "side_standfast.py"), text]
        if system == "quix":
            return [self._quix, "-P", str(HERE / "side_quix.py"), text]
        return [*self._java[family], text]


def family_of(system: str) -> str:
    """The system without its settings: "kafka-streams-4.4" of "kafka-streams-4.4-tuned-reads"."""
    return max((name for name in STREAMS if system.startswith(name)), key=len, default=system)


def jar_set(name: str) -> JarSet:
    """A pinned set of jars."""
    return parse_jar_set(name, json.loads((JAR_SETS / f"jars-{name}.json").read_text(encoding="utf-8")))


def compiled(say: Say, streams: str = "streams") -> Path:
    """Folder with the classes of the Java side: compiled once on each machine for each content and set of jars."""
    cache, source, java = cache_dir(), HERE / "java/BenchApp.java", ensure_java(say)
    jars = ensure_jars(jar_set(streams), java, say)
    content = hashlib.sha256(b"\0".join([jars.name.encode(), source.read_bytes()])).hexdigest()
    target = cache / "java-classes" / f"bench-{content[:16]}"
    if target.is_dir():
        return target
    with fetching(cache, say) as folder:
        if target.is_dir():  # another process was quicker
            return target
        if javac := find_javac():
            command = [javac, "-Xlint:all", "-Werror", "-proc:none", "--release", str(MAJOR_MIN)]
        else:
            (ecj,) = ensure_jars(jar_set("ecj"), java, say).iterdir()
            command = [str(java.path), "-jar", str(ecj), "-proc:none", "-source", str(MAJOR_MIN)]
            command += ["-target", str(MAJOR_MIN)]
        path = os.pathsep.join(map(str, sorted(jars.iterdir())))
        command += ["-encoding", "UTF-8", "-cp", path, "-d", str(folder / "classes"), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
        put_in_place(folder / "classes", target)
    return target


def find_javac() -> str | None:
    """The machine's own compiler, if it is of Java `MAJOR_MIN` or later."""
    found = which("javac")
    told = subprocess.run([found, "-version"], capture_output=True, text=True, check=False) if found else None
    version = re.search(r"javac (\d+)", told.stdout + told.stderr) if told else None
    return found if version is not None and int(version[1]) >= MAJOR_MIN else None


def ensure_environment(name: str, say: Say) -> Path:
    """The Python of an environment with exactly the pins of <name>.txt here; created once for each content."""
    pins, cache = HERE / f"{name}.txt", cache_dir()
    content = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()
    home = cache / "bench" / f"{name}-{content[:12]}"
    done = home / "complete"
    if done.exists():
        return home / "bin/python"
    say(f"setting up {home} from proof/benchmarks/{name}.txt, once")
    home.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    install = [str(home / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*install, "--require-hashes", "-r", str(pins)], check=True)
    done.touch()  # last: an interrupted set-up has no mark, and is set up again
    return home / "bin/python"


def version_of(python: Path, package: str) -> str:
    """Version of a package in an environment."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
