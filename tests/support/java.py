"""The Kafka Streams application of tests/support/programs/java, compiled, started and driven.

    streams_classes     folder of its classes: compiled once a machine for each content of the sources
    JavaApp             one running process of it: feed its input topic, then ask for its stores' rows

Rules of this file: javac where the machine has one of the right age, else Eclipse's compiler, which is one jar. Both
and the application's jars are fetched like the broker's, before the first test of them; where they cannot be fetched,
the tests are skipped or fail as those of the broker (`support.kafka`). A process ends with pytest, however that ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from shutil import which
from typing import IO, Any

import pytest

from standfast.ops.tools.cache import Say, cache_dir, fetching, put_in_place
from standfast.ops.tools.jars import JarSet, ensure_jars, parse_jar_set
from standfast.ops.tools.java import MAJOR_MIN, Java, ensure_java
from standfast.store.errors import Corruption, Unavailable
from support.kafka import MISSING
from support.needs import needed_as
from support.places import SUPPORT

SOURCES = SUPPORT / "programs/java"
MAIN = "StoresApp"
WAIT_S = 60.0
JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")


def jar_set(name: str) -> JarSet:
    """A pinned set beside the sources."""
    return parse_jar_set(name, json.loads((SOURCES / f"jars-{name}.json").read_text(encoding="utf-8")))


# Registered after the broker's, by the import of MISSING: the broker's fetch decides first whether the tests can run.
@needed_as("streams_classes")
def fetch_streams(config: pytest.Config, say: Say) -> None:
    """Fetch and compile the application."""
    if config.stash.get(MISSING, ""):
        return
    try:
        java = ensure_java(say)
        for javac in (find_javac(), None):  # the second is for machines that have none
            compiled(java, say, javac=javac)
    except (Unavailable, Corruption) as error:
        config.stash[MISSING] = str(error)


def find_javac() -> Path | None:
    """The machine's own compiler, unless it is older than the sources need."""
    homes = [Path(home) / "bin/javac" for home in [os.environ.get("JAVA_HOME")] if home]
    for path in [*homes, *map(Path, filter(None, [which("javac")]))]:
        told = (
            subprocess.run([path, "-version"], capture_output=True, text=True, check=False) if path.exists() else None
        )
        version = re.search(r"javac (\d+)", told.stdout + told.stderr) if told else None
        if version is not None and int(version[1]) >= MAJOR_MIN:
            return path
    return None


def compiled(java: Java, say: Say, *, javac: Path | None) -> Path:
    """The folder of classes, compiled if need be; without `javac` by Eclipse's compiler."""
    cache = cache_dir()
    jars = ensure_jars(jar_set("streams"), java, say)
    sources = sorted(SOURCES.glob("*.java"))
    content = hashlib.sha256(b"\0".join([jars.name.encode(), *(path.read_bytes() for path in sources)]))
    target = cache / "java-classes" / f"{'javac' if javac else 'ecj'}-{content.hexdigest()[:16]}"
    if target.is_dir():
        return target
    if javac:
        command = [str(javac), "-Xlint:all", "-Werror", "-proc:none", "--release", str(MAJOR_MIN)]
    else:
        (ecj,) = ensure_jars(jar_set("ecj"), java, say).iterdir()
        command = [str(java.path), "-jar", str(ecj), "-proc:none", "-source", str(MAJOR_MIN), "-target", str(MAJOR_MIN)]
    with fetching(cache, say) as folder:
        if target.is_dir():  # another process was quicker
            return target
        command += ["-encoding", "UTF-8", "-cp", class_path(jars), "-d", str(folder / "classes")]
        done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout}{done.stderr}"
        put_in_place(folder / "classes", target)
    return target


def class_path(*folders: Path) -> str:
    """Every jar of these folders."""
    return os.pathsep.join(str(jar) for folder in folders for jar in sorted(folder.iterdir()))


@pytest.fixture(scope="session")
def streams_classes(kafka_files: None) -> Path:
    """Classes of the application."""
    return compiled(ensure_java(print), print, javac=find_javac())


class JavaApp:
    """One running process of the application; `rows` are dictionaries as it prints them."""

    def __init__(self, classes: Path, *arguments: object, errors: Path) -> None:
        java = ensure_java(print)
        path = os.pathsep.join([str(classes), class_path(ensure_jars(jar_set("streams"), java, print))])
        command = [sys.executable, "-P", "-m", "standfast.ops.tools.bound_exec", str(os.getpid()), str(java.path), *JVM]
        self.errors = errors
        with errors.open("ab") as file:
            self._process = subprocess.Popen(
                [*command, "-cp", path, MAIN, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                encoding="utf-8",
            )
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        self._deadline = time.monotonic() + WAIT_S
        while self._next().get("state") != "RUNNING":
            pass

    def dump(self, *versioned_keys: str) -> list[dict[str, Any]]:
        """Every row of every store, and the versions of these keys."""
        return self._ask("dump", *versioned_keys)

    def as_of(self, key: str, *times_ms: int) -> list[dict[str, Any]]:
        """The versions of a key that were valid at these times; none for a time without one."""
        return self._ask("asof", key, *times_ms)

    def wait_processed(self, count: int) -> None:
        """Wait until this process has processed so many records."""
        deadline = time.monotonic() + WAIT_S
        while (now := self.processed()) < count:
            assert time.monotonic() < deadline, f"processed {now} of {count} records in {WAIT_S} s; see {self.errors}"
            time.sleep(0.02)

    def processed(self) -> int:
        """The number of records this process has processed."""
        count: int = self._ask("processed")[0]["processed"]
        return count

    def stop(self) -> None:
        """End it cleanly; it leaves its group."""
        if self._process.poll() is None:
            self._send("stop")
        self._deadline = time.monotonic() + WAIT_S
        while "closed" not in (line := self._next()):
            pass
        assert line["closed"] is True
        assert self._process.wait(WAIT_S) == 0, self.errors.read_text(encoding="utf-8")
        self.end()

    def end(self) -> None:
        """End it, cleanly or not; no-op if it has ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _ask(self, command: str, *words: object) -> list[dict[str, Any]]:
        self._send(" ".join(map(str, [command, *words])))
        self._deadline = time.monotonic() + WAIT_S
        rows = []
        while (line := self._next()).get("end") != command:
            if "state" not in line:
                rows.append(line)
        return rows

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _next(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=max(self._deadline - time.monotonic(), 0.01))
        except queue.Empty:
            line = {"state": f"silent for {WAIT_S} s"}
        failed = "state" in line and line["state"] not in ("REBALANCING", "RUNNING", "PENDING_SHUTDOWN", "NOT_RUNNING")
        assert not failed, f"the application is {line['state']}:\n{self.errors.read_text(encoding='utf-8')[-4000:]}"
        return line

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._lines.put(json.loads(line))
        self._lines.put({"state": "gone"})
